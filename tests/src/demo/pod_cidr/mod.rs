//! Another range for the pods of a cluster with Calico.

pub mod cases;
mod follow_up;
pub mod old_range;
pub mod report;

use std::future::Future;

use anyhow::{Context, Result, ensure};
use api::migration::Mode;
use api::names;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::breaking::{self, Case};
use super::operator::{Exit, Operator};
use super::report::probes;
use super::scene::Scene;
use super::watch::Watch;
use super::{End, MIGRATION, Tools, max_unavailable, merge, migration};
use crate::cluster::Cluster;
use crate::cluster::control_plane::POD_NETWORK;
use crate::cluster::pods::CALICO_NAMESPACE;
use follow_up::FollowUp;
use old_range::OldRange;
use report::{HostReport, Report};

/// Where the pods of the demo go.
const NEW_RANGE: &str = "10.200.0.0/16";
/// How long the old pool stays once it is empty, in seconds: who looks at a demo does not wait for a day.
const SOAK: u32 = 10;

/// What the demo is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The range that the pods leave.
    pub from: Ipv4Net,
    /// The range that they come to.
    pub to: Ipv4Net,
    /// `rollout.maxUnavailable`, as written.
    pub max_unavailable: String,
    /// `podCidr.mode`.
    pub mode: Mode,
    /// More fields of the spec, as JSON to merge.
    pub spec: Value,
}

impl Wanted {
    /// From the lab's range to another one.
    pub fn new(max_unavailable: &str) -> Result<Self> {
        Ok(Self {
            from: POD_NETWORK.parse().context("the lab's own range")?,
            to: NEW_RANGE.parse().context("the demo's new range")?,
            max_unavailable: max_unavailable.to_owned(),
            mode: Mode::ByWorkload,
            spec: json!({}),
        })
    }
}

/// The Migration as a user would write it.
pub fn manifest(wanted: &Wanted) -> Value {
    let mut spec = json!({
        "podCidr": { "from": wanted.from, "to": wanted.to, "mode": wanted.mode, "soakSeconds": SOAK },
        "rollout": { "maxUnavailable": max_unavailable(&wanted.max_unavailable) },
    });
    merge(&mut spec, &wanted.spec);
    migration(&spec)
}

/// Spoils the cluster as the case says, and returns what the tool answers. The cluster has to be as it was.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &Case) -> Result<String> {
    let wanted = Wanted {
        spec: breaking::spec(cluster, case).await?,
        ..Wanted::new("1")?
    };
    let answer = breaking::break_and_repair(cluster, operator, case, &manifest(&wanted)).await?;
    let forgotten = breaking::delete_migration(cluster).await;
    let text = answer?;
    forgotten.map(|()| text)
}

/// A migration that has been prepared: what was there before is known.
pub struct Run<'cluster> {
    /// The cluster, and what was there before.
    pub scene: Scene<'cluster>,
    wanted: Wanted,
    before: OldRange,
}

/// What is started anew where a person changes its settings, as the migration asks for.
const RECONFIGURED: [&str; 2] = ["calico-node", "kube-proxy"];

fn counts(pod: &Pod) -> bool {
    let label = |name: &str| pod.labels().get(name).map(String::as_str);
    // The migration's own come and go with it.
    let is_ours = label(names::COMPONENT_LABEL) == Some(names::TRAFFIC_COMPONENT);
    let is_reconfigured = pod.namespace().as_deref() == Some(CALICO_NAMESPACE)
        && label("k8s-app").is_some_and(|name| RECONFIGURED.contains(&name));
    !is_ours && !is_reconfigured
}

impl<'cluster> Run<'cluster> {
    /// Looks at every host, and at everything that lies in the old range: what is not there cannot leave.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools, wanted: Wanted) -> Result<Self> {
        let scene = Scene::observe(cluster, tools, counts).await?;
        let before = OldRange::look(cluster, wanted.from).await?;
        ensure!(
            !before.pods.is_empty()
                && !before.blocks.is_empty()
                && before.routes.values().all(|it| !it.is_empty()),
            "before the migration {} has {} pods, {} blocks and claims, and routes on {} nodes of {}: each has to be there",
            wanted.from,
            before.pods.len(),
            before.blocks.len(),
            before.routes.values().filter(|it| !it.is_empty()).count(),
            before.routes.len()
        );
        scene.say(format_args!(
            "{} pods have addresses of {}",
            before.pods.len(),
            wanted.from
        ));
        Ok(Self {
            scene,
            wanted,
            before,
        })
    }

    /// Shows checks and plan, starts the migration, follows it to its end, and does meanwhile what it asks a person for.
    pub async fn migrate(&self) -> Result<(Watch, Vec<FollowUp>)> {
        let manifest = manifest(&self.wanted);
        self.answered(self.scene.migrate(&manifest, || self.watch()))
            .await
    }

    /// Does what the migration asks a person for while this goes on.
    pub async fn answered<T>(&self, work: impl Future<Output = Result<T>>) -> Result<(T, Vec<FollowUp>)> {
        let mut done = Vec::new();
        let result = tokio::select! {
            result = work => result?,
            ended = follow_up::play(&self.scene, &self.wanted, &mut done) => match ended? {},
        };
        Ok((result, done))
    }

    /// Does what the migration says at its end, if it does: on the way back it waits for nobody.
    pub async fn change_back(&self) -> Result<()> {
        follow_up::change_back(&self.scene, &self.wanted).await
    }

    /// Does what the migration asks a person for until every pod has moved.
    pub async fn until_all_have_moved(&self) -> Result<Vec<FollowUp>> {
        let mut done = Vec::new();
        follow_up::play_until_all_have_moved(&self.scene, &self.wanted, &mut done).await?;
        let moved = old_range::pods(self.scene.cluster, self.wanted.to).await?.len();
        ensure!(
            moved >= self.before.pods.len(),
            "{moved} pods are in {}, and {} were in {}: nothing is there to take back",
            self.wanted.to,
            self.before.pods.len(),
            self.wanted.from
        );
        Ok(done)
    }

    /// Starts the migration, and takes it back once every pod has moved.
    pub async fn migrate_and_back(&self) -> Result<(Watch, Vec<FollowUp>)> {
        let file = self.scene.operator.write_manifest(&manifest(&self.wanted))?;
        let watch = self.watch();
        self.scene.say("kubectl replumb apply --yes");
        self.scene
            .operator
            .expect(
                Exit::Done,
                &["apply", "--filename", &file.to_string_lossy(), "--yes"],
            )
            .await?;
        let done = self.until_all_have_moved().await?;
        self.scene.roll_back().await?;
        Ok((watch, done))
    }

    /// Watches from now on how many nodes are out of work: those that are cordoned or not Ready.
    fn watch(&self) -> Watch {
        Watch::start(self.scene.cluster.api().client(), |_| false, Some(counts))
    }

    /// Ends the traffic, looks at every host again, and says how it went.
    pub async fn report(&self, watch: Watch, followed: Vec<FollowUp>, end: End) -> Result<Report> {
        let peak = watch.stop().await?;
        let cluster = self.scene.cluster;
        let text = cluster
            .api()
            .kubectl(&["get", "migrations.replumb.dev", MIGRATION, "-o", "json"])
            .await?;
        let migration: Value = serde_json::from_str(&text).context("parse the Migration")?;
        // Before the traffic ends: its pods have to be in the new range, and are no pods that the migration has moved.
        let pods = self.scene.pods().await?;
        let (left, target) = match end {
            End::Migrated => (self.wanted.from, self.wanted.to),
            End::RolledBack => (self.wanted.to, self.wanted.from),
        };
        let after = OldRange::look(cluster, left).await?;
        let new = old_range::pods(cluster, target).await?.len();
        let probes = probes(cluster).await?;
        let mut hosts = Vec::new();
        for node in cluster.node_names().await {
            let (_, foreign) = self.scene.observe_again(&node).await?;
            hosts.push(HostReport {
                name: node,
                foreign_gone: foreign.gone,
                foreign_new: foreign.new,
            });
        }
        Ok(Report::of(
            &migration,
            end,
            [left, target],
            [&self.before, &after],
            new,
            report::Seen {
                pods_created: self.scene.new_pods(&peak.pods),
                peak,
                probes,
                pods,
                hosts,
                followed,
                calico: self.scene.calico.clone(),
            },
        ))
    }
}
