//! The fields of this kind in the API.

use std::collections::BTreeMap;

use engine::check::Check;
use engine::kind_fields::KindFields;
use engine::node_selection::NodeSelection;
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::HostFacts;
use crate::host::HostSettings;
use crate::import::ImportedAddress;
use crate::phase::{Goal, Phase};
use crate::settings::{FirewallTwins, LegacyPods, Options, Settings, Strategy};

pub use self::{FlannelToCalico as Spec, FlannelToCalicoStatus as Status};
pub use crate::policy_preview::{
    DormantPolicy, PolicyPreview, PolicyPreviewStatus, PreviewCounts, RefusedConnections, UnknownConnections,
};

/// The default of `soakSeconds`: one day.
const SOAK_SECONDS: u32 = 24 * 60 * 60;

/// `flannelToCalico` migrates the pod network from flannel VXLAN to Calico VXLAN. Immutable, except `policyPreview`,
/// `rollbackNodes` and `soakSeconds`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelToCalico {
    /// `strategy` is how a node changes its network. Possible values: `Drain` (default): the pods of the node are evicted before
    /// its network changes. `InPlace`: the pods of the node keep running and keep their addresses while its network changes.
    #[serde(default)]
    pub strategy: Strategy,
    /// `legacyPods` is what happens to the pods that are still on the flannel network when their node is on Calico. Applies to
    /// strategy `InPlace`. Possible values: `Adopt` (default): on each node, the running pods become pods of Calico, without a
    /// restart and with their addresses. `Keep`: the pods run until their owners replace them. `Restart`: when all nodes are on
    /// Calico, the pods are evicted within their PodDisruptionBudgets, on at most `rollout.maxUnavailable` nodes at the same time.
    #[serde(default)]
    pub legacy_pods: LegacyPods,
    /// `firewallTwins` is what happens where a rule of another program (firewalld, ufw, rules by hand) names `cni0` or the tunnel of
    /// flannel, and has no twin for the links of Calico. Possible values: `Refuse` (default): the migration does not start. `Write`:
    /// the agents write the twin beside each such rule, with the comment `replumb-twin`, and remove it in a rollback. A twin is in
    /// the kernel only: the program that owns the rule loses it when it reloads its rules, and the agents write it again within a
    /// minute.
    #[serde(default)]
    pub firewall_twins: FirewallTwins,
    /// `allowSingleNode` allows strategy `Drain` in a cluster that has one schedulable node. All pods of that node are down while
    /// it changes its network. Defaults to false.
    #[serde(default)]
    pub allow_single_node: bool,
    /// `soakSeconds` is how long flannel's DaemonSet is kept after the last node is on Calico, in seconds. The migration can be
    /// rolled back until flannel's DaemonSet is deleted. Can be changed at any time. Defaults to 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<u32>,
    /// `options` overrides detected settings. Each option corresponds to an environment variable of Calico's own flannel
    /// migration controller.
    #[serde(default)]
    pub options: Options,
    /// `policyPreview` sets the preview of network policies. flannel enforces none; Calico does from the moment at which
    /// it has a pod. A change after the start of the migration has no effect.
    #[serde(default)]
    pub policy_preview: PolicyPreview,
    /// `rollbackNodes` is the list of nodes, by name, to roll back to the flannel network. A node stays on the flannel network until
    /// its name is removed from the list. `kubectl replumb rollback NODE` adds names, and `kubectl replumb resume` clears the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rollback_nodes: Vec<String>,
}

impl KindFields for FlannelToCalico {
    const CHANGEABLE: &'static [&'static str] = &["policyPreview", "rollbackNodes", "soakSeconds"];
}

impl FlannelToCalico {
    /// The soak time.
    pub fn soak(&self) -> SignedDuration {
        SignedDuration::from_secs(i64::from(self.soak_seconds.unwrap_or(SOAK_SECONDS)))
    }
}

/// `flannelToCalico` is the state of a migration from flannel to Calico. Unset until its settings are known, and for other kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelToCalicoStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: Settings,
    /// `nodes` is the selection of the Linux Nodes that the migration changes: that of flannel's DaemonSet before the migration. Unset
    /// if it selects every Linux Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeSelection>,
    /// `policyPreview` is the preview of network policies. Unset until it is known. Not updated after the first change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_preview: Option<PolicyPreviewStatus>,
}

/// `flannelToCalico` is what the agent does on its host, for migrations of this kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// `host` is the description of both networks. Unset until the settings are known: the agent reports about flannel and Calico
    /// on its host and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostSettings>,
    /// `goal` is the phase that the agent brings its host to. The coordinator moves it forward by one phase at a time. Possible
    /// values: `Hold` (default): report, and change nothing. `Flannel`: revert all changes. `Held`, `Swapped`, `Mixed`,
    /// `Detached`, `Calico`: change the host until it is in this phase.
    #[serde(default)]
    pub goal: Goal,
    /// `label` is what the migration has written into the label `projectcalico.org/node-network-during-migration` of the Node.
    #[serde(default, skip_serializing_if = "LabelRecord::is_empty")]
    pub label: LabelRecord,
    /// `importedAddresses` is the list of addresses of running pods that the migration has written into Calico's IPAM. Used by
    /// strategy `InPlace`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported_addresses: Vec<ImportedAddress>,
    /// `savedState` is the state of the node before the migration, which a rollback restores. Unset for a node that joined later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_state: Option<SavedNodeState>,
    /// `automaticRollback` is set if the agent has put the old network back without being asked. Unset once the node is started
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_rollback: Option<AutomaticRollback>,
}

/// Twins that a migrated host does not have, one line each: rules of other programs do not apply to pods of Calico there.
pub fn missing_twins<'node>(
    spec: &NodeSpec,
    status: &'node NodeStatus,
) -> impl Iterator<Item = String> + 'node {
    let is_kept = spec.host.as_ref().is_some_and(|host| host.write_firewall_twins);
    let is_migrated = status.phase.is_some_and(|phase| phase != Phase::Flannel);
    let facts = status.facts.as_ref().filter(|_| is_kept && is_migrated);
    let rules = facts.and_then(|facts| facts.foreign_rules.as_ref());
    rules.into_iter().flat_map(|found| &found.rules).map(|rule| {
        let why = rule
            .refused
            .as_ref()
            .map_or_else(String::new, |why| format!(" ({why})"));
        format!(
            "{}: {}: without its twin{why}: {}",
            rule.chain, rule.rule, rule.twin
        )
    })
}

/// `flannelToCalico` is what the agent has observed and done on its host, for migrations of this kind, and while no kind is set.
/// Unset for other kinds, unless such a migration has left the host between two networks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// `phase` is the state of the host between the two networks, as the agent has observed it. Unset if the host cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// `phaseSince` is the time at which the agent first observed this phase. Unset if `phase` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub phase_since: Option<Timestamp>,
    /// `facts` is what the agent has read from its host. Unset if the host cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<HostFacts>,
    /// `goal` is the goal that the agent has acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// `leftovers` is the list of objects of the flannel network that are on the host.
    #[serde(default)]
    pub leftovers: Vec<String>,
    /// `changes` is the list of differences between the host and its state before the migration, which a rollback reverts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// `automaticRollback` is why the agent puts, or has put, the old network back without being asked. Unset otherwise, and once
    /// the coordinator has set `goal` to `Flannel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_rollback: Option<String>,
    /// `checks` is the list of results of the checks that the agent makes on its host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

impl NodeStatus {
    /// Whether the agent has returned pods to `cni0` because calico-node has not taken their links. False without a report about
    /// it.
    pub fn has_returned_pods(&self) -> bool {
        let mut pods = self.facts.iter().flat_map(|facts| &facts.legacy_pods);
        pods.any(|pod| pod.not_taken_within.is_some())
    }

    /// Whether adopted pods run on the host. False without a report about it.
    pub fn has_adopted_pods(&self) -> bool {
        self.facts.as_ref().is_some_and(HostFacts::has_adopted_pods)
    }
}

/// Read access to the part of this kind: an unset part reads as the default.
pub trait OrEmpty<Part> {
    /// The part, or the default.
    fn or_empty(&self) -> &Part;
}

impl OrEmpty<NodeSpec> for Option<NodeSpec> {
    fn or_empty(&self) -> &NodeSpec {
        static EMPTY: NodeSpec = NodeSpec {
            host: None,
            goal: Goal::Hold,
            label: LabelRecord {
                current: None,
                pending: None,
            },
            imported_addresses: Vec::new(),
            saved_state: None,
            automatic_rollback: None,
        };
        self.as_ref().unwrap_or(&EMPTY)
    }
}

impl OrEmpty<NodeStatus> for Option<NodeStatus> {
    fn or_empty(&self) -> &NodeStatus {
        static EMPTY: NodeStatus = NodeStatus {
            phase: None,
            phase_since: None,
            facts: None,
            goal: None,
            leftovers: Vec::new(),
            changes: Vec::new(),
            automatic_rollback: None,
            checks: Vec::new(),
        };
        self.as_ref().unwrap_or(&EMPTY)
    }
}

/// `LabelRecord` is what the migration has written into the network label of a Node. Any other value of the label is a change by
/// another client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelRecord {
    /// `current` is the value that was last written, or that was found when the node was first observed. Unset before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// `pending` is the value that is about to be written. Unset otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
}

impl LabelRecord {
    /// Whether neither value is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `SavedNodeState` is the state of a node before the migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavedNodeState {
    /// `annotations` are the annotations of the Node that start with `projectcalico.org/`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// `blocks` is the list of `IPAMBlocks`, by name, with affinity to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<String>,
}

/// `AutomaticRollback` is about an agent that has put the old network back without being asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomaticRollback {
    /// `at` is the time at which the coordinator saw the report of the agent.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `reason` is the human-readable reason of the agent. At most 2048 bytes.
    pub reason: String,
    /// `resumedAt` is the value of `spec.resumedAt` of the Migration at that time. The node is started again when
    /// `spec.resumedAt` has another value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}
