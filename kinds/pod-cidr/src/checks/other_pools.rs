//! Other open pools: Calico may give their addresses to the pods that leave the old one.

use calico::selector::selects;
use ipnet::IpNet;
use serde_json::Value;

use super::CheckName;
use crate::facts::ClusterFacts;
use crate::pools::{self, Openness, mode};
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};
use engine::ranges::overlap;
use engine::words::number;

/// The number of nodes that the node selector of a pool selects.
pub(super) fn nodes_of(spec: &Value, facts: &ClusterFacts) -> Result<usize, String> {
    let selector = pools::selector_of(spec);
    let mut nodes = 0;
    for node in facts.linux_nodes() {
        nodes += usize::from(selects(&selector, &node.labels)?);
    }
    Ok(nodes)
}

/// Other open pools: Calico may give their addresses to the pods that leave the old one.
pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::OtherPools);
    let (old, new) = (&settings.old_pool.value, &settings.new_pool.value);
    let to = settings.to.value;
    let from = facts.pools.get(old);
    // The check Ranges refuses a pool that shares addresses with one of the two.
    let is_refused = |range: &IpNet| overlap(range, &to) || overlap(range, &settings.from.value);
    for pool in facts.pools.values() {
        let is_of_family = pool.range.max_prefix_len() == to.max_prefix_len();
        let is_open = matches!(Openness::of(&pool.spec), Openness::AllPods | Openness::Narrowed);
        if [old, new].contains(&&pool.name)
            || !is_of_family
            || is_refused(&pool.range)
            || !is_open
            || !pools::is_for_pods(&pool.spec)
        {
            continue;
        }
        let nodes = match nodes_of(&pool.spec, facts) {
            Ok(0) => continue,
            Ok(nodes) => number(nodes, "node", "nodes"),
            Err(problem) => format!("nodes that are not known ({problem})"),
        };
        let differs = from.is_some_and(|from| {
            let fields = ["vxlanMode", "ipipMode"];
            fields
                .iter()
                .any(|field| mode(&from.spec, field) != mode(&pool.spec, field))
        });
        let beside = if differs {
            ", with another encapsulation"
        } else {
            ""
        };
        report.warn(
            "IPPool",
            &pool.name,
            Finding::new(
                "",
                format!("{}, open to pods of {nodes}{beside}", pool.range),
                format!("no other open pool than that of {to}"),
                format!(
                    "pods that leave the old range may get an address of this pool instead of {to}: set `disabled: true` during the \
                     migration, or let its nodeSelector select only the nodes that need it"
                ),
            ),
        );
    }
    report.finish(
        "other IPPools",
        format!("none that gives addresses to pods beside {to}"),
    )
}
