//! Writes tar files in the simplest form: owner root, time zero, entries in the given order. The same entries give the same
//! bytes: names of images are hashes.

use std::io::{self, Read, Write};

use ::tar::{Builder, EntryType, Header};

/// Writes entries to a target.
pub struct Writer<W: Write> {
    builder: Builder<W>,
}

impl<W: Write> Writer<W> {
    /// A writer for an empty tar file.
    pub fn new(out: W) -> Self {
        Self {
            builder: Builder::new(out),
        }
    }

    /// Writes a folder.
    pub fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let header = header(&format!("{path}/"), EntryType::Directory, mode, 0)?;
        self.append(header, io::empty())
    }

    /// Writes a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let mut header = header(path, EntryType::Symlink, 0o777, 0)?;
        header.set_link_name(target)?;
        self.append(header, io::empty())
    }

    /// Writes a file with these bytes.
    pub fn bytes(&mut self, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.file(path, mode, contents.len() as u64, contents)
    }

    /// Writes a file with `size` bytes of a source; another number of bytes is an error.
    pub fn file(&mut self, path: &str, mode: u32, size: u64, source: impl Read) -> io::Result<()> {
        let header = header(path, EntryType::Regular, mode, size)?;
        let mut source = source.take(size);
        self.append(header, &mut source)?;
        // The library does not compare the number of bytes with the header.
        let copied = size - source.limit();
        if copied != size {
            let message = format!("{path} became shorter while it was read: {copied} of {size} bytes");
            return Err(io::Error::other(message));
        }
        Ok(())
    }

    /// Ends the file and returns the target.
    pub fn finish(self) -> io::Result<W> {
        let mut out = self.builder.into_inner()?;
        out.flush()?;
        Ok(out)
    }

    fn append(&mut self, mut header: Header, contents: impl Read) -> io::Result<()> {
        header.set_cksum();
        self.builder.append(&header, contents)
    }
}

/// A header without anything that depends on the machine. A path that does not fit is an error: an extension for long paths would
/// be another format.
fn header(path: &str, kind: EntryType, mode: u32, size: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(path)?;
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    Ok(header)
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
