//! Calico's objects as they are stored in the Kubernetes API, with the fields that the stand-in uses. Fields
//! that it does not know are kept.

use std::collections::BTreeMap;

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fields of an object that the stand-in does not look at.
pub type Other = BTreeMap<String, Value>;

/// Calico leaves out what says no.
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
    /// Masquerade what leaves for addresses outside every pool.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nat_outgoing: bool,
    /// No new address is given out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disabled: bool,
    /// Which nodes take addresses from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<String>,
    /// Which namespaces' pods get addresses from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<String>,
    /// Workload, Tunnel, `LoadBalancer`; absent means Workload and Tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_uses: Option<Vec<String>>,
    /// Automatic or Manual; absent means Automatic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment_mode: Option<String>,
    /// The rest.
    #[serde(flatten)]
    pub other: Other,
}

/// Settings of Felix. Kept as it is: any change of it is a reason to restart.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "crd.projectcalico.org", version = "v1", kind = "FelixConfiguration")]
#[kube(plural = "felixconfigurations", schema = "disabled")]
pub struct FelixConfigurationSpec {
    /// Every setting by its name.
    #[serde(flatten)]
    pub settings: Other,
}

/// What all of Calico's programs must know about the cluster.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "crd.projectcalico.org", version = "v1", kind = "ClusterInformation")]
#[kube(plural = "clusterinformations", schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct ClusterInformationSpec {
    /// 32 hexadecimal digits.
    #[serde(default, rename = "clusterGUID", skip_serializing_if = "Option::is_none")]
    pub cluster_guid: Option<String>,
    /// `k8s,kdd` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_type: Option<String>,
    /// Version of the node that wrote last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_version: Option<String>,
    /// Whether components may use the datastore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore_ready: Option<bool>,
    /// The rest.
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
    /// Place in the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
    /// The rest.
    #[serde(flatten)]
    pub other: Other,
}

/// A block of addresses and who has which.
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
    /// For each address: none, or an index into `attributes`.
    pub allocations: Vec<Option<usize>>,
    /// Addresses that are free, the first to be given out first.
    pub unallocated: Vec<usize>,
    /// Who has an address.
    #[serde(default)]
    pub attributes: Vec<AllocationAttribute>,
    /// Grows with each write; starts as the time of creation in nanoseconds.
    #[serde(default)]
    pub sequence_number: u64,
    /// Sequence number at which an address was given out, by ordinal.
    #[serde(default)]
    pub sequence_number_for_allocation: BTreeMap<String, u64>,
    /// About to be deleted.
    #[serde(default)]
    pub deleted: bool,
    /// Not used any more, required by the schema.
    #[serde(default)]
    pub strict_affinity: bool,
    /// The rest.
    #[serde(flatten)]
    pub other: Other,
}

/// Who has an address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocationAttribute {
    /// The handle by which it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
    /// Node, pod, namespace, type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secondary: Option<BTreeMap<String, String>>,
    /// The rest.
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
    /// A text, not a truth value.
    pub deleted: String,
    /// The rest.
    #[serde(flatten)]
    pub other: Other,
}

/// How many addresses of which block belong to one handle.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "crd.projectcalico.org",
    version = "v1",
    kind = "IPAMHandle",
    plural = "ipamhandles"
)]
#[kube(schema = "disabled")]
pub struct IPAMHandleSpec {
    /// The handle, with its upper case letters.
    #[serde(rename = "handleID")]
    pub handle_id: String,
    /// Addresses by block.
    pub block: BTreeMap<String, i64>,
    /// About to be deleted.
    #[serde(default)]
    pub deleted: bool,
    /// The rest.
    #[serde(flatten)]
    pub other: Other,
}

/// Rules of allocation for the whole cluster.
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
    /// A node that is short of addresses claims a fresh block.
    #[serde(default)]
    pub auto_allocate_blocks: bool,
    /// Most blocks of one node; 0 means the built-in limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_blocks_per_host: Option<usize>,
    /// The rest.
    #[serde(flatten)]
    pub other: Other,
}

/// Addresses that are never given out.
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
    /// The rest.
    #[serde(flatten)]
    pub other: Other,
}
