//! Policies that begin to hold when Calico has the pods.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use engine::labels::Labels;

use crate::certainty::Match;
use crate::cluster::Cluster;
use crate::name::ObjectName;
use crate::pod::Pod;
use crate::verdict::{Direction, UnknownReason};

/// A policy that begins to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dormant {
    /// The policy.
    pub object: ObjectName,
    /// Pods whose incoming connections it judges; `None` if it has no effect on these.
    pub ingress: Option<Selected>,
    /// Pods whose outgoing connections it judges; `None` if it has no effect on these.
    pub egress: Option<Selected>,
}

/// The number of pods that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected {
    /// So many.
    Pods(usize),
    /// Not known.
    Unknown(UnknownReason),
}

/// Every policy that begins to hold, those that select no pod included. Policies of kinds that this version of Calico does not
/// read are missing. A pod counts if Calico has an endpoint for it: no `hostNetwork` pods, no finished ones.
///
/// # Examples
///
/// ```
/// use k8s_openapi::api::networking::v1::NetworkPolicy;
/// use policy::dormant::Selected;
/// use policy::{Cluster, Facts, Policy, dormant};
/// use serde_json::json;
///
/// let policy: NetworkPolicy = serde_json::from_value(json!({
///     "metadata": {"namespace": "shop", "name": "deny"},
///     "spec": {"podSelector": {}},
/// }))
/// .unwrap();
/// let cluster = Cluster::new(Facts { policies: vec![Policy::read(&policy)], ..Facts::default() });
/// let found = dormant(&cluster);
/// assert_eq!(found[0].object.to_string(), "NetworkPolicy shop/deny");
/// assert_eq!((found[0].ingress, found[0].egress), (Some(Selected::Pods(0)), None));
/// ```
pub fn dormant(cluster: &Cluster) -> Vec<Dormant> {
    let groups = groups(cluster);
    let of_kubernetes = cluster.policies().iter().map(|policy| {
        let own = groups.get(&*policy.namespace);
        let count = || {
            let own = own.into_iter().flatten();
            selected(own.map(|(labels, (_, number))| (policy.selector.matches(labels), *number)))
        };
        let of = |direction| policy.rules(direction).map(|_| count());
        Dormant {
            object: policy.object(),
            ingress: of(Direction::Ingress),
            egress: of(Direction::Egress),
        }
    });
    let version = cluster.settings().version;
    let is_read = cluster
        .admin_policies()
        .iter()
        .filter(|policy| policy.is_read_by(version));
    let of_administrators = is_read.map(|policy| {
        let count = |direction| {
            let pods = groups.values().flatten();
            selected(pods.map(|(_, (pod, number))| {
                (
                    policy.selects(pod, cluster.namespace(&pod.namespace), direction),
                    *number,
                )
            }))
        };
        let of = |direction| policy.has(direction).then(|| count(direction));
        Dormant {
            object: policy.object.clone(),
            ingress: of(Direction::Ingress),
            egress: of(Direction::Egress),
        }
    });
    of_kubernetes.chain(of_administrators).collect()
}

/// Addresses of pods of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restricted {
    /// Addresses to which a policy may restrict connections, in their order.
    pub ingress: Vec<IpAddr>,
    /// Addresses from which a policy may restrict connections, in their order.
    pub egress: Vec<IpAddr>,
    /// The number of pods that a policy may restrict, those without an address included.
    pub pods: usize,
}

/// Pods that policies may restrict, by node. A pod counts if it is not certain that no policy selects it.
pub fn restricted(cluster: &Cluster) -> BTreeMap<Arc<str>, Restricted> {
    let mut known: HashMap<(&str, &Labels), [bool; 2]> = HashMap::new();
    let mut found: BTreeMap<Arc<str>, Restricted> = BTreeMap::new();
    for pod in cluster.pods().iter().filter(|pod| pod.is_endpoint()) {
        let of_group = known.entry((&pod.namespace, &pod.labels));
        let [ingress, egress] = *of_group.or_insert_with(|| {
            [Direction::Ingress, Direction::Egress]
                .map(|direction| may_be_restricted(cluster, pod, direction))
        });
        if !(ingress || egress) {
            continue;
        }
        let of_node = found.entry(Arc::clone(&pod.node)).or_default();
        of_node.pods += 1;
        for (is_meant, list) in [(ingress, &mut of_node.ingress), (egress, &mut of_node.egress)] {
            list.extend(pod.addresses().filter(|_| is_meant));
        }
    }
    for of_node in found.values_mut() {
        of_node.ingress.sort_unstable();
        of_node.egress.sort_unstable();
    }
    found
}

fn may_be_restricted(cluster: &Cluster, pod: &Pod, direction: Direction) -> bool {
    let of_kubernetes = cluster.policies_of(&pod.namespace).iter();
    let version = cluster.settings().version;
    let namespace = cluster.namespace(&pod.namespace);
    let mut of_administrators = cluster.admin_policies().iter();
    of_kubernetes
        .filter(|policy| policy.rules(direction).is_some())
        .any(|policy| policy.selector.matches(&pod.labels) != Match::No)
        || of_administrators.any(|policy| {
            policy.is_read_by(version) && policy.selects(pod, namespace, direction) != Match::No
        })
}

/// One pod of each group with equal labels, and the size of the group, by namespace.
type Groups<'cluster> = BTreeMap<&'cluster str, HashMap<&'cluster Labels, (&'cluster Pod, usize)>>;

fn groups(cluster: &Cluster) -> Groups<'_> {
    let mut groups = Groups::new();
    for pod in cluster.pods().iter().filter(|pod| pod.is_endpoint()) {
        let of_namespace = groups.entry(&pod.namespace).or_default();
        of_namespace.entry(&pod.labels).or_insert((pod, 0)).1 += 1;
    }
    groups
}

fn selected(groups: impl Iterator<Item = (Match, usize)>) -> Selected {
    let mut count = 0;
    let mut unclear = None;
    for (matches, number) in groups {
        match matches {
            Match::No => {}
            Match::Yes => count += number,
            // The order of the groups is not fixed.
            Match::Unknown(why) => unclear = unclear.max(Some(why)),
        }
    }
    unclear.map_or(Selected::Pods(count), Selected::Unknown)
}

#[cfg(test)]
mod tests;
