//! The reason in the status of a Migration: a text in the API, a [`Reason`] in the programs.

use engine::reason::Reason;

use crate::migration::MigrationStatus;

impl MigrationStatus {
    /// Sets why the migration makes no progress.
    pub fn set_reason(&mut self, reason: impl Into<Reason>, message: String) {
        reason.into().as_str().clone_into(&mut self.reason);
        self.message = message;
    }

    /// Sets the message of a migration that makes progress.
    pub fn clear_reason(&mut self, message: String) {
        self.reason = String::new();
        self.message = message;
    }

    /// Why the migration makes no progress; `None` if it does, or if a newer coordinator has written a reason that this version
    /// does not know.
    pub fn known_reason(&self) -> Option<Reason> {
        Reason::read(&self.reason)
    }

    /// The reason, or the phase of a migration that makes progress: the reason of Events and conditions.
    pub fn reason_or_phase(&self) -> &str {
        if self.reason.is_empty() {
            self.phase.as_str()
        } else {
            &self.reason
        }
    }
}
