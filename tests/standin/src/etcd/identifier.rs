//! Random identifiers.

use std::io::Read;

use anyhow::{Context, Result};

/// 32 hexadecimal digits.
pub fn hexadecimal() -> Result<String> {
    let mut bytes = [0_u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("read random bytes for an identifier")?;
    // Version 4 of the standard: random.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat())
}

/// The same with dashes.
pub fn uuid() -> Result<String> {
    let mut text = hexadecimal()?;
    for place in [20, 16, 12, 8] {
        text.insert(place, '-');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_has_the_form_of_a_random_uuid() {
        let text = uuid().unwrap();
        let parts: Vec<usize> = text.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{text}");
        assert_eq!(text.as_bytes()[14], b'4');
        assert_ne!(text, uuid().unwrap());
    }
}
