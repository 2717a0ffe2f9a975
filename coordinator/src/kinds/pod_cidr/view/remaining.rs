//! Remains of the source range: blocks, holders of its addresses, addresses that agents keep, and routes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::migration::{PodCidrStatus, Stage};
use engine::decision::{Wait, WaitReason};
use engine::pods::Pods;
use ipnet::IpNet;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use pod_cidr::decide::PoolRole;
use pod_cidr::former_address::{self, FormerAddress, NodeTunnelEnds, standing};
use pod_cidr::holder::{Cluster, holders};
use pod_cidr::host::{self, ChangedTunnelAddress, HostFacts};
use pod_cidr::ipam::{Allocation, Ipam};
use pod_cidr::tunnel::TunnelAllocation;
use pod_cidr::tunnel_change;

use super::super::ReadCache;
use super::super::malformed;
use super::super::pass::Pass;
use crate::calico::error::CalicoStoreError;
use crate::facts;
use crate::memory::Memory;
use crate::read_cache::Pace;

/// Remains of the source range.
pub(super) struct Remaining {
    /// Ranges of blocks and of claimed blocks.
    pub(super) blocks: Vec<IpNet>,
    /// Holders of its addresses, except pods that have to move, each with the fix. Not read while pods have to move.
    pub(super) holders: Vec<String>,
}

impl Pass<'_> {
    /// Finds what remains in the source range. While pods have to move, blocks are only counted.
    pub(super) async fn remaining(
        &self,
        memory: &mut Memory,
        range: &IpNet,
        have_to_move: bool,
        pace: Pace,
        known: &mut PodCidrStatus,
    ) -> Result<Remaining, CalicoStoreError> {
        let ipam = memory.kinds.of::<ReadCache>().ipam(self.store, pace).await?;
        self.add_warnings(memory, &ipam);
        let in_range: Vec<_> = ipam
            .blocks()
            .iter()
            .filter(|block| range.contains(&block.range))
            .collect();
        let allocations: Vec<_> = in_range.iter().flat_map(|block| &block.allocations).collect();
        // Each pod that has to move has an address of the range: no other holder matters before.
        let holders = if have_to_move {
            Vec::new()
        } else {
            let unclear = ipam.unclear.in_range(range);
            let unclear = unclear.map(|unclear| format!("{}: correct it", unclear.message()));
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
            .filter(|range| !memory.kinds.of::<ReadCache>().is_released(range))
            .collect();
        ranges.sort();
        ranges.dedup();
        known.source_blocks = u32::try_from(ranges.len()).ok();
        known.source_empty_since = if have_to_move || !holders.is_empty() {
            None
        } else {
            known.source_empty_since.or(Some(self.now))
        };
        Ok(Remaining {
            blocks: ranges,
            holders,
        })
    }

    /// Holders of these addresses, except pods that have to move.
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
                "{} is still allocated to a terminating pod (addresses in all: {})",
                first.address,
                allocations.len()
            ));
        }
        holders
    }

    /// The tunnel addresses in the settings of this node's agent.
    pub(super) fn tunnel_ends_of_agent(&self, node: &str) -> &[ChangedTunnelAddress] {
        let object = self.snapshot.node_migrations.get(node);
        let settings = object.and_then(|object| object.spec.pod_cidr.as_ref());
        settings.map_or(&[], |settings| settings.tunnel_addresses.as_slice())
    }

    fn all_told(&self) -> Vec<NodeTunnelEnds<'_>> {
        let names = self.snapshot.node_migrations.keys();
        names
            .map(|node| NodeTunnelEnds {
                node,
                ends: self.tunnel_ends_of_agent(node),
            })
            .collect()
    }

    /// Former tunnel addresses in the target range that are not allocated.
    pub(super) fn to_hold(&self, target: &IpNet) -> Vec<TunnelAllocation> {
        let Some(ipam) = self.ipam else {
            return Vec::new();
        };
        former_address::to_hold(&self.all_told(), ipam, target)
    }

    /// Addresses in the source range of tunnels that have their former address again.
    pub(super) fn to_release(&self, left: &IpNet, target: &IpNet) -> Vec<TunnelAllocation> {
        let Some(ipam) = self.ipam else {
            return Vec::new();
        };
        let nodes = self.calico_nodes.iter();
        let nodes = nodes.filter(|(name, _)| self.snapshot.nodes.contains_key(*name));
        let nodes = nodes.map(|(name, node)| (name.as_str(), node));
        former_address::to_release(&nodes.collect(), ipam, left, target)
    }

    /// Why the free former tunnel addresses are unknown, when some have to return.
    pub(super) fn free_addresses_unknown(&self, target: &IpNet) -> Option<Wait> {
        let told = self.all_told();
        let mut ends = told.iter().flat_map(|told| told.ends);
        ends.find(|end| target.contains(&IpAddr::V4(end.old)))?;
        let unclear = self.ipam?.unclear.block_of_unknown_node(target)?;
        Some(Wait {
            reason: WaitReason::CalicoObjects,
            message: format!(
                "{}; correct or delete it: which addresses of {target} are free for former tunnel addresses is unknown",
                unclear.message()
            ),
            until: None,
        })
    }

    /// The wait for a malformed pool that may overlap with one of both ranges.
    pub(super) fn malformed_pool(&self) -> Option<Wait> {
        let ranges = [PoolRole::Old, PoolRole::New].map(|which| self.range(which));
        let mut unclear = self.pools.malformed.iter();
        let strange = unclear.find(|pool| ranges.iter().any(|range| pool.may_touch(range)))?;
        Some(Wait {
            reason: WaitReason::CalicoObjects,
            message: format!(
                "{}; correct or delete it: no pool opens, closes or is deleted before, because it may share addresses with {} or \
                 {}",
                strange.message(),
                ranges[0],
                ranges[1]
            ),
            until: None,
        })
    }

    /// Adds Calico's malformed objects to the warnings.
    fn add_warnings(&self, memory: &mut Memory, ipam: &Ipam) {
        let ranges = [PoolRole::Old, PoolRole::New].map(|which| self.range(which));
        let told = malformed::warnings(&self.pools.malformed, Some(&ipam.unclear), ranges);
        memory.warnings.of_kind(&self.migration.name_any(), told);
    }

    /// Whether this node's former tunnel address is allocated to the node in Calico's IPAM, so that no pod can get it.
    pub(super) fn is_allocated_to_node(&self, node: &str, end: &ChangedTunnelAddress) -> bool {
        self.ipam
            .is_some_and(|ipam| matches!(standing(end, node, ipam), FormerAddress::Held(_)))
    }

    /// The report of a node's agent on its present settings; `None` without one.
    pub(super) fn facts_of(&self, node: &str) -> Option<&HostFacts> {
        let status = self.snapshot.node_migrations.get(node)?.status.as_ref()?;
        let generation = self.snapshot.node_migrations.get(node)?.metadata.generation;
        let is_current = Some(status.observed_generation) >= generation && self.snapshot.agent_ready(node);
        self.last_facts_of(node).filter(|_| is_current)
    }

    /// The last reports of the agents of Ready nodes, by node.
    pub(super) fn hosts(&self) -> impl Iterator<Item = (&str, &HostFacts)> {
        let nodes = self.snapshot.nodes.iter();
        let ready =
            nodes.filter(|(name, node)| facts::nodes::is_ready(node) && self.snapshot.agent_ready(name));
        ready.filter_map(|(name, _)| Some((name.as_str(), self.last_facts_of(name)?)))
    }

    /// The last report of a node's agent, on any settings.
    fn last_facts_of(&self, node: &str) -> Option<&HostFacts> {
        let object = self.snapshot.node_migrations.get(node)?;
        object.status.as_ref()?.pod_cidr.as_ref()
    }

    /// The first agent that keeps addresses in the source range, or has not answered.
    pub(super) fn kept_in_source(&self, left: &IpNet) -> Option<Wait> {
        let mut kept = self.kept(|node| match self.facts_of(node) {
            None => Some(format!("node {node}: its agent has not answered")),
            Some(facts) => self.kept_by(node, Some(facts), left, |_| false),
        });
        kept.next().map(|(_, wait)| wait)
    }

    /// The agents that keep addresses in the target range, by node. An address that is allocated to its node in Calico's IPAM may
    /// stay: no pod gets it. An agent that does not answer keeps what it was told to keep, and what its last report has.
    pub(super) fn kept_in_target(&self, target: &IpNet) -> BTreeMap<&str, Wait> {
        let kept = self.kept(|node| {
            let facts = self.last_facts_of(node);
            self.kept_by(node, facts, target, |end| self.is_allocated_to_node(node, end))
        });
        kept.collect()
    }

    /// The waits for agents of Ready nodes.
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

    /// The first address in this range that the agent of a node keeps, except those that may stay.
    fn kept_by(
        &self,
        node: &str,
        facts: Option<&HostFacts>,
        range: &IpNet,
        may_stay: impl Fn(&ChangedTunnelAddress) -> bool,
    ) -> Option<String> {
        let told = self.tunnel_ends_of_agent(node).iter();
        let (stay, go): (Vec<&ChangedTunnelAddress>, Vec<&ChangedTunnelAddress>) = told
            .filter(|end| range.contains(&IpAddr::V4(end.old)))
            .partition(|end| may_stay(end));
        let stays = |net: &IpNet| stay.iter().any(|end| IpAddr::V4(end.old) == net.addr());
        let said = facts
            .map(|facts| tunnel_change::kept(facts, range))
            .unwrap_or_default();
        let kept = go
            .first()
            .map(|end| IpNet::from(IpAddr::V4(end.old)))
            .or_else(|| said.into_iter().find(|net| !stays(net)))?;
        Some(format!(
            "node {node}: its agent is removing {}, kept for connections of the host that began with it",
            kept.addr()
        ))
    }

    /// The wait for a rollout of Calico's `DaemonSet`; nodes that are not Ready do not count.
    pub(super) fn daemon_set_rollout(&self, known: &PodCidrStatus) -> Option<Wait> {
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
                "DaemonSet {namespace}/{name}: {} of {} pods are Ready{}",
                set.ready,
                set.desired,
                first.map_or_else(String::new, |(node, _)| format!("; node {node} has no Ready pod"))
            ),
            until: None,
        })
    }

    /// Routes and addresses of the source range that agents report, and the nodes without a report.
    pub(super) fn routes(&self, known: &PodCidrStatus) -> Vec<String> {
        // In the last stage agents get settings without traffic: the former report holds until they answer.
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
                Some(facts) => routes.extend(
                    host::remaining(facts)
                        .into_iter()
                        .map(|words| format!("node {node}: {words}")),
                ),
                None if facts::nodes::is_ready(found) => {
                    routes.push(format!("node {node}: its agent has not reported"));
                }
                None => routes.push(format!(
                    "node {node}: NotReady, so its routes are unknown until it is Ready or deleted"
                )),
            }
        }
        routes
    }

    /// The tunnel address of this node in this range.
    pub(super) fn tunnel_address(&self, node: &str, range: &IpNet) -> Option<IpAddr> {
        let mut ends = self.calico_nodes.get(node)?.ends.values().copied();
        ends.find(|address| range.contains(address))
    }
}
