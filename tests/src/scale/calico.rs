//! Calico's objects in a cluster with Calico as its pod network from the start.

use ipnet::Ipv4Net;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::ipam::BLOCK_LENGTH;

/// The pool that calico-node creates at its first start.
pub const POOL: &str = "default-ipv4-ippool";
/// The annotation of a Node with the address of its tunnel.
pub const TUNNEL_ANNOTATION: &str = "projectcalico.org/IPv4VXLANTunnelAddr";

/// A kind of Calico's objects.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Ranges of addresses.
    Pool,
    /// A node's block of a range.
    Block,
    /// A node's claim of its block.
    Affinity,
    /// The handles with which addresses are released.
    Handle,
}

impl Kind {
    /// The objects of the kind.
    pub fn api(self, client: &Client) -> Api<DynamicObject> {
        let (kind, plural) = match self {
            Self::Pool => ("IPPool", "ippools"),
            Self::Block => ("IPAMBlock", "ipamblocks"),
            Self::Affinity => ("BlockAffinity", "blockaffinities"),
            Self::Handle => ("IPAMHandle", "ipamhandles"),
        };
        let resource = ApiResource {
            group: "crd.projectcalico.org".to_owned(),
            version: "v1".to_owned(),
            api_version: "crd.projectcalico.org/v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        Api::all_with(client.clone(), &resource)
    }
}

/// The pool of this range, with VXLAN between all nodes.
pub fn pool(range: &str) -> Value {
    json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": POOL},
        "spec": {
            "cidr": range, "blockSize": BLOCK_LENGTH, "vxlanMode": "Always", "ipipMode": "Never", "natOutgoing": true,
            "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic",
        },
    })
}

/// The range and the node of a block; `None` if the block has no node, or cannot be parsed.
pub fn owner(block: &DynamicObject) -> Option<(Ipv4Net, String)> {
    let spec = &block.data["spec"];
    let range = spec["cidr"].as_str()?.parse().ok()?;
    let node = calico::node_of(spec["affinity"].as_str()?)?;
    Some((range, node.to_owned()))
}
