//! Calico's objects in the Kubernetes API, with the fields that the stand-in uses. Other fields are kept.

use std::collections::BTreeMap;

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fields of an object that the stand-in does not read.
pub type Other = BTreeMap<String, Value>;

/// Calico omits false values.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// A range of pod addresses.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "IPPool",
    plural = "ippools"
)]
#[kube(schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct IPPoolSpec {
    /// The range.
    pub cidr: String,
    /// Length of the prefix of the blocks that nodes own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u8>,
    /// Never, Always or `CrossSubnet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipip_mode: Option<String>,
    /// Never, Always or `CrossSubnet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan_mode: Option<String>,
    /// Masquerade packets to addresses outside every pool.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nat_outgoing: bool,
    /// No new address is assigned.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disabled: bool,
    /// Selector of the nodes that take addresses from the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<String>,
    /// Selector of the namespaces whose pods get addresses from the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<String>,
    /// Workload, Tunnel, `LoadBalancer`; absent means Workload and Tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_uses: Option<Vec<String>>,
    /// Automatic or Manual; absent means Automatic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment_mode: Option<String>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// Settings of Felix. Stored unchanged: any change is a reason to restart.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "crd.projectcalico.org", version = "v1", kind = "FelixConfiguration")]
#[kube(plural = "felixconfigurations", schema = "disabled")]
pub struct FelixConfigurationSpec {
    /// Every setting by its name.
    #[serde(flatten)]
    pub settings: Other,
}

/// Cluster information for all of Calico's programs.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "crd.projectcalico.org", version = "v1", kind = "ClusterInformation")]
#[kube(plural = "clusterinformations", schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct ClusterInformationSpec {
    /// 32 hexadecimal digits.
    #[serde(default, rename = "clusterGUID", skip_serializing_if = "Option::is_none")]
    pub cluster_guid: Option<String>,
    /// For example `k8s,kdd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_type: Option<String>,
    /// Version of the node with the last write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_version: Option<String>,
    /// Whether components may use the datastore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore_ready: Option<bool>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// A group of policies. The stand-in writes the default ones and enforces none.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "Tier",
    plural = "tiers"
)]
#[kube(schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct TierSpec {
    /// Position in the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// A block of addresses with their holders.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "IPAMBlock",
    plural = "ipamblocks"
)]
#[kube(schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct IPAMBlockSpec {
    /// The range.
    pub cidr: String,
    /// Owner: `host:<node>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// For each address: `None`, or an index into `attributes`.
    pub allocations: Vec<Option<usize>>,
    /// Free addresses, in the order of assignment.
    pub unallocated: Vec<usize>,
    /// Holders of addresses.
    #[serde(default)]
    pub attributes: Vec<AllocationAttribute>,
    /// Grows with each write; starts as the time of creation in nanoseconds.
    #[serde(default)]
    pub sequence_number: u64,
    /// Sequence number of the assignment of an address, by ordinal.
    #[serde(default)]
    pub sequence_number_for_allocation: BTreeMap<String, u64>,
    /// The block is being deleted.
    #[serde(default)]
    pub deleted: bool,
    /// Unused, but required by the schema.
    #[serde(default)]
    pub strict_affinity: bool,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// The holder of an address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocationAttribute {
    /// The handle that releases the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
    /// Node, pod, namespace, type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secondary: Option<BTreeMap<String, String>>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// A node's claim on a block.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "BlockAffinity",
    plural = "blockaffinities"
)]
#[kube(schema = "disabled")]
pub struct BlockAffinitySpec {
    /// pending, confirmed, pendingDeletion.
    pub state: String,
    /// The node.
    pub node: String,
    /// host or virtual; absent means host.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The block.
    pub cidr: String,
    /// Text, not a boolean.
    pub deleted: String,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// Number of addresses of each block that belong to one handle.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "IPAMHandle",
    plural = "ipamhandles"
)]
#[kube(schema = "disabled")]
pub struct IPAMHandleSpec {
    /// The handle, with upper-case letters.
    #[serde(rename = "handleID")]
    pub handle_id: String,
    /// Addresses by block.
    pub block: BTreeMap<String, i64>,
    /// The handle is being deleted.
    #[serde(default)]
    pub deleted: bool,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// Assignment rules of the whole cluster.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "IPAMConfig",
    plural = "ipamconfigs"
)]
#[kube(schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct IPAMConfigSpec {
    /// A node takes no address from another node's block.
    #[serde(default)]
    pub strict_affinity: bool,
    /// A node without free addresses claims a new block.
    #[serde(default)]
    pub auto_allocate_blocks: bool,
    /// Maximum of blocks of one node; 0 means the built-in limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_blocks_per_host: Option<usize>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}

/// Addresses that are never assigned.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "IPReservation",
    plural = "ipreservations"
)]
#[kube(schema = "disabled")]
pub struct IPReservationSpec {
    /// Ranges, as text.
    #[serde(default, rename = "reservedCIDRs")]
    pub reserved_cidrs: Vec<String>,
    /// Other fields.
    #[serde(flatten)]
    pub other: Other,
}
