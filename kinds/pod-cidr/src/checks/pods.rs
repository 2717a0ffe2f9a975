//! Pods that have to move, and obstacles to their eviction.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::holder::{Cluster, holders_besides_tunnels};
use crate::movers;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report, budgets, names, pods};
use engine::drain::Pod;
use engine::moves::{Resident, Wave};

pub(super) fn check(
    settings: &Settings,
    facts: &ClusterFacts,
    leaving: &[&Resident<'_>],
    policy: CheckPolicy,
) -> Vec<Check> {
    let evicted: Vec<&Pod> = leaving
        .iter()
        .filter(|resident| Wave::of(resident).is_evicted(policy.delete_bare_pods))
        .map(|resident| resident.pod)
        .collect();
    let meanwhile = policy
        .on_blocked
        .effect_unless_pause("all other pods move, and stage Verify waits for this one");
    [
        budgets::check(CheckName::DisruptionBudgets, &evicted, &facts.budgets, meanwhile),
        pods::empty_dir(CheckName::EmptyDir, &evicted, policy.permissions, meanwhile),
        static_pods(settings, facts),
        bare(leaving, policy),
        holders(settings, facts),
    ]
    .concat()
}

/// Pods that the migration moves.
pub(super) fn leaving<'facts>(
    settings: &Settings,
    facts: &ClusterFacts,
    residents: &'facts [Resident<'facts>],
) -> Vec<&'facts Resident<'facts>> {
    let targets = settings.remaining_ranges(&settings.to.value, facts.ranges());
    residents
        .iter()
        .filter(|resident| resident.pod.deleted_at.is_none() && movers::out_of(&targets).has(resident.pod))
        .collect()
}

/// Static pods with an address of the old range.
fn static_pods(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::StaticPods);
    let from = settings.from.value;
    let is_old = |address: &&IpAddr| from.contains(&IpNet::from(**address));
    for pod in facts
        .pods
        .iter()
        .filter(|pod| pod.mirror && pod.uses_pod_network())
    {
        let old: Vec<String> = pod
            .addresses
            .iter()
            .filter(is_old)
            .map(ToString::to_string)
            .collect();
        if old.is_empty() {
            continue;
        }
        report.fail(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                format!("a static pod on node {} with {}", pod.node, names(&old)),
                "only static pods with hostNetwork, or with an address of another range",
                "set hostNetwork, or remove its manifest from the kubelet's directory until the migration is complete: a static \
                 pod cannot be evicted and would keep its address",
            ),
        );
    }
    report.finish("every static pod", format!("none has an address of {from}"))
}

fn bare(leaving: &[&Resident<'_>], policy: CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::BarePods);
    for resident in leaving.iter().filter(|resident| resident.workload.is_none()) {
        let fix = if policy.delete_bare_pods {
            "none if the pod may be lost: spec.podCidr.deleteBarePods allows its eviction, which comes last; no controller \
             replaces it"
        } else {
            "delete it when the migration waits for it, after all other pods have moved, or set spec.podCidr.deleteBarePods"
        };
        let finding = Finding::new("", "no controller", "a controller", fix);
        report.warn("Pod", resident.pod.key(), finding);
    }
    report.finish("every pod that has to move", "has a controller")
}

fn holders(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::AddressesStillAllocated);
    let from = settings.from.value;
    let allocations: Vec<_> = facts
        .blocks
        .iter()
        .filter(|block| from.contains(&block.range))
        .flat_map(|block| &block.allocations)
        .collect();
    let cluster = Cluster {
        pods: &facts.pods,
        nodes: &facts.calico_nodes,
        calico: &settings.calico_daemon_set_namespace.value,
    };
    for words in holders_besides_tunnels(allocations.iter().copied(), cluster) {
        let finding = Finding::new(
            "",
            words,
            "only running pods and tunnels",
            "make the change now, or when the migration waits for it in stage Verify: the old pool is not deleted before",
        );
        report.warn("range", from.to_string(), finding);
    }
    report.finish(
        format!(
            "{} allocated addresses of {from} in Calico's IPAM",
            allocations.len()
        ),
        "in use by running pods and tunnels only",
    )
}

#[cfg(test)]
mod tests;
