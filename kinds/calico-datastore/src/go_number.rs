//! Parses numbers as `strconv.ParseFloat` does: decimal and hexadecimal, with underscores between digits.

/// Parses a number. `inf` and `nan` are valid; digits of a number that is too large are not.
pub fn number(text: &str) -> Option<f64> {
    if !has_valid_underscores(text) {
        return None;
    }
    let digits = text.replace('_', "");
    let (sign, unsigned) = match digits.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    if let Some(hexadecimal) = unsigned
        .strip_prefix("0x")
        .or_else(|| unsigned.strip_prefix("0X"))
    {
        return hexadecimal_number(hexadecimal).map(|number| sign * number);
    }
    let number: f64 = digits.parse().ok()?;
    let is_word = !unsigned.bytes().any(|byte| byte.is_ascii_digit());
    // Go does not accept a sign before `nan`.
    let is_taken = if number.is_nan() {
        unsigned == digits
    } else {
        number.is_finite() || is_word
    };
    is_taken.then_some(number)
}

/// Parses digits with an optional point and a required exponent of 2: `1.8p1` is 3.
fn hexadecimal_number(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut mantissa = 0.0;
    for digit in whole.chars().chain(fraction.chars()) {
        mantissa = mantissa * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let exponent: i32 = exponent.parse().ok()?;
    let places = i32::try_from(4 * fraction.len()).ok()?;
    let number = mantissa * 2_f64.powi(exponent.checked_sub(places)?);
    number.is_finite().then_some(number)
}

/// Whether all underscores are between digits: `1_000` and `0x_1p-2` are valid; `1__0`, `_1` and `1_` are not.
fn has_valid_underscores(text: &str) -> bool {
    let unsigned = text.trim_start_matches(['+', '-']);
    let is_prefixed = unsigned
        .get(..2)
        .is_some_and(|start| start.eq_ignore_ascii_case("0x"));
    let is_digit = |byte: u8| byte.is_ascii_digit() || (is_prefixed && byte.is_ascii_hexdigit());
    let bytes = unsigned.as_bytes();
    bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'_')
        .all(|(place, _)| {
            let before = place.checked_sub(1).and_then(|place| bytes.get(place));
            let after = bytes.get(place + 1);
            let follows = (is_prefixed && place == 2) || before.is_some_and(|byte| is_digit(*byte));
            follows && after.is_some_and(|byte| is_digit(*byte))
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // Results of Go 1.26.
    #[rstest]
    #[case("12.345", 12.345)]
    #[case("1e3", 1000.0)]
    #[case("1E+3", 1000.0)]
    #[case(".5", 0.5)]
    #[case("5.", 5.0)]
    #[case("-1", -1.0)]
    #[case("+5", 5.0)]
    #[case("01.50", 1.5)]
    #[case("1_000", 1000.0)]
    #[case("1_2.5_0e1_0", 125_000_000_000.0)]
    #[case("0x1p-2", 0.25)]
    #[case("0x10p0", 16.0)]
    #[case("-0X1.8P+1", -3.0)]
    #[case("0x.8p0", 0.5)]
    #[case("0x1_0p0", 16.0)]
    #[case("0x_1p-2", 0.25)]
    #[case("-inf", f64::NEG_INFINITY)]
    #[case("+Infinity", f64::INFINITY)]
    fn a_number_is_read_as_go_reads_it(#[case] text: &str, #[case] value: f64) {
        let found = number(text).unwrap();
        assert!(found.total_cmp(&value).is_eq(), "{found}");
    }

    #[rstest]
    #[case("")]
    #[case(".")]
    #[case("e5")]
    #[case("1e")]
    #[case("10s")]
    #[case("1 ")]
    #[case("1e400")]
    #[case("+nan")]
    #[case("infi")]
    #[case("_1")]
    #[case("1_")]
    #[case("1__0")]
    #[case("1_.5")]
    #[case("0x10")]
    #[case("0xp1")]
    #[case("0x1p")]
    #[case("0x1gp1")]
    #[case("0x1p99999")]
    fn an_invalid_number_is_refused(#[case] text: &str) {
        assert_eq!(number(text), None);
    }

    #[test]
    fn nan_is_read() {
        assert!(number("NaN").unwrap().is_nan());
    }
}
