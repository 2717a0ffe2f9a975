//! Names of the prerequisites.

use strum::{IntoStaticStr, VariantArray};

use engine::check::{Check, Verdict};

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum CheckName {
    /// The admission policies that restrict the coordinator and the agents are installed and bound.
    AdmissionPolicies,
    /// flannel's `DaemonSet` is not managed by the add-on manager.
    AddonManager,
    /// The agent of each node reports.
    AgentMissing,
    /// Each pod to evict has a controller that creates it again.
    BarePods,
    /// Bridged packets pass through iptables.
    BridgeNetfilter,
    /// Calico is installed, and its node selector waits for the node label.
    CalicoManifests,
    /// flannel and Calico do not run in one pod.
    Canal,
    /// The pods of the nodes that are migrated at the same time fit on the other nodes.
    Capacity,
    /// Calico chains the plugins that flannel's conflist chains.
    ChainedPlugins,
    /// The container runtime uses flannel's conflist.
    ConflistMalformed,
    /// The container runtime has no choice of a pod network of its own.
    ContainerRuntime,
    /// All routes of flannel to other nodes use the tunnel.
    DirectRouting,
    /// Every `PodDisruptionBudget` allows a disruption.
    DisruptionBudgets,
    /// No pod to evict has data in an emptyDir.
    EmptyDir,
    /// flannel's backend is VXLAN.
    FlannelBackend,
    /// Exactly one `DaemonSet` runs flannel, and all its pods are Ready.
    FlannelDaemonSet,
    /// flannel's CNI plugin attaches pods to `cni0`, with leases of host-local, in the usual folders.
    FlannelPlugin,
    /// flannel keeps its subnets in the Kubernetes API.
    FlannelSubnetManager,
    /// flannel is v0.9.1 or later.
    FlannelVersion,
    /// The grace period of each pod to evict is not longer than the drain timeout.
    GracePeriods,
    /// The agents find no other problem on their hosts that would halt them.
    HostChecks,
    /// No rule of another program names the links of flannel without a twin for those of Calico.
    HostFirewall,
    /// Existing IPAM blocks belong to the nodes that need them.
    IpamBlocks,
    /// An existing pool of flannel's network has the needed values.
    IpPool,
    /// The sandbox of each pod on flannel's bridge is known.
    LegacyPods,
    /// The kernel of each node renames a link that is up.
    LiveRename,
    /// Every object could be parsed.
    MalformedObjects,
    /// `rollout.maxUnavailable` is valid.
    MaxUnavailable,
    /// Calico's own migration controller does not run.
    MigrationController,
    /// `net-conf.json` could be parsed.
    NetworkConfiguration,
    /// The tunnel device agrees with the settings.
    NetworkConfigurationMatchesDevice,
    /// The kernel of each node has `nf_tables`, or nothing of the migration needs it.
    NfTables,
    /// No Node has an address in the range of pods, unless it is reserved.
    NodeAddresses,
    /// flannel's annotations on every Node could be parsed.
    NodeAnnotations,
    /// Node labels can be changed, and have known values.
    NodeLabels,
    /// Calico does not come to the nodes that flannel's `DaemonSet` does not select.
    NodesWithoutFlannel,
    /// Every node that runs flannel runs Linux.
    OperatingSystem,
    /// The coordinator has all permissions that it needs.
    Permissions,
    /// Every Node has a podCIDR inside flannel's network.
    PodCidr,
    /// In place, the kubelet of every node may run the pods of replumb beside those of the node.
    PodLimit,
    /// No other program enforces network policies, or it goes away with flannel.
    PolicyEnforcers,
    /// No network policy that begins to hold refuses a connection that was seen.
    PolicyPreview,
    /// The tunnel address of each node is the address that Calico detects.
    PublicAddress,
    /// No other controller reverts the changes of the migration.
    Reconciler,
    /// `rp_filter` has the value that this version of Calico needs.
    ReversePathFilter,
    /// Evicted pods have another schedulable node.
    SchedulableNodes,
    /// No static pod is on the pod network.
    StaticPods,
    /// `subnet.env` of every host agrees with the settings.
    SubnetEnvironment,
    /// Admission works while any node is being migrated.
    Webhooks,
}

impl CheckName {
    /// Every name.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name in status, metrics and the runbook.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// A check of this name that did not pass.
    pub(super) fn not_pass(
        self,
        verdict: Verdict,
        object: impl Into<String>,
        found: impl Into<String>,
        needed: impl Into<String>,
        fix: impl Into<String>,
    ) -> Check {
        Check::not_pass(self.as_str(), verdict, object, found, needed, fix)
    }
}
