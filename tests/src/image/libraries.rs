//! Finds the shared libraries that programs of this machine need.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The loader and libraries of all these programs and modules, as the loader finds them. Empty for static programs.
pub fn libraries(programs: &[&Path]) -> Result<BTreeSet<PathBuf>> {
    let mut dynamic = Vec::new();
    for program in programs {
        if is_dynamic(program)? {
            dynamic.push(*program);
        }
    }
    if dynamic.is_empty() {
        return Ok(BTreeSet::new());
    }
    let output = Command::new("ldd")
        .args(&dynamic)
        .env("LC_ALL", "C")
        .output()
        .context("run ldd")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!(
            "ldd {} failed ({}): {}{}",
            list(&dynamic),
            output.status,
            said,
            error.trim()
        );
    }
    parse(&said).with_context(|| format!("libraries of {}", list(&dynamic)))
}

fn list(programs: &[&Path]) -> String {
    programs
        .iter()
        .map(|program| program.display().to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

fn parse(text: &str) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    // Lines that begin with a tab are libraries; the others are the headings of several programs.
    for line in text.lines().filter_map(|line| line.strip_prefix('\t')) {
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        if target.starts_with("not found") {
            bail!("{}: install the package that has it", line.trim());
        }
        let path = target.split(" (").next().unwrap_or_default().trim();
        // The kernel's own library is not a file.
        if path.starts_with('/') {
            found.insert(PathBuf::from(path));
        }
    }
    Ok(found)
}

/// Whether a file is an ELF program or module that has a dynamic section.
fn is_dynamic(path: &Path) -> Result<bool> {
    const DYNAMIC: u32 = 2;
    let mut start = Vec::new();
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    file.take(4096)
        .read_to_end(&mut start)
        .with_context(|| format!("read {}", path.display()))?;
    // 64 bits, little endian: the only machines with a lab.
    if start.get(..6) != Some(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        return Ok(false);
    }
    let number = |offset: usize, length: usize| -> Option<u64> {
        let bytes = start.get(offset..offset + length)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        )
    };
    let headers = || -> Option<bool> {
        let table = usize::try_from(number(32, 8)?).ok()?;
        let size = usize::try_from(number(54, 2)?).ok()?;
        let count = usize::try_from(number(56, 2)?).ok()?;
        for index in 0..count {
            if number(table + index * size, 4)? == u64::from(DYNAMIC) {
                return Some(true);
            }
        }
        Some(false)
    };
    headers().with_context(|| format!("{} is an ELF file with incomplete headers", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_needs_the_c_library_and_a_text_file_none() {
        let own = std::env::current_exe().unwrap();
        let found = libraries(&[&own]).unwrap();
        assert!(
            found
                .iter()
                .any(|path| path.to_string_lossy().contains("libc.so")),
            "{found:?}"
        );
        assert!(
            found
                .iter()
                .any(|path| path.to_string_lossy().contains("ld-linux")),
            "{found:?}"
        );
        assert!(libraries(&[Path::new("/etc/passwd")]).unwrap().is_empty());
    }

    #[test]
    fn a_library_that_is_not_found_is_an_error() {
        let text =
            "\tlinux-vdso.so.1 (0x1)\n\tlibodd.so.3 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n";
        assert!(parse(text).unwrap_err().to_string().contains("libodd.so.3"));
        let found = parse(
            "/usr/bin/a:\n\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n",
        );
        assert_eq!(
            found.unwrap(),
            BTreeSet::from(["/lib/libc.so.6".into(), "/lib64/ld.so".into()])
        );
    }
}
