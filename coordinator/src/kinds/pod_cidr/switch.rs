//! Stage Switch: what is missing until no end of a tunnel is in the range that is left, and which nodes lack it for too long.

use std::collections::BTreeMap;
use std::time::Duration;

use api::migration::{PodCidrStatus, Stage};
use engine::decision::{Direction, Wait, WaitReason};
use engine::evict::PodName;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use pod_cidr::calico_node::CalicoNode;
use pod_cidr::choice;
use pod_cidr::decide::{Missing, Which};
use pod_cidr::ends::{self, Keeping, NodeEnd};
use pod_cidr::pools::{self, Openness};
use pod_cidr::returns::Told;
use pod_cidr::tunnel::Held;

use super::drive::Pass;
use super::looks::Looks;
use super::watched::openness;
use crate::memory::Memory;
use crate::snapshot::is_of_daemon_set;
use crate::{facts, limits};

/// A calico-node that looks again when its pool or its Node changes has done so by then.
const LOOKS_AGAIN: SignedDuration = SignedDuration::from_secs(15);

/// For so long, and for [`PATIENCE_A_NODE`] more a node, a node that lacks something is waited for on the way back.
const PATIENCE: Duration = Duration::from_mins(2);
/// Each agent is told and answers: that is one write or two.
const PATIENCE_A_NODE: Duration = Duration::from_millis(50);

/// What is missing in stage Switch.
pub(super) struct Switch {
    /// What is missing until no end of a tunnel is in the range that is left.
    pub(super) ends: Option<Missing>,
    /// Which agent keeps an address of the range that pods are led to.
    pub(super) kept_in_target: Option<Wait>,
    /// Which node has the end of its tunnel in the range that is left, although the pool is closed.
    pub(super) switched: Option<Wait>,
}

/// What a node lacks.
struct Lack {
    wait: Wait,
    /// What it costs to go on without that.
    cost: &'static str,
}

impl Lack {
    fn of_end(wait: Wait) -> Self {
        let cost = if wait.reason == WaitReason::AgentWorking {
            "connections of this host end"
        } else {
            "the node may not reach pods that move until calico-node works there"
        };
        Self { wait, cost }
    }

    fn of_kept(wait: &Wait) -> Self {
        Self {
            wait: wait.clone(),
            cost: "a pod that gets this address is not reached from the node",
        }
    }

    /// The warning about a node that has lacked it for too long.
    fn words(&self, direction: Direction) -> String {
        let fix = if self.wait.reason == WaitReason::AgentWorking {
            "see the log of the agent on this node"
        } else {
            "see the log of calico-node on this node, and delete its pod there"
        };
        let message = &self.wait.message;
        match direction {
            Direction::Back => format!(
                "{message}. This has lasted for minutes: other nodes and all pods go back without it, and {}. Fix: {fix}",
                self.cost
            ),
            Direction::There => format!(
                "{message}. This has lasted for minutes, and other nodes wait for it. Fix: {fix}; or go back (`kubectl replumb rollback --all`)"
            ),
        }
    }
}

/// How long one of so many nodes is waited for.
pub(super) fn patience(nodes: usize) -> Duration {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    PATIENCE_A_NODE.saturating_mul(nodes).saturating_add(PATIENCE)
}

impl Pass<'_> {
    /// What is missing in stage Switch. A node that has lacked something for too long is named in the warnings. On the way back it counts as
    /// away: no node keeps the pods of others. On the way there a person decides.
    pub(super) fn switch(
        &self,
        memory: &mut Memory,
        left: &IpNet,
        target: &IpNet,
        known: &PodCidrStatus,
    ) -> Switch {
        let which = self.left_pool();
        let mut nodes = self.node_ends(&mut memory.pod_cidr, left, known);
        let mut kept = self.kept_in_target(target);
        let lacking = self.lacking(&nodes, &kept, known);
        let unkept = &mut memory.pod_cidr.unkept;
        unkept.keep(lacking.keys().map(|node| (*node).to_owned()));
        let patience = patience(nodes.len());
        let late = lacking
            .into_iter()
            .filter(|(node, _)| unkept.is_as_long_as(*node, patience));
        let late: BTreeMap<&str, Lack> = late.collect();
        let told = late.iter();
        let told = told.map(|(node, lack)| (format!("node {node}"), lack.words(self.direction)));
        memory.warnings.also(told);
        match self.direction {
            Direction::There => {}
            Direction::Back => {
                kept.retain(|node, _| !late.contains_key(node));
                for node in nodes.iter_mut().filter(|node| late.contains_key(node.name)) {
                    node.ready = false;
                }
            }
        }
        let at_once = limits::rules(self.migration).max_unavailable.resolve(nodes.len());
        let base = pools::selector_of(&self.saved.old_pool);
        let gets = |node: &str| self.gets(node, left, target);
        let pool = self.pool(which, known);
        Switch {
            ends: pool.and_then(|pool| ends::missing(&nodes, which, &pool.spec, &base, at_once, gets)),
            kept_in_target: kept.into_values().next(),
            switched: self.switched(&nodes, left),
        }
    }

    /// Every node, with the end of its tunnel.
    fn node_ends(&self, looks: &mut Looks, left: &IpNet, known: &PodCidrStatus) -> Vec<NodeEnd<'_>> {
        let mark = self.left_pool().mark();
        let calico = known.settings.calico_daemon_set();
        let nodes = self.snapshot.nodes.iter();
        let ends = nodes.map(|(name, node)| {
            let now = self.calico_nodes.get(name);
            let off = now.is_some_and(|node| node.off.as_deref() == Some(mark));
            let in_left = self.tunnel_end(name, left).is_some();
            let of_wireguard = now.and_then(|node| node.wireguard);
            let waits_since = looks.waits_since(name, off && in_left, self.now);
            NodeEnd {
                name,
                ready: facts::nodes::is_ready(node),
                off,
                in_left,
                overdue: waits_since.and_then(|since| self.overdue(name, since, calico)),
                calico_ready: self.is_calico_ready(name, calico),
                keeping: self.keeping(name, left),
                wireguard_in_left: of_wireguard.is_some_and(|address| left.contains(&address)),
            }
        });
        ends.collect()
    }

    /// What each node lacks that others wait for at this moment. Before stage Switch agents are not told of ends: they lack nothing.
    fn lacking<'nodes>(
        &self,
        nodes: &[NodeEnd<'nodes>],
        kept: &BTreeMap<&str, Wait>,
        known: &PodCidrStatus,
    ) -> BTreeMap<&'nodes str, Lack> {
        // A migration that has turned around begins again.
        let stage = known
            .stage
            .as_ref()
            .filter(|stage| stage.direction == self.direction);
        let Some(stage) = stage else {
            return BTreeMap::new();
        };
        let is_closed = match openness(self.pool(self.left_pool(), known)) {
            Openness::Absent => return BTreeMap::new(),
            // What counts as away stays so while pods move.
            Openness::Closed => true,
            Openness::ToWhoNamesIt | Openness::Narrowed | Openness::ToEverybody => false,
        };
        if !is_closed && stage.name != Stage::Switch {
            return BTreeMap::new();
        }
        // On the way back nothing waits for that once the pool is open.
        let is_open_back = match self.direction {
            Direction::There => false,
            Direction::Back => openness(self.pool(Which::Old, known)) == Openness::ToEverybody,
        };
        let lack = |node: &NodeEnd<'nodes>| {
            let of_end = node.lacks(is_closed).map(Lack::of_end);
            let kept = kept.get(node.name).filter(|_| !is_closed && !is_open_back);
            Some((node.name, of_end.or_else(|| kept.map(Lack::of_kept))?))
        };
        nodes.iter().filter_map(lack).collect()
    }

    /// Nodes whose end of the tunnel is in the range that is left: calico-node there does not go by the pools as they are.
    fn switched(&self, nodes: &[NodeEnd<'_>], left: &IpNet) -> Option<Wait> {
        let nodes: Vec<String> = nodes
            .iter()
            .filter(|node| node.ready)
            .filter_map(|node| Some(format!("{} ({})", node.name, self.tunnel_end(node.name, left)?)))
            .collect();
        let first = nodes.first()?;
        Some(Wait {
            reason: WaitReason::CalicoNodeNotReady,
            message: format!(
                "calico-node on {} nodes has the end of its tunnel in {left} still; the first: {first}. Calico before v3.31.6, and \
                 v3.32.0, takes another one at its start only: delete its pod there",
                nodes.len()
            ),
            until: None,
        })
    }

    /// Whether a pod of calico-node on this node is Ready.
    pub(super) fn is_calico_ready(&self, node: &str, (namespace, name): (&str, &str)) -> bool {
        let pods = self.snapshot.daemons_on(node, namespace, name);
        pods.iter().any(|(_, ready)| *ready)
    }

    /// What the tunnels of this node get when it is taken off.
    fn gets(&self, node: &str, left: &IpNet, target: &IpNet) -> BTreeMap<String, Held> {
        let (Some(ipam), Some(now)) = (self.ipam, self.calico_nodes.get(node)) else {
            return BTreeMap::new();
        };
        let ends = self.told(node);
        choice::given(Told { node, ends }, &now.ends, ipam, left, target)
    }

    /// The pod of calico-node on this node, if it has run since before then and has had time to look again.
    fn overdue(&self, node: &str, since: Timestamp, calico: (&str, &str)) -> Option<PodName> {
        if self.now.duration_since(since) < LOOKS_AGAIN {
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

    /// What the agent of this node does about the addresses that its tunnels leave.
    fn keeping(&self, name: &str, left: &IpNet) -> Keeping {
        let told = self.told(name);
        let is_told = |node: &CalicoNode| ends::is_told(told, &node.ends, left);
        if !self.calico_nodes.get(name).is_none_or(is_told) {
            return Keeping::NotYet("its agent is told of the address that it keeps".to_owned());
        }
        ends::keeping(told, left, self.facts_of(name))
    }
}
