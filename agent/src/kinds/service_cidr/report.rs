//! The report about the state of Services. Pure.

use api::node_migration::NodeMigrationStatus;
use engine::found::Found;
use service_cidr::host::{HostFacts, ServicePort};

use crate::report::{Pending, Report};

/// The report.
pub(super) fn report(facts: HostFacts) -> Report {
    Report {
        message: "observing Services, no changes".to_owned(),
        pending: pending(facts.expected_digest.is_some(), &facts.missing_ports),
        kinds: NodeMigrationStatus {
            service_cidr: Some(facts),
            ..NodeMigrationStatus::default()
        },
        ..Report::default()
    }
}

/// When the next observation is due: neither kube-proxy's rules nor pods' environments cause events.
fn pending(is_asked: bool, unknown: &Found<Vec<ServicePort>>) -> Pending {
    match unknown {
        _ if !is_asked => Pending::Unobservable,
        Found::Present(unknown) if unknown.is_empty() => Pending::Unobservable,
        Found::Present(_) => Pending::Process,
        Found::Absent | Found::Malformed(_) => Pending::Change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kube_proxy::fixture::port;

    #[test]
    fn the_next_observation_is_soon_while_a_rule_is_missing() {
        let none = Found::Present(Vec::new());
        let one = Found::Present(vec![port("172.30.0.1")]);
        let unreadable = Found::Malformed("no nft".to_owned());
        assert_eq!(pending(true, &one), Pending::Process);
        assert_eq!(pending(true, &none), Pending::Unobservable);
        assert_eq!(pending(true, &unreadable), Pending::Change);
        assert_eq!(pending(false, &none), Pending::Unobservable);
        assert_eq!(
            pending(false, &unreadable),
            Pending::Unobservable,
            "without a question"
        );
    }
}
