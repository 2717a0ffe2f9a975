//! The objects that the coordinator reads from the API, as facts. All kinds of migration share them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::environment::Environment;
use crate::node_selection::NodeSelection;

/// An object that was read and not understood.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Malformed {
    /// Kind, namespace and name.
    pub object: String,
    /// The field, the value found and the value needed.
    pub problem: String,
}

/// A field of an object that was not understood. The other fields of the object are kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotUnderstood {
    /// The field: `container web: resources.requests.cpu`.
    pub field: String,
    /// The value found, quoted, cut to the length of a line.
    pub found: String,
    /// The needed value.
    pub needed: Needed,
}

impl fmt::Display for NotUnderstood {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}: found {}, needed {}",
            self.field, self.found, self.needed
        )
    }
}

/// The value that a field needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needed {
    /// A Kubernetes quantity that is not negative (`100m`, `1.5Gi`).
    Quantity,
    /// A Kubernetes quantity that the scheduler can count.
    SmallerQuantity,
    /// An IP address.
    Address,
    /// A value that the types of this version can read.
    Readable,
    /// Labels within the size that is kept.
    FewerLabels,
    /// Ports within the number that is kept.
    FewerPorts,
}

impl Needed {
    /// The effect of the field until its value is corrected.
    pub fn effect(self) -> &'static str {
        match self {
            Self::Quantity | Self::SmallerQuantity => "the value counts as 0 in comparisons",
            Self::Address => "the value counts as no address",
            Self::Readable => "the value counts as absent",
            Self::FewerLabels => "selectors on the other labels do not match the object",
            Self::FewerPorts => "the policy preview does not know the names of the other ports",
        }
    }
}

impl fmt::Display for Needed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Quantity => "a quantity",
            Self::SmallerQuantity => "a quantity that the scheduler can count",
            Self::Address => "an IP address",
            Self::Readable => "a value that the coordinator can read",
            Self::FewerLabels => "at most 16 KiB of labels",
            Self::FewerPorts => "at most 256 ports",
        })
    }
}

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// `spec.podCIDRs`, as written.
    pub pod_cidrs: Vec<String>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Whether condition Ready is True.
    pub ready: bool,
    /// `spec.taints` with effect `NoSchedule` or `NoExecute`, as `key=value:effect`, without the ones that
    /// Kubernetes sets itself for cordon and condition.
    pub taints: Vec<String>,
    /// `status.addresses` of type InternalIP.
    pub internal_addresses: Vec<IpAddr>,
    /// Allocatable CPU in millicores; 0 when not known.
    pub allocatable_cpu_millis: u64,
    /// Allocatable memory in bytes; 0 when not known.
    pub allocatable_memory_bytes: u64,
    /// Allocatable number of pods; 0 when not known.
    pub allocatable_pods: u64,
    /// Whether the Node is a control plane node (label `control-plane`, `master` or `controlplane`).
    pub control_plane: bool,
    /// `status.nodeInfo.operatingSystem`.
    pub operating_system: String,
    /// `status.nodeInfo.kernelVersion`.
    pub kernel_version: String,
    /// `status.nodeInfo.containerRuntimeVersion`.
    pub container_runtime: String,
    /// Fields that were not understood.
    pub not_understood: Vec<NotUnderstood>,
}

impl Node {
    /// Whether the node runs Windows: no migration changes its network.
    pub fn is_windows(&self) -> bool {
        self.operating_system == "windows"
    }
}

/// The nodes whose network a migration may change.
pub fn linux_nodes(nodes: &BTreeMap<String, Node>) -> impl Iterator<Item = &Node> {
    nodes.values().filter(|node| !node.is_windows())
}

/// The names of those nodes without a report of an agent.
pub fn silent_nodes<Host>(nodes: &BTreeMap<String, Node>, hosts: &BTreeMap<String, Host>) -> Vec<String> {
    let silent = linux_nodes(nodes).filter(|node| !hosts.contains_key(&node.name));
    silent.map(|node| node.name.clone()).collect()
}

impl Node {
    /// The first IPv4 range of `spec.podCIDRs`; `None` when missing or malformed.
    pub fn ipv4_pod_range(&self) -> Option<Ipv4Net> {
        self.pod_cidrs.iter().find_map(|text| text.parse().ok())
    }

    /// The first range of `spec.podCIDRs` of the same family as this network; `None` when missing or malformed.
    pub fn range_of(&self, network: &IpNet) -> Option<IpNet> {
        let same_family = |range: &IpNet| range.max_prefix_len() == network.max_prefix_len();
        self.pod_cidrs
            .iter()
            .filter_map(|text| text.parse().ok())
            .find(same_family)
    }

    /// Whether the scheduler may put new pods here.
    pub fn schedulable(&self) -> bool {
        !self.unschedulable && self.ready && self.taints.is_empty()
    }
}

/// A `DaemonSet`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSet {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels of the object.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the object.
    pub annotations: BTreeMap<String, String>,
    /// The Nodes that the pod template selects.
    pub selection: NodeSelection,
    /// Whether the pods use the host network. Pods of a pod network do: they create the links of the host.
    pub host_network: bool,
    /// Containers of the pod template, init containers first.
    pub containers: Vec<Container>,
    /// `ConfigMap`s mounted as volumes.
    pub config_maps: Vec<String>,
    /// Field managers that own fields of the object, with the operation: `argocd-controller (Apply)`.
    pub managers: Vec<String>,
    /// `status.desiredNumberScheduled`.
    pub desired: i32,
    /// `status.numberReady`.
    pub ready: i32,
    /// Whether every pod runs the newest template: observed generation current and updated = desired.
    pub rolled_out: bool,
    /// Update strategy is `OnDelete`.
    pub on_delete: bool,
}

impl DaemonSet {
    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Names of the `ConfigMap`s of its namespace that the pods mount or take environment from.
    pub fn referred_config_maps(&self) -> BTreeSet<&str> {
        let from_environment = self
            .containers
            .iter()
            .flat_map(|container| container.environment.config_maps());
        self.config_maps
            .iter()
            .map(String::as_str)
            .chain(from_environment)
            .collect()
    }
}

/// A container of a pod template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// `command` and `args`, in order.
    pub arguments: Vec<String>,
    /// Variables.
    pub environment: Environment,
    /// Whether it is an init container.
    pub init: bool,
}

/// A fail-closed webhook (`failurePolicy: Fail`) with a Service as its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// `ValidatingWebhookConfiguration x, webhook y`.
    pub object: String,
    /// Namespace and name of the Service.
    pub service: (String, String),
    /// Whether its rules cover pods (creation or eviction), nodes or everything.
    pub covers_pods_or_nodes: bool,
    /// Pods behind the Service: (namespace, name, node, uses the pod network).
    pub backends: Vec<(String, String, String, bool)>,
}

/// A Calico `IPPool`, with the fields that replumb uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpPool {
    /// Name.
    pub name: String,
    /// CIDR.
    pub cidr: IpNet,
    /// Block size.
    pub block_size: u8,
    /// `vxlanMode`, as written; `Never` when missing.
    pub vxlan_mode: String,
    /// `ipipMode`, as written; `Never` when missing.
    pub ipip_mode: String,
    /// `natOutgoing`.
    pub nat_outgoing: bool,
    /// `disabled`.
    pub disabled: bool,
    /// `nodeSelector`, as written; `all()` when missing.
    pub node_selector: String,
}
