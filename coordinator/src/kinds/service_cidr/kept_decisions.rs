//! Earlier decisions about Services that still hold: a pass decides again only after a change of what the decision depends on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::decision::Decision;
use service_cidr::assignment::AssignedAddresses;
use service_cidr::exchange;
use service_cidr::queue::Standing;

/// A stuck Service is decided again after this time: the obstacle may be another object.
const STUCK: Duration = Duration::from_secs(2);

/// Decisions by `namespace/name`. Lost at a restart: then each Service is decided once.
#[derive(Debug, Default)]
pub struct Decided(BTreeMap<String, Kept>);

#[derive(Debug)]
struct Kept {
    /// A hash of what the decision depends on.
    fingerprint: u64,
    decision: Decision<exchange::Step>,
    at: Instant,
}

impl Decided {
    /// Keeps a decision that may hold.
    pub fn keep(&mut self, service: &str, fingerprint: u64, decision: &Decision<exchange::Step>) {
        if Standing::of(decision).is_none() {
            self.0.remove(service);
            return;
        }
        let stands = Kept {
            fingerprint,
            decision: decision.clone(),
            at: Instant::now(),
        };
        self.0.insert(service.to_owned(), stands);
    }

    /// The decision about this Service, if it holds.
    pub fn of(&self, service: &str, fingerprint: u64) -> Option<Decision<exchange::Step>> {
        let known = self.0.get(service)?;
        let is_recent = match Standing::of(&known.decision)? {
            Standing::Settled => true,
            Standing::Stuck => known.at.elapsed() < STUCK,
        };
        (is_recent && known.fingerprint == fingerprint).then(|| known.decision.clone())
    }

    /// Drops all but the Services of the book.
    pub fn keep_only(&mut self, book: &AssignedAddresses) {
        self.0.retain(|name, _| book.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use engine::decision::{Halt, HaltReason};

    use super::*;

    #[test]
    fn a_decision_holds_until_its_inputs_change() {
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
        assert_eq!(
            decided.of("shop/web", 1),
            None,
            "a stuck Service is decided again"
        );
        decided.keep("shop/web", 1, &Decision::Run(exchange::Step::Swap));
        assert_eq!(decided.of("shop/web", 1), None, "steps are not kept");
    }

    #[test]
    fn a_deleted_service_is_dropped() {
        let mut decided = Decided::default();
        decided.keep("shop/web", 1, &Decision::Settled);
        decided.keep_only(&AssignedAddresses::new());
        assert_eq!(decided.of("shop/web", 1), None);
    }
}
