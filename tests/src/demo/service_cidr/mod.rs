//! Another range for the Services of a cluster.

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
use super::report::probes;
use super::scene::Scene;
use super::{End, LIMIT, MIGRATION, Tools, merge, migration};
use crate::cluster::Cluster;
use crate::cluster::control_plane::DNS_SERVICE;
use crate::cluster::wait::{Observation, until};
use follow_up::FollowUp;
use recreation::Recreation;
use report::Report;
pub use sample::Size;
use sample::{Asked, Lasting, Prober, at_the_same_place};

/// Where the Services of the demo go.
const NEW_RANGE: &str = "172.31.0.0/16";
/// How long both addresses answer at the end, in seconds: who looks at a demo does not wait for a day.
const SOAK: u32 = 15;
/// Milliseconds between two questions to each address, and to a few of them: all of them so often is more than two processors can do
/// beside a cluster.
const INTERVAL: u64 = 200;
const OFTEN: u64 = 10;
/// How many are asked so often.
const FEW: usize = 2;
/// The name that they ask for.
const RESOLVED: &str = "echo.traffic.svc.cluster.local";
/// Who asks the addresses that Services have before, and those that they get.
const ASKS_OLD: [&str; 2] = ["asks-old", "asks-old-often"];
const ASKS_NEW: [&str; 2] = ["asks-new", "asks-new-often"];
/// And who asks for those that are not answered while pods start again.
const ASKS_UNTIL_THEN: [&str; 3] = [
    "asks-old-until-restart",
    "asks-new-until-restart",
    ASKS_NODE_PORTS,
];
/// Among them who asks node ports: from a node's network. A kube-proxy that looks for old connections forgets how those of pods to node ports
/// of other nodes were masqueraded, and the answer that is on its way in that moment is lost (docs/limits.md).
const ASKS_NODE_PORTS: &str = "asks-node-ports";

/// The longest time without an answer that does not stop the migration. Whether anything is lost the demo's own probers say; two
/// processors that carry three nodes and hundred Services let a pod wait for longer than the two seconds of the default.
const MAX_GAP: u32 = 10_000;
/// What the lab's Corefile says.
const LAMEDUCK: &str = "lameduck 5s";
/// And how long before somebody takes it back: until he has.
const SOAK_BEFORE_BACK: u32 = 3600;

/// What the demo is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The range that Services come to.
    pub to: Ipv4Net,
    /// Where the Services are at the end.
    pub end: End,
    /// How many Services there are.
    pub size: Size,
    /// Whether some Services are deleted and made again first, to see what that loses.
    pub beside_recreation: bool,
    /// More fields of the spec, as JSON to merge.
    pub spec: Value,
    /// How long each way may take.
    pub limit: Duration,
    /// When it is taken back.
    pub turn: Turn,
}

/// When a migration is taken back.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Once every pod was told new addresses, whatever Services that came late have.
    EveryPodWasTold,
    /// In stage Soak.
    Soak,
}

impl Wanted {
    /// The demo's range.
    pub fn new(end: End, beside_recreation: bool) -> Result<Self> {
        Ok(Self {
            to: NEW_RANGE.parse().context("the demo's new range")?,
            end,
            size: Size::Whole,
            beside_recreation,
            spec: json!({}),
            limit: LIMIT,
            turn: Turn::Soak,
        })
    }
}

/// The Migration as a user would write it.
pub fn manifest(wanted: &Wanted) -> Value {
    let soak = match wanted.end {
        End::Migrated => SOAK,
        End::RolledBack => SOAK_BEFORE_BACK,
    };
    let mut spec = json!({
        "serviceCidr": { "to": [wanted.to], "soakSeconds": soak },
        "gates": { "maxGapMilliseconds": MAX_GAP },
    });
    merge(&mut spec, &wanted.spec);
    migration(&spec)
}

/// Spoils the cluster as the case says, and returns what the tool answers. The cluster has to be as [`own_path`] leaves it.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &Case) -> Result<String> {
    let wanted = Wanted {
        spec: breaking::spec(cluster, case).await?,
        ..Wanted::new(End::Migrated, false)?
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
    before: BTreeMap<String, Value>,
    recreation: Option<Recreation>,
}

/// Every pod starts again: nobody's are counted as moved without need.
fn counts(pod: &Pod) -> bool {
    pod.labels().get(names::COMPONENT_LABEL).map(String::as_str) != Some(names::TRAFFIC_COMPONENT)
}

/// Whether it goes this way and is in one of these stages.
fn is_in_stage(known: &Value, direction: &str, stages: &[&str]) -> bool {
    let now = &known["stage"];
    now["direction"] == direction && now["name"].as_str().is_some_and(|name| stages.contains(&name))
}

/// The status of the Migration.
async fn status(cluster: &Cluster) -> Result<Value> {
    let text = cluster
        .api()
        .kubectl(&["get", "migrations.replumb.dev", MIGRATION, "-o", "json"])
        .await?;
    let migration: Value = serde_json::from_str(&text).context("parse the Migration")?;
    Ok(migration["status"].clone())
}

impl<'cluster> Run<'cluster> {
    /// Makes the sample and who asks it, lets replumb reach the API server by its own address, and looks at every Service.
    pub async fn begin(cluster: &'cluster Cluster, tools: &Tools, wanted: Wanted) -> Result<Self> {
        let api = cluster.api();
        let image = "jsonpath={.spec.template.spec.containers[0].image}";
        let image = api
            .kubectl(&["get", "deployment", "echo", "-n", "traffic", "-o", image])
            .await?;
        let server = cluster.control_plane_address().await;
        api.apply(&sample::objects(wanted.size, &image, server).to_string())
            .await?;
        for workload in sample::workloads(wanted.size) {
            api.rolled_out(&workload, sample::NAMESPACE, LIMIT).await?;
        }
        lingers(cluster, wanted.size).await?;
        let recreation = if wanted.beside_recreation {
            Some(recreation::count(cluster, &image).await?)
        } else {
            None
        };
        let mut nodes = Vec::new();
        for name in cluster.node_names().await {
            nodes.push(cluster.node_address(&name).await?);
        }
        let before = sample::all(cluster).await?;
        let of = |lasting| Asked::of(&before, wanted.to.network(), &nodes, lasting);
        let (asked, later) = (of(Lasting::Throughout), of(Lasting::UntilPodsStartAgain));
        let new_dns = at_the_same_place(DNS_SERVICE, wanted.to.network());
        for (names, asked, until_then, dns) in [
            (
                [ASKS_OLD[0], ASKS_OLD[1], ASKS_UNTIL_THEN[0]],
                &asked.old,
                &later.old,
                DNS_SERVICE,
            ),
            (
                [ASKS_NEW[0], ASKS_NEW[1], ASKS_UNTIL_THEN[1]],
                &asked.new,
                &later.new,
                new_dns,
            ),
        ] {
            let few = asked.get(..FEW).unwrap_or(asked);
            let mut probers = vec![
                (names[0], asked.as_slice(), INTERVAL),
                (names[1], few, OFTEN),
                (names[2], until_then.as_slice(), INTERVAL),
            ];
            if dns == DNS_SERVICE {
                probers.push((ASKS_NODE_PORTS, later.node_ports.as_slice(), INTERVAL));
            }
            for (name, asked, interval) in probers {
                let prober = sample::prober(&Prober {
                    name,
                    on_host: name == ASKS_NODE_PORTS,
                    image: &image,
                    asked,
                    resolved: RESOLVED,
                    name_server: dns,
                    interval,
                });
                api.apply(&prober.to_string()).await?;
                api.rolled_out(&format!("deployment/{name}"), "traffic", LIMIT)
                    .await?;
            }
        }
        own_path(cluster).await?;
        let scene = Scene::observe(cluster, tools, counts).await?;
        scene.say(format_args!(
            "{} Services are there; {} places of them are asked, at both of their addresses, every {INTERVAL} ms, and {FEW} of them, like both name \
             servers, every {OFTEN} ms",
            before.len(),
            asked.old.len() + later.old.len() + later.node_ports.len()
        ));
        Ok(Self {
            scene,
            wanted,
            before,
            recreation,
        })
    }

    /// Shows checks and plan, starts the migration, follows it to its end, and does meanwhile what it asks a person for.
    pub async fn migrate(&self) -> Result<Vec<FollowUp>> {
        let mut done = Vec::new();
        let work = async {
            let operator = &self.scene.operator;
            let file = operator.write_manifest(&manifest(&self.wanted))?;
            let file = file.to_string_lossy();
            self.scene.say("kubectl replumb plan");
            operator
                .expect(Exit::Done, &["plan", "--filename", &file])
                .await?;
            match self.wanted.end {
                End::Migrated => self.there(&file).await,
                End::RolledBack => self.there_and_back(&file).await,
            }
        };
        tokio::select! {
            result = work => result?,
            ended = follow_up::play(&self.scene, &self.wanted, &mut done) => match ended? {},
        }
        Ok(done)
    }

    async fn there(&self, file: &str) -> Result<()> {
        self.scene.say("kubectl replumb apply --yes --watch");
        let apply = ["apply", "--filename", file, "--yes", "--watch"];
        let followed = self
            .scene
            .operator
            .expect_within(Exit::Done, &apply, self.wanted.limit);
        // Who asks an address that is given up gets no answer any more: that ends before.
        let ends = async {
            self.until_every_pod_was_told().await?;
            self.end(&ASKS_OLD).await?;
            self.scene
                .say("nobody of the demo's asks by an old address any more");
            anyhow::Ok(())
        };
        tokio::try_join!(followed, ends)?;
        Ok(())
    }

    /// Every pod was told new addresses; then the operator takes all of it back.
    async fn there_and_back(&self, file: &str) -> Result<()> {
        self.scene.say("kubectl replumb apply --yes");
        self.scene
            .operator
            .expect(Exit::Done, &["apply", "--filename", file, "--yes"])
            .await?;
        self.until_every_pod_was_told().await?;
        let ends = async {
            let given_up = ["FollowUp", "Restart", "Release"];
            self.until_stage("Rollback", "the Services have their old addresses", &given_up)
                .await?;
            self.end(&ASKS_NEW).await?;
            self.scene
                .say("nobody of the demo's asks by a new address any more");
            anyhow::Ok(())
        };
        tokio::try_join!(self.scene.roll_back_within(self.wanted.limit), ends)?;
        Ok(())
    }

    /// The Services have their new addresses, and the last pod has started again. Ends before whoever asks pods that do not answer while
    /// they start again.
    async fn until_every_pod_was_told(&self) -> Result<()> {
        let exchanged = ["FollowUp", "Restart", "Soak"];
        self.until_stage("Forward", "the Services have their new addresses", &exchanged)
            .await?;
        self.end(&ASKS_UNTIL_THEN).await?;
        self.until("the last pods have started again", |known| {
            let no_pod_was_told =
                known["podsWithSourceAddresses"] == 0 && known["targetAnnouncedSince"].is_string();
            match self.wanted.turn {
                Turn::EveryPodWasTold => no_pod_was_told,
                Turn::Soak => no_pod_was_told && is_in_stage(known, "Forward", &["Soak"]),
            }
        })
        .await
    }

    async fn until_stage(&self, direction: &str, what: &str, stages: &[&str]) -> Result<()> {
        self.until(what, |known| is_in_stage(known, direction, stages))
            .await
    }

    /// Waits until the status of the range of Services is so.
    async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        let cluster = self.scene.cluster;
        until(what, self.wanted.limit, &cluster.directory().logs(), async || {
            let known = &status(cluster).await?["serviceCidr"];
            Ok(if is_so(known) {
                Observation::Done(())
            } else {
                Observation::NotYet(format!(
                    "{}, pods that were told an address that is left: {}",
                    known["stage"]["name"], known["podsWithSourceAddresses"]
                ))
            })
        })
        .await
    }

    /// Ends these probers, each with its last report.
    async fn end(&self, probers: &[&str]) -> Result<()> {
        let deployments: Vec<String> = probers.iter().map(|name| format!("deployment/{name}")).collect();
        let mut arguments = vec!["-n", "traffic", "delete", "--cascade=foreground"];
        arguments.extend(deployments.iter().map(String::as_str));
        self.scene.cluster.api().kubectl(&arguments).await?;
        Ok(())
    }

    /// Ends the traffic, looks at every Service again, and says how it went.
    pub async fn report(&self, followed: Vec<FollowUp>) -> Result<Report> {
        let cluster = self.scene.cluster;
        self.end(match self.wanted.end {
            End::Migrated => &ASKS_NEW,
            End::RolledBack => &ASKS_OLD,
        })
        .await?;
        let status = status(cluster).await?;
        let after = sample::all(cluster).await?;
        let read = async |kind: &str| -> Result<Value> {
            let text = cluster.api().kubectl(&["get", kind, "-A", "-o", "json"]).await?;
            serde_json::from_str(&text).with_context(|| format!("parse {kind}"))
        };
        let (ranges, events) = (read("servicecidrs").await?, read("events").await?);
        let requests = probes(cluster).await?;
        Ok(Report::of(
            self.wanted.end,
            &status,
            [&self.before, &after],
            &ranges,
            &events,
            requests,
            followed,
            self.recreation.clone(),
        ))
    }
}

/// Pods of the traffic, and name servers, go on answering as long as those of the sample do.
async fn lingers(cluster: &Cluster, size: Size) -> Result<()> {
    let api = cluster.api();
    let in_system = ["-n", "kube-system"];
    let system = async |arguments: &[&str]| api.kubectl(&[&in_system, arguments].concat()).await;
    let text = system(&["get", "configmap", "coredns", "-o", "jsonpath={.data.Corefile}"]).await?;
    let longer = text.replace(LAMEDUCK, &format!("lameduck {}s", size.lingers()));
    ensure!(longer != text, "the Corefile does not say {LAMEDUCK}: {text}");
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

/// As a person does before: coordinator and agents reach the API server by no address of a Service.
pub async fn own_path(cluster: &Cluster) -> Result<()> {
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
