//! How a migration from flannel went: for people as text, for programs as JSON.

mod text;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use api::migration::{LegacyPods, MigrationPhase, Strategy};
use api::{Migration, NodeMigration};
use flannel_to_calico::node::Stage;
use kube::Api;
use kube::api::ListParams;
use serde::Serialize;
use traffic::report::Summary;

use super::hold::Held;
use crate::cluster::Cluster;
use crate::demo::report::{Foreign, Pods};
use crate::demo::same::Comparison;
use crate::demo::watch::Peak;

/// How a migration went.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The Migration.
    pub migration: MigrationReport,
    /// Every node, in the order in which they were migrated.
    pub nodes: Vec<NodeReport>,
    /// The traffic.
    pub probes: Summary,
    /// What happened to pods.
    pub pods: Pods,
    /// What was done while the mixed state was held, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// Who played Calico.
    pub calico: String,
    /// What is not as it should be; empty is well.
    pub problems: Vec<String>,
}

/// The Migration.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationReport {
    /// How nodes changed their network.
    pub strategy: Strategy,
    /// In place: what happened to pods that were there before.
    pub legacy_pods: LegacyPods,
    /// Where it ended.
    pub phase: MigrationPhase,
    /// From the first change to the last.
    pub seconds: f64,
    /// Hash of the plan.
    pub plan_hash: String,
    /// The most nodes that were out of work at the same time, as seen from outside.
    pub most_unavailable: usize,
    /// How often it was looked.
    pub looks: u64,
}

/// One node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Name.
    pub name: String,
    /// The phase that its agent proved.
    pub phase: String,
    /// From its cordon to its end.
    pub seconds: f64,
    /// In place: how long the swap itself took, from the goal to the agent's proof.
    pub swap_seconds: Option<f64>,
    /// Seconds by step, in order.
    pub steps: Vec<(String, f64)>,
    /// What is left of flannel, by other tools than ours.
    pub leftovers: Vec<String>,
    /// What somebody else had on the host and is not there any more.
    pub foreign_gone: Vec<String>,
    /// What is there and belongs to nobody that should have written it.
    pub foreign_new: Vec<String>,
    /// After a way back: everything, compared with what was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// One host after the migration.
#[derive(Clone, Debug, Default)]
pub struct HostReport {
    /// What is left of flannel.
    pub leftovers: Vec<String>,
    /// What of somebody else's has changed.
    pub foreign: Foreign,
    /// After a way back: everything, compared with what was there before.
    pub comparison: Option<Comparison>,
}

impl Report {
    /// Puts it together, and judges it.
    pub async fn of(
        cluster: &Cluster,
        migration: &Migration,
        peak: Peak,
        probes: Summary,
        hosts: BTreeMap<String, HostReport>,
        pods: Pods,
        calico: &str,
    ) -> Result<Self> {
        let status = migration.status.clone().unwrap_or_default();
        let objects: Api<NodeMigration> = Api::all(cluster.api().client());
        let mut objects = objects
            .list(&ListParams::default())
            .await
            .context("list NodeMigrations")?
            .items;
        objects.sort_by_key(|object| (object.spec.started_at, object.spec.position));
        let nodes: Vec<NodeReport> = objects
            .iter()
            .map(|object| node(object, hosts.get(&object.spec.node_name)))
            .collect();
        let kind = migration.spec.flannel_to_calico.clone().unwrap_or_default();
        let (strategy, legacy_pods) = (kind.strategy, kind.legacy_pods);
        // In place the last node's end is the end of the change; what is cleaned up later follows the pods.
        let last = objects.iter().filter_map(|object| object.spec.finished_at).max();
        let ended = status
            .completed_at
            .or(last.filter(|_| strategy == Strategy::InPlace));
        let seconds = match (status.started_at, ended) {
            (Some(started), Some(completed)) => completed.duration_since(started).as_secs_f64(),
            _ => 0.0,
        };
        let mut report = Self {
            migration: MigrationReport {
                strategy,
                legacy_pods,
                phase: status.phase,
                seconds,
                plan_hash: status.plan.map(|plan| plan.hash).unwrap_or_default(),
                most_unavailable: peak.nodes.len(),
                looks: peak.looks,
            },
            nodes,
            probes,
            pods,
            held: None,
            calico: calico.to_owned(),
            problems: Vec::new(),
        };
        report.problems = report.judge(hosts.len());
        Ok(report)
    }

    /// What has to hold after every migration, whatever the budget for lost probes.
    fn judge(&self, machines: usize) -> Vec<String> {
        let mut problems = Vec::new();
        let (end, proved) = if self.is_back() {
            (MigrationPhase::RolledBack, "Flannel")
        } else if self.lives_on() {
            (MigrationPhase::Mixed, "Mixed")
        } else {
            (MigrationPhase::Completed, "Calico")
        };
        if self.migration.phase != end {
            problems.push(format!("the migration ended as {:?}", self.migration.phase));
        }
        problems.extend(self.harm());
        if self.nodes.len() != machines {
            problems.push(format!(
                "{} nodes were migrated, there are {machines}",
                self.nodes.len()
            ));
        }
        for node in &self.nodes {
            if node.phase != proved {
                problems.push(format!("node {} ended as {}", node.name, node.phase));
            }
            if let Some(comparison) = &node.comparison {
                problems.extend(
                    comparison
                        .different
                        .iter()
                        .map(|line| format!("node {} is not as it was, {line}", node.name)),
                );
            }
            problems.extend(
                node.leftovers
                    .iter()
                    .filter(|_| !self.is_back())
                    .filter(|line| !self.lives_on() || goes_at_once(line))
                    .map(|line| format!("left on node {}: {line}", node.name)),
            );
            problems.extend(
                node.foreign_gone
                    .iter()
                    .map(|line| format!("gone from node {}: {line}", node.name)),
            );
            problems.extend(
                node.foreign_new
                    .iter()
                    .map(|line| format!("new on node {}: {line}", node.name)),
            );
        }
        if self.probes.all.sent == 0 {
            problems.push("no probe was sent: the traffic says nothing".to_owned());
        }
        if self.migration.looks == 0 {
            problems.push("nobody looked at the nodes: their number out of work is not known".to_owned());
        }
        problems
    }

    /// Whether everything was taken back.
    fn is_back(&self) -> bool {
        self.migration.phase == MigrationPhase::RolledBack
    }

    /// Whether pods from before live on at the end, with what they need.
    fn lives_on(&self) -> bool {
        (self.migration.strategy, self.migration.legacy_pods) == (Strategy::InPlace, LegacyPods::Keep)
    }

    /// In place nothing is lost and nobody is moved. Where pods are restarted in the end, their own ends cost what a
    /// rolling restart costs.
    fn harm(&self) -> Vec<String> {
        let mut harm = Vec::new();
        if self.lives_on() && self.probes.all.lost > 0 {
            harm.push(format!("{} probes were lost", self.probes.all.lost));
        }
        let in_place = self.migration.strategy == Strategy::InPlace;
        if in_place && (self.pods.restarted > 0 || (self.lives_on() && self.pods.recreated > 0)) {
            harm.push(format!(
                "{} pods were created again, {} containers restarted",
                self.pods.recreated, self.pods.restarted
            ));
        }
        harm
    }
}

/// In place what serves pods that live stays; the rest of flannel goes with the swap.
fn goes_at_once(line: &str) -> bool {
    let serves_pods = [
        "link cni0",
        "route ",
        "iptables",
        "ip6tables",
        "nft",
        "file /var/lib/cni/",
    ];
    let by_the_agent = ["files of host-local", "delegate files"];
    !serves_pods.iter().any(|start| line.starts_with(start))
        && !by_the_agent.iter().any(|part| line.contains(part))
}

fn node(object: &NodeMigration, host: Option<&HostReport>) -> NodeReport {
    let spec = &object.spec;
    let status = object.status.clone().unwrap_or_default();
    let host = host.cloned().unwrap_or_default();
    let mut leftovers = status.leftovers;
    leftovers.extend(host.leftovers);
    NodeReport {
        name: spec.node_name.clone(),
        phase: status
            .phase
            .map_or("unknown", flannel_to_calico::phase::Phase::as_str)
            .to_owned(),
        seconds: match (
            spec.started_at,
            spec.finished_at,
            spec.history.first(),
            spec.returned_at,
        ) {
            (Some(started), Some(finished), ..) => finished.duration_since(started).as_secs_f64(),
            // There and back, with what it waited between the two.
            (_, _, Some(first), Some(returned)) => returned.duration_since(first.started_at).as_secs_f64(),
            _ => 0.0,
        },
        swap_seconds: spec
            .history
            .iter()
            .find(|step| step.name == Stage::Swap.as_str())
            .map(|step| step.finished_at.duration_since(step.started_at).as_secs_f64()),
        steps: spec
            .history
            .iter()
            .map(|step| {
                (
                    step.name.clone(),
                    step.finished_at.duration_since(step.started_at).as_secs_f64(),
                )
            })
            .collect(),
        leftovers,
        foreign_gone: host.foreign.gone,
        foreign_new: host.foreign.new,
        comparison: host.comparison,
    }
}
