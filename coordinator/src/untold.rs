//! What a pass could not do, until a status says it.

use api::MigrationStatus;

/// Why a pass of a Migration did not come to its end, in words that no status has yet. Lost at a restart.
#[derive(Debug, Default)]
pub struct Untold(Option<Failure>);

#[derive(Debug)]
struct Failure {
    migration: String,
    words: String,
}

impl Untold {
    /// Keeps why a pass of this Migration did not come to its end.
    pub fn keep(&mut self, migration: &str, words: String) {
        self.0 = Some(Failure {
            migration: migration.to_owned(),
            words,
        });
    }

    /// Says it in this status, unless that says it already, or all is over.
    pub fn say(&self, migration: &str, status: &mut MigrationStatus) {
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
            status.message = format!("{before}An earlier pass did not come to its end: {words}");
        }
    }

    /// A status of this Migration says it.
    pub fn is_told(&mut self, migration: &str) {
        self.0.take_if(|kept| kept.migration == migration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(untold: &Untold, migration: &str, message: &str) -> String {
        let mut status = MigrationStatus {
            message: message.to_owned(),
            ..MigrationStatus::default()
        };
        untold.say(migration, &mut status);
        status.message
    }

    #[test]
    fn it_is_said_once_in_a_status_of_its_migration() {
        let mut untold = Untold::default();
        assert_eq!(said(&untold, "m", "in work: a"), "in work: a");
        untold.keep("m", "reading Node a: denied".to_owned());
        let words = "An earlier pass did not come to its end: reading Node a: denied";
        assert_eq!(said(&untold, "m", "in work: a"), format!("in work: a. {words}"));
        assert_eq!(said(&untold, "m", ""), words);
        let again = "reading Node a: denied; it is tried again";
        assert_eq!(said(&untold, "m", again), again);
        assert_eq!(said(&untold, "other", "in work: a"), "in work: a");
        untold.is_told("other");
        assert_eq!(said(&untold, "m", ""), words);
        untold.is_told("m");
        assert_eq!(said(&untold, "m", ""), "");
    }
}
