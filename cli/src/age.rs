//! Durations as short text.

use jiff::{SignedDuration, Timestamp};

/// `12s`, `3m12s`, `2h5m`, `3d4h`. A time in the future (clocks differ) is `0s`.
pub fn human(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    if days > 0 {
        format!("{days}d{hours}h")
    } else if hours > 0 {
        format!("{hours}h{minutes}m")
    } else if minutes > 0 {
        format!("{minutes}m{}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

/// The same for a timeout.
pub fn seconds(duration: std::time::Duration) -> String {
    human(SignedDuration::from_secs(
        i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
    ))
}

/// The time from `since` to `now`.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    human(now.duration_since(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_at_most_two_units() {
        let of = |seconds| human(SignedDuration::from_secs(seconds));
        assert_eq!(of(-5), "0s");
        assert_eq!(of(0), "0s");
        assert_eq!(of(59), "59s");
        assert_eq!(of(192), "3m12s");
        assert_eq!(of(3600), "1h0m");
        assert_eq!(of(7523), "2h5m");
        assert_eq!(of(273_600), "3d4h");
    }
}
