//! The kernel's values of a process: memory and processor time.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Clock ticks a second, as `/proc` counts them on every Linux platform.
const TICKS: u64 = 100;

/// The kernel's values of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most resident memory, in bytes.
    pub peak_resident: u64,
    /// The present anonymous memory.
    pub anonymous: u64,
    /// Time on a processor.
    pub processor: Duration,
}

/// Reads the values of a process.
pub fn usage(process: u32) -> Result<Usage> {
    let read = |name: &str| {
        let file = format!("/proc/{process}/{name}");
        fs::read_to_string(&file).with_context(|| format!("read {file}"))
    };
    parse(&read("status")?, &read("stat")?)
}

fn parse(status: &str, stat: &str) -> Result<Usage> {
    let kilobytes = |key: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .with_context(|| format!("{key} in status"))?;
        let number = line.split_whitespace().next().unwrap_or_default();
        let number: u64 = number.parse().with_context(|| format!("{key} {line}"))?;
        Ok::<_, anyhow::Error>(number * 1024)
    };
    // The name of the program is in parentheses and may contain any character.
    let Some((_, fields)) = stat.rsplit_once(") ") else {
        bail!("stat has no name: {stat}");
    };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| {
        let field = fields
            .get(index)
            .with_context(|| format!("field {index} of {stat}"))?;
        field
            .parse::<u64>()
            .with_context(|| format!("field {index} of {stat}"))
    };
    // utime and stime, counted from the state.
    let ticks = ticks(11)? + ticks(12)?;
    Ok(Usage {
        peak_resident: kilobytes("VmHWM:")?,
        anonymous: kilobytes("RssAnon:")?,
        processor: Duration::from_millis(ticks * 1_000 / TICKS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_of_a_process_are_parsed() {
        let status = "Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t   1500 kB\nRssAnon:\t    1000 kB\n";
        let stat = "77 (a (b) c) S 1 77 77 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 5 0 100 0 0";
        let usage = parse(status, stat).unwrap();
        assert_eq!(usage.peak_resident, 2 << 20);
        assert_eq!(usage.anonymous, 1000 << 10);
        assert_eq!(usage.processor, Duration::from_secs(3));
        assert!(parse("", stat).is_err() && parse(status, "").is_err());
    }

    #[test]
    fn this_process_has_memory() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.peak_resident > 0 && usage.anonymous > 0);
    }
}
