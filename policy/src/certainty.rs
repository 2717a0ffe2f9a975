//! Yes, no, or unknown. Every test of a selector, an address or a port has one of these results.

use crate::verdict::UnknownReason;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The test fails for certain.
    No,
    /// The test holds for certain.
    Yes,
    /// The facts do not decide.
    Unknown(UnknownReason),
}

impl Match {
    /// Whether one of two tests holds.
    pub(crate) fn or(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Yes => Self::Yes,
            Self::No => other(),
            Self::Unknown(_) => match other() {
                Self::Yes => Self::Yes,
                Self::No | Self::Unknown(_) => self,
            },
        }
    }

    /// Whether both tests hold.
    pub(crate) fn and(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::No => Self::No,
            Self::Yes => other(),
            Self::Unknown(_) => match other() {
                Self::No => Self::No,
                Self::Yes | Self::Unknown(_) => self,
            },
        }
    }

    /// Whether any of the tests holds.
    pub(crate) fn any(tests: impl IntoIterator<Item = Self>) -> Self {
        let mut result = Self::No;
        for test in tests {
            result = result.or(|| test);
            if result == Self::Yes {
                break;
            }
        }
        result
    }
}

impl From<bool> for Match {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const UNKNOWN: Match = Match::Unknown(UnknownReason::UnreadableSelector);

    #[rstest]
    #[case(Match::Yes, UNKNOWN, Match::Yes, UNKNOWN)]
    #[case(UNKNOWN, Match::Yes, Match::Yes, UNKNOWN)]
    #[case(Match::No, UNKNOWN, UNKNOWN, Match::No)]
    #[case(UNKNOWN, Match::No, UNKNOWN, Match::No)]
    #[case(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)]
    #[case(Match::Yes, Match::No, Match::Yes, Match::No)]
    fn unknown_stays_unknown_unless_the_other_test_decides(
        #[case] one: Match,
        #[case] other: Match,
        #[case] either: Match,
        #[case] both: Match,
    ) {
        assert_eq!(one.or(|| other), either);
        assert_eq!(one.and(|| other), both);
        assert_eq!(Match::any([one, other]), either);
    }
}
