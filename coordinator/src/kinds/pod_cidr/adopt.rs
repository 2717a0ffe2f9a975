//! One `NodeMigration` for each Node, with the settings of its agent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::Migration;
use api::migration::{CurrentStage, PodCidr, Stage};
use api::node_migration::NodeMigrationSpec;
use ipnet::IpNet;
use pod_cidr::calico_node::{CalicoNode, TunnelAddresses};
use pod_cidr::former_address::{FormerAddress, standing};
use pod_cidr::host::{ChangedTunnelAddress, HostSettings};
use pod_cidr::ipam::Ipam;
use pod_cidr::tunnel_change;

use crate::cache::Cache;
use crate::context::Context;
use crate::node_migrations::{self, belongs_to};
use crate::write::WriteError;

/// Settings of agents on the way forward.
pub fn settings_forward(kind: &PodCidr) -> HostSettings {
    HostSettings {
        from: kind.from,
        to: kind.to,
        mtu: None,
        cni_configuration_directory: None,
        tunnel_addresses: Vec::new(),
    }
}

/// Settings of agents on the way back: source and target are exchanged.
pub fn settings_back(kind: &PodCidr) -> HostSettings {
    HostSettings {
        from: kind.to,
        to: kind.from,
        ..settings_forward(kind)
    }
}

/// Whether agents keep the tunnel addresses that are exchanged: from stage Switch until blocks are released. Kept addresses stay
/// when the migration falls back before stage Switch: a place has to allow both ranges again, a name server is not Ready, or the
/// direction changes.
pub fn agents_keep_addresses(cache: &Cache, stage: Option<&CurrentStage<Stage>>) -> bool {
    stage.is_some_and(|stage| {
        stage.name <= Stage::Soak && (stage.name >= Stage::Switch || any_agent_keeps(cache, |_| true))
    })
}

/// Whether an agent keeps a former tunnel address of the target range.
pub fn any_address_returns(cache: &Cache, left: &IpNet) -> bool {
    any_agent_keeps(cache, |end| !left.contains(&IpAddr::V4(end.old)))
}

/// Whether an agent is told of such a tunnel address.
fn any_agent_keeps(cache: &Cache, is_meant: impl Fn(&ChangedTunnelAddress) -> bool) -> bool {
    cache.node_migrations.state().iter().any(|object| {
        let settings = object.spec.pod_cidr.iter();
        let mut ends = settings.flat_map(|settings| &settings.tunnel_addresses);
        ends.any(&is_meant)
    })
}

/// Whether this node's former tunnel address can return to it. For an address in a malformed block the answer is not known yet,
/// and counts as yes.
fn comes_back(end: &ChangedTunnelAddress, node: &str, ipam: &Ipam) -> bool {
    match standing(end, node, ipam) {
        FormerAddress::Held(_) | FormerAddress::Free(_) => true,
        FormerAddress::Lost(_) => {
            let address = IpNet::from(IpAddr::V4(end.old));
            ipam.block_with(&address.addr()).is_none()
                && ipam.unclear.block_of_unknown_node(&address).is_some()
        }
    }
}

/// Facts about tunnel addresses, while agents keep them.
#[derive(Clone, Copy)]
pub struct Tunnels<'pass> {
    /// Nodes in Calico's datastore.
    pub nodes: &'pass BTreeMap<String, CalicoNode>,
    /// The allocations of Calico's IPAM.
    pub ipam: &'pass Ipam,
}

/// Creates and deletes `NodeMigration`s with the Nodes, and updates the settings of every agent.
pub async fn adopt(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    look: &HostSettings,
    tunnels: Option<Tunnels<'_>>,
) -> Result<(), WriteError> {
    // From the start: without this field, the agent observes the remains of flannel.
    let ask = |spec: &mut NodeMigrationSpec| spec.pod_cidr = Some(look.clone());
    node_migrations::adopt(context, cache, migration, ask).await?;
    let nodes = node_migrations::linux_nodes(cache);
    let none = TunnelAddresses::new();
    for object in cache.node_migrations.state() {
        let before = object.spec.pod_cidr.as_ref();
        let name = &object.spec.node_name;
        let tunnel_ends = match tunnels {
            Some(tunnels) if nodes.contains_key(name) => {
                let told = before.map_or(&[][..], |settings| settings.tunnel_addresses.as_slice());
                let comes_back = |end: &ChangedTunnelAddress| comes_back(end, name, tunnels.ipam);
                // A node that Calico does not have at this moment keeps its addresses.
                let now = tunnels.nodes.get(name).map_or(&none, |node| &node.ends);
                tunnel_change::tunnel_ends(told, now, &look.from, comes_back)
            }
            Some(_) | None => Vec::new(),
        };
        let wanted = HostSettings {
            tunnel_addresses: tunnel_ends,
            ..look.clone()
        };
        if belongs_to(&object, migration) && before != Some(&wanted) {
            let spec = NodeMigrationSpec {
                pod_cidr: Some(wanted),
                ..object.spec.clone()
            };
            node_migrations::update_spec(context, &object, &spec).await?;
        }
    }
    Ok(())
}
