//! Report of a migration from flannel, as text and as JSON.

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

/// The report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The Migration.
    pub migration: MigrationReport,
    /// Every node, in the order in which they were migrated.
    pub nodes: Vec<NodeReport>,
    /// The traffic.
    pub probes: Summary,
    /// Pods that were recreated or restarted.
    pub pods: Pods,
    /// Changes that were made while the mixed state was held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// The implementation of Calico.
    pub calico: String,
    /// Faults that were found; empty is a pass.
    pub problems: Vec<String>,
}

/// The Migration.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationReport {
    /// The strategy by which nodes changed their network.
    pub strategy: Strategy,
    /// In place: how pods from before were treated.
    pub legacy_pods: LegacyPods,
    /// The phase in which the migration ended.
    pub phase: MigrationPhase,
    /// Time from the first change to the last.
    pub seconds: f64,
    /// Hash of the plan.
    pub plan_hash: String,
    /// The highest number of nodes that were unavailable at the same time, observed from outside.
    pub most_unavailable: usize,
    /// Number of observations.
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
    /// Time from the cordon to the end.
    pub seconds: f64,
    /// In place: time of the swap itself, from the goal to the agent's proof.
    pub swap_seconds: Option<f64>,
    /// Seconds by step, in order.
    pub steps: Vec<(String, f64)>,
    /// Remaining entries of flannel, by the agent and by other tools.
    pub leftovers: Vec<String>,
    /// Foreign entries on the host that are gone.
    pub foreign_gone: Vec<String>,
    /// Foreign entries on the host that are new.
    pub foreign_new: Vec<String>,
    /// After a rollback: the whole state, compared with the one from before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// One host after the migration.
#[derive(Clone, Debug, Default)]
pub struct HostReport {
    /// Remaining entries of flannel.
    pub leftovers: Vec<String>,
    /// Foreign entries that have changed.
    pub foreign: Foreign,
    /// After a rollback: the whole state, compared with the one from before.
    pub comparison: Option<Comparison>,
}

impl Report {
    /// Makes the report from the observations, and lists the faults.
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
        // In place the change ends with the last node; the later cleanup depends on the pods.
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

    /// The faults, by rules that hold for every migration, whatever the budget for lost probes.
    fn judge(&self, machines: usize) -> Vec<String> {
        let mut problems = Vec::new();
        let (end, proved) = if self.is_rolled_back() {
            (MigrationPhase::RolledBack, "Flannel")
        } else if self.keeps_pods() {
            (MigrationPhase::Mixed, "Mixed")
        } else {
            (MigrationPhase::Completed, "Calico")
        };
        if self.migration.phase != end {
            problems.push(format!(
                "phase of the migration: found {:?}, needed {end:?}",
                self.migration.phase
            ));
        }
        problems.extend(self.disruptions());
        if self.nodes.len() != machines {
            problems.push(format!(
                "migrated nodes: found {}, needed {machines}",
                self.nodes.len()
            ));
        }
        for node in &self.nodes {
            if node.phase != proved {
                problems.push(format!(
                    "node {}: the phase is {}, needed {proved}",
                    node.name, node.phase
                ));
            }
            if let Some(comparison) = &node.comparison {
                problems.extend(
                    comparison
                        .different
                        .iter()
                        .map(|line| format!("node {} differs from before, {line}", node.name)),
                );
            }
            problems.extend(
                node.leftovers
                    .iter()
                    .filter(|_| !self.is_rolled_back())
                    .filter(|line| !self.keeps_pods() || must_be_removed(line))
                    .map(|line| format!("remains on node {}: {line}", node.name)),
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
            problems.push("no probe was sent: losses are unknown".to_owned());
        }
        if self.migration.looks == 0 {
            problems
                .push("the nodes were not observed: the number of unavailable nodes is unknown".to_owned());
        }
        problems
    }

    /// Whether the migration was rolled back.
    fn is_rolled_back(&self) -> bool {
        self.migration.phase == MigrationPhase::RolledBack
    }

    /// Whether pods from before continue to run at the end.
    fn keeps_pods(&self) -> bool {
        (self.migration.strategy, self.migration.legacy_pods) == (Strategy::InPlace, LegacyPods::Keep)
    }

    /// Losses that an in-place migration must not have: no probe is lost and no pod is recreated. Where pods are restarted at the
    /// end, the losses of a rolling restart are allowed.
    fn disruptions(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.keeps_pods() && self.probes.all.lost > 0 {
            found.push(format!("lost probes: {}", self.probes.all.lost));
        }
        let in_place = self.migration.strategy == Strategy::InPlace;
        if in_place && (self.pods.restarted > 0 || (self.keeps_pods() && self.pods.recreated > 0)) {
            found.push(format!(
                "pods created again: {}, container restarts: {}",
                self.pods.recreated, self.pods.restarted
            ));
        }
        found
    }
}

/// Whether the swap removes this entry of flannel: in place only entries that serve running pods remain.
fn must_be_removed(line: &str) -> bool {
    let serves_pods = [
        "link cni0",
        "route ",
        "iptables",
        "ip6tables",
        "nft",
        "file /var/lib/cni/",
    ];
    let named_by_the_agent = ["files of host-local", "delegate files"];
    !serves_pods.iter().any(|start| line.starts_with(start))
        && !named_by_the_agent.iter().any(|part| line.contains(part))
}

fn node(object: &NodeMigration, host: Option<&HostReport>) -> NodeReport {
    let spec = &object.spec;
    let status = object.status.clone().unwrap_or_default();
    let of_host = status.flannel_to_calico.unwrap_or_default();
    let host = host.cloned().unwrap_or_default();
    let mut leftovers = of_host.leftovers;
    leftovers.extend(host.leftovers);
    NodeReport {
        name: spec.node_name.clone(),
        phase: of_host
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
            // Migration and rollback, with the wait between them.
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
