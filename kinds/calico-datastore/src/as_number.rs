//! Parses numbers of autonomous systems: plain (`65546`) or dotted (`1.10`).

use super::go_values::unsigned;

/// Parses a number; `None` when the text is not one.
pub fn as_number(text: &str) -> Option<u32> {
    unsigned(text, u32::MAX).or_else(|| {
        let (high, low) = text.split_once('.')?;
        let half = |text: &str| unsigned(text, u16::MAX.into());
        Some((half(high)? << 16) + half(low)?)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("64512", Some(64512))]
    #[case("4294967295", Some(u32::MAX))]
    #[case("1.10", Some(65546))]
    #[case("65535.65535", Some(u32::MAX))]
    #[case("0.0", Some(0))]
    #[case("4294967296", None)]
    #[case("1.65536", None)]
    #[case("1.2.3", None)]
    #[case("1.", None)]
    #[case("-1", None)]
    #[case("seventy", None)]
    #[case("", None)]
    fn plain_and_dotted_numbers_are_read(#[case] text: &str, #[case] number: Option<u32>) {
        assert_eq!(as_number(text), number);
    }
}
