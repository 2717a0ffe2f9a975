//! Demo of a migration to another Service range.

pub mod cases;
mod follow_up;
mod recreation;
pub mod report;
mod sample;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::names;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::breaking::{self, Case};
use super::operator::{Exit, Operator};
use super::report::{ManualStep, Measurements, MigrationReport, NodeReport, probes};
use super::scene::Scene;
use super::{End, LIMIT, Tools, merge, migration, migration_object, status};
use crate::cluster::Cluster;
use crate::cluster::control_plane::DNS_SERVICE;
use crate::cluster::wait::{Observation, until};
use recreation::Recreation;
use report::{Report, ServiceCidr};
pub use sample::Size;
use sample::{Availability, Prober, Targets, same_offset};

/// The target range of the demo.
const NEW_RANGE: &str = "172.31.0.0/16";
/// `soakSeconds`: the time for which both addresses of a Service answer at the end. The default is a day, too long for a demo.
const SOAK: u32 = 15;
/// Milliseconds between two probes of each address, and of a few of them: two processors that also run a cluster cannot probe all
/// of them that often.
const INTERVAL: u64 = 200;
const OFTEN: u64 = 10;
/// Number of addresses that are probed often.
const FEW: usize = 2;
/// The name that the probers resolve.
const RESOLVED: &str = "echo.traffic.svc.cluster.local";
/// The probers of the addresses that Services have before the migration, and of their new ones.
const OLD_PROBERS: [&str; 2] = ["old-addresses", "old-addresses-often"];
const NEW_PROBERS: [&str; 2] = ["new-addresses", "new-addresses-often"];
/// The probers of addresses that do not answer while pods restart.
const PROBERS_UNTIL_RESTART: [&str; 3] = [
    "old-addresses-until-restart",
    "new-addresses-until-restart",
    NODE_PORT_PROBER,
];
/// One of these: the prober of node ports, on a node's network. A kube-proxy that removes old connections forgets how connections
/// of pods to node ports of other nodes were masqueraded, and answers in transit at that moment are lost (docs/limits.md).
const NODE_PORT_PROBER: &str = "node-ports";

/// `maxGapMilliseconds`: the longest time without an answer that does not stop the migration. With three nodes and a hundred
/// Services on two processors a pod waits longer than the two seconds of the default. The demo's own probers count the losses.
const MAX_GAP: u32 = 10_000;
/// The setting in the lab's Corefile.
const LAMEDUCK: &str = "lameduck 5s";
/// `soakSeconds` before a rollback: the migration must not end before the user rolls it back.
const SOAK_BEFORE_BACK: u32 = 3600;

/// The options of the demo.
#[derive(Clone, Debug)]
pub struct Request {
    /// The target range.
    pub to: Ipv4Net,
    /// Where the migration ends.
    pub end: End,
    /// The number of Services.
    pub size: Size,
    /// Whether some Services are deleted and created again first, to count the losses of that.
    pub beside_recreation: bool,
    /// More fields of the spec, as JSON to merge.
    pub spec: Value,
    /// Limit of the migration, and of the rollback.
    pub limit: Duration,
    /// When the migration is rolled back.
    pub rollback_at: RollbackAt,
}

/// When a migration is rolled back.
#[derive(Clone, Copy, Debug)]
pub enum RollbackAt {
    /// Once every pod has received new addresses, even if later Services have old ones.
    EveryPodRestarted,
    /// In stage Soak.
    Soak,
}

impl Request {
    /// The options with the demo's target range.
    pub fn new(end: End, beside_recreation: bool) -> Result<Self> {
        Ok(Self {
            to: NEW_RANGE.parse().context("the demo's new range")?,
            end,
            size: Size::Whole,
            beside_recreation,
            spec: json!({}),
            limit: LIMIT,
            rollback_at: RollbackAt::Soak,
        })
    }
}

/// The Migration as a user would write it.
pub fn manifest(request: &Request) -> Value {
    let soak = match request.end {
        End::Migrated => SOAK,
        End::RolledBack => SOAK_BEFORE_BACK,
    };
    let mut spec = json!({
        "serviceCidr": { "to": [request.to], "soakSeconds": soak },
        "gates": { "maxGapMilliseconds": MAX_GAP },
    });
    merge(&mut spec, &request.spec);
    migration(&spec)
}

/// Breaks the cluster as the case says, and returns the output of the refusal. [`bypass_services`] must have run before.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &Case) -> Result<String> {
    let request = Request {
        spec: breaking::spec(cluster, case).await?,
        ..Request::new(End::Migrated, false)?
    };
    breaking::refuse(cluster, operator, case, &manifest(&request)).await
}

/// A prepared migration, with the state from before it.
pub struct Run<'cluster> {
    /// The cluster, with the state from before the migration.
    pub scene: Scene<'cluster>,
    request: Request,
    before: BTreeMap<String, Value>,
    recreation: Option<Recreation>,
}

/// Whether a pod counts: every pod restarts, except those of the migration itself and the probers, which the demo ends.
fn counts(pod: &Pod) -> bool {
    let labels = pod.labels();
    let is_traffic = labels.get(names::COMPONENT_LABEL).map(String::as_str) == Some(names::TRAFFIC_COMPONENT);
    !is_traffic && !labels.contains_key(sample::PROBER_LABEL)
}

/// Whether the migration runs in this direction and is in one of these stages.
fn is_in_stage(known: &Value, direction: &str, stages: &[&str]) -> bool {
    let now = &known["stage"];
    now["direction"] == direction && now["name"].as_str().is_some_and(|name| stages.contains(&name))
}

impl<'cluster> Run<'cluster> {
    /// Creates the sample and its probers, lets replumb connect to the API server without a Service, and observes every Service.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools, request: Request) -> Result<Self> {
        let api = cluster.api();
        let image = "jsonpath={.spec.template.spec.containers[0].image}";
        let image = api
            .kubectl(&["get", "deployment", "echo", "-n", "traffic", "-o", image])
            .await?;
        let server = cluster.control_plane_address().await;
        api.apply(&sample::objects(request.size, &image, server).to_string())
            .await?;
        for workload in sample::workloads(request.size) {
            api.rolled_out(&workload, sample::NAMESPACE, LIMIT).await?;
        }
        extend_answering(cluster, request.size).await?;
        let recreation = if request.beside_recreation {
            Some(recreation::count(cluster, &image).await?)
        } else {
            None
        };
        let mut nodes = Vec::new();
        for name in cluster.node_names().await {
            nodes.push(cluster.node_address(&name).await?);
        }
        let before = sample::all(cluster).await?;
        let of = |availability| Targets::of(&before, request.to.network(), &nodes, availability);
        let (targets, later) = (of(Availability::Throughout), of(Availability::UntilRestart));
        let new_dns = same_offset(DNS_SERVICE, request.to.network());
        for (names, targets, until_then, dns) in [
            (
                [OLD_PROBERS[0], OLD_PROBERS[1], PROBERS_UNTIL_RESTART[0]],
                &targets.old,
                &later.old,
                DNS_SERVICE,
            ),
            (
                [NEW_PROBERS[0], NEW_PROBERS[1], PROBERS_UNTIL_RESTART[1]],
                &targets.new,
                &later.new,
                new_dns,
            ),
        ] {
            let few = targets.get(..FEW).unwrap_or(targets);
            let mut probers = vec![
                (names[0], targets.as_slice(), INTERVAL),
                (names[1], few, OFTEN),
                (names[2], until_then.as_slice(), INTERVAL),
            ];
            if dns == DNS_SERVICE {
                probers.push((NODE_PORT_PROBER, later.node_ports.as_slice(), INTERVAL));
            }
            for (name, targets, interval) in probers {
                let prober = sample::prober(&Prober {
                    name,
                    on_host: name == NODE_PORT_PROBER,
                    image: &image,
                    targets,
                    resolved: RESOLVED,
                    name_server: dns,
                    interval,
                });
                api.apply(&prober.to_string()).await?;
                api.rolled_out(&format!("deployment/{name}"), "traffic", LIMIT)
                    .await?;
            }
        }
        bypass_services(cluster).await?;
        let scene = Scene::observe(cluster, tools, counts).await?;
        scene.say(format_args!(
            "Services: {}; probed at the old and the new address every {INTERVAL} ms: {}, of which {FEW}, and both name servers, \
             every {OFTEN} ms",
            before.len(),
            targets.old.len() + later.old.len() + later.node_ports.len()
        ));
        Ok(Self {
            scene,
            request,
            before,
            recreation,
        })
    }

    /// Shows checks and plan, starts the migration, follows it until it ends, and takes the manual steps that it requests.
    pub async fn migrate(&self) -> Result<Vec<ManualStep>> {
        let mut done = Vec::new();
        let work = async {
            let operator = &self.scene.operator;
            let file = operator.write_manifest(&manifest(&self.request))?;
            let file = file.to_string_lossy();
            self.scene.say("kubectl replumb plan");
            operator
                .expect(Exit::Done, &["plan", "--filename", &file])
                .await?;
            match self.request.end {
                End::Migrated => self.apply(&file).await,
                End::RolledBack => self.migrate_and_roll_back(&file).await,
            }
        };
        tokio::select! {
            result = work => result?,
            ended = follow_up::play(&self.scene, &self.request, &mut done) => match ended? {},
        }
        Ok(done)
    }

    async fn apply(&self, file: &str) -> Result<()> {
        self.scene.say("kubectl replumb apply --yes --watch");
        let apply = ["apply", "--filename", file, "--yes", "--watch"];
        let followed = self
            .scene
            .operator
            .expect_within(Exit::Done, &apply, self.request.limit);
        // A deleted address no longer answers: its probers end before.
        let ends = async {
            self.until_every_pod_restarted().await?;
            self.end(&OLD_PROBERS).await?;
            self.scene.say("the probers of the old addresses have ended");
            anyhow::Ok(())
        };
        tokio::try_join!(followed, ends)?;
        Ok(())
    }

    /// Migrates until every pod has received new addresses, and then rolls back.
    async fn migrate_and_roll_back(&self, file: &str) -> Result<()> {
        self.scene.say("kubectl replumb apply --yes");
        self.scene
            .operator
            .expect(Exit::Done, &["apply", "--filename", file, "--yes"])
            .await?;
        self.until_every_pod_restarted().await?;
        let ends = async {
            let exchanged = ["FollowUp", "Restart", "Release"];
            self.until_stage("Rollback", "the Services have their old addresses", &exchanged)
                .await?;
            self.end(&NEW_PROBERS).await?;
            self.scene.say("the probers of the new addresses have ended");
            anyhow::Ok(())
        };
        tokio::try_join!(self.scene.roll_back_within(self.request.limit), ends)?;
        Ok(())
    }

    /// Waits until the Services have their new addresses and the last pod has restarted. Ends the probers of pods that do not
    /// answer during a restart.
    async fn until_every_pod_restarted(&self) -> Result<()> {
        let exchanged = ["FollowUp", "Restart", "Soak"];
        self.until_stage("Forward", "the Services have their new addresses", &exchanged)
            .await?;
        self.end(&PROBERS_UNTIL_RESTART).await?;
        self.until("the last pods have restarted", |known| {
            let all_have_new =
                known["podsWithSourceAddresses"] == 0 && known["targetAnnouncedSince"].is_string();
            match self.request.rollback_at {
                RollbackAt::EveryPodRestarted => all_have_new,
                RollbackAt::Soak => all_have_new && is_in_stage(known, "Forward", &["Soak"]),
            }
        })
        .await
    }

    async fn until_stage(&self, direction: &str, what: &str, stages: &[&str]) -> Result<()> {
        self.until(what, |known| is_in_stage(known, direction, stages))
            .await
    }

    /// Waits for a condition of `status.serviceCidr`.
    async fn until(&self, what: &str, is_reached: impl Fn(&Value) -> bool) -> Result<()> {
        let cluster = self.scene.cluster;
        until(
            what,
            self.request.limit,
            &cluster.directory().logs(),
            async || {
                let known = &status(cluster).await?["serviceCidr"];
                Ok(if is_reached(known) {
                    Observation::Done(())
                } else {
                    Observation::NotYet(format!(
                        "stage {}, pods with addresses of the source range: {}",
                        known["stage"]["name"], known["podsWithSourceAddresses"]
                    ))
                })
            },
        )
        .await
    }

    /// Ends these probers; each writes its last report.
    async fn end(&self, probers: &[&str]) -> Result<()> {
        let deployments: Vec<String> = probers.iter().map(|name| format!("deployment/{name}")).collect();
        let mut arguments = vec!["-n", "traffic", "delete", "--cascade=foreground"];
        arguments.extend(deployments.iter().map(String::as_str));
        self.scene.cluster.api().kubectl(&arguments).await?;
        Ok(())
    }

    /// Ends the traffic, observes every Service again, and makes the report.
    pub async fn report(&self, manual_steps: Vec<ManualStep>) -> Result<Report> {
        let cluster = self.scene.cluster;
        self.end(match self.request.end {
            End::Migrated => &NEW_PROBERS,
            End::RolledBack => &OLD_PROBERS,
        })
        .await?;
        let migration = migration_object(cluster).await?;
        let pods = self.scene.pods().await?;
        let after = sample::all(cluster).await?;
        let read = async |kind: &str| -> Result<Value> {
            let text = cluster.api().kubectl(&["get", kind, "-A", "-o", "json"]).await?;
            serde_json::from_str(&text).with_context(|| format!("parse {kind}"))
        };
        let (ranges, events) = (read("servicecidrs").await?, read("events").await?);
        let own = ServiceCidr::of(
            [&self.before, &after],
            &ranges,
            &events,
            manual_steps,
            self.recreation.clone(),
        );
        let measurements = Measurements {
            migration: MigrationReport::of::<ServiceCidr>(&migration, None),
            nodes: NodeReport::named(cluster.node_names().await),
            probes: probes(cluster).await?,
            pods,
            // This lab's pod network is flannel.
            calico: None,
        };
        Ok(Report::of(self.request.end, measurements, own))
    }
}

/// Lets pods of the traffic and the name servers answer after their SIGTERM for as long as pods of the sample.
async fn extend_answering(cluster: &Cluster, size: Size) -> Result<()> {
    let api = cluster.api();
    let in_system = ["-n", "kube-system"];
    let system = async |arguments: &[&str]| api.kubectl(&[&in_system, arguments].concat()).await;
    let text = system(&["get", "configmap", "coredns", "-o", "jsonpath={.data.Corefile}"]).await?;
    let longer = text.replace(LAMEDUCK, &format!("lameduck {}s", size.drain_seconds()));
    ensure!(longer != text, "the Corefile does not contain {LAMEDUCK}: {text}");
    let patch = json!({ "data": { "Corefile": longer } }).to_string();
    system(&["patch", "configmap", "coredns", "--type=merge", "-p", &patch]).await?;
    system(&["rollout", "restart", "deployment/coredns"]).await?;
    api.rolled_out("deployment/coredns", "kube-system", LIMIT).await?;

    let patch = json!({ "spec": { "template": { "spec": {
        "terminationGracePeriodSeconds": size.grace(),
        "containers": [{ "name": "echo", "args": size.serves() }],
    } } } })
    .to_string();
    api.kubectl(&["-n", "traffic", "patch", "deployment", "echo", "-p", &patch])
        .await?;
    api.rolled_out("deployment/echo", "traffic", LIMIT).await
}

/// The user's step before the migration: coordinator and agents connect to the API server without a Service.
pub async fn bypass_services(cluster: &Cluster) -> Result<()> {
    let address: Ipv4Addr = cluster.control_plane_address().await;
    let (host, port) = (
        format!("KUBERNETES_SERVICE_HOST={address}"),
        format!("KUBERNETES_SERVICE_PORT={}", crate::cluster::control_plane::PORT),
    );
    let namespace = names::NAMESPACE;
    let workloads = ["daemonset/replumb-agent", "deployment/replumb-coordinator"];
    cluster.apply_service_cidr_overlay().await?;
    for workload in workloads {
        cluster
            .api()
            .kubectl(&["-n", namespace, "set", "env", workload, &host, &port])
            .await?;
    }
    for workload in workloads {
        cluster
            .api()
            .rolled_out(workload, namespace, Duration::from_mins(2))
            .await?;
    }
    Ok(())
}
