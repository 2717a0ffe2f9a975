//! Writes tar files in the simplest form: owner root, time zero, entries in the given order.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder; its path ends with a slash.
    Directory,
    /// A symbolic link.
    Link,
}

/// Writes entries to `out`.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// A writer for an empty tar file.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes a folder.
    pub fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.header(&format!("{path}/"), Kind::Directory, mode, 0, "")
    }

    /// Writes a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.header(path, Kind::Link, 0o777, 0, target)
    }

    /// Writes a file with these bytes.
    pub fn bytes(&mut self, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.file(path, mode, contents.len() as u64, contents)
    }

    /// Writes a file with `size` bytes of a source; another number of bytes is an error.
    pub fn file(&mut self, path: &str, mode: u32, size: u64, source: impl Read) -> io::Result<()> {
        self.header(path, Kind::File, mode, size, "")?;
        let copied = io::copy(&mut source.take(size), &mut self.out)?;
        if copied != size {
            let message = format!("{path} became shorter while it was read: {copied} of {size} bytes");
            return Err(io::Error::other(message));
        }
        let rest = usize::try_from(size % BLOCK as u64).unwrap_or_default();
        if rest > 0 {
            self.out.write_all(&[0; BLOCK][rest..])?;
        }
        Ok(())
    }

    /// Ends the file and returns the target.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn header(&mut self, path: &str, kind: Kind, mode: u32, size: u64, target: &str) -> io::Result<()> {
        let mut block = [0_u8; BLOCK];
        let (prefix, name) = split(path)?;
        put(&mut block, 0, 100, name.as_bytes())?;
        put(&mut block, 100, 8, format!("{mode:07o}").as_bytes())?;
        put(&mut block, 108, 8, b"0000000")?;
        put(&mut block, 116, 8, b"0000000")?;
        put(&mut block, 124, 12, format!("{size:011o}").as_bytes())?;
        put(&mut block, 136, 12, b"00000000000")?;
        // The checksum counts its own field as spaces.
        put(&mut block, 148, 8, b"        ")?;
        block[156] = match kind {
            Kind::File => b'0',
            Kind::Link => b'2',
            Kind::Directory => b'5',
        };
        put(&mut block, 157, 100, target.as_bytes())?;
        put(&mut block, 257, 8, b"ustar\x0000")?;
        put(&mut block, 345, 155, prefix.as_bytes())?;
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut block, 148, 8, format!("{sum:06o}\0 ").as_bytes())?;
        self.out.write_all(&block)
    }
}

/// Splits a path that is too long for the name field at a slash.
fn split(path: &str) -> io::Result<(&str, &str)> {
    if path.len() <= 100 {
        return Ok(("", path));
    }
    path.match_indices('/')
        .map(|(index, _)| (&path[..index], &path[index + 1..]))
        .find(|(prefix, name)| prefix.len() <= 155 && !name.is_empty() && name.len() <= 100)
        .ok_or_else(|| io::Error::other(format!("the path {path:?} is too long for a tar file")))
}

fn put(block: &mut [u8; BLOCK], offset: usize, length: usize, value: &[u8]) -> io::Result<()> {
    if value.len() > length {
        let text = String::from_utf8_lossy(value);
        return Err(io::Error::other(format!(
            "{text:?} is longer than the {length} bytes of its tar field"
        )));
    }
    block[offset..offset + value.len()].copy_from_slice(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_tar_program_reads_the_written_file() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a.tar");
        let long = format!("{}/{}", "d".repeat(90), "f".repeat(60));
        let mut writer = Writer::new(std::fs::File::create(&archive).unwrap());
        writer.directory("etc", 0o755).unwrap();
        writer.bytes("etc/motd", 0o640, b"hello").unwrap();
        writer.bytes(&long, 0o755, &[7; 513]).unwrap();
        writer.link("lib", "usr/lib").unwrap();
        writer.finish().unwrap();
        let output = Command::new("tar")
            .arg("-tvf")
            .arg(&archive)
            .env("TZ", "UTC")
            .output()
            .unwrap();
        let listing = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let lines: Vec<Vec<&str>> = listing
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[0],
            ["drwxr-xr-x", "0/0", "0", "1970-01-01", "00:00", "etc/"]
        );
        assert_eq!(
            lines[1],
            ["-rw-r-----", "0/0", "5", "1970-01-01", "00:00", "etc/motd"]
        );
        assert_eq!(
            lines[2],
            ["-rwxr-xr-x", "0/0", "513", "1970-01-01", "00:00", long.as_str()]
        );
        assert_eq!(lines[3][5..], ["lib", "->", "usr/lib"]);
    }

    #[test]
    fn a_source_that_is_too_short_or_a_path_that_is_too_long_is_an_error() {
        let mut writer = Writer::new(Vec::new());
        assert!(
            writer
                .file("a", 0o644, 10, &b"short"[..])
                .unwrap_err()
                .to_string()
                .contains("5 of 10 bytes")
        );
        assert!(writer.directory(&"x".repeat(300), 0o755).is_err());
    }
}
