//! Calico's objects and its `DaemonSet`, whatever kind of migration looks at them. Of an object that is written there is a builder, and
//! a `…_change` that says what to patch in one that is there; `None` when nothing has to be written.

mod block;
pub mod etcd;
pub mod family;
mod handle;
mod names;

use std::collections::BTreeMap;

use crate::cluster::{Container, DaemonSet};
use crate::command_line::runs;

pub use block::{
    Allocation, BlockConflict, affinity, allocated, block, block_change, block_release, node_of,
};
pub use handle::{Released, handle, handle_blocks, handle_change, handle_release};
pub use names::{affinity_name, block_name, handle_name, hostname_hash, tunnel_handle, tunnel_handles};

/// API version under which Calico keeps its objects.
pub const API_VERSION: &str = "crd.projectcalico.org/v1";

/// Whether the `DaemonSet` runs Calico's node agent.
pub fn looks_like_calico(set: &DaemonSet) -> bool {
    set.containers.iter().any(|container| {
        !container.init && (container.name == "calico-node" || runs(container, "calico-node"))
    })
}

/// The container of the `DaemonSet` that is Calico's agent.
pub fn calico_node(set: &DaemonSet) -> Option<&Container> {
    set.containers
        .iter()
        .find(|container| !container.init && container.name == "calico-node")
}

/// Data of `ConfigMap`s by (namespace, name).
pub type ConfigMaps = BTreeMap<(String, String), BTreeMap<String, String>>;

/// A variable of a container, from wherever its value comes.
pub fn variable<'facts>(
    config_maps: &'facts ConfigMaps,
    set: &DaemonSet,
    container: &'facts Container,
    name: &str,
) -> Option<&'facts str> {
    if let Some(value) = container.environment.get(name) {
        return Some(value);
    }
    let (config_map, key) = container.environment_from_config_maps.get(name)?;
    let data = config_maps.get(&(set.namespace.clone(), config_map.clone()))?;
    data.get(key).map(String::as_str)
}
