//! The traffic pods of each range that every node has to have.

use std::collections::BTreeMap;

use engine::decision::Direction;
use engine::traffic::Generation;
use engine::traffic::pods::PodDecision;
use pod_cidr::decide::PoolRole;
use pod_cidr::pools::Openness;
use serde_json::json;

use crate::facts;
use crate::snapshot::Snapshot;
use crate::traffic::{Fates, Network, Networks};

/// Annotations by which a pod requests a pool.
const POOLS: [(&str, bool); 2] = [
    ("cni.projectcalico.org/ipv4pools", true),
    ("cni.projectcalico.org/ipv6pools", false),
];

/// The two ranges, each with the annotations that give a pod an address of it.
pub fn networks(old_pool: &str, new_pool: &str, is_ipv4: bool) -> Networks {
    let of = |name, pool: &str| Network {
        name,
        annotations: POOLS
            .iter()
            .filter(|(_, ipv4)| *ipv4 == is_ipv4)
            .map(|(key, _)| ((*key).to_owned(), json!([pool]).to_string()))
            .collect(),
    };
    Networks {
        old: of("old-range", old_pool),
        new: of("new-range", new_pool),
    }
}

/// The fate of the traffic pods of every node. `left`: whether other pods have an address of the source pool.
pub fn fates(
    snapshot: &Snapshot,
    direction: Direction,
    openness: impl Fn(PoolRole) -> Openness,
    left: bool,
) -> Fates<'_> {
    let mut fates = BTreeMap::new();
    for name in snapshot.node_migrations.keys() {
        let Some(node) = snapshot.nodes.get(name) else {
            continue;
        };
        let usable = facts::nodes::is_ready(node) && snapshot.agent_ready(name);
        for (generation, which) in [(Generation::Old, PoolRole::Old), (Generation::New, PoolRole::New)] {
            let is_left = which == PoolRole::source(direction);
            fates.insert(
                (name.as_str(), generation),
                fate(openness(which), is_left, left, usable),
            );
        }
    }
    fates
}

fn fate(openness: Openness, is_left: bool, others: bool, usable: bool) -> PodDecision {
    match openness {
        Openness::OptIn | Openness::Narrowed | Openness::AllPods if usable => PodDecision::Wanted,
        Openness::OptIn | Openness::Narrowed | Openness::AllPods => PodDecision::Kept,
        // The pod would get no address again; and the last pod of the range must not keep the range in use.
        Openness::Closed if !is_left || others => PodDecision::Kept,
        Openness::Closed | Openness::Absent => PodDecision::Unwanted,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::open(Openness::AllPods, true, true, true, PodDecision::Wanted)]
    #[case::canary(Openness::OptIn, false, true, true, PodDecision::Wanted)]
    #[case::node_unready(Openness::AllPods, false, true, false, PodDecision::Kept)]
    #[case::closed_with_others(Openness::Closed, true, true, true, PodDecision::Kept)]
    #[case::last_of_its_range(Openness::Closed, true, false, true, PodDecision::Unwanted)]
    #[case::not_open_yet(Openness::Closed, false, false, true, PodDecision::Kept)]
    #[case::no_pool(Openness::Absent, false, false, true, PodDecision::Unwanted)]
    fn traffic_pods_of_a_node_follow_its_pools(
        #[case] openness: Openness,
        #[case] is_left: bool,
        #[case] others: bool,
        #[case] usable: bool,
        #[case] expected: PodDecision,
    ) {
        assert_eq!(fate(openness, is_left, others, usable), expected);
    }
}
