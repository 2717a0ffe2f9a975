//! Formats durations as Go does: `1m30s`, `50.325ms`, `0s`.

const MICROSECOND: u64 = 1_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// The first number of nanoseconds that does not fit in 64 bits.
const LIMIT: f64 = 9_223_372_036_854_775_808.0;

/// Nanoseconds of a number of units, rounded towards zero; `None` when they do not fit in 64 bits.
pub fn nanoseconds(number: f64, unit: u64) -> Option<i64> {
    // Both units are exact as floats.
    #[expect(clippy::cast_precision_loss)]
    let nanoseconds = number * unit as f64;
    let fits = (-LIMIT..LIMIT).contains(&nanoseconds);
    #[expect(clippy::cast_possible_truncation)]
    fits.then_some(nanoseconds as i64)
}

/// The text of a duration (`time.Duration.String`).
pub fn text(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let time = nanoseconds.unsigned_abs();
    let text = match time {
        0 => "0s".to_owned(),
        1..MICROSECOND => format!("{time}ns"),
        MICROSECOND..MILLISECOND => format!("{}µs", decimal(time, MICROSECOND)),
        MILLISECOND..SECOND => format!("{}ms", decimal(time, MILLISECOND)),
        SECOND.. => {
            let minutes = time / (60 * SECOND);
            let seconds = decimal(time % (60 * SECOND), SECOND);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    };
    format!("{sign}{text}")
}

/// A number of units with its fraction, without trailing zeros.
fn decimal(time: u64, unit: u64) -> String {
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", time % unit);
    match fraction.trim_end_matches('0') {
        "" => (time / unit).to_string(),
        fraction => format!("{}.{fraction}", time / unit),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "0s")]
    #[case(1, "1ns")]
    #[case(1_100, "1.1µs")]
    #[case(2_200_000, "2.2ms")]
    #[case(3_300_000_000, "3.3s")]
    #[case(245_000_000_000, "4m5s")]
    #[case(245_001_000_000, "4m5.001s")]
    #[case(18_367_001_000_000, "5h6m7.001s")]
    #[case(3_600_000_000_000, "1h0m0s")]
    #[case(480_000_000_001, "8m0.000000001s")]
    #[case(-90_000_000_000, "-1m30s")]
    #[case(i64::MAX, "2562047h47m16.854775807s")]
    #[case(i64::MIN, "-2562047h47m16.854775808s")]
    fn a_duration_is_formatted_as_in_the_tests_of_go(#[case] time: i64, #[case] wanted: &str) {
        assert_eq!(text(time), wanted);
    }

    #[rstest]
    #[case(12.345, SECOND, "12.345s")]
    #[case(90.0, SECOND, "1m30s")]
    #[case(50.325, MILLISECOND, "50.325ms")]
    #[case(0.0, SECOND, "0s")]
    #[case(0.000_000_000_9, SECOND, "0s")]
    #[case(-1.5, SECOND, "-1.5s")]
    fn a_number_of_units_becomes_nanoseconds(#[case] number: f64, #[case] unit: u64, #[case] wanted: &str) {
        assert_eq!(nanoseconds(number, unit).map(text).as_deref(), Some(wanted));
    }

    #[rstest]
    #[case(1e10)]
    #[case(-1e10)]
    #[case(f64::NAN)]
    #[case(f64::INFINITY)]
    fn a_number_out_of_range_is_refused(#[case] number: f64) {
        assert_eq!(nanoseconds(number, SECOND), None);
    }
}
