//! Failures of a pass, until a status reports them.

use api::MigrationStatus;

/// Why a pass of a Migration failed, in a message that no status has yet. Lost at a restart.
#[derive(Debug, Default)]
pub struct UnreportedFailure(Option<Failure>);

#[derive(Debug)]
struct Failure {
    migration: String,
    words: String,
}

impl UnreportedFailure {
    /// Keeps why a pass of this Migration failed.
    pub fn keep(&mut self, migration: &str, words: String) {
        self.0 = Some(Failure {
            migration: migration.to_owned(),
            words,
        });
    }

    /// Adds the message to this status, unless it is there already, or the Migration is over.
    pub fn add_to(&self, migration: &str, status: &mut MigrationStatus) {
        let kept = self.0.as_ref().filter(|kept| kept.migration == migration);
        if let Some(Failure { words, .. }) = kept
            && !status.phase.is_over()
            && !status.message.contains(words.as_str())
        {
            let message = status.message.trim_end_matches('.');
            let before = if message.is_empty() {
                String::new()
            } else {
                format!("{message}. ")
            };
            status.message = format!("{before}An earlier pass failed: {words}");
        }
    }

    /// Forgets the message, once a status of this Migration has it.
    pub fn forget_reported(&mut self, migration: &str) {
        self.0.take_if(|kept| kept.migration == migration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_after(untold: &UnreportedFailure, migration: &str, message: &str) -> String {
        let mut status = MigrationStatus {
            message: message.to_owned(),
            ..MigrationStatus::default()
        };
        untold.add_to(migration, &mut status);
        status.message
    }

    #[test]
    fn a_failure_is_reported_once_in_the_status_of_its_migration() {
        let mut untold = UnreportedFailure::default();
        assert_eq!(message_after(&untold, "m", "in progress: a"), "in progress: a");
        untold.keep("m", "reading Node a: denied".to_owned());
        let words = "An earlier pass failed: reading Node a: denied";
        assert_eq!(
            message_after(&untold, "m", "in progress: a"),
            format!("in progress: a. {words}")
        );
        assert_eq!(message_after(&untold, "m", ""), words);
        let again = "reading Node a: denied; the coordinator retries";
        assert_eq!(message_after(&untold, "m", again), again);
        assert_eq!(
            message_after(&untold, "other", "in progress: a"),
            "in progress: a"
        );
        untold.forget_reported("other");
        assert_eq!(message_after(&untold, "m", ""), words);
        untold.forget_reported("m");
        assert_eq!(message_after(&untold, "m", ""), "");
    }
}
