//! Kubernetes quantities (`100m`, `1.5Gi`, `2e3`) as whole numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Most significant digits. With them the largest suffix and scale fit into 128 bits.
const DIGITS: usize = 17;

/// The quantity in thousandths, rounded up as Kubernetes rounds, or the largest number if it exceeds that; `None` if it is not a
/// quantity, or negative.
pub(super) fn thousandths(quantity: &Quantity) -> Option<u64> {
    scaled(&quantity.0, 1000)
}

/// The quantity in whole units, rounded up, or the largest number if it exceeds that; `None` if it is not a quantity, or
/// negative.
pub(crate) fn units(quantity: &Quantity) -> Option<u64> {
    scaled(&quantity.0, 1)
}

fn scaled(text: &str, scale: u128) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (factor, exponent) = suffix_value(suffix)?;
    let mut digits = whole
        .bytes()
        .chain(fraction.bytes())
        .skip_while(|digit| *digit == b'0');
    let first = digits
        .by_ref()
        .take(DIGITS)
        .fold(0_u128, |value, digit| value * 10 + u128::from(digit - b'0'));
    let (dropped, remainder) = digits.fold((0_usize, false), |(count, remainder), digit| {
        (count + 1, remainder || digit != b'0')
    });
    let value = (first + u128::from(remainder)) * factor * scale;
    let shift = |digits: usize| i64::try_from(digits).unwrap_or(i64::MAX);
    let exponent = i64::from(exponent)
        .saturating_add(shift(dropped))
        .saturating_sub(shift(fraction.len()));
    let power = 10_u128.saturating_pow(u32::try_from(exponent.unsigned_abs()).unwrap_or(u32::MAX));
    let value = if exponent >= 0 {
        value.saturating_mul(power)
    } else {
        value.div_ceil(power)
    };
    Some(u64::try_from(value).unwrap_or(u64::MAX))
}

/// Binary factor and decimal exponent of a suffix.
fn suffix_value(suffix: &str) -> Option<(u128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        other => {
            let exponent: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            (1, exponent)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_in_millicores() {
        for (text, expected) in [
            ("100m", Some(100)),
            ("1", Some(1000)),
            ("0.1", Some(100)),
            ("1.5", Some(1500)),
            (".5", Some(500)),
            ("2.", Some(2000)),
            ("+2", Some(2000)),
            ("250000u", Some(250)),
            ("1n", Some(1)),
            ("0", Some(0)),
            ("2k", Some(2_000_000)),
            ("1e1", Some(10_000)),
            ("1E-3", Some(1)),
            ("0.00012345678901234567890", Some(1)),
            ("1e-99", Some(1)),
            ("0e99", Some(0)),
            ("20P", Some(u64::MAX)),
            ("1e99", Some(u64::MAX)),
            ("1e2147483647", Some(u64::MAX)),
            ("16Ei", Some(u64::MAX)),
            ("99999999999999999999E", Some(u64::MAX)),
            ("1e2147483648", None),
            ("", None),
            (".", None),
            ("-1", None),
            ("-0", None),
            ("abc", None),
            ("1.2.3", None),
            ("1 Gi", None),
            ("1gi", None),
            ("m", None),
            ("\u{ff11}", None),
            ("1\u{b5}", None),
            ("\u{1f4a5}", None),
        ] {
            assert_eq!(thousandths(&Quantity(text.to_owned())), expected, "{text}");
        }
    }

    #[test]
    fn memory_in_bytes() {
        for (text, expected) in [
            ("1Gi", Some(1 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("128974848", Some(128_974_848)),
            ("129e6", Some(129_000_000)),
            ("129M", Some(129_000_000)),
            ("123Mi", Some(123 << 20)),
            ("8148804Ki", Some(8_148_804 << 10)),
            ("128974848000m", Some(128_974_848)),
            ("1m", Some(1)),
            ("15Ei", Some(15 << 60)),
            ("12345678901234567", Some(12_345_678_901_234_567)),
            ("16Ei", Some(u64::MAX)),
            ("20P", Some(20_000_000_000_000_000)),
            ("1e99", Some(u64::MAX)),
            ("-1", None),
            ("abc", None),
            ("", None),
        ] {
            assert_eq!(units(&Quantity(text.to_owned())), expected, "{text}");
        }
    }

    #[test]
    fn a_number_of_ten_megabytes_is_read() {
        let long = |text: &str| text.repeat(10_000_000 / text.len());
        for (text, expected) in [
            (long("9"), Some(u64::MAX)),
            (long("0"), Some(0)),
            (format!("{}1", long("0")), Some(1)),
            (format!("1.{}", long("0")), Some(1)),
            (format!("0.{}1", long("0")), Some(1)),
            (format!("1{}", long("x")), None),
            (format!("1e{}", long("9")), None),
            (long("\u{e9}"), None),
        ] {
            assert_eq!(units(&Quantity(text.clone())), expected, "{text:.40}");
        }
    }
}
