//! Every reason why a migration or a node makes no progress. The reason in a status, in an Event and in a metric is the name of
//! one of them, and the runbook has a section for each.

use strum::{IntoStaticStr, VariantArray};

use crate::decision::{HaltReason, WaitReason};

/// Why a migration or a node makes no progress.
///
/// ```
/// use engine::decision::WaitReason;
/// use engine::reason::Reason;
///
/// let reason = Reason::from(WaitReason::PoolSoak);
/// assert_eq!(reason.as_str(), "PoolSoak");
/// assert_eq!(Reason::read("PoolSoak"), Some(reason));
/// // A newer coordinator may have reasons that this version does not know.
/// assert_eq!(Reason::read("Unknown"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
pub enum Reason {
    /// The migration does not start, or does not continue in the requested direction.
    #[strum(transparent)]
    Blocked(BlockReason),
    /// A condition must be met first.
    #[strum(transparent)]
    Wait(WaitReason),
    /// The user has to decide.
    #[strum(transparent)]
    Halt(HaltReason),
}

/// Why a migration does not start, or does not continue in the requested direction. No deadline ends such a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum BlockReason {
    /// Another Migration is active.
    AnotherMigration,
    /// A check refuses the migration.
    ChecksFailed,
    /// The spec has no kind of this version, or more than one.
    KindNotSupported,
    /// A rollback was requested after the point of no return.
    PastReturn,
    /// The plan has changed since the user has reviewed it.
    PlanChanged,
    /// Saved settings of the migration are missing.
    SettingsGone,
}

impl Reason {
    /// Every reason.
    pub fn all() -> impl Iterator<Item = Self> {
        let blocked = BlockReason::VARIANTS.iter().copied().map(Self::from);
        let waits = WaitReason::VARIANTS.iter().copied().map(Self::from);
        let halts = HaltReason::VARIANTS.iter().copied().map(Self::from);
        blocked.chain(waits).chain(halts)
    }

    /// The name of the reason, as in a status, in Events, in metrics and in the runbook.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The reason with this name; `None` for an empty text, and for a name that this version does not know.
    pub fn read(name: &str) -> Option<Self> {
        Self::all().find(|reason| reason.as_str() == name)
    }

    /// Whether the state may last until the user acts.
    pub fn needs_user(self) -> bool {
        match self {
            Self::Wait(wait) => wait.needs_user(),
            Self::Blocked(_) | Self::Halt(_) => true,
        }
    }
}

impl From<BlockReason> for Reason {
    fn from(reason: BlockReason) -> Self {
        Self::Blocked(reason)
    }
}

impl From<WaitReason> for Reason {
    fn from(reason: WaitReason) -> Self {
        Self::Wait(reason)
    }
}

impl From<HaltReason> for Reason {
    fn from(reason: HaltReason) -> Self {
        Self::Halt(reason)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = Reason::all().map(Reason::as_str).collect();
        assert_eq!(names.len(), Reason::all().count());
        for reason in Reason::all() {
            assert_eq!(Reason::read(reason.as_str()), Some(reason));
        }
    }
}
