//! Stage Switch: the steps until no tunnel address is in the source range, and nodes that delay it for too long.

use std::collections::BTreeMap;
use std::time::Duration;

use api::migration::{PodCidrStatus, Stage};
use engine::decision::{Direction, Wait, WaitReason};
use engine::evict::PodName;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use pod_cidr::calico_node::CalicoNode;
use pod_cidr::decide::{PoolRole, Unmet};
use pod_cidr::former_address::NodeTunnelEnds;
use pod_cidr::pools::{self, Openness};
use pod_cidr::tunnel::TunnelAllocation;
use pod_cidr::tunnel_address;
use pod_cidr::tunnel_change::{self, Keeping, NodeTunnels};

use super::super::gate::openness;
use super::super::pass::Pass;
use super::super::read_cache::ReadCache;
use crate::memory::Memory;
use crate::snapshot::is_of_daemon_set;
use crate::{facts, limits};

/// Time after which a calico-node that follows changes of its pool and its Node has followed one.
const FOLLOWS_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// Time for which a rollback waits for a node that lacks something, plus [`PATIENCE_A_NODE`] for each node.
const PATIENCE: Duration = Duration::from_mins(2);
/// Each agent is told and answers: that takes one or two writes.
const PATIENCE_A_NODE: Duration = Duration::from_millis(50);

/// The missing parts of stage Switch.
pub(super) struct Switch {
    /// The step or wait until no tunnel address is in the source range.
    pub(super) ends: Option<Unmet>,
    /// The agent that keeps an address of the target range.
    pub(super) kept_in_target: Option<Wait>,
    /// The node that has its tunnel address in the source range although the pool is closed.
    pub(super) switched: Option<Wait>,
}

/// Something that a node lacks.
struct Lack {
    wait: Wait,
    /// The consequence of continuing without it.
    cost: &'static str,
}

impl Lack {
    fn of_end(wait: Wait) -> Self {
        let cost = if wait.reason == WaitReason::AgentWorking {
            "connections of this host end"
        } else {
            "the node may not reach moved pods until its calico-node works"
        };
        Self { wait, cost }
    }

    fn of_kept(wait: &Wait) -> Self {
        Self {
            wait: wait.clone(),
            cost: "the node does not reach a pod that gets this address",
        }
    }

    /// The warning about a node that has lacked something for too long.
    fn words(&self, direction: Direction) -> String {
        let fix = if self.wait.reason == WaitReason::AgentWorking {
            "check the log of the agent on this node"
        } else {
            "check the log of calico-node on this node, and delete its pod"
        };
        let message = &self.wait.message;
        match direction {
            Direction::Rollback => format!(
                "{message}. The wait has lasted for minutes: other nodes and all pods roll back without it, and {}. Fix: {fix}",
                self.cost
            ),
            Direction::Forward => format!(
                "{message}. The wait has lasted for minutes: other nodes wait for it. Fix: {fix}; or roll back \
                 (`kubectl replumb rollback --all`)"
            ),
        }
    }
}

/// Time for which a rollback waits for one node, by the number of nodes.
pub(super) fn patience(nodes: usize) -> Duration {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    PATIENCE_A_NODE.saturating_mul(nodes).saturating_add(PATIENCE)
}

impl Pass<'_> {
    /// Finds the missing parts of stage Switch. A node that has lacked something for too long is named in the warnings. During a
    /// rollback it counts as absent: no node keeps the pods of other nodes. Forward, the user decides.
    pub(super) fn switch(
        &self,
        memory: &mut Memory,
        left: &IpNet,
        target: &IpNet,
        known: &PodCidrStatus,
    ) -> Switch {
        let which = self.source_pool();
        let mut nodes = self.node_ends(memory.kinds.of::<ReadCache>(), left, known);
        let mut kept = self.kept_in_target(target);
        let lacking = self.lacking(&nodes, &kept, known);
        let unkept = &mut memory.kinds.of::<ReadCache>().late_nodes;
        unkept.keep(lacking.keys().map(|node| (*node).to_owned()));
        let patience = patience(nodes.len());
        let late = lacking
            .into_iter()
            .filter(|(node, _)| unkept.has_lasted(*node, patience));
        let late: BTreeMap<&str, Lack> = late.collect();
        let told = late.iter();
        let told = told.map(|(node, lack)| (format!("node {node}"), lack.words(self.direction)));
        memory.warnings.add(told);
        match self.direction {
            Direction::Forward => {}
            Direction::Rollback => {
                kept.retain(|node, _| !late.contains_key(node));
                for node in nodes.iter_mut().filter(|node| late.contains_key(node.name)) {
                    node.ready = false;
                }
            }
        }
        let at_once = limits::rules(self.migration).max_unavailable.resolve(nodes.len());
        let base = pools::selector_of(&self.saved.old_pool);
        let gets = |node: &str| self.new_addresses(node, left, target);
        let pool = self.pool(which, known);
        Switch {
            ends: pool
                .and_then(|pool| tunnel_change::missing(&nodes, which, &pool.spec, &base, at_once, gets)),
            kept_in_target: kept.into_values().next(),
            switched: self.switched(&nodes, left),
        }
    }

    /// Every node, with the state of its tunnel address.
    fn node_ends(&self, reads: &mut ReadCache, left: &IpNet, known: &PodCidrStatus) -> Vec<NodeTunnels<'_>> {
        let mark = self.source_pool().mark();
        let calico = known.settings.calico_daemon_set();
        let nodes = self.snapshot.nodes.iter();
        let ends = nodes.map(|(name, node)| {
            let now = self.calico_nodes.get(name);
            let off = now.is_some_and(|node| node.off.as_deref() == Some(mark));
            let in_left = self.tunnel_address(name, left).is_some();
            let of_wireguard = now.and_then(|node| node.wireguard);
            let waits_since = reads.waiting_since(name, off && in_left, self.now);
            NodeTunnels {
                name,
                ready: facts::nodes::is_ready(node),
                removed: off,
                in_source: in_left,
                overdue: waits_since.and_then(|since| self.overdue(name, since, calico)),
                calico_ready: self.is_calico_ready(name, calico),
                keeping: self.keeping(name, left),
                wireguard_in_source: of_wireguard.is_some_and(|address| left.contains(&address)),
            }
        });
        ends.collect()
    }

    /// The lack of each node at this moment. Before stage Switch agents do not know the tunnel addresses: then nodes lack
    /// nothing.
    fn lacking<'nodes>(
        &self,
        nodes: &[NodeTunnels<'nodes>],
        kept: &BTreeMap<&str, Wait>,
        known: &PodCidrStatus,
    ) -> BTreeMap<&'nodes str, Lack> {
        // After a change of the direction, the stages begin again.
        let stage = known
            .stage
            .as_ref()
            .filter(|stage| stage.direction == self.direction);
        let Some(stage) = stage else {
            return BTreeMap::new();
        };
        let is_closed = match openness(self.pool(self.source_pool(), known)) {
            Openness::Absent => return BTreeMap::new(),
            // A node that counts as absent stays so while pods move.
            Openness::Closed => true,
            Openness::OptIn | Openness::Narrowed | Openness::AllPods => false,
        };
        if !is_closed && stage.name != Stage::Switch {
            return BTreeMap::new();
        }
        // During a rollback nothing waits for kept addresses once the old pool is open.
        let is_open_back = match self.direction {
            Direction::Forward => false,
            Direction::Rollback => openness(self.pool(PoolRole::Old, known)) == Openness::AllPods,
        };
        let lack = |node: &NodeTunnels<'nodes>| {
            let of_end = node.wait_of_node(is_closed).map(Lack::of_end);
            let kept = kept.get(node.name).filter(|_| !is_closed && !is_open_back);
            Some((node.name, of_end.or_else(|| kept.map(Lack::of_kept))?))
        };
        nodes.iter().filter_map(lack).collect()
    }

    /// The nodes with a tunnel address in the source range: calico-node there does not follow the present pools.
    fn switched(&self, nodes: &[NodeTunnels<'_>], left: &IpNet) -> Option<Wait> {
        let nodes: Vec<String> = nodes
            .iter()
            .filter(|node| node.ready)
            .filter_map(|node| {
                Some(format!(
                    "{} ({})",
                    node.name,
                    self.tunnel_address(node.name, left)?
                ))
            })
            .collect();
        let first = nodes.first()?;
        Some(Wait {
            reason: WaitReason::CalicoNodeNotReady,
            message: format!(
                "nodes with a tunnel address still in {left}: {}, first: {first}. calico-node before v3.31.6, and v3.32.0, \
                 changes the address only at its start: delete its pod on that node",
                nodes.len()
            ),
            until: None,
        })
    }

    /// Whether a pod of calico-node on this node is Ready.
    pub(super) fn is_calico_ready(&self, node: &str, (namespace, name): (&str, &str)) -> bool {
        self.snapshot.has_ready_daemon(node, namespace, name)
    }

    /// The addresses that the tunnels of this node get when it is taken off the pool.
    fn new_addresses(&self, node: &str, left: &IpNet, target: &IpNet) -> BTreeMap<String, TunnelAllocation> {
        let (Some(ipam), Some(now)) = (self.ipam, self.calico_nodes.get(node)) else {
            return BTreeMap::new();
        };
        let ends = self.tunnel_ends_of_agent(node);
        tunnel_address::given(NodeTunnelEnds { node, ends }, &now.ends, ipam, left, target)
    }

    /// The pod of calico-node on this node, if it has run since before that time and has had time to follow the change.
    fn overdue(&self, node: &str, since: Timestamp, calico: (&str, &str)) -> Option<PodName> {
        if self.now.duration_since(since) < FOLLOWS_AFTER {
            return None;
        }
        let mut pods = self.snapshot.pods_on(node).iter();
        let pod = pods.find(|pod| {
            let is_from_before = pod.made_at.is_some_and(|made| made < since);
            is_of_daemon_set(pod, calico.0, calico.1) && pod.deleted_at.is_none() && is_from_before
        })?;
        Some(PodName {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        })
    }

    /// Whether the agent of this node keeps the addresses that its tunnels leave.
    fn keeping(&self, name: &str, left: &IpNet) -> Keeping {
        let told = self.tunnel_ends_of_agent(name);
        let is_told = |node: &CalicoNode| tunnel_change::covers_tunnel_addresses(told, &node.ends, left);
        if !self.calico_nodes.get(name).is_none_or(is_told) {
            return Keeping::NotYet("its agent is being told which address to keep".to_owned());
        }
        tunnel_change::keeping(told, left, self.facts_of(name))
    }
}
