//! Demo of a migration to another pod range, in a cluster with Calico.

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
use super::report::{ManualStep, NodeReport, probes};
use super::scene::Scene;
use super::watch::Watch;
use super::{End, Tools, max_unavailable, merge, migration, migration_object};
use crate::cluster::Cluster;
use crate::cluster::control_plane::POD_NETWORK;
use crate::cluster::pods::CALICO_NAMESPACE;
use old_range::RangeObjects;
use report::{Observations, Report};

/// The target range of the demo.
const NEW_RANGE: &str = "10.200.0.0/16";
/// `soakSeconds`: the time for which the empty source pool remains. The default is a day, too long for a demo.
const SOAK: u32 = 10;

/// The options of the demo.
#[derive(Clone, Debug)]
pub struct Request {
    /// The source range.
    pub from: Ipv4Net,
    /// The target range.
    pub to: Ipv4Net,
    /// `rollout.maxUnavailable`, as written.
    pub max_unavailable: String,
    /// `podCidr.mode`.
    pub mode: Mode,
    /// More fields of the spec, as JSON to merge.
    pub spec: Value,
}

impl Request {
    /// From the range of the lab to `NEW_RANGE`.
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
pub fn manifest(request: &Request) -> Value {
    let mut spec = json!({
        "podCidr": { "from": request.from, "to": request.to, "mode": request.mode, "soakSeconds": SOAK },
        "rollout": { "maxUnavailable": max_unavailable(&request.max_unavailable) },
    });
    merge(&mut spec, &request.spec);
    migration(&spec)
}

/// Breaks the cluster as the case says, and returns the output of the refusal. The refusal must change nothing.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &Case) -> Result<String> {
    let request = Request {
        spec: breaking::spec(cluster, case).await?,
        ..Request::new("1")?
    };
    breaking::refuse(cluster, operator, case, &manifest(&request)).await
}

/// A prepared migration, with the state from before it.
pub struct Run<'cluster> {
    /// The cluster, with the state from before the migration.
    pub scene: Scene<'cluster>,
    request: Request,
    before: RangeObjects,
}

/// Workloads that restart because the user changes their settings in a manual step.
const RECONFIGURED: [&str; 2] = ["calico-node", "kube-proxy"];

fn counts(pod: &Pod) -> bool {
    let label = |name: &str| pod.labels().get(name).map(String::as_str);
    // The migration creates and deletes its own pods.
    let is_ours = label(names::COMPONENT_LABEL) == Some(names::TRAFFIC_COMPONENT);
    let is_reconfigured = pod.namespace().as_deref() == Some(CALICO_NAMESPACE)
        && label("k8s-app").is_some_and(|name| RECONFIGURED.contains(&name));
    !is_ours && !is_reconfigured
}

impl<'cluster> Run<'cluster> {
    /// Observes every host, and all objects of the source range: without these the demo proves nothing.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools, request: Request) -> Result<Self> {
        let scene = Scene::observe(cluster, tools, counts).await?;
        let before = RangeObjects::read(cluster, request.from).await?;
        ensure!(
            !before.pods.is_empty()
                && !before.blocks.is_empty()
                && before.routes.values().all(|it| !it.is_empty()),
            "before the migration, in {}: pods {}, blocks and affinities {}, nodes with routes {} of {}; needed some of each, \
             and routes on all nodes",
            request.from,
            before.pods.len(),
            before.blocks.len(),
            before.routes.values().filter(|it| !it.is_empty()).count(),
            before.routes.len()
        );
        scene.say(format_args!(
            "pods with an address of {}: {}",
            request.from,
            before.pods.len()
        ));
        Ok(Self {
            scene,
            request,
            before,
        })
    }

    /// Shows checks and plan, starts the migration, follows it until it ends, and takes the manual steps that it requests.
    pub async fn migrate(&self) -> Result<(Watch, Vec<ManualStep>)> {
        let manifest = manifest(&self.request);
        self.with_manual_steps(self.scene.migrate(&manifest, || self.watch()))
            .await
    }

    /// Takes the manual steps that the migration requests, until `work` ends.
    pub async fn with_manual_steps<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, Vec<ManualStep>)> {
        let mut done = Vec::new();
        let result = tokio::select! {
            result = work => result?,
            ended = follow_up::play(&self.scene, &self.request, &mut done) => match ended? {},
        };
        Ok((result, done))
    }

    /// Takes the manual step that the message names after a rollback, if any: a rollback waits for no user.
    pub async fn change_back(&self) -> Result<()> {
        follow_up::change_back(&self.scene, &self.request).await
    }

    /// Takes the manual steps that the migration requests, until every pod has moved.
    pub async fn until_all_have_moved(&self) -> Result<Vec<ManualStep>> {
        let mut done = Vec::new();
        follow_up::play_until_all_have_moved(&self.scene, &self.request, &mut done).await?;
        let moved = old_range::pods(self.scene.cluster, self.request.to).await?.len();
        ensure!(
            moved >= self.before.pods.len(),
            "pods with an address of {}: found {moved}, needed {}, as many as in {} before: nothing can be rolled back",
            self.request.to,
            self.before.pods.len(),
            self.request.from
        );
        Ok(done)
    }

    /// Starts the migration, and rolls it back once every pod has moved.
    pub async fn migrate_and_back(&self) -> Result<(Watch, Vec<ManualStep>)> {
        let file = self.scene.operator.write_manifest(&manifest(&self.request))?;
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

    /// Starts to watch how many nodes are unavailable: cordoned or not Ready.
    fn watch(&self) -> Watch {
        Watch::start(self.scene.cluster.api().client(), |_| false, Some(counts))
    }

    /// Ends the traffic, observes every host again, and makes the report.
    pub async fn report(&self, watch: Watch, manual_steps: Vec<ManualStep>, end: End) -> Result<Report> {
        let peak = watch.stop().await?;
        let cluster = self.scene.cluster;
        let migration = migration_object(cluster).await?;
        // Read before the traffic ends: the probers' pods must be in the target range too.
        let pods = self.scene.pods().await?;
        let (source, target) = match end {
            End::Migrated => (self.request.from, self.request.to),
            End::RolledBack => (self.request.to, self.request.from),
        };
        let after = RangeObjects::read(cluster, source).await?;
        let new = old_range::pods(cluster, target).await?.len();
        let probes = probes(cluster).await?;
        let mut nodes = Vec::new();
        for node in cluster.node_names().await {
            let (_, foreign) = self.scene.observe_again(&node).await?;
            nodes.push(NodeReport::with_foreign(node, foreign));
        }
        Ok(Report::of(
            &migration,
            end,
            [source, target],
            [&self.before, &after],
            new,
            Observations {
                pods_created: self.scene.new_pods(&peak.pods),
                peak,
                probes,
                pods,
                nodes,
                manual_steps,
                calico: self.scene.calico.clone(),
            },
        ))
    }
}
