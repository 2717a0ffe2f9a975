//! Calico's objects and its `DaemonSet`, for every kind of migration. Each object that is written has a builder, and a `…_change`
//! function that returns the patch for an existing object; `None` when nothing has to be written.

mod block;
pub mod etcd;
pub mod etcd_access;
pub mod family;
mod handle;
pub mod kernel;
mod names;
pub mod selector;

use engine::cluster::{Container, DaemonSet};
use engine::command_line::runs;
pub use engine::environment::ConfigMaps;
use engine::environment::Variable;
use engine::owner::KUBE_SYSTEM;

pub use block::{
    Allocation, BlockConflict, affinity, allocated, block, block_change, block_release, node_of,
};
pub use handle::{Released, handle, handle_blocks, handle_change, handle_release};
pub use names::{
    affinity_name, block_name, handle_name, hostname_hash, pod_link, tunnel_handle, tunnel_handles,
};

/// Name of the container of Calico's node agent.
pub const NODE_CONTAINER: &str = "calico-node";
/// Annotations by which pods and namespaces request pools or addresses.
pub const PIN_ANNOTATIONS: [&str; 5] = [
    "cni.projectcalico.org/ipv4pools",
    "cni.projectcalico.org/ipv6pools",
    "cni.projectcalico.org/ipAddrs",
    "cni.projectcalico.org/ipAddrsNoIpam",
    "cni.projectcalico.org/floatingIPs",
];
/// Namespaces of Calico in its manifests and with its operator, and of flannel, which may route for Calico.
pub const NETWORK_NAMESPACES: [&str; 4] = [
    "calico-apiserver",
    "calico-system",
    "kube-flannel",
    "tigera-operator",
];
/// API version of Calico's objects in the Kubernetes API.
pub const API_VERSION: &str = "crd.projectcalico.org/v1";

/// Whether the `DaemonSet` runs Calico's node agent. A `DaemonSet` with such a name outside of the host network belongs to a
/// tenant.
pub fn runs_calico_node(set: &DaemonSet) -> bool {
    set.host_network
        && set.containers.iter().any(|container| {
            !container.init && (container.name == "calico-node" || runs(container, "calico-node"))
        })
}

/// Namespaces of the `DaemonSet` in Calico's own manifests.
const NAMESPACES: [&str; 2] = [KUBE_SYSTEM, "calico-system"];

/// Calico's `DaemonSet` among these. Of several, those in the namespaces of Calico's own manifests are preferred, then those that
/// want a pod on some node. An error holds the remaining ones when there is more than one.
///
/// # Errors
///
/// More than one `DaemonSet` remains.
pub fn daemon_set<'sets>(
    sets: impl IntoIterator<Item = &'sets DaemonSet>,
) -> Result<Option<&'sets DaemonSet>, Vec<&'sets DaemonSet>> {
    let mut found: Vec<&DaemonSet> = sets.into_iter().filter(|set| runs_calico_node(set)).collect();
    let narrows: [fn(&&DaemonSet) -> bool; 2] = [
        |set| NAMESPACES.contains(&set.namespace.as_str()),
        |set| set.desired > 0,
    ];
    for fits in narrows {
        let narrower: Vec<&DaemonSet> = found.iter().copied().filter(fits).collect();
        if !narrower.is_empty() {
            found = narrower;
        }
    }
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(found),
    }
}

/// The container of the `DaemonSet` that is Calico's agent.
pub fn calico_node(set: &DaemonSet) -> Option<&Container> {
    set.containers
        .iter()
        .find(|container| !container.init && container.name == "calico-node")
}

/// The value of a variable of a container of the `DaemonSet`.
pub fn variable<'facts>(
    config_maps: &'facts ConfigMaps,
    set: &DaemonSet,
    container: &'facts Container,
    name: &str,
) -> Variable<'facts> {
    container.environment.variable(name, &set.namespace, config_maps)
}

/// Calico's `DaemonSet` of a migration that has begun, by namespace and name; before the start, the result of [`daemon_set`].
/// `None` when it does not exist or is ambiguous: a check reports this.
pub fn saved_daemon_set<'sets>(
    sets: &'sets [DaemonSet],
    begun_with: Option<(&str, &str)>,
) -> Option<&'sets DaemonSet> {
    match begun_with {
        Some(known) => sets
            .iter()
            .find(|set| (set.namespace.as_str(), set.name.as_str()) == known),
        None => daemon_set(sets).ok().flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(namespace: &str, desired: i32, host_network: bool) -> DaemonSet {
        DaemonSet {
            namespace: namespace.to_owned(),
            name: "calico-node".to_owned(),
            host_network,
            containers: vec![Container {
                name: "calico-node".to_owned(),
                ..Container::default()
            }],
            desired,
            ..DaemonSet::default()
        }
    }

    fn chosen(sets: &[DaemonSet]) -> Result<Option<&str>, usize> {
        let chosen = daemon_set(sets).map_err(|several| several.len())?;
        Ok(chosen.map(|set| set.namespace.as_str()))
    }

    /// A tenant may use the name calico-node for anything; its namespace may sort first, and its pods may run.
    #[test]
    fn a_daemon_set_of_a_tenant_is_not_taken_for_calico() {
        let calico = set("kube-system", 3, true);
        assert_eq!(
            chosen(&[set("aaa", 9, false), calico.clone()]),
            Ok(Some("kube-system"))
        );
        assert_eq!(
            chosen(&[set("aaa", 9, true), calico.clone()]),
            Ok(Some("kube-system"))
        );
        assert_eq!(chosen(&[set("aaa", 9, false)]), Ok(None));
        assert_eq!(
            chosen(&[set("networking", 3, true), set("aaa", 9, false)]),
            Ok(Some("networking"))
        );
        // One DaemonSet for each architecture.
        assert_eq!(
            chosen(&[calico.clone(), set("calico-system", 0, true)]),
            Ok(Some("kube-system"))
        );
        assert_eq!(chosen(&[calico, set("calico-system", 3, true)]), Err(2));
        assert_eq!(chosen(&[set("one", 3, true), set("other", 3, true)]), Err(2));
    }
}
