//! Migration from flannel to Calico.

pub mod cases;
mod hold;
pub mod policy_trial;
mod refusal;
pub mod rehearsed;
pub mod report;

use ::flannel_to_calico::api::OrEmpty as _;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::migration::{MigrationPhase, Strategy};
use api::{Migration, NodeMigration};
use engine::decision::WaitReason;
use engine::reason::Reason;
use flannel_to_calico::phase::Phase;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

use super::host::Host;
use super::operator::Exit;
use super::report::probes;
use super::scene::Scene;
use super::watch::Watch;
use super::{LIMIT, MIGRATION, Tools, max_unavailable, merge, migration, same};
use crate::cluster::Cluster;
use crate::cluster::pods::FLANNEL_NAMESPACE;
use crate::cluster::wait::{Observation, until};
use rehearsed::Rehearsed;
use report::{HostReport, Report};

pub use refusal::refuse;

/// The requested migration.
#[derive(Clone, Debug)]
pub struct Request {
    /// How a node changes its network.
    pub strategy: Strategy,
    /// `rollout.maxUnavailable`, as written.
    pub max_unavailable: String,
    /// More fields of the spec, as JSON to merge.
    pub spec: serde_json::Value,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            strategy: Strategy::Drain,
            max_unavailable: "1".to_owned(),
            spec: serde_json::json!({}),
        }
    }
}

/// The Migration as a user would write it.
pub fn manifest(request: &Request) -> serde_json::Value {
    let mut spec = serde_json::json!({
        // flannel's DaemonSet is deleted as soon as every node is on Calico.
        "flannelToCalico": { "strategy": request.strategy, "soakSeconds": 0 },
        "rollout": { "maxUnavailable": max_unavailable(&request.max_unavailable) },
        // The sample has a pod without a controller: it is evicted for good, and the user allows that.
        "drain": { "force": true },
    });
    merge(&mut spec, &request.spec);
    migration(&spec)
}

/// A prepared migration, with the state from before.
pub struct Run<'cluster> {
    /// The cluster, and its state from before.
    pub scene: Scene<'cluster>,
    held: Option<hold::Held>,
    policy: Option<policy_trial::PolicyTrial>,
    rehearsed: Option<Rehearsed>,
}

/// Whether every node is on Calico, no pod uses flannel, and only the soak time keeps flannel's `DaemonSet`.
pub fn is_soaking(migration: &Migration) -> bool {
    let status = migration.status.as_ref();
    status.is_some_and(|status| status.reason == Reason::from(WaitReason::NetworkSoak).as_str())
}

/// Pods that must not be recreated without need: all except those of flannel, which end.
fn counts(pod: &Pod) -> bool {
    pod.namespace().as_deref() != Some(FLANNEL_NAMESPACE)
}

/// Whether a node is without a network.
fn is_between(object: &NodeMigration) -> bool {
    let phase = object
        .status
        .as_ref()
        .and_then(|status| status.flannel_to_calico.or_empty().phase);
    matches!(phase, Some(Phase::Held | Phase::Detached))
}

impl<'cluster> Run<'cluster> {
    /// Observes every host.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools) -> Result<Self> {
        // A pod without a controller: the user has to allow its eviction.
        cluster.install_lonely().await?;
        let scene = Scene::observe(cluster, tools, counts).await?;
        for (node, host) in scene.hosts() {
            ensure!(
                !host.flannel().is_empty(),
                "node {node} has no state of flannel before the migration"
            );
        }
        Ok(Self {
            scene,
            held: None,
            policy: None,
            rehearsed: None,
        })
    }

    /// Rehearses the migration, so that the report compares both.
    pub async fn rehearse(&mut self, request: &Request) -> Result<()> {
        self.scene.say("kubectl replumb plan --simulate");
        let operator = &self.scene.operator;
        let file = operator.write_manifest(&manifest(request))?;
        let file = file.to_string_lossy();
        self.rehearsed = Some(Rehearsed::begin(self.scene.cluster, operator, &file).await?);
        Ok(())
    }

    /// Shows checks and plan, starts the migration, and follows it until it ends.
    pub async fn migrate(&self, request: &Request) -> Result<Watch> {
        self.scene.migrate(&manifest(request), || self.watch()).await
    }

    /// Shows checks and plan, starts the migration, and follows it until only the soak time keeps flannel's DaemonSet.
    pub async fn migrate_until_soak(&self, request: &Request) -> Result<Watch> {
        let operator = &self.scene.operator;
        let file = operator.write_manifest(&manifest(request))?;
        let file = file.to_string_lossy();
        operator
            .expect(Exit::Done, &["plan", "--filename", &file])
            .await?;
        self.scene
            .say("kubectl replumb apply --yes, until flannel is kept for a rollback only");
        let watch = self.start(request).await?;
        let cluster = self.scene.cluster;
        let migrations: Api<Migration> = Api::all(cluster.api().client());
        let logs = cluster.directory().logs();
        until("only the soak time keeps flannel", LIMIT, &logs, async || {
            let migration = migrations.get(MIGRATION).await?;
            if is_soaking(&migration) {
                return Ok(Observation::Done(()));
            }
            let status = migration.status.unwrap_or_default();
            ensure!(
                status.phase != MigrationPhase::Halted,
                "the Migration is halted: {}",
                status.message
            );
            Ok(Observation::NotYet(format!(
                "{:?}: {} {}",
                status.phase, status.reason, status.message
            )))
        })
        .await?;
        Ok(watch)
    }

    /// Starts the migration, and returns at once.
    pub async fn start(&self, request: &Request) -> Result<Watch> {
        let operator = &self.scene.operator;
        let file = operator.write_manifest(&manifest(request))?;
        let watch = self.watch();
        let arguments = ["apply", "--filename", &file.to_string_lossy(), "--yes"];
        operator.expect(Exit::Done, &arguments).await?;
        Ok(watch)
    }

    /// Starts to watch how many nodes are unavailable.
    pub fn watch(&self) -> Watch {
        Watch::start(self.scene.cluster.api().client(), is_between, None)
    }

    /// Holds the mixed state; pods that are recreated meanwhile do not count as moved.
    pub async fn hold(&mut self, time: Duration) -> Result<()> {
        self.scene.say(format_args!(
            "hold the mixed state for {} s, with pods that are created and deleted",
            time.as_secs()
        ));
        let moved = self.scene.pods().await?.recreated;
        ensure!(moved == 0, "pods created again before the mixed state: {moved}");
        let held = hold::hold(self.scene.cluster, time).await?;
        self.scene.say(format_args!(
            "held for {:.0} s; rounds: {}, pods created: {}, deleted: {}; the IPAM agreed with the pods in each round",
            held.seconds, held.rounds, held.created, held.deleted
        ));
        self.scene.reset_pod_counts().await?;
        self.held = Some(held);
        Ok(())
    }

    /// Tries a policy for pods from before, once they are pods of Calico.
    pub async fn try_policy(&mut self, tools: &Tools) -> Result<()> {
        self.policy = Some(policy_trial::try_policy(&self.scene, tools).await?);
        Ok(())
    }

    /// How the migration differs from its rehearsal, if there was one.
    pub async fn compare(&mut self) -> Result<Option<rehearsed::Comparison>> {
        let Some(rehearsed) = self.rehearsed.take() else {
            return Ok(None);
        };
        let objects = report::migrated(self.scene.cluster).await?;
        let begun = objects.iter().filter(|object| object.spec.started_at.is_some());
        let nodes: Vec<(String, Vec<String>)> = begun
            .map(|object| {
                let steps = object.spec.history.iter().map(|step| step.name.clone());
                (object.spec.node_name.clone(), steps.collect())
            })
            .collect();
        rehearsed.compare(&nodes).await.map(Some)
    }

    /// Ends the traffic, observes every host again, and makes the report.
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
        let spec = migration.spec.flannel_to_calico.as_ref();
        let keeps_pods = spec.is_some_and(|kind| kind.strategy == Strategy::InPlace);
        let mut comparisons = BTreeMap::new();
        if rolled_back {
            // While the traffic runs, as at the first observation.
            for (node, before) in self.scene.hosts() {
                let after = once_flannel_has_its_rules(cluster, node, before).await?;
                let comparison = if keeps_pods {
                    same::Comparison::of(before, &after)
                } else {
                    same::Comparison::without_pods(before, &after)
                };
                comparisons.insert(node.clone(), comparison);
            }
        }
        // Before the traffic ends: pods of the traffic that end later were not moved by the migration.
        let pods = self.scene.pods().await?;
        let probes = probes(cluster).await?;
        let mut hosts = BTreeMap::new();
        for node in cluster.node_names().await {
            let (after, foreign) = self.scene.observe_again(&node).await?;
            let host = HostReport {
                leftovers: if rolled_back { Vec::new() } else { after.flannel() },
                foreign,
                comparison: comparisons.remove(&node),
            };
            hosts.insert(node, host);
        }
        let mut report = Report::of(
            cluster,
            &migration,
            peak,
            probes,
            hosts,
            pods,
            self.held,
            &self.scene.calico,
        )
        .await?;
        report.add_policy(self.policy.clone());
        Ok(report)
    }
}

/// A host whose flanneld has written as many rules as before. The last step of a rollback restarts flannel's pods, and flanneld clears
/// its chains when it starts, before it writes their rules.
async fn once_flannel_has_its_rules(cluster: &Cluster, node: &str, before: &Host) -> Result<Host> {
    let needed = before.rules_with("FLANNEL").count();
    let what = format!("flanneld of {node} to write its rules");
    until(
        &what,
        Duration::from_mins(1),
        &cluster.directory().logs(),
        async || {
            let host = Host::observe(cluster, node).await?;
            let found = host.rules_with("FLANNEL").count();
            Ok(if found >= needed {
                Observation::Done(host)
            } else {
                Observation::NotYet(format!("{found} of {needed} rules"))
            })
        },
    )
    .await
}
