//! Conversion of Calico's datastore from v2 to v3, in a cluster in use.

pub mod cases;
pub mod late;
pub mod report;
pub mod stores;

use std::collections::BTreeMap;
use std::path::Path;

use ::traffic::report::Summary;
use anyhow::{Context, Result, ensure};
use api::names;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::breaking::{self, Case};
use super::operator::{Exit, Operator};
use super::report::{Measurements, MigrationReport, NodeReport, Pods, probes};
use super::scene::Scene;
use super::{End, LIMIT, Tools, merge, migration, migration_object, status, traffic};
use crate::cluster::Cluster;
use crate::cluster::pods::CALICO_NAMESPACE;
use crate::cluster::wait::{Observation, until};
use late::PodsInPause;
use report::{CalicoDatastore, Observations, Report};
use stores::{Etcd, Watcher};

/// Objects that the migration writes.
const OBJECTS: [&str; 3] = [
    "daemonset/calico-node",
    "deployment/calico-kube-controllers",
    "configmap/calico-config",
];
/// Seconds in which v2 must be unchanged: the lab's CNI plugins take no longer.
const SETTLE: u32 = 3;

/// The requested migration.
#[derive(Clone, Debug)]
pub struct Request {
    /// The side on which the migration ends.
    pub end: End,
    /// More fields of the spec, as JSON to merge.
    pub spec: Value,
    /// Number of containers that the demo kills during the migration.
    pub kills: i64,
}

impl Request {
    /// The request that a user would make.
    pub fn new(end: End) -> Self {
        Self {
            end,
            spec: json!({}),
            kills: 0,
        }
    }
}

/// The Migration as a user would write it.
pub async fn manifest(cluster: &Cluster, request: &Request) -> Result<Value> {
    let mut spec = json!({
        "calicoDatastore": { "manifest": cluster.values().await.calico_v3()?, "settleSeconds": SETTLE },
    });
    merge(&mut spec, &request.spec);
    Ok(migration(&spec))
}

/// Does the preparation of a user: gives the coordinator its permissions, and applies the objects of Calico's manifest that do
/// not affect v2.
pub async fn prepare(cluster: &Cluster, operator: &Operator) -> Result<()> {
    let rights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/calico-datastore");
    let rights = rights.to_string_lossy();
    cluster
        .api()
        .kubectl(&["apply", "--server-side", "-k", &rights])
        .await?;
    let file = cluster.directory().calico_v3();
    let file = file.to_string_lossy();
    let objects = operator
        .run(&["generate", "calico-v3-objects", "--calico-v3-manifest", &file])
        .await?;
    ensure!(objects.exit == Exit::Done, "{}", objects.text);
    cluster.api().apply(&objects.text).await
}

/// Breaks the cluster as the case says, and returns the output of the refusal.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &Case) -> Result<String> {
    let request = Request {
        end: End::Migrated,
        spec: breaking::spec(cluster, case).await?,
        kills: 0,
    };
    breaking::refuse(cluster, operator, case, &manifest(cluster, &request).await?).await
}

/// A prepared migration, with the state from before.
pub struct Run<'cluster> {
    /// The cluster, and its state from before.
    pub scene: Scene<'cluster>,
    request: Request,
    etcd: Etcd,
    watcher: Watcher,
    v2: BTreeMap<String, String>,
    objects: BTreeMap<String, Value>,
    addresses: Value,
}

/// Pods that must not be recreated: all except those of the migration's own traffic, of Calico, and the one that the demo
/// deletes.
fn counts(pod: &Pod) -> bool {
    let label = |name: &str| pod.labels().get(name).map(String::as_str);
    let is_traffic = label(names::COMPONENT_LABEL) == Some(names::TRAFFIC_COMPONENT);
    let is_calico = pod.namespace().as_deref() == Some(CALICO_NAMESPACE)
        && label("k8s-app").is_some_and(|name| name.starts_with("calico-"));
    // The demo deletes this pod on purpose.
    let is_deleted = pod.name_any() == "early";
    !is_traffic && !is_calico && !is_deleted
}

/// The compared fields of each object that the migration writes, by name.
async fn objects(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for name in OBJECTS {
        let text = cluster
            .api()
            .kubectl(&["get", name, "-n", CALICO_NAMESPACE, "-o", "json"])
            .await?;
        let object: Value = serde_json::from_str(&text).with_context(|| format!("parse {name}"))?;
        all.insert(
            name.to_owned(),
            json!({ "spec": object["spec"], "data": object["data"], "uid": object["metadata"]["uid"] }),
        );
    }
    Ok(all)
}

/// Creates a `NetworkPolicy` for the pods that answer, and waits until it is in v2: v3 must have it before v3 is opened.
async fn allow_ingress(cluster: &Cluster, etcd: Etcd) -> Result<()> {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "allow-ingress", "namespace": "traffic" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}] },
    });
    cluster.api().apply(&policy.to_string()).await?;
    until(
        "NetworkPolicy traffic/allow-ingress is in etcd v2",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let key = format!("{}traffic.allow-ingress", stores::POLICIES);
            Ok(if etcd.v2().await?.contains_key(&key) {
                Observation::Done(())
            } else {
                Observation::NotYet("calico-kube-controllers has not written the policy".into())
            })
        },
    )
    .await
}

impl<'cluster> Run<'cluster> {
    /// Does the preparation of a user, and records the state from before.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools, request: Request) -> Result<Self> {
        let operator = Operator::new(cluster, &tools.command_line);
        prepare(cluster, &operator).await?;
        let image = "jsonpath={.spec.template.spec.containers[0].image}";
        let image = cluster
            .api()
            .kubectl(&["get", "deployment", "echo", "-n", "traffic", "-o", image])
            .await?;
        late::prepare(cluster, &image).await?;
        let etcd = Etcd::of(cluster).await?;
        allow_ingress(cluster, etcd).await?;
        let scene = Scene::observe(cluster, tools, counts).await?;
        Ok(Self {
            v2: etcd.v2().await?,
            objects: objects(cluster).await?,
            addresses: late::addresses(cluster).await?,
            watcher: Watcher::new(etcd),
            scene,
            request,
            etcd,
        })
    }

    /// Shows checks and plan, starts the migration, and follows it until it ends; pods are created and deleted during the pause.
    pub async fn migrate(&self) -> Result<PodsInPause> {
        let cluster = self.scene.cluster;
        let work = async {
            let operator = &self.scene.operator;
            let file = operator.write_manifest(&manifest(cluster, &self.request).await?)?;
            let file = file.to_string_lossy();
            self.scene.say("kubectl replumb plan");
            operator
                .expect(Exit::Done, &["plan", "--filename", &file])
                .await?;
            match self.request.end {
                End::Migrated => self.apply(&file).await?,
                End::RolledBack => self.apply_and_roll_back(&file).await?,
            }
            late::judge(cluster, &self.watcher).await
        };
        tokio::select! {
            done = async { tokio::try_join!(work, late::create_and_delete(cluster, &self.watcher)) } => Ok(done?.0),
            failed = self.watcher.watch() => match failed? {},
        }
    }

    async fn apply(&self, file: &str) -> Result<()> {
        self.scene.say("kubectl replumb apply --yes --watch");
        let apply = ["apply", "--filename", file, "--yes", "--watch"];
        self.scene
            .operator
            .expect_within(Exit::Done, &apply, LIMIT)
            .await
            .map(|_| ())
    }

    /// Starts the migration, and rolls it back once the first node has changed.
    async fn apply_and_roll_back(&self, file: &str) -> Result<()> {
        self.scene.say("kubectl replumb apply --yes");
        let apply = ["apply", "--filename", file, "--yes"];
        self.scene.operator.expect(Exit::Done, &apply).await?;
        let cluster = self.scene.cluster;
        until(
            "a node runs Calico v3",
            LIMIT,
            &cluster.directory().logs(),
            async || {
                let status = status(cluster).await?;
                let done = status["progress"]["done"].as_u64().unwrap_or_default();
                let stage = status["calicoDatastore"]["stage"]["name"].clone();
                Ok(if stage == "Nodes" && done > 0 {
                    Observation::Done(())
                } else {
                    Observation::NotYet(format!("stage {stage}, changed nodes: {done}"))
                })
            },
        )
        .await?;
        self.scene.roll_back().await
    }

    /// Ends the traffic, observes everything again, and makes the report.
    pub async fn report(&self, pods_in_pause: PodsInPause) -> Result<Report> {
        let pods = self.scene.pods().await?;
        let probes = probes(self.scene.cluster).await?;
        self.report_with(pods_in_pause, pods, probes).await
    }

    /// Makes the report and keeps the traffic running: another case follows.
    pub async fn report_so_far(&self, pods_in_pause: PodsInPause) -> Result<Report> {
        let pods = self.scene.pods().await?;
        let probes = Summary::of(&traffic::so_far(self.scene.cluster).await?);
        self.report_with(pods_in_pause, pods, probes).await
    }

    async fn report_with(&self, pods_in_pause: PodsInPause, pods: Pods, probes: Summary) -> Result<Report> {
        let cluster = self.scene.cluster;
        let images =
            "jsonpath={range .items[*]}{.spec.containers[?(@.name=='calico-node')].image}{'\\n'}{end}";
        let images = cluster
            .api()
            .kubectl(&[
                "get",
                "pods",
                "-n",
                CALICO_NAMESPACE,
                "-l",
                "k8s-app=calico-node",
                "-o",
                images,
            ])
            .await?;
        let migration = migration_object(cluster).await?;
        let measurements = Measurements {
            migration: MigrationReport::of::<CalicoDatastore>(&migration, None),
            nodes: NodeReport::named(cluster.node_names().await),
            probes,
            pods: Pods {
                restarted: pods.restarted - self.request.kills,
                ..pods
            },
            calico: Some(self.scene.calico.clone()),
        };
        let observations = Observations {
            flags: self.watcher.flags(),
            pods_in_pause,
            addresses: [self.addresses.clone(), late::addresses(cluster).await?],
            v2: [self.v2.clone(), self.etcd.v2().await?],
            v3: self.etcd.v3().await?,
            images: images.lines().map(str::to_owned).collect(),
            objects: [self.objects.clone(), objects(cluster).await?],
        };
        Ok(Report::of(
            self.request.end,
            &migration,
            measurements,
            observations,
        ))
    }
}
