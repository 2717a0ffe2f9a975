//! From flannel to Calico.

pub mod cases;
mod hold;
mod refusal;
pub mod report;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::migration::{MigrationPhase, Strategy};
use api::{Migration, NodeMigration};
use flannel_to_calico::phase::Phase;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

use super::host::Host;
use super::report::probes;
use super::scene::Scene;
use super::watch::Watch;
use super::{MIGRATION, Tools, max_unavailable, merge, migration, same};
use crate::cluster::Cluster;
use crate::cluster::pods::FLANNEL_NAMESPACE;
use report::{HostReport, Report};

pub use refusal::refuse;

/// What the demo is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// How a node changes its network.
    pub strategy: Strategy,
    /// `rollout.maxUnavailable`, as written.
    pub max_unavailable: String,
    /// More fields of the spec, as JSON to merge.
    pub spec: serde_json::Value,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            strategy: Strategy::Drain,
            max_unavailable: "1".to_owned(),
            spec: serde_json::json!({}),
        }
    }
}

/// The Migration as a user would write it.
pub fn manifest(wanted: &Wanted) -> serde_json::Value {
    let mut spec = serde_json::json!({
        "flannelToCalico": { "strategy": wanted.strategy },
        "rollout": { "maxUnavailable": max_unavailable(&wanted.max_unavailable) },
        // The sample has a bare pod: it goes for good, and the operator said so.
        "drain": { "force": true },
    });
    merge(&mut spec, &wanted.spec);
    migration(&spec)
}

/// A migration that has been prepared: what was there before is known.
pub struct Run<'cluster> {
    /// The cluster, and what was there before.
    pub scene: Scene<'cluster>,
    held: Option<hold::Held>,
}

/// The old network's own pods end.
fn counts(pod: &Pod) -> bool {
    pod.namespace().as_deref() != Some(FLANNEL_NAMESPACE)
}

/// Whether a node has neither network.
fn is_between(object: &NodeMigration) -> bool {
    let phase = object.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Held | Phase::Detached))
}

impl<'cluster> Run<'cluster> {
    /// Looks at every host.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools) -> Result<Self> {
        // A pod that nobody creates again: the operator has to say that it may go.
        cluster.install_lonely().await?;
        let scene = Scene::look(cluster, tools, counts).await?;
        for (node, host) in scene.hosts() {
            ensure!(
                !host.flannel().is_empty(),
                "node {node} has nothing of flannel before the migration"
            );
        }
        Ok(Self { scene, held: None })
    }

    /// Shows checks and plan, starts the migration, follows it to its end.
    pub async fn migrate(&self, wanted: &Wanted) -> Result<Watch> {
        self.scene.migrate(&manifest(wanted), || self.watch()).await
    }

    /// Watches from now on how many nodes are out of work.
    pub fn watch(&self) -> Watch {
        Watch::start(self.scene.cluster.api().client(), is_between, None)
    }

    /// Holds the mixed state, and counts as moved only who was moved before or is after.
    pub async fn hold(&mut self, time: Duration) -> Result<()> {
        self.scene.say(format_args!(
            "the mixed state is held for {} s, with pods that come and go",
            time.as_secs()
        ));
        let moved = self.scene.pods().await?.recreated;
        ensure!(
            moved == 0,
            "{moved} pods were created again on the way to the mixed state"
        );
        let held = hold::hold(self.scene.cluster, time).await?;
        self.scene.say(format_args!(
            "held for {:.0} s: {} rounds, {} pods created, {} deleted; the IPAM agreed each time",
            held.seconds, held.rounds, held.created, held.deleted
        ));
        self.scene.count_pods_anew().await?;
        self.held = Some(held);
        Ok(())
    }

    /// Ends the traffic, looks at every host again, and says how it went.
    pub async fn report(&self, watch: Watch) -> Result<Report> {
        let peak = watch.stop().await?;
        let cluster = self.scene.cluster;
        let migrations: Api<Migration> = Api::all(cluster.api().client());
        let migration = migrations
            .get(MIGRATION)
            .await
            .with_context(|| format!("read Migration {MIGRATION}"))?;
        let rolled_back = migration
            .status
            .as_ref()
            .is_some_and(|status| status.phase == MigrationPhase::RolledBack);
        let mut comparisons = BTreeMap::new();
        if rolled_back {
            // While the traffic runs, as it did at the first look.
            for (node, before) in self.scene.hosts() {
                let after = Host::look(cluster, node).await?;
                comparisons.insert(node.clone(), same::Comparison::of(before, &after));
            }
        }
        // Before the traffic ends: its pods are no pods that the migration has moved.
        let pods = self.scene.pods().await?;
        let probes = probes(cluster).await?;
        let mut hosts = BTreeMap::new();
        for node in cluster.node_names().await {
            let (after, foreign) = self.scene.look_again(&node).await?;
            let host = HostReport {
                leftovers: if rolled_back { Vec::new() } else { after.flannel() },
                foreign,
                comparison: comparisons.remove(&node),
            };
            hosts.insert(node, host);
        }
        let report = Report::of(cluster, &migration, peak, probes, hosts, pods, &self.scene.calico).await?;
        Ok(Report {
            held: self.held,
            ..report
        })
    }
}
