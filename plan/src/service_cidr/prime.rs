//! When an exchange of addresses falls between two times at which kube-proxy writes its rules.
//!
//! kube-proxy writes its rules as soon as it learns of a change, and then not again before `minSyncPeriod` has passed since it was
//! done (`BoundedFrequencyRunner`, v1.36). So somebody who lets nothing change for a while and then changes something of no use has
//! that period for himself: what he writes meanwhile, kube-proxy sees the end of. Who begins while rules are still to be written
//! for an earlier change has no such time: nobody knows when it begins.

use jiff::SignedDuration;

use crate::decision::{Wait, WaitReason};

/// kube-proxy's `minSyncPeriod` where nobody says another one.
pub const DEFAULT_PERIOD: SignedDuration = SignedDuration::from_secs(1);
/// Between the change of no use and the exchange: so long a node may take to learn of the one and begin.
pub const HEAD_START: SignedDuration = SignedDuration::from_millis(250);
/// Writes of one exchange, one after the other.
const WRITES: i32 = 4;

/// When a Service or its endpoints changed the last time, as far as somebody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastChange {
    /// Nobody knows: the watch has not begun, or broke.
    Unknown,
    /// So long ago, and the object that changed.
    Ago(SignedDuration, String),
}

/// Why kube-proxy may write its rules at any moment; `None` when it has written all that there was to write.
///
/// A change may come right after rules were written: then it waits for one period, is written, and another period passes. The third
/// is for the time that writing takes.
pub fn unquiet(last: &LastChange, period: SignedDuration) -> Option<Wait> {
    let needed = period * 3;
    let message = match last {
        LastChange::Unknown => {
            "nobody knows when a Service or its endpoints changed the last time: the watch is not there yet"
                .to_owned()
        }
        LastChange::Ago(ago, _) if *ago >= needed => return None,
        LastChange::Ago(ago, object) => format!(
            "{object} changed {} ms ago. Addresses are exchanged when nothing has changed for {} ms: so long kube-proxy may still have \
             rules to write",
            ago.as_millis(),
            needed.as_millis()
        ),
    };
    Some(Wait {
        reason: WaitReason::ServicesChange,
        message,
        until: None,
    })
}

/// Why nobody knows that every kube-proxy has heard of the change of no use: we have not, or late. `heard` is after which time we did.
/// A node hears no sooner than we do where the API server is what is slow.
pub fn heard_late(heard: Option<SignedDuration>) -> Option<Wait> {
    let message = match heard {
        Some(after) if after * 2 <= HEAD_START => return None,
        Some(after) => format!(
            "a change of a Service was heard of {} ms after it was made, and addresses are exchanged {} ms after it: a node may hear of it \
             later, and write its rules in the middle of an exchange. It is tried again",
            after.as_millis(),
            HEAD_START.as_millis()
        ),
        None => format!(
            "a change of a Service was not heard of within {} ms, or another one came: it is tried again",
            HEAD_START.as_millis()
        ),
    };
    Some(Wait {
        reason: WaitReason::ServicesChange,
        message,
        until: None,
    })
}

/// Whether there is time for one more exchange before kube-proxy may write its rules again. `passed` is the time since the head start,
/// `longest` that of the longest exchange so far.
pub fn is_time(passed: SignedDuration, longest: SignedDuration, period: SignedDuration) -> bool {
    // One is begun in any case: that there is time for one was asked before.
    passed.is_zero() || longest.is_zero() || passed + longest * 2 <= period - HEAD_START
}

/// Why an exchange would not be over before kube-proxy writes its rules again, where one write to the API server takes so long.
pub fn too_slow(write: SignedDuration, period: SignedDuration) -> Option<Wait> {
    let (needed, there_is) = (write * WRITES, period - HEAD_START);
    (needed > there_is).then(|| Wait {
        reason: WaitReason::ServicesChange,
        message: format!(
            "a write to the API server took {} ms; the {WRITES} of an exchange have to be over within {} ms, before kube-proxy writes its \
             rules again",
            write.as_millis(),
            there_is.as_millis()
        ),
        until: None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn ms(milliseconds: i64) -> SignedDuration {
        SignedDuration::from_millis(milliseconds)
    }

    #[rstest]
    #[case(0, 1_000, false)]
    #[case(2_999, 1_000, false)]
    #[case(3_000, 1_000, true)]
    #[case(29_999, 10_000, false)]
    fn quiet_is_three_periods_after_the_last_change(
        #[case] ago: i64,
        #[case] period: i64,
        #[case] quiet: bool,
    ) {
        let last = LastChange::Ago(ms(ago), "EndpointSlice shop/web-x".to_owned());
        let wait = unquiet(&last, ms(period));
        assert_eq!(wait.is_none(), quiet);
        assert!(wait.is_none_or(|wait| wait.message.contains("EndpointSlice shop/web-x changed")));
    }

    #[test]
    fn what_nobody_knows_is_not_quiet() {
        let wait = unquiet(&LastChange::Unknown, DEFAULT_PERIOD).unwrap();
        assert!(wait.message.contains("nobody knows"), "{}", wait.message);
    }

    #[rstest]
    #[case(187, true)]
    #[case(188, false)]
    fn an_exchange_fits_into_what_is_left_of_a_period(#[case] write: i64, #[case] fits: bool) {
        assert_eq!(too_slow(ms(write), DEFAULT_PERIOD).is_none(), fits);
    }

    #[rstest]
    #[case(Some(ms(0)), true)]
    #[case(Some(ms(125)), true)]
    #[case(Some(ms(126)), false)]
    #[case(None, false)]
    fn who_hears_late_does_not_exchange(#[case] heard: Option<SignedDuration>, #[case] goes: bool) {
        assert_eq!(heard_late(heard).is_none(), goes);
    }

    #[rstest]
    #[case::the_first(0, 0, true)]
    #[case::fits(650, 50, true)]
    #[case::would_end_late(651, 50, false)]
    #[case::took_too_long(260, 260, false)]
    fn one_after_the_other_as_long_as_there_is_time(
        #[case] passed: i64,
        #[case] longest: i64,
        #[case] goes: bool,
    ) {
        assert_eq!(is_time(ms(passed), ms(longest), DEFAULT_PERIOD), goes);
    }
}
