//! The main job in the lab: a cluster migrates while traffic flows, and other tools than ours say how it went.

pub mod cases;
pub mod hold;
pub mod host;
pub mod ipam;
pub mod operator;
pub mod report;
pub mod same;
pub mod traffic;
pub mod untouched;
pub mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::Migration;
use api::migration::{MigrationPhase, Strategy};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};

use crate::cluster::Cluster;
use crate::cluster::pods::FLANNEL_NAMESPACE;
use crate::progress::Progress;
use host::Host;
use operator::{Exit, Operator};
use report::Report;
use watch::Watch;

/// Name of the Migration of the demo.
pub const MIGRATION: &str = "demo";
/// The whole migration; a busy machine needs longer than a quiet one.
const LIMIT: Duration = Duration::from_mins(30);

/// A mended cluster is whole again within this time.
const MENDED: Duration = Duration::from_mins(3);

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
    let max_unavailable: serde_json::Value = wanted
        .max_unavailable
        .parse::<u32>()
        .map_or_else(|_| wanted.max_unavailable.clone().into(), Into::into);
    let mut manifest = serde_json::json!({
        "apiVersion": "replumb.dev/v1alpha1",
        "kind": "Migration",
        "metadata": { "name": MIGRATION },
        "spec": {
            "flannelToCalico": { "strategy": wanted.strategy },
            "rollout": { "maxUnavailable": max_unavailable },
            // The sample has a bare pod: it goes for good, and the operator said so.
            "drain": { "force": true },
        },
    });
    merge(&mut manifest["spec"], &wanted.spec);
    manifest
}

fn merge(target: &mut serde_json::Value, change: &serde_json::Value) {
    match (target.as_object_mut(), change.as_object()) {
        (Some(target), Some(change)) => {
            for (key, value) in change {
                merge(
                    target.entry(key.clone()).or_insert(serde_json::Value::Null),
                    value,
                );
            }
        }
        _ => *target = change.clone(),
    }
}

/// What is used on a cluster.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `kubectl-replumb` that users have.
    pub command_line: PathBuf,
    /// Who plays Calico.
    pub calico: String,
}

/// A migration that has been prepared: what was there before is known.
pub struct Run<'cluster> {
    /// The cluster.
    pub cluster: &'cluster Cluster,
    /// The operator's hand.
    pub operator: Operator,
    before: BTreeMap<String, Host>,
    restarts: BTreeMap<String, i32>,
    calico: String,
    held: Option<hold::Held>,
    progress: Progress,
}

impl<'cluster> Run<'cluster> {
    /// Looks at every host.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools) -> Result<Self> {
        let progress = Progress::default();
        // A pod that nobody creates again: the operator has to say that it may go.
        cluster.install_lonely().await?;
        let mut before = BTreeMap::new();
        for node in cluster.node_names().await {
            let host = Host::look(cluster, &node).await?;
            ensure!(
                !host.flannel().is_empty(),
                "node {node} has nothing of flannel before the migration"
            );
            before.insert(node, host);
        }
        progress.say("every host was looked at with ip, bridge, iptables-save, nft");
        Ok(Self {
            cluster,
            operator: Operator::new(cluster, &tools.command_line),
            before,
            restarts: report::restarts(cluster).await?,
            calico: tools.calico.clone(),
            held: None,
            progress,
        })
    }

    /// What was on this host before does not count: it was switched off meanwhile.
    pub fn forget(&mut self, node: &str) {
        self.before.remove(node);
    }

    /// Shows checks and plan, starts the migration, follows it to its end.
    pub async fn migrate(&self, wanted: &Wanted) -> Result<Watch> {
        let file = self.operator.write_manifest(&manifest(wanted))?;
        let file = file.to_string_lossy();
        self.progress.say("kubectl replumb plan");
        self.operator
            .expect(Exit::Done, &["plan", "--filename", &file])
            .await?;
        self.progress.say("kubectl replumb apply --yes --watch");
        let watch = Watch::start(self.cluster.api().client());
        self.operator
            .expect_within(
                Exit::Done,
                &["apply", "--filename", &file, "--yes", "--watch"],
                LIMIT,
            )
            .await?;
        Ok(watch)
    }

    /// Holds the mixed state, and counts as moved only who was moved before or is after.
    pub async fn hold(&mut self, time: Duration) -> Result<()> {
        self.progress.say(format_args!(
            "the mixed state is held for {} s, with pods that come and go",
            time.as_secs()
        ));
        let before = report::restarts(self.cluster).await?;
        let moved = self
            .restarts
            .keys()
            .filter(|uid| !before.contains_key(*uid))
            .count();
        ensure!(
            moved == 0,
            "{moved} pods were created again on the way to the mixed state"
        );
        let held = hold::hold(self.cluster, time).await?;
        self.progress.say(format_args!(
            "held for {:.0} s: {} rounds, {} pods created, {} deleted; the IPAM agreed each time",
            held.seconds, held.rounds, held.created, held.deleted
        ));
        self.restarts = report::restarts(self.cluster).await?;
        self.held = Some(held);
        Ok(())
    }

    /// Takes everything back, and follows it to its end.
    pub async fn roll_back(&self) -> Result<()> {
        self.progress.say("kubectl replumb rollback --all --yes --wait");
        self.operator
            .expect_within(Exit::Done, &["rollback", "--all", "--yes", "--wait"], LIMIT)
            .await
            .map(|_| ())
    }

    /// Ends the traffic, looks at every host again, and says how it went.
    pub async fn report(&self, watch: Watch) -> Result<Report> {
        let peak = watch.stop().await?;
        let migrations: Api<Migration> = Api::all(self.cluster.api().client());
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
            for (node, before) in &self.before {
                let after = Host::look(self.cluster, node).await?;
                comparisons.insert(node.clone(), same::Comparison::of(before, &after));
            }
        }
        // Before the traffic ends: its pods are no pods that the migration has moved.
        let restarts = report::restarts(self.cluster).await?;
        let probes = report::probes(self.cluster).await?;
        let mut hosts = BTreeMap::new();
        for node in self.cluster.node_names().await {
            let after = Host::look(self.cluster, &node).await?;
            let (gone, new) = match self.before.get(&node) {
                Some(before) => {
                    let (before, after) = (before.foreign(), after.foreign());
                    (
                        before.difference(&after).cloned().collect(),
                        after.difference(&before).cloned().collect(),
                    )
                }
                // It joined midway.
                None => (Vec::new(), Vec::new()),
            };
            let comparison = comparisons.remove(&node);
            hosts.insert(
                node,
                report::HostReport {
                    leftovers: if rolled_back { Vec::new() } else { after.flannel() },
                    gone,
                    new,
                    comparison,
                },
            );
        }
        let report = Report::of(
            self.cluster,
            &migration,
            peak,
            probes,
            hosts,
            [&self.restarts, &restarts],
            &self.calico,
        )
        .await?;
        Ok(Report {
            held: self.held,
            ..report
        })
    }
}

/// Spoils the cluster as the case says, and returns what the tool answers. The cluster has to be as it was.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &cases::Case) -> Result<String> {
    let annotations = flannels_annotations(cluster).await?;
    for change in case.spoil {
        apply(cluster, change)
            .await
            .with_context(|| format!("spoil the cluster for case {}", case.name))?;
    }
    let answer = refused(cluster, operator, case).await;
    for change in case.mend {
        apply(cluster, change)
            .await
            .with_context(|| format!("mend the cluster after case {}", case.name))?;
    }
    restore(cluster, &annotations).await?;
    let names = cluster.node_names().await;
    cluster
        .api()
        .nodes_ready(&names, MENDED)
        .await
        .context("mend the cluster")?;
    cluster
        .api()
        .rolled_out("daemonset/kube-flannel-ds", FLANNEL_NAMESPACE, MENDED)
        .await
        .context("mend the cluster")?;
    cluster
        .api()
        .kubectl(&["delete", "migrations.replumb.dev", "--all", "--wait"])
        .await
        .context("delete the Migration of the case")?;
    answer.with_context(|| format!("case {} ({})", case.name, case.about))
}

/// What flannel says of itself on every Node: some cases spoil it, and flannel mends it only when it starts.
async fn flannels_annotations(cluster: &Cluster) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let nodes: Api<Node> = Api::all(cluster.api().client());
    let list = nodes.list(&ListParams::default()).await.context("list Nodes")?;
    Ok(list
        .items
        .into_iter()
        .map(|node| {
            let mut annotations = node.annotations().clone();
            annotations.retain(|key, _| key.starts_with("flannel."));
            (node.name_any(), annotations)
        })
        .collect())
}

async fn restore(cluster: &Cluster, annotations: &BTreeMap<String, BTreeMap<String, String>>) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.api().client());
    for (node, annotations) in annotations {
        let patch = serde_json::json!({ "metadata": { "annotations": annotations } });
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("restore flannel's annotations of Node {node}"))?;
    }
    Ok(())
}

async fn refused(cluster: &Cluster, operator: &Operator, case: &cases::Case) -> Result<String> {
    let wanted = Wanted {
        spec: serde_json::from_str(case.spec)?,
        ..Wanted::default()
    };
    let file = operator.write_manifest(&manifest(&wanted))?;
    let before = untouched::fingerprint(cluster).await?;
    let output = operator
        .run(&["apply", "--filename", &file.to_string_lossy(), "--yes"])
        .await?;
    let after = untouched::fingerprint(cluster).await?;
    if output.exit != Exit::Refused {
        bail!(
            "expected exit code 2, found {:?}; it said:\n{}",
            output.exit,
            output.text
        );
    }
    let missing: Vec<&str> = std::iter::once(case.check)
        .chain(case.says.iter().copied())
        .filter(|word| !output.text.contains(word))
        .collect();
    if !missing.is_empty() {
        bail!(
            "the refusal does not say {}; it said:\n{}",
            missing.join(", "),
            output.text
        );
    }
    let changed = untouched::differences(&before, &after);
    if !changed.is_empty() {
        bail!(
            "it was refused and the cluster changed all the same: {}",
            changed.join("; ")
        );
    }
    Ok(output.text)
}

async fn apply(cluster: &Cluster, change: &cases::Change) -> Result<()> {
    match change {
        cases::Change::Kubectl(arguments) => cluster.api().kubectl(arguments).await.map(|_| ()),
        cases::Change::Apply(manifest) => cluster.api().apply(manifest).await,
        cases::Change::Delete(manifest) => delete(cluster, manifest).await,
        cases::Change::Node(node, script) => {
            cluster.run_in_node(node, &["sh", "-c", script]).await.map(|_| ())
        }
    }
}

async fn delete(cluster: &Cluster, manifest: &str) -> Result<()> {
    let file = cluster.directory().path().join("delete.yaml");
    std::fs::write(&file, manifest).with_context(|| format!("write {}", file.display()))?;
    cluster
        .api()
        .kubectl(&["delete", "--wait", "--filename", &file.to_string_lossy()])
        .await
        .map(|_| ())
}
