//! What is in the range that is left: blocks, who has addresses of it, ends of tunnels, routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::migration::{PodCidrStatus, Stage};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use plan::decision::{Direction, Wait, WaitReason};
use plan::evict::PodName;
use plan::pod_cidr::by_node::{self, Cordon};
use plan::pod_cidr::calico_node::CalicoNode;
use plan::pod_cidr::choice;
use plan::pod_cidr::decide::{Missing, Which};
use plan::pod_cidr::ends::{self, Keeping, NodeEnd};
use plan::pod_cidr::holders::{Cluster, holders};
use plan::pod_cidr::host::{self, HostFacts, TunnelEnd};
use plan::pod_cidr::ipam::{Allocation, Ipam};
use plan::pod_cidr::pools;
use plan::pod_cidr::returns::{self, Standing, Told, standing};
use plan::pod_cidr::tunnel::Held;
use plan::pods::Pods;

use super::drive::Pass;
use super::unclear;
use crate::looks::Pace;
use crate::memory::Memory;
use crate::since::Since;
use crate::snapshot::is_of_daemon_set;
use crate::write::WriteError;
use crate::{cordon, facts, limits};

/// A calico-node that looks again when its pool or its Node changes has done so by then.
const LOOKS_AGAIN: SignedDuration = SignedDuration::from_secs(15);

/// What is in the range that is left.
pub(super) struct Left {
    /// Ranges of blocks and of affinities to some.
    pub(super) blocks: Vec<IpNet>,
    /// Who has an address of it besides pods that have to move, with what a person does about it; nobody is looked for while pods have to.
    pub(super) holders: Vec<String>,
}

/// For so long an agent that does not keep the end of its node's tunnel is waited for on the way back.
const PATIENCE: Duration = Duration::from_mins(2);

/// Takes nodes whose agents are overdue for nodes that are away, so that none keeps the pods of others: their tunnels take other ends when
/// the pool is closed. Returns a warning of each: what it is about, and the words.
fn give_up(nodes: &mut [NodeEnd<'_>], unkept: &Since<String>) -> Vec<(String, String)> {
    let overdue = nodes
        .iter_mut()
        .filter(|node| unkept.is_as_long_as(&node.name.to_owned(), PATIENCE));
    overdue
        .map(|node| {
            node.ready = false;
            let about = format!("node {}", node.name);
            let words = format!(
                "{about}: its agent does not keep the address of its tunnel that is left, for minutes: connections of this host end when \
                 Calico takes another one. Fix: see the log of the agent"
            );
            (about, words)
        })
        .collect()
}

impl Pass<'_> {
    /// Who is in the range that is left. While pods have to move, it is only counted.
    pub(super) async fn left(
        &self,
        memory: &mut Memory,
        range: &IpNet,
        have_to_move: bool,
        pace: Pace,
        known: &mut PodCidrStatus,
    ) -> Result<Left, WriteError> {
        let ipam = memory.pod_cidr.ipam(self.store, pace).await?;
        self.tell(memory, &ipam);
        let in_range: Vec<_> = ipam
            .blocks()
            .iter()
            .filter(|block| range.contains(&block.range))
            .collect();
        let allocations: Vec<_> = in_range.iter().flat_map(|block| &block.allocations).collect();
        // Each pod that has to move has an address of it: nobody asks for others before.
        let holders = if have_to_move {
            Vec::new()
        } else {
            let unclear = ipam.unclear.in_range(range);
            let unclear = unclear.map(|unclear| format!("{}: correct it", unclear.words()));
            let others = self.holders(&allocations, &known.settings.calico_daemon_set_namespace.value);
            unclear.chain(others).collect()
        };
        let mut ranges: Vec<IpNet> = in_range
            .iter()
            .map(|block| block.range)
            .chain(
                ipam.claims()
                    .iter()
                    .map(|claim| claim.range)
                    .filter(|claimed| range.contains(claimed)),
            )
            .filter(|range| !memory.pod_cidr.is_released(range))
            .collect();
        ranges.sort();
        ranges.dedup();
        known.blocks_left = u32::try_from(ranges.len()).ok();
        known.empty_since = if have_to_move || !holders.is_empty() {
            None
        } else {
            known.empty_since.or(Some(self.now))
        };
        Ok(Left {
            blocks: ranges,
            holders,
        })
    }

    /// Who has these addresses besides pods that have to move.
    fn holders(&self, allocations: &[&Allocation], calico: &str) -> Vec<String> {
        let ours = self.snapshot.traffic_pods.iter();
        let ours = ours.map(|pod| Arc::new(facts::pods::pod(pod)));
        let pods: Pods = self.snapshot.pods().shared().cloned().chain(ours).collect();
        let cluster = Cluster {
            pods: &pods,
            nodes: self.calico_nodes,
            calico,
        };
        let mut holders = holders(allocations.iter().copied(), cluster);
        if holders.is_empty()
            && let Some(first) = allocations.first()
        {
            holders.push(format!(
                "{} is given out still, to a pod that ends ({} addresses in all)",
                first.address,
                allocations.len()
            ));
        }
        holders
    }

    /// What is missing until no end of a tunnel is in the range that is left.
    pub(super) fn ends(
        &self,
        memory: &mut Memory,
        left: &IpNet,
        target: &IpNet,
        known: &PodCidrStatus,
    ) -> Option<Missing> {
        let which = self.left_pool();
        let pool = self.pool(which, known)?;
        let calico = known.settings.calico_daemon_set();
        let looks = &mut memory.pod_cidr;
        let mut nodes: Vec<NodeEnd<'_>> = self
            .snapshot
            .nodes
            .iter()
            .map(|(name, node)| {
                let off = self
                    .calico_nodes
                    .get(name)
                    .is_some_and(|node| node.off.as_deref() == Some(which.mark()));
                let in_left = self.tunnel_end(name, left).is_some();
                let of_wireguard = self.calico_nodes.get(name).and_then(|node| node.wireguard);
                let waits_since = looks.waits_since(name, off && in_left, self.now);
                NodeEnd {
                    name,
                    ready: facts::nodes::is_ready(node),
                    off,
                    in_left,
                    overdue: waits_since.and_then(|since| self.overdue(name, since, calico)),
                    calico_ready: self
                        .snapshot
                        .daemons_on(name, calico.0, calico.1)
                        .iter()
                        .any(|(_, ready)| *ready),
                    keeping: self.keeping(name, left),
                    wireguard_in_left: of_wireguard.is_some_and(|address| left.contains(&address)),
                }
            })
            .collect();
        let is_unkept =
            |node: &&NodeEnd<'_>| (node.off || node.in_left) && matches!(node.keeping, Keeping::NotYet(_));
        let unkept = nodes.iter().filter(is_unkept);
        looks.unkept.keep(unkept.map(|node| node.name.to_owned()));
        if self.direction == Direction::Back {
            memory.warnings.also(give_up(&mut nodes, &looks.unkept));
        }
        let base = pools::selector_of(&self.saved.old_pool);
        let at_once = limits::rules(self.migration).max_unavailable.resolve(nodes.len());
        let gets = |node: &str| self.gets(node, left, target);
        ends::missing(&nodes, which, &pool.spec, &base, at_once, gets)
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

    /// What the agent of this node is told of its tunnels.
    fn told(&self, node: &str) -> &[TunnelEnd] {
        let object = self.snapshot.node_migrations.get(node);
        let settings = object.and_then(|object| object.spec.pod_cidr.as_ref());
        settings.map_or(&[], |settings| settings.tunnel_ends.as_slice())
    }

    fn all_told(&self) -> Vec<Told<'_>> {
        let names = self.snapshot.node_migrations.keys();
        names
            .map(|node| Told {
                node,
                ends: self.told(node),
            })
            .collect()
    }

    /// Addresses that tunnels had in the range that is led to, and nobody has now.
    pub(super) fn to_hold(&self, target: &IpNet) -> Vec<Held> {
        let Some(ipam) = self.ipam else {
            return Vec::new();
        };
        returns::to_hold(&self.all_told(), ipam, target)
    }

    /// Addresses in the range that is left of tunnels that have got back what they had.
    pub(super) fn to_release(&self, left: &IpNet, target: &IpNet) -> Vec<Held> {
        let Some(ipam) = self.ipam else {
            return Vec::new();
        };
        let nodes = self.calico_nodes.iter();
        let nodes = nodes.filter(|(name, _)| self.snapshot.nodes.contains_key(*name));
        let nodes = nodes.map(|(name, node)| (name.as_str(), node));
        returns::to_release(&nodes.collect(), ipam, left, target)
    }

    /// Why it is not known which addresses that tunnels had are free, where some are to be given back.
    pub(super) fn unread(&self, target: &IpNet) -> Option<Wait> {
        let told = self.all_told();
        let mut ends = told.iter().flat_map(|told| told.ends);
        ends.find(|end| target.contains(&IpAddr::V4(end.kept)))?;
        let unclear = self.ipam?.unclear.of_no_node(target)?;
        Some(Wait {
            reason: WaitReason::CalicoObjects,
            message: format!(
                "{}; until it is corrected or deleted it is not known which addresses of {target} are free, and tunnels have some to get back",
                unclear.words()
            ),
            until: None,
        })
    }

    /// A pool that may share an address with one of both ranges, and is neither's.
    pub(super) fn strange_pool(&self) -> Option<Wait> {
        let ranges = [Which::Old, Which::New].map(|which| self.range(which));
        let mut unclear = self.pools.unclear.iter();
        let strange = unclear.find(|pool| ranges.iter().any(|range| pool.may_touch(range)))?;
        Some(Wait {
            reason: WaitReason::CalicoObjects,
            message: format!(
                "{}; until it is corrected or deleted no pool is opened, closed or deleted: whether it shares an address with {} or {} is \
                 not known",
                strange.words(),
                ranges[0],
                ranges[1]
            ),
            until: None,
        })
    }

    /// What of Calico's objects is not understood, for the status.
    fn tell(&self, memory: &mut Memory, ipam: &Ipam) {
        let ranges = [Which::Old, Which::New].map(|which| self.range(which));
        let told = unclear::told(&self.pools.unclear, Some(&ipam.unclear), ranges);
        memory.warnings.of_kind(&self.migration.name_any(), told);
    }

    /// Whether an address that this node's tunnel had is the node's in Calico's IPAM: nobody else can get it.
    pub(super) fn is_held(&self, node: &str, end: &TunnelEnd) -> bool {
        self.ipam
            .is_some_and(|ipam| matches!(standing(end, node, ipam), Standing::Held(_)))
    }

    /// What the agent of a node has said to what it was asked last; `None` while it has not.
    fn facts_of(&self, node: &str) -> Option<&HostFacts> {
        let status = self.snapshot.node_migrations.get(node)?.status.as_ref()?;
        let generation = self.snapshot.node_migrations.get(node)?.metadata.generation;
        let is_current = Some(status.observed_generation) >= generation && self.snapshot.agent_ready(node);
        self.last_facts_of(node).filter(|_| is_current)
    }

    /// What the agent of a node has said last, whatever it was asked.
    fn last_facts_of(&self, node: &str) -> Option<&HostFacts> {
        let object = self.snapshot.node_migrations.get(node)?;
        object.status.as_ref()?.pod_cidr.as_ref()
    }

    /// Which agents keep addresses in the range that is left, or have not answered.
    pub(super) fn kept_in_left(&self, left: &IpNet) -> Option<Wait> {
        self.first_kept(|node| match self.facts_of(node) {
            None => Some(format!("node {node}: its agent has not answered")),
            Some(facts) => self.kept_by(node, Some(facts), left, |_| false),
        })
    }

    /// Which agents keep addresses in the range that pods are led to. One that is its tunnel's in Calico's IPAM may stay: no pod gets it. An
    /// agent that does not answer keeps what it was told to keep, and what it said last.
    pub(super) fn kept_in_target(&self, target: &IpNet) -> Option<Wait> {
        self.first_kept(|node| {
            let facts = self.last_facts_of(node);
            self.kept_by(node, facts, target, |end| self.is_held(node, end))
        })
    }

    /// Nodes that are away do not count.
    fn first_kept(&self, kept: impl Fn(&str) -> Option<String>) -> Option<Wait> {
        let nodes = self.snapshot.nodes.iter();
        let mut ready = nodes.filter(|(_, node)| facts::nodes::is_ready(node));
        let message = ready.find_map(|(name, _)| {
            self.snapshot.node_migrations.get(name)?.spec.pod_cidr.as_ref()?;
            kept(name)
        })?;
        Some(Wait {
            reason: WaitReason::AgentWorking,
            message,
            until: None,
        })
    }

    /// The first address in this range that the agent of a node keeps, but for those that may stay.
    fn kept_by(
        &self,
        node: &str,
        facts: Option<&HostFacts>,
        range: &IpNet,
        may_stay: impl Fn(&TunnelEnd) -> bool,
    ) -> Option<String> {
        let told = self.told(node).iter();
        let (stay, go): (Vec<&TunnelEnd>, Vec<&TunnelEnd>) = told
            .filter(|end| range.contains(&IpAddr::V4(end.kept)))
            .partition(|end| may_stay(end));
        let stays = |net: &IpNet| stay.iter().any(|end| IpAddr::V4(end.kept) == net.addr());
        let said = facts.map(|facts| ends::kept(facts, range)).unwrap_or_default();
        let kept = go
            .first()
            .map(|end| IpNet::from(IpAddr::V4(end.kept)))
            .or_else(|| said.into_iter().find(|net| !stays(net)))?;
        Some(format!(
            "node {node}: its agent keeps {} for connections of the host that began there, and takes it away now",
            kept.addr()
        ))
    }

    /// Nodes whose end of the tunnel is in the range that is left: calico-node there does not go by the pools as they are.
    pub(super) fn switched(&self, left: &IpNet) -> Option<Wait> {
        let nodes: Vec<String> = self
            .snapshot
            .nodes
            .iter()
            .filter(|(_, node)| facts::nodes::is_ready(node))
            .filter_map(|(name, _)| Some(format!("{name} ({})", self.tunnel_end(name, left)?)))
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

    /// Why Calico's `DaemonSet` is not in one piece; nodes that are away do not count.
    pub(super) fn rolling(&self, known: &PodCidrStatus) -> Option<Wait> {
        let settings = &known.settings;
        let (namespace, name) = (
            &settings.calico_daemon_set_namespace.value,
            &settings.calico_daemon_set_name.value,
        );
        let sets = self.cache.daemon_sets.state();
        let is_calicos = |set: &&Arc<DaemonSet>| {
            set.namespace().as_ref() == Some(namespace) && set.metadata.name.as_ref() == Some(name)
        };
        let set = facts::daemon_sets::daemon_set(sets.iter().find(is_calicos)?);
        let away = self
            .snapshot
            .nodes
            .values()
            .filter(|node| !facts::nodes::is_ready(node))
            .count();
        let needed = set
            .desired
            .saturating_sub(i32::try_from(away).unwrap_or(i32::MAX));
        let is_whole = (set.rolled_out || set.on_delete || away > 0) && set.ready >= needed;
        (!is_whole).then(|| Wait {
            reason: WaitReason::DaemonSetRollout,
            message: format!(
                "DaemonSet {namespace}/{name} is rolled: {} of {} pods are Ready",
                set.ready, set.desired
            ),
            until: None,
        })
    }

    /// Every Node in the order in which they are worked on, where pods leave node by node.
    pub(super) fn nodes_in_work<'order>(&self, order: &'order [String]) -> Vec<by_node::Node<'order>> {
        let migration = self.migration.name_any();
        // They stay where they are, and watch the range that is left until everybody else has moved.
        let ours: BTreeSet<IpAddr> = self
            .snapshot
            .traffic_pods
            .iter()
            .map(|pod| facts::pods::pod(pod))
            .flat_map(|pod| pod.addresses)
            .collect();
        let mut nodes = Vec::new();
        for name in order {
            let Some(node) = self.snapshot.nodes.get(name) else {
                continue;
            };
            let cordon = match (cordon::is_unschedulable(node), cordon::is_by(node, &migration)) {
                (false, true) => Cordon::Lifted,
                (false, false) => Cordon::None,
                (true, true) => Cordon::Ours,
                (true, false) => Cordon::Others,
            };
            let unsettled = match self.facts_of(name) {
                // Nobody can say of one that is away; its pods are counted all the same.
                None if !facts::nodes::is_ready(node) => None,
                None => Some("its agent has not answered".to_owned()),
                Some(facts) => host::route_to_pod(facts, &ours),
            };
            nodes.push(by_node::Node {
                name,
                ready: facts::nodes::is_ready(node),
                cordon,
                takes_pods: facts::nodes::takes_pods(node),
                unsettled,
            });
        }
        nodes
    }

    /// What the agents say of the range that is left; who has not said is named.
    pub(super) fn routes(&self, known: &PodCidrStatus) -> Vec<String> {
        // At the end agents are told that there is no traffic to watch: what they had found before holds until they answer.
        let is_seen = known
            .stage
            .as_ref()
            .is_some_and(|stage| stage.name == Stage::CleanUp && stage.direction == self.direction);
        let mut routes = Vec::new();
        for node in self.snapshot.node_migrations.keys() {
            let Some(found) = self.snapshot.nodes.get(node) else {
                continue;
            };
            let seen_before = || {
                let status = self.snapshot.node_migrations.get(node)?.status.as_ref()?;
                status.pod_cidr.as_ref().filter(|_| is_seen)
            };
            match self.facts_of(node).or_else(seen_before) {
                Some(facts) => routes.extend(host::left(facts).into_iter().map(|words| format!("node {node}: {words}"))),
                None if facts::nodes::is_ready(found) => {
                    routes.push(format!("node {node}: its agent has not said what is there"));
                }
                None => routes.push(format!(
                    "node {node}: it is NotReady, and nobody knows what is there; it is looked at when it is back, or gone"
                )),
            }
        }
        routes
    }

    /// The end of a tunnel of this node in this range.
    fn tunnel_end(&self, node: &str, range: &IpNet) -> Option<IpAddr> {
        let mut ends = self.calico_nodes.get(node)?.ends.values().copied();
        ends.find(|address| range.contains(address))
    }
}
