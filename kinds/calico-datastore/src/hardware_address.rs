//! Parses and formats hardware addresses as Go does.

use std::fmt;
use std::fmt::Write as _;

use super::decode::Decode;
use super::json::Json;
use super::mismatch::Mismatch;

/// Lengths in bytes: Ethernet, EUI-64, IP over `InfiniBand`.
const LENGTHS: [usize; 3] = [6, 8, 20];

/// A hardware address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareAddress(Vec<u8>);

impl HardwareAddress {
    /// Parses `ca:fe:1d:52:bb:e9`, `ca-fe-…`, `cafe.1d52.bbe9` or `cafe1d52bbe9`, in any of the three lengths.
    pub fn parse(text: &str) -> Option<Self> {
        let grouped = [(':', 2), ('-', 2), ('.', 4)]
            .into_iter()
            .find(|(separator, _)| text.contains(*separator));
        let digits = match grouped {
            None => text.to_owned(),
            Some((separator, digits)) => {
                let groups: Vec<&str> = text.split(separator).collect();
                if groups.iter().any(|group| group.len() != digits) {
                    return None;
                }
                groups.concat()
            }
        };
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        // An odd number of digits is invalid.
        let bytes: Option<Vec<u8>> = (0..digits.len().div_ceil(2))
            .map(|place| u8::from_str_radix(digits.get(2 * place..2 * place + 2)?, 16).ok())
            .collect();
        bytes.filter(|bytes| LENGTHS.contains(&bytes.len())).map(Self)
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            if place > 0 {
                formatter.write_char(':')?;
            }
            write!(formatter, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Decode for HardwareAddress {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        Self::parse(&String::decode(json)?).ok_or_else(|| Mismatch::new(json, "a hardware address"))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("CA:FE:1d:52:bb:e9", Some("ca:fe:1d:52:bb:e9"))]
    #[case("ca-fe-1d-52-bb-e9", Some("ca:fe:1d:52:bb:e9"))]
    #[case("cafe.1d52.bbe9", Some("ca:fe:1d:52:bb:e9"))]
    #[case("02:00:5e:10:00:00:00:01", Some("02:00:5e:10:00:00:00:01"))]
    #[case("ca:fe:1d:52:bb", None)]
    #[case("ca:fe:1d:52:bb:e9:00", None)]
    #[case("ca:fe-1d:52:bb:e9", None)]
    #[case("c:fe:1d:52:bb:e9", None)]
    #[case("ca:fe:1d:52:bb:g9", None)]
    #[case("cafe1d52bbe9", Some("ca:fe:1d:52:bb:e9"))]
    #[case("cafe1d52bbe", None)]
    #[case("cafe1d52bbe91", None)]
    #[case("1:2:3:4:5:6", None)]
    #[case("", None)]
    fn every_form_is_read_as_go_reads_it(#[case] text: &str, #[case] written: Option<&str>) {
        let found = HardwareAddress::parse(text).map(|address| address.to_string());
        assert_eq!(found.as_deref(), written);
    }
}
