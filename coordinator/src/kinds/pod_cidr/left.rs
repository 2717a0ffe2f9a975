//! What is in the range that is left: blocks, who has addresses of it, what agents keep, routes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::migration::{PodCidrStatus, Stage};
use engine::decision::{Wait, WaitReason};
use engine::pods::Pods;
use ipnet::IpNet;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use pod_cidr::decide::Which;
use pod_cidr::ends;
use pod_cidr::holders::{Cluster, holders};
use pod_cidr::host::{self, HostFacts, TunnelEnd};
use pod_cidr::ipam::{Allocation, Ipam};
use pod_cidr::returns::{self, Standing, Told, standing};
use pod_cidr::tunnel::Held;

use super::drive::Pass;
use super::unclear;
use crate::facts;
use crate::looks::Pace;
use crate::memory::Memory;
use crate::write::WriteError;

/// What is in the range that is left.
pub(super) struct Left {
    /// Ranges of blocks and of affinities to some.
    pub(super) blocks: Vec<IpNet>,
    /// Who has an address of it besides pods that have to move, with what a person does about it; nobody is looked for while pods have to.
    pub(super) holders: Vec<String>,
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

    /// What the agent of this node is told of its tunnels.
    pub(super) fn told(&self, node: &str) -> &[TunnelEnd] {
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
    pub(super) fn facts_of(&self, node: &str) -> Option<&HostFacts> {
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
        let mut kept = self.kept(|node| match self.facts_of(node) {
            None => Some(format!("node {node}: its agent has not answered")),
            Some(facts) => self.kept_by(node, Some(facts), left, |_| false),
        });
        kept.next().map(|(_, wait)| wait)
    }

    /// Which agents keep addresses in the range that pods are led to, by node. One that is its tunnel's in Calico's IPAM may stay: no pod gets
    /// it. An agent that does not answer keeps what it was told to keep, and what it said last.
    pub(super) fn kept_in_target(&self, target: &IpNet) -> BTreeMap<&str, Wait> {
        let kept = self.kept(|node| {
            let facts = self.last_facts_of(node);
            self.kept_by(node, facts, target, |end| self.is_held(node, end))
        });
        kept.collect()
    }

    /// Nodes that are away do not count.
    fn kept(&self, kept: impl Fn(&str) -> Option<String>) -> impl Iterator<Item = (&str, Wait)> {
        let nodes = self.snapshot.nodes.iter();
        let ready = nodes.filter(|(_, node)| facts::nodes::is_ready(node));
        ready.filter_map(move |(name, _)| {
            self.snapshot.node_migrations.get(name)?.spec.pod_cidr.as_ref()?;
            let wait = Wait {
                reason: WaitReason::AgentWorking,
                message: kept(name)?,
                until: None,
            };
            Some((name.as_str(), wait))
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
        let mut ready = self
            .snapshot
            .nodes
            .iter()
            .filter(|(_, node)| facts::nodes::is_ready(node));
        let lacks = |node: &str| !self.is_calico_ready(node, (namespace, name));
        let first = ready.find(|(node, _)| lacks(node));
        (!is_whole).then(|| Wait {
            reason: WaitReason::DaemonSetRollout,
            message: format!(
                "DaemonSet {namespace}/{name} is rolled: {} of {} pods are Ready{}",
                set.ready,
                set.desired,
                first.map_or_else(String::new, |(node, _)| format!(
                    "; node {node} has none that is Ready"
                ))
            ),
            until: None,
        })
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
    pub(super) fn tunnel_end(&self, node: &str, range: &IpNet) -> Option<IpAddr> {
        let mut ends = self.calico_nodes.get(node)?.ends.values().copied();
        ends.find(|address| range.contains(address))
    }
}
