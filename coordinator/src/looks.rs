//! How soon what no watch brings is read again: so that a pass costs the API server little, however large the cluster is.

use std::time::{Duration, Instant};

/// While somebody waits for it.
const SOON: Duration = Duration::from_secs(2);
/// While nobody does.
const SELDOM: Duration = Duration::from_secs(15);

/// How soon something is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Somebody waits for it.
    Soon,
    /// It is only counted.
    Seldom,
}

impl Pace {
    fn time(self) -> Duration {
        match self {
            Self::Soon => SOON,
            Self::Seldom => SELDOM,
        }
    }
}

/// Whether what was read has to be read again.
pub fn is_old<T>(look: Option<&(Instant, T)>, pace: Pace) -> bool {
    look.is_none_or(|(at, _)| at.elapsed() >= pace.time())
}
