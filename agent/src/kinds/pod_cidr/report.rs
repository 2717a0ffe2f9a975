//! The report about the objects in both ranges. Pure.

use api::FailureCategory;
use api::node_migration::{Failure, NodeMigrationStatus};
use engine::words::lines;
use pod_cidr::host::{HostFacts, HostSettings};
use pod_cidr::kube_proxy_rules;
use pod_cidr::tunnel_change::{self, Keeping};

use crate::report::{Pending, Report};

/// The report. `refused`: requests that the host cannot follow, one line each.
pub(super) fn report(settings: &HostSettings, facts: HostFacts, refused: &[String]) -> Report {
    Report {
        message: message(settings),
        failure: (!refused.is_empty()).then(|| Failure {
            category: FailureCategory::Contradiction.into(),
            message: lines(refused),
            retriable: true,
        }),
        // Calico replaces the address in a moment, and may remove the kept one.
        pending: match tunnel_change::keeping(&settings.tunnel_addresses, &settings.from, Some(&facts)) {
            // The kernel announces no change of kube-proxy's rules.
            Keeping::Done | Keeping::NotYet(_)
                if kube_proxy_rules::must_change(&facts, &settings.from, &settings.to) =>
            {
                Pending::Unobservable
            }
            Keeping::Done | Keeping::NotYet(_) => Pending::NoGoal,
            Keeping::Changing(_) => Pending::Change,
        },
        kinds: NodeMigrationStatus {
            pod_cidr: Some(facts),
            ..NodeMigrationStatus::default()
        },
        ..Report::default()
    }
}

/// The agent's task. The message has no counts, since it would then change with each pod.
fn message(settings: &HostSettings) -> String {
    let HostSettings {
        from,
        to,
        tunnel_addresses: tunnel_ends,
        ..
    } = settings;
    let kept: Vec<String> = tunnel_ends.iter().map(|end| end.old.to_string()).collect();
    if kept.is_empty() {
        format!("observing {from} and {to}, no changes")
    } else {
        format!(
            "observing {from} and {to}; keeping {} for connections that the host opened from there",
            kept.join(", ")
        )
    }
}
