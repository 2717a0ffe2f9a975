//! The pairs of traffic pods that probe each other: a few for each pod, and unchanged as long as both pods exist.

use std::collections::{BTreeMap, BTreeSet};

use super::{Generation, PathClass};

/// The largest number of pods that send to one pod, for each class of path.
const MAX_SENDERS: usize = 2;

/// A traffic pod that can send and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint<'pod> {
    /// Name of its node.
    pub node: &'pod str,
    /// The network that its address is from.
    pub generation: Generation,
    /// Its UID.
    pub uid: &'pod str,
}

/// A source that sends to a target, both by UID, with the class of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair<'pod> {
    /// UID of the pod that sends.
    pub source: &'pod str,
    /// UID of the pod that answers.
    pub target: &'pod str,
    /// The class of the path.
    pub class: PathClass,
}

/// Chooses the pairs. Every pod sends to at most one pod of each generation on another node, and to the pod of the other
/// generation on its own node, and has at most `MAX_SENDERS` senders of each generation: the load of a node does not depend on
/// the size of the cluster. Pairs of `current` with an unchanged class are kept, so a node that changes its network changes the
/// targets of few other pods.
pub fn assign<'pod>(endpoints: &[Endpoint<'pod>], current: &BTreeSet<(&str, &str)>) -> Vec<Pair<'pod>> {
    let mut order = endpoints.to_vec();
    order.sort_unstable();
    let by_uid: BTreeMap<&str, Endpoint<'pod>> =
        order.iter().map(|endpoint| (endpoint.uid, *endpoint)).collect();
    let mut chosen = Chosen::default();
    for (source, target) in current {
        if let (Some(source), Some(target)) = (by_uid.get(source), by_uid.get(target)) {
            chosen.add(source, target);
        }
    }
    for generation in [Generation::Old, Generation::New] {
        let targets: Vec<Endpoint<'pod>> = order
            .iter()
            .filter(|endpoint| endpoint.generation == generation)
            .copied()
            .collect();
        for source in &order {
            // The next node in order, and so on around, so that each pod has other neighbours.
            let start = targets.partition_point(|target| target.node <= source.node);
            let around = || targets.iter().skip(start).chain(targets.iter().take(start));
            for senders in 0..MAX_SENDERS {
                if chosen.is_full(source, &targets) {
                    break;
                }
                let next = around()
                    .find(|target| target.node != source.node && chosen.senders(source, target) == senders);
                if next.is_some_and(|target| chosen.add(source, target)) {
                    break;
                }
            }
            let before = targets.iter().take(start).rev();
            let mut same_node = before.take_while(|target| target.node == source.node);
            let own = same_node.find(|target| target.generation != source.generation);
            if let Some(own) = own {
                chosen.add(source, own);
            }
        }
    }
    chosen.pairs
}

/// The pairs that are chosen so far, with counts.
#[derive(Default)]
struct Chosen<'pod> {
    pairs: Vec<Pair<'pod>>,
    /// Sources that have a target, by class.
    sends: BTreeSet<(&'pod str, PathClass)>,
    /// Number of senders of a target, by class.
    senders: BTreeMap<(&'pod str, PathClass), usize>,
    /// Number of senders of all targets, by class.
    all: BTreeMap<PathClass, usize>,
}

impl<'pod> Chosen<'pod> {
    fn senders(&self, source: &Endpoint<'pod>, target: &Endpoint<'pod>) -> usize {
        let class = PathClass::between(source.generation, target.generation);
        self.senders
            .get(&(target.uid, class))
            .copied()
            .unwrap_or_default()
    }

    /// Whether this source already has a target among these, or no target can have another sender.
    fn is_full(&self, source: &Endpoint<'pod>, targets: &[Endpoint<'pod>]) -> bool {
        let Some(first) = targets.first() else {
            return true;
        };
        let class = PathClass::between(source.generation, first.generation);
        self.sends.contains(&(source.uid, class))
            || self.all.get(&class).copied().unwrap_or_default() >= targets.len() * MAX_SENDERS
    }

    fn add(&mut self, source: &Endpoint<'pod>, target: &Endpoint<'pod>) -> bool {
        let class = match (source.node == target.node, source.generation == target.generation) {
            // Two pods of one network on one node use only its bridge: such a probe shows nothing about the migration.
            (true, true) => return false,
            (true, false) => PathClass::SameNode,
            (false, _) => PathClass::between(source.generation, target.generation),
        };
        let senders = self.senders.entry((target.uid, class)).or_default();
        if *senders >= MAX_SENDERS || !self.sends.insert((source.uid, class)) {
            return false;
        }
        *senders += 1;
        *self.all.entry(class).or_default() += 1;
        self.pairs.push(Pair {
            source: source.uid,
            target: target.uid,
            class,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(count: usize) -> Vec<(String, String, String)> {
        (0..count)
            .map(|index| {
                (
                    format!("n{index:04}"),
                    format!("old-{index:04}"),
                    format!("new-{index:04}"),
                )
            })
            .collect()
    }

    /// The first `new` nodes are on the new network; in place they have both pods.
    fn cluster(names: &[(String, String, String)], new: usize, in_place: bool) -> Vec<Endpoint<'_>> {
        let mut endpoints = Vec::new();
        for (index, (node, old, other)) in names.iter().enumerate() {
            if index < new {
                endpoints.push(Endpoint {
                    node,
                    generation: Generation::New,
                    uid: other,
                });
            }
            if index >= new || in_place {
                endpoints.push(Endpoint {
                    node,
                    generation: Generation::Old,
                    uid: old,
                });
            }
        }
        endpoints
    }

    fn count(pairs: &[Pair<'_>], class: PathClass) -> usize {
        pairs.iter().filter(|pair| pair.class == class).count()
    }

    #[test]
    fn a_small_cluster_has_every_class_in_the_middle_of_a_migration() {
        let names = names(3);
        let pairs = assign(&cluster(&names, 0, true), &BTreeSet::new());
        assert_eq!((pairs.len(), count(&pairs, PathClass::OldToOld)), (3, 3));
        let pairs = assign(&cluster(&names, 2, true), &BTreeSet::new());
        for (class, wanted) in [
            (PathClass::OldToOld, 3),
            (PathClass::NewToNew, 2),
            (PathClass::NewToOld, 2),
            (PathClass::OldToNew, 3),
            (PathClass::SameNode, 4),
        ] {
            assert_eq!(count(&pairs, class), wanted, "{class:?}");
        }
        assert_eq!(assign(&cluster(&names, 3, false), &BTreeSet::new()).len(), 3);
        assert_eq!(assign(&cluster(&names[..1], 0, false), &BTreeSet::new()), []);
    }

    /// Each changed target is a write.
    #[test]
    fn a_node_that_changes_its_network_changes_few_targets_of_other_pods() {
        let names = names(1000);
        let before = assign(&cluster(&names, 500, false), &BTreeSet::new());
        let current: BTreeSet<(&str, &str)> = before.iter().map(|pair| (pair.source, pair.target)).collect();
        let same = assign(&cluster(&names, 500, false), &current);
        assert_eq!(
            before.iter().collect::<BTreeSet<_>>(),
            same.iter().collect::<BTreeSet<_>>()
        );
        let after = assign(&cluster(&names, 501, false), &current);
        let changed: BTreeSet<&str> = before
            .iter()
            .filter(|pair| !after.contains(pair))
            .chain(after.iter().filter(|pair| !before.contains(pair)))
            .map(|pair| pair.source)
            .collect();
        assert!(changed.len() <= 10, "{changed:?}");
    }

    proptest! {
        /// In a cluster of any size, no pod sends to more than three pods, and no pod has more senders than allowed.
        #[test]
        fn each_pod_has_a_bounded_number_of_pairs(nodes in 1usize..40, new in 0usize..40, in_place in any::<bool>()) {
            let names = names(nodes);
            let endpoints = cluster(&names, new.min(nodes), in_place);
            let pairs = assign(&endpoints, &BTreeSet::new());
            for endpoint in &endpoints {
                let sends = pairs.iter().filter(|pair| pair.source == endpoint.uid).count();
                prop_assert!(sends <= 3);
                for class in PathClass::ALL.iter().copied() {
                    let from = pairs.iter()
                        .filter(|pair| pair.target == endpoint.uid && pair.class == class).count();
                    prop_assert!(from <= MAX_SENDERS);
                }
                let others = endpoints.iter().any(|other| {
                    other.generation == endpoint.generation && other.node != endpoint.node
                });
                if others {
                    let class = PathClass::between(endpoint.generation, endpoint.generation);
                    prop_assert!(
                        pairs.iter().any(|pair| pair.source == endpoint.uid && pair.class == class),
                        "{endpoint:?} sends to no pod of its own network"
                    );
                }
            }
        }
    }
}
