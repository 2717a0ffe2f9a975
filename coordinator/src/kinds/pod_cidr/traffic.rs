//! The traffic pods of each range that every node has to have.

use std::collections::BTreeMap;

use engine::decision::Direction;
use engine::traffic::Generation;
use engine::traffic::pods::Fate;
use pod_cidr::decide::Which;
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
    openness: impl Fn(Which) -> Openness,
    left: bool,
) -> Fates<'_> {
    let mut fates = BTreeMap::new();
    for name in snapshot.node_migrations.keys() {
        let Some(node) = snapshot.nodes.get(name) else {
            continue;
        };
        let usable = facts::nodes::is_ready(node) && snapshot.agent_ready(name);
        for (generation, which) in [(Generation::Old, Which::Old), (Generation::New, Which::New)] {
            let is_left = which == Which::left(direction);
            fates.insert(
                (name.as_str(), generation),
                fate(openness(which), is_left, left, usable),
            );
        }
    }
    fates
}

fn fate(openness: Openness, is_left: bool, others: bool, usable: bool) -> Fate {
    match openness {
        Openness::ToWhoNamesIt | Openness::Narrowed | Openness::ToEverybody if usable => Fate::Wanted,
        Openness::ToWhoNamesIt | Openness::Narrowed | Openness::ToEverybody => Fate::Kept,
        // The pod would get no address again; and the last pod of the range must not keep the range in use.
        Openness::Closed if !is_left || others => Fate::Kept,
        Openness::Closed | Openness::Absent => Fate::Unwanted,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::open(Openness::ToEverybody, true, true, true, Fate::Wanted)]
    #[case::canary(Openness::ToWhoNamesIt, false, true, true, Fate::Wanted)]
    #[case::node_unready(Openness::ToEverybody, false, true, false, Fate::Kept)]
    #[case::closed_with_others(Openness::Closed, true, true, true, Fate::Kept)]
    #[case::last_of_its_range(Openness::Closed, true, false, true, Fate::Unwanted)]
    #[case::not_open_yet(Openness::Closed, false, false, true, Fate::Kept)]
    #[case::no_pool(Openness::Absent, false, false, true, Fate::Unwanted)]
    fn traffic_pods_of_a_node_follow_its_pools(
        #[case] openness: Openness,
        #[case] is_left: bool,
        #[case] others: bool,
        #[case] usable: bool,
        #[case] expected: Fate,
    ) {
        assert_eq!(fate(openness, is_left, others, usable), expected);
    }
}
