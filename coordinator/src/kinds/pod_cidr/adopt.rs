//! One `NodeMigration` for each Node, with what its agent looks for.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::Migration;
use api::migration::{PodCidr, Stage, StageNow};
use api::node_migration::NodeMigrationSpec;
use ipnet::IpNet;
use pod_cidr::calico_node::{CalicoNode, Ends};
use pod_cidr::ends;
use pod_cidr::host::{HostSettings, TunnelEnd};
use pod_cidr::ipam::Ipam;
use pod_cidr::returns::{Standing, standing};

use crate::cache::Cache;
use crate::context::Context;
use crate::node_migrations::{self, belongs_to};
use crate::write::WriteError;

/// What agents look for on the way there.
pub fn look(kind: &PodCidr) -> HostSettings {
    HostSettings {
        from: kind.from,
        to: kind.to,
        mtu: None,
        cni_configuration_directory: None,
        tunnel_ends: Vec::new(),
    }
}

/// The same on the way back: the range that is left is the other one.
pub fn look_back(kind: &PodCidr) -> HostSettings {
    HostSettings {
        from: kind.to,
        to: kind.from,
        ..look(kind)
    }
}

/// Whether agents keep the addresses of tunnels that are exchanged: from the moment at which that may be done until blocks go. What
/// is kept stays so when the migration falls behind that moment again: a place that has to be widened anew, a name server that is
/// not Ready, somebody who turns around.
pub fn keeps(cache: &Cache, stage: Option<&StageNow<Stage>>) -> bool {
    stage.is_some_and(|stage| {
        stage.name <= Stage::Soak && (stage.name >= Stage::Switch || somebody_keeps(cache, |_| true))
    })
}

/// Whether an agent keeps an address that its tunnel had in the range that is led to now.
pub fn somebody_returns(cache: &Cache, left: &IpNet) -> bool {
    somebody_keeps(cache, |end| !left.contains(&IpAddr::V4(end.kept)))
}

/// Whether an agent is told of such an end.
fn somebody_keeps(cache: &Cache, is_meant: impl Fn(&TunnelEnd) -> bool) -> bool {
    cache.node_migrations.state().iter().any(|object| {
        let settings = object.spec.pod_cidr.iter();
        let mut ends = settings.flat_map(|settings| &settings.tunnel_ends);
        ends.any(&is_meant)
    })
}

/// Whether an address that this node's tunnel had can be given back to it. Where a block that is not understood may have it, that is
/// not known yet.
fn comes_back(end: &TunnelEnd, node: &str, ipam: &Ipam) -> bool {
    match standing(end, node, ipam) {
        Standing::Held(_) | Standing::Free(_) => true,
        Standing::Lost(_) => {
            let address = IpNet::from(IpAddr::V4(end.kept));
            ipam.block_with(&address.addr()).is_none() && ipam.unclear.of_no_node(&address).is_some()
        }
    }
}

/// What the addresses of tunnels are told by, while agents keep them.
#[derive(Clone, Copy)]
pub struct Tunnels<'pass> {
    /// Nodes as Calico has them.
    pub nodes: &'pass BTreeMap<String, CalicoNode>,
    /// What Calico's IPAM has given out.
    pub ipam: &'pass Ipam,
}

/// Brings the `NodeMigration`s in line with the Nodes, and asks every agent for what it does not know of yet.
pub async fn adopt(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    look: &HostSettings,
    tunnels: Option<Tunnels<'_>>,
) -> Result<(), WriteError> {
    for object in node_migrations::without_node(cache, migration) {
        node_migrations::delete(context, &object).await?;
    }
    // From the start: an agent that does not know better looks for flannel.
    let ask = |spec: &mut NodeMigrationSpec| spec.pod_cidr = Some(look.clone());
    node_migrations::adopt(context, cache, migration, ask).await?;
    let nodes = node_migrations::linux_nodes(cache);
    let none = Ends::new();
    for object in cache.node_migrations.state() {
        let before = object.spec.pod_cidr.as_ref();
        let name = &object.spec.node_name;
        let tunnel_ends = match tunnels {
            Some(tunnels) if nodes.contains_key(name) => {
                let told = before.map_or(&[][..], |settings| settings.tunnel_ends.as_slice());
                let comes_back = |end: &TunnelEnd| comes_back(end, name, tunnels.ipam);
                // One that Calico does not know at this moment keeps what it has.
                let now = tunnels.nodes.get(name).map_or(&none, |node| &node.ends);
                ends::told(told, now, &look.from, comes_back)
            }
            Some(_) | None => Vec::new(),
        };
        let wanted = HostSettings {
            tunnel_ends,
            ..look.clone()
        };
        if belongs_to(&object, migration) && before != Some(&wanted) {
            let spec = NodeMigrationSpec {
                pod_cidr: Some(wanted),
                ..object.spec.clone()
            };
            node_migrations::bring_to(context, &object, &spec).await?;
        }
    }
    Ok(())
}
