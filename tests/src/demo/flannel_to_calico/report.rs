//! The part of the report that only a migration from flannel has.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use api::migration::{LegacyPods, MigrationPhase, Strategy};
use api::{Migration, NodeMigration};
use flannel_to_calico::node::Stage;
use kube::Api;
use kube::api::ListParams;
use schemars::JsonSchema;
use serde::Serialize;
use traffic::report::Summary;

pub use super::hold::Held;
pub use super::policy_trial::{PolicyTrial, Trial};
use super::rehearsed;
use crate::cluster::Cluster;
use crate::demo::report::{
    self as common, Foreign, Measurements, MigrationReport, NodeReport, NodeStep, OwnPart, Pods,
};
use crate::demo::same::Comparison;
use crate::demo::watch::Peak;

/// The report.
pub type Report = common::Report<FlannelToCalico>;

/// The part that only this kind has.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelToCalico {
    /// The strategy by which nodes changed their network.
    pub strategy: Strategy,
    /// In place: the treatment of pods from before.
    pub legacy_pods: LegacyPods,
    /// Changes that were made while the mixed state was held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// After an adoption: a policy for the adopted pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyTrial>,
    /// The rehearsal before, compared with the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rehearsal: Option<rehearsed::Comparison>,
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

impl OwnPart for FlannelToCalico {
    const KIND: &'static str = "flannelToCalico";

    fn lines(&self) -> Vec<String> {
        let policy = self.policy.iter().flat_map(PolicyTrial::lines);
        let rehearsal = self.rehearsal.iter().map(|rehearsal| {
            let [usual, quick, slow] = rehearsal.seconds;
            format!(
                "rehearsed: {usual:.1} s, {quick:.1} s where everything is quick, {slow:.1} s where everything is slow; other order: {}",
                rehearsal.differences.len()
            )
        });
        policy.chain(rehearsal).collect()
    }

    fn verdict(report: &Report) -> Option<String> {
        let verdict = if report.is_rolled_back() {
            "the migration was rolled back: every host is as before"
        } else if report.own.keeps_pods() {
            "by ip, bridge, iptables-save and nft: flannel's tunnel and conflist are gone, the entries that its running pods need \
             are present, and no foreign rule or route has changed"
        } else if report.own.adopts_pods() {
            "by ip, bridge, iptables-save and nft: no link, rule or table of flannel remains on any node, all pods of before run, \
             and no foreign rule or route has changed"
        } else {
            "by ip, bridge, iptables-save and nft: no entry of flannel remains on any node, and no foreign rule or \
             route has changed"
        };
        Some(verdict.to_owned())
    }
}

impl FlannelToCalico {
    /// Whether pods from before continue to run on flannel's bridge at the end.
    fn keeps_pods(&self) -> bool {
        (self.strategy, self.legacy_pods) == (Strategy::InPlace, LegacyPods::Keep)
    }

    /// Whether pods from before become pods of Calico without a restart.
    fn adopts_pods(&self) -> bool {
        (self.strategy, self.legacy_pods) == (Strategy::InPlace, LegacyPods::Adopt)
    }
}

/// The NodeMigrations in the order in which their nodes began.
pub async fn migrated(cluster: &Cluster) -> Result<Vec<NodeMigration>> {
    let objects: Api<NodeMigration> = Api::all(cluster.api().client());
    let list = objects.list(&ListParams::default()).await;
    let mut objects = list.context("list NodeMigrations")?.items;
    objects.sort_by_key(|object| (object.spec.started_at, object.spec.position));
    Ok(objects)
}

impl Report {
    /// Makes the report from the observations, and lists the faults.
    #[expect(clippy::too_many_arguments, reason = "each is a part of one report")]
    pub async fn of(
        cluster: &Cluster,
        migration: &Migration,
        peak: Peak,
        probes: Summary,
        hosts: BTreeMap<String, HostReport>,
        pods: Pods,
        held: Option<Held>,
        calico: &str,
    ) -> Result<Self> {
        let objects = migrated(cluster).await?;
        let nodes = objects
            .iter()
            .map(|object| node(object, hosts.get(&object.spec.node_name)))
            .collect();
        let spec = migration.spec.flannel_to_calico.clone().unwrap_or_default();
        let own = FlannelToCalico {
            strategy: spec.strategy,
            legacy_pods: spec.legacy_pods,
            held,
            policy: None,
            rehearsal: None,
        };
        let value = serde_json::to_value(migration).context("write the Migration as JSON")?;
        let mut migration_report = MigrationReport::of::<FlannelToCalico>(&value, Some(&peak));
        let status = migration.status.clone().unwrap_or_default();
        // In place the change ends with the last node; the later cleanup depends on the pods.
        let last = objects.iter().filter_map(|object| object.spec.finished_at).max();
        if own.strategy == Strategy::InPlace
            && status.completed_at.is_none()
            && let (Some(started), Some(last)) = (status.started_at, last)
        {
            migration_report.seconds = last.duration_since(started).as_secs_f64();
        }
        let end = if migration_report.phase == MigrationPhase::RolledBack {
            MigrationPhase::RolledBack
        } else if own.keeps_pods() {
            MigrationPhase::Mixed
        } else {
            MigrationPhase::Completed
        };
        let measurements = Measurements {
            migration: migration_report,
            nodes,
            probes,
            pods,
            calico: Some(calico.to_owned()),
        };
        let mut report = Self::new(measurements, own, end);
        report.problems.extend(report.judge(hosts.len()));
        Ok(report)
    }

    /// Adds the policy that was tried, and its faults.
    pub fn add_policy(&mut self, policy: Option<PolicyTrial>) {
        self.problems
            .extend(policy.iter().flat_map(PolicyTrial::problems));
        self.own.policy = policy;
    }

    /// Adds the comparison with the rehearsal; another order is a fault.
    pub fn add_rehearsal(&mut self, comparison: rehearsed::Comparison) {
        let problems = comparison.differences.iter();
        self.problems
            .extend(problems.map(|line| format!("not as rehearsed: {line}")));
        self.own.rehearsal = Some(comparison);
    }

    /// The faults that only this kind can have, whatever the budget for lost probes.
    fn judge(&self, machines: usize) -> Vec<String> {
        let mut problems = self.disruptions();
        let proved = if self.is_rolled_back() {
            "Flannel"
        } else if self.own.keeps_pods() {
            "Mixed"
        } else {
            "Calico"
        };
        if self.nodes.len() != machines {
            problems.push(format!(
                "migrated nodes: found {}, needed {machines}",
                self.nodes.len()
            ));
        }
        for node in &self.nodes {
            let phase = node.phase.as_deref().unwrap_or("unknown");
            if phase != proved {
                problems.push(format!(
                    "node {}: the phase is {phase}, needed {proved}",
                    node.name
                ));
            }
            problems.extend(
                node.leftovers
                    .iter()
                    .flatten()
                    .filter(|_| !self.is_rolled_back())
                    .filter(|line| !self.own.keeps_pods() || must_be_removed(line))
                    .filter(|line| !self.own.adopts_pods() || !serves_adopted_pods(line))
                    .map(|line| format!("remains on node {}: {line}", node.name)),
            );
        }
        problems
    }

    /// Whether the migration was rolled back.
    fn is_rolled_back(&self) -> bool {
        self.migration.phase == MigrationPhase::RolledBack
    }

    /// Losses that a migration must not have: no probe is lost, and in place no connection breaks and no pod is recreated. Where
    /// pods are restarted at the end, the losses of a rolling restart are allowed.
    fn disruptions(&self) -> Vec<String> {
        let keeps_pods = self.own.keeps_pods() || self.own.adopts_pods();
        let in_place = self.own.strategy == Strategy::InPlace;
        let mut found = Vec::new();
        if (keeps_pods || !in_place) && self.probes.all.lost > 0 {
            found.push(format!("lost probes: {}", self.probes.all.lost));
        }
        if keeps_pods && self.probes.all.broken > 0 {
            found.push(format!("broken connections: {}", self.probes.all.broken));
        }
        if in_place && (self.pods.restarted > 0 || (keeps_pods && self.pods.recreated > 0)) {
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

/// Whether an adopted pod needs this entry: flannel's CNI plugins remove its lease and its host ports when the pod ends.
fn serves_adopted_pods(line: &str) -> bool {
    line.starts_with("file /var/lib/cni/")
}

fn node(object: &NodeMigration, host: Option<&HostReport>) -> NodeReport {
    let spec = &object.spec;
    let status = object.status.clone().unwrap_or_default();
    let of_host = status.flannel_to_calico.unwrap_or_default();
    let host = host.cloned().unwrap_or_default();
    let mut leftovers = of_host.leftovers;
    leftovers.extend(host.leftovers);
    let times = (
        spec.started_at,
        spec.finished_at,
        spec.history.first(),
        spec.returned_at,
    );
    let steps: Vec<NodeStep> = spec
        .history
        .iter()
        .map(|step| NodeStep {
            name: step.name.clone(),
            seconds: step.finished_at.duration_since(step.started_at).as_secs_f64(),
        })
        .collect();
    let phase = of_host.phase;
    NodeReport {
        phase: Some(
            phase
                .map_or("unknown", flannel_to_calico::phase::Phase::as_str)
                .to_owned(),
        ),
        seconds: Some(match times {
            (Some(started), Some(finished), ..) => finished.duration_since(started).as_secs_f64(),
            // Migration and rollback, with the wait between them.
            (_, _, Some(first), Some(returned)) => returned.duration_since(first.started_at).as_secs_f64(),
            _ => 0.0,
        }),
        swap_seconds: steps
            .iter()
            .find(|step| step.name == Stage::Swap.as_str())
            .map(|step| step.seconds),
        steps: Some(steps),
        leftovers: Some(leftovers),
        comparison: host.comparison,
        ..NodeReport::with_foreign(spec.node_name.clone(), host.foreign)
    }
}
