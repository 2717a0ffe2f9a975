//! The kind of docs/adding-a-kind.md, forward and back: a real API server, the coordinator's own loop and the agent's own loop.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --features example-kind --test api_example -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test says that it failed by a panic")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::host::folders::FolderWatch;
use agent::host::netlink;
use agent::host::paths::Paths;
use agent::host_thread::{HostThread, Parts};
use agent::kinds::{HostParts, Kinds, Watched};
use agent::traffic::hub::Hub;
use agent::turn::Agent;
use api::migration::MigrationPhase;
use api::{Migration, MigrationRecord, NodeMigration, names};
use coordinator::cache::Cache;
use coordinator::context::Context;
use coordinator::events::EventRecorder;
use coordinator::obstacles::Obstacles;
use coordinator::words::MessagePace;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config, CustomResourceExt as _, ResourceExt as _};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

const NAME: &str = "example";
const NODE: &str = "example-node";
const CONFIG_MAP: &str = "labelled-by-example";
const STEP: Duration = Duration::from_mins(1);

/// The definitions of this build, which has the field of the kind: deploy/ has none.
fn install(lab: &ApiLab, folder: &Path) {
    let definitions = [Migration::crd(), NodeMigration::crd(), MigrationRecord::crd()];
    for (number, definition) in definitions.iter().enumerate() {
        let file = folder.join(format!("{number}.json"));
        fs::write(&file, serde_json::to_vec(definition).unwrap()).unwrap();
        lab.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    }
    let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
    let crds = definitions.map(|definition| format!("crd/{}", definition.name_any()));
    let arguments: Vec<&str> = wait.into_iter().chain(crds.iter().map(String::as_str)).collect();
    lab.kubectl(&arguments).unwrap();
}

/// The coordinator's loop, as the leader.
async fn run_coordinator(client: Client, config: Config) {
    let context = Context {
        events: EventRecorder::new(client.clone(), "example"),
        obstacles: Obstacles::within(Duration::from_secs(5)),
        pace: MessagePace::FOR_USERS,
        client: client.clone(),
        background: client.clone(),
        watching: client.clone(),
        config,
        namespace: names::NAMESPACE.to_owned(),
        node_name: NODE.to_owned(),
        asks_other_servers: true,
        agent_image: "none".to_owned(),
        metrics: Arc::new(coordinator::metrics::Metrics::new().unwrap()),
    };
    let mut tasks = JoinSet::new();
    let cache = Cache::start(&client, names::NAMESPACE, &mut tasks);
    cache.ready().await;
    let health = Arc::new(coordinator::health::Health::starting());
    let (_leader, leading) = watch::channel(true);
    Box::pin(coordinator::pass::run(&context, &cache, &health, &leading)).await;
}

/// The agent's loop. For this kind, it only reads the host.
fn run_agent(client: &Client, config: Config, folder: &Path) -> impl Future<Output = ()> + use<> {
    let metrics = Arc::new(agent::metrics::Metrics::new().unwrap());
    let health = Arc::new(agent::health::Health::starting());
    let (seen, _follows) = agent::goal::follow(client.clone(), NODE);
    let (watched, _watches) = Watched::start(client, &seen);
    let below = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let paths = Paths {
        proc: "/proc".into(),
        flannel: below("flannel"),
        cni_state: below("cni"),
        cni_configuration: below("net.d"),
        cni_plugins: below("plugins"),
        crio: below("crio"),
        sysctl: "/proc/sys".into(),
    };
    let (state, run) = (below("state"), below("run"));
    let (of_metrics, of_health) = (Arc::clone(&metrics), Arc::clone(&health));
    let parts = move || -> anyhow::Result<Parts> {
        let changed = Arc::new(Notify::new());
        let watching = netlink::watch(Arc::clone(&changed));
        let parts = HostParts {
            node: NODE.to_owned(),
            paths,
            state,
            pod_uid: String::new(),
            config,
            folders: Arc::new(FolderWatch::start(Arc::clone(&changed))),
            metrics: of_metrics,
            health: of_health,
        };
        Ok(Parts {
            kinds: Kinds::start(&parts, watched)?,
            changed,
            watching,
        })
    };
    let host = HostThread::start(parts, seen.clone(), Arc::clone(&metrics), health).unwrap();
    let hub = Hub::listen(NODE, &run).unwrap();
    Agent::new(host, Api::all(client.clone()), seen, hub, metrics).run()
}

async fn create(client: &Client, hold_seconds: u32) {
    let migration: Migration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": NAME },
        "spec": {
            "example": { "configMap": CONFIG_MAP, "holdSeconds": hold_seconds }, "gates": { "traffic": "Ignore" },
        },
    }))
    .unwrap();
    let migrations: Api<Migration> = Api::all(client.clone());
    migrations
        .create(&PostParams::default(), &migration)
        .await
        .unwrap();
}

async fn desire(client: &Client, desired: &str) {
    let migrations: Api<Migration> = Api::all(client.clone());
    let change = Patch::Merge(json!({ "spec": { "desired": desired } }));
    migrations
        .patch(NAME, &PatchParams::default(), &change)
        .await
        .unwrap();
}

async fn until_phase(client: &Client, phase: MigrationPhase) -> Value {
    let migrations: Api<Migration> = Api::all(client.clone());
    until(
        &format!("phase {phase:?}"),
        STEP,
        ApiLab::shared().unwrap().folder(),
        async || {
            let status = migrations.get(NAME).await?.status.unwrap_or_default();
            Ok(if status.phase == phase {
                Observation::Done(serde_json::to_value(status)?)
            } else {
                Observation::NotYet(format!("{:?}: {}", status.phase, status.message))
            })
        },
    )
    .await
    .unwrap()
}

async fn label(client: &Client) -> Option<String> {
    let objects: Api<ConfigMap> = Api::namespaced(client.clone(), names::NAMESPACE);
    let object = objects.get(CONFIG_MAP).await.unwrap();
    object.labels().get(example::LABEL).cloned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts an API server: cargo lab test"]
async fn the_example_kind_labels_a_config_map_and_goes_back() {
    let lab = ApiLab::shared().unwrap();
    let folder = tempfile::tempdir().unwrap();
    install(lab, folder.path());
    lab.node(NODE).await.unwrap();
    let client = lab.admin().await.unwrap();
    let objects: Api<ConfigMap> = Api::namespaced(client.clone(), names::NAMESPACE);
    let object: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": CONFIG_MAP } })).unwrap();
    objects.create(&PostParams::default(), &object).await.unwrap();
    let config = lab.admin_config().await.unwrap();
    let coordinator = run_coordinator(client.clone(), config.clone());
    let agent = run_agent(&client, config, folder.path());
    let migrations: Api<Migration> = Api::all(client.clone());

    let cases = async {
        // Back: the label is set, and removed before the migration has completed.
        create(&client, 3_600).await;
        until_phase(&client, MigrationPhase::Planned).await;
        assert_eq!(label(&client).await, None, "a plan changes nothing");
        desire(&client, "Run").await;
        until("the label is set", STEP, lab.folder(), async || {
            Ok(match label(&client).await {
                Some(value) => Observation::Done(value),
                None => Observation::NotYet("no label".to_owned()),
            })
        })
        .await
        .unwrap();
        let nodes: Api<NodeMigration> = Api::all(client.clone());
        let report = nodes.get(NODE).await.unwrap().status.unwrap().example.unwrap();
        assert!(!report.kernel.is_empty(), "the agent has reported its kernel");
        desire(&client, "Rollback").await;
        let status = until_phase(&client, MigrationPhase::RolledBack).await;
        assert_eq!(label(&client).await, None, "{status}");
        migrations.delete(NAME, &DeleteParams::default()).await.unwrap();

        // Forward, to the end.
        until("the Migration is deleted", STEP, lab.folder(), async || {
            Ok(match migrations.get_opt(NAME).await? {
                None => Observation::Done(()),
                Some(_) => Observation::NotYet("it exists".to_owned()),
            })
        })
        .await
        .unwrap();
        create(&client, 0).await;
        until_phase(&client, MigrationPhase::Planned).await;
        desire(&client, "Run").await;
        let status = until_phase(&client, MigrationPhase::Completed).await;
        assert_eq!(label(&client).await.as_deref(), Some("true"), "{status}");
        let stages = status["example"]["history"].as_array().unwrap();
        let names: Vec<&str> = stages.iter().filter_map(|stage| stage["name"].as_str()).collect();
        assert_eq!(names, ["Label", "Hold"], "{status}");
    };
    tokio::select! {
        () = cases => {}
        () = agent => unreachable!("the agent's loop ended"),
        () = coordinator => unreachable!("the coordinator's loop ended"),
    }
}
