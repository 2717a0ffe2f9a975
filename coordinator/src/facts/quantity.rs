//! Kubernetes quantities (`100m`, `1.5Gi`, `2e3`) as whole numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The quantity in thousandths, rounded up as Kubernetes rounds; `None` when it is not one, is negative or too large.
pub(super) fn thousandths(quantity: &Quantity) -> Option<u64> {
    scaled(&quantity.0, 1000)
}

/// The quantity in whole units, rounded up; `None` when it is not one, is negative or too large.
pub(super) fn units(quantity: &Quantity) -> Option<u64> {
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
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let fraction_digits = i32::try_from(fraction.len()).ok()?;
    let (factor, exponent) = suffix_value(suffix)?;
    let value = digits.checked_mul(factor)?.checked_mul(scale)?;
    let exponent = exponent - fraction_digits;
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let value = if exponent >= 0 {
        value.checked_mul(power?)?
    } else {
        // A divisor past 128 bits leaves less than one: rounded up.
        power.map_or(u128::from(value > 0), |power| value.div_ceil(power))
    };
    u64::try_from(value).ok()
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
            ((-30..=30).contains(&exponent)).then_some((1, exponent))?
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
            ("", None),
            (".", None),
            ("-1", None),
            ("1.2.3", None),
            ("1 Gi", None),
            ("1gi", None),
            ("m", None),
            ("1e99", None),
            ("99999999999999999999E", None),
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
            ("16Ei", None),
        ] {
            assert_eq!(units(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
