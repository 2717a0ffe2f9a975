//! Mode `ByNode`: the state of every Node, and the hosts that other nodes do not wait for any longer.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube::ResourceExt;
use pod_cidr::by_node::{self, Cordon};
use pod_cidr::host;

use super::super::ReadCache;
use super::super::pass::Pass;
use super::switch;
use crate::memory::Memory;
use crate::{cordon, facts};

impl Pass<'_> {
    /// Every Node in the order of the rollout, where pods leave node by node. A host that has no pod to move and has been
    /// unsettled for minutes is named in the warnings and counts as settled: no node keeps the pods of other nodes. `with_pods`:
    /// nodes that have a pod to move.
    pub(super) fn nodes_in_order<'order>(
        &self,
        memory: &mut Memory,
        order: &'order [String],
        with_pods: &BTreeSet<&str>,
    ) -> Vec<by_node::Node<'order>> {
        let mut nodes = self.nodes_as_they_are(order);
        let without_pods =
            |node: &&by_node::Node<'_>| node.remaining_routes.is_some() && !with_pods.contains(node.name);
        let unsettled = &mut memory.kinds.of::<ReadCache>().unsettled_nodes;
        unsettled.keep(nodes.iter().filter(without_pods).map(|node| node.name.to_owned()));
        let patience = switch::patience(nodes.len());
        let mut told = Vec::new();
        for node in &mut nodes {
            if unsettled.has_lasted(node.name, patience)
                && let Some(words) = node.remaining_routes.take()
            {
                told.push((
                    format!("node {}", node.name),
                    format!(
                        "{words}. The wait has lasted for minutes, and no pod of node {} has to move: other nodes continue \
                         without it. Fix: check the logs of the agent and of calico-node on this node",
                        node.name
                    ),
                ));
            }
        }
        memory.warnings.add(told);
        nodes
    }

    fn nodes_as_they_are<'order>(&self, order: &'order [String]) -> Vec<by_node::Node<'order>> {
        let migration = self.migration.name_any();
        // Traffic pods stay where they are, and probe the source range until all other pods have moved.
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
                (false, true) => Cordon::RemovedByUser,
                (false, false) => Cordon::None,
                (true, true) => Cordon::Ours,
                (true, false) => Cordon::Others,
            };
            let unsettled = match self.facts_of(name) {
                // No agent reports of a node that is down; its pods count all the same.
                None if !facts::nodes::is_ready(node) => None,
                None => Some("its agent has not answered".to_owned()),
                Some(facts) => host::route_to_pod(facts, &ours),
            };
            nodes.push(by_node::Node {
                name,
                ready: facts::nodes::is_ready(node),
                cordon,
                takes_pods: facts::nodes::takes_pods(node),
                remaining_routes: unsettled,
            });
        }
        nodes
    }
}
