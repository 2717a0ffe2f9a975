//! The reasons of Events. An Event has the reason or the phase of a status, or announces what only an Event reports.

use engine::decision::{HaltReason, WaitReason};
use engine::reason::Reason;
use strum::{IntoStaticStr, VariantArray};

use crate::migration::MigrationPhase;

/// The reason of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
pub enum EventReason {
    /// What only an Event reports.
    #[strum(transparent)]
    Announcement(Announcement),
    /// Why a migration or a node makes no progress.
    #[strum(transparent)]
    Reason(Reason),
    /// The new phase of a Migration.
    #[strum(transparent)]
    Phase(MigrationPhase),
}

/// What only an Event reports: a heading or a row in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
pub enum Announcement {
    /// The clock of the coordinator's node was set.
    ClockSet,
    /// A node was cordoned.
    Cordoned,
    /// A node is on the new network.
    Migrated,
    /// A node is on the old network again.
    Returned,
    /// The first change of a migration follows.
    Started,
}

impl EventReason {
    /// The name, as in an Event.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Announcement {
    /// All announcements.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

impl From<Announcement> for EventReason {
    fn from(announcement: Announcement) -> Self {
        Self::Announcement(announcement)
    }
}

impl From<Reason> for EventReason {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason)
    }
}

impl From<WaitReason> for EventReason {
    fn from(reason: WaitReason) -> Self {
        Self::Reason(reason.into())
    }
}

impl From<HaltReason> for EventReason {
    fn from(reason: HaltReason) -> Self {
        Self::Reason(reason.into())
    }
}

impl From<MigrationPhase> for EventReason {
    fn from(phase: MigrationPhase) -> Self {
        Self::Phase(phase)
    }
}
