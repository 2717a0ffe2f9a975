//! Values of texts of flannel.

use std::str::FromStr;

use super::error::ParseError;

/// The largest VXLAN network identifier: it has 24 bits.
pub(super) const LARGEST_VNI: u32 = 0x00ff_ffff;
/// The smallest MTU that IPv4 allows.
const SMALLEST_MTU: u32 = 68;

pub(super) const NEEDED_MTU: &str = "a number of bytes from 68 to 65535";

pub(super) fn from_text<T: FromStr>(
    text: &str,
    key: &str,
    found: &str,
    needed: &'static str,
) -> Result<T, ParseError> {
    found.parse().map_err(|_| ParseError::Value {
        text: text.to_owned(),
        key: key.to_owned(),
        found: format!("{found:?}"),
        needed,
    })
}

pub(super) fn mtu(text: &str, key: &str, found: &str) -> Result<u32, ParseError> {
    let value: u32 = from_text(text, key, found, NEEDED_MTU)?;
    if !(SMALLEST_MTU..=u32::from(u16::MAX)).contains(&value) {
        return Err(ParseError::Value {
            text: text.to_owned(),
            key: key.to_owned(),
            found: format!("{found:?}"),
            needed: NEEDED_MTU,
        });
    }
    Ok(value)
}
