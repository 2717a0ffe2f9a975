//! What was decided of Services at earlier looks and stands: as long as nothing has changed that the decision depends on, a pass does not
//! look again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::decision::Decision;
use service_cidr::line::Standing;
use service_cidr::subjects::Book;
use service_cidr::swap;

/// A Service that cannot go on is looked at again so soon: what keeps it may be another object.
const STUCK: Duration = Duration::from_secs(2);

/// Decisions by `namespace/name`. Lost at a restart: then each Service is looked at once.
#[derive(Debug, Default)]
pub struct Decided(BTreeMap<String, Stands>);

#[derive(Debug)]
struct Stands {
    /// A hash of what the decision depends on.
    fingerprint: u64,
    decision: Decision<swap::Step>,
    at: Instant,
}

impl Decided {
    /// Keeps a decision that may stand.
    pub fn keep(&mut self, service: &str, fingerprint: u64, decision: &Decision<swap::Step>) {
        if Standing::of(decision).is_none() {
            self.0.remove(service);
            return;
        }
        let stands = Stands {
            fingerprint,
            decision: decision.clone(),
            at: Instant::now(),
        };
        self.0.insert(service.to_owned(), stands);
    }

    /// What was decided of this Service, if it stands.
    pub fn of(&self, service: &str, fingerprint: u64) -> Option<Decision<swap::Step>> {
        let known = self.0.get(service)?;
        let is_recent = match Standing::of(&known.decision)? {
            Standing::Settled => true,
            Standing::Stuck => known.at.elapsed() < STUCK,
        };
        (is_recent && known.fingerprint == fingerprint).then(|| known.decision.clone())
    }

    /// Lets go all but the Services of the book.
    pub fn keep_only(&mut self, book: &Book) {
        self.0.retain(|name, _| book.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use engine::decision::{Halt, HaltReason};

    use super::*;

    #[test]
    fn a_decision_stands_until_something_changes_that_it_depends_on() {
        let mut decided = Decided::default();
        decided.keep("shop/web", 1, &Decision::Settled);
        assert_eq!(decided.of("shop/web", 1), Some(Decision::Settled));
        assert_eq!(Standing::of(&Decision::Settled), Some(Standing::Settled));
        assert_eq!(decided.of("shop/web", 2), None);
        assert_eq!(decided.of("shop/db", 1), None);
        let halt = Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message: "taken".to_owned(),
        });
        decided.keep("shop/web", 1, &halt);
        assert_eq!(decided.of("shop/web", 1), Some(halt.clone()));
        assert_eq!(Standing::of(&halt), Some(Standing::Stuck));
        decided.0.get_mut("shop/web").unwrap().at -= STUCK;
        assert_eq!(decided.of("shop/web", 1), None, "another look is due");
        decided.keep("shop/web", 1, &Decision::Run(swap::Step::Swap));
        assert_eq!(decided.of("shop/web", 1), None, "steps are decided anew");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut decided = Decided::default();
        decided.keep("shop/web", 1, &Decision::Settled);
        decided.keep_only(&Book::new());
        assert_eq!(decided.of("shop/web", 1), None);
    }
}
