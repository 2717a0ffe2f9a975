//! The connection to the API server, and the objects that the commands read and write.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use api::{Migration, MigrationRecord, MigrationSpec, NodeMigration, names};
use engine::drain;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use offline::snapshot::Snapshot;
use runtime::client::Limit;

use crate::connection::Connection;
use crate::error::CliError;

/// The requests of each client of a command.
const RATE: Limit = Limit {
    requests: 100,
    period: Duration::from_secs(1),
};

/// Annotation on the mirror pod of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Prints warnings of the API server as kubectl does.
struct Warnings;

impl runtime::client::Observer for Warnings {
    fn request(&self, _method: &http::Method, _resource: &str) {}

    fn warning(&self, text: &str) {
        // A closed standard error is no reason to stop.
        let _ = writeln!(std::io::stderr(), "Warning: {text}");
    }
}

/// The connection to a cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// A client without a read timeout: watches are silent for long.
    watching: Client,
    /// Address of the API server, for the confirmation.
    pub address: String,
    /// Namespace that replumb is installed in.
    pub namespace: String,
    /// The file of a cluster in memory, and its content.
    snapshot: Option<(String, Snapshot)>,
}

impl Cluster {
    /// The cluster of a snapshot, in memory. `file` has the snapshot.
    pub fn of_snapshot(client: Client, file: &str, snapshot: Snapshot) -> Self {
        Self {
            watching: client.clone(),
            client,
            address: format!("snapshot {file}"),
            namespace: snapshot.coordinator().namespace.clone(),
            snapshot: Some((file.to_owned(), snapshot)),
        }
    }

    /// The client of the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The node of the coordinator that leads; empty if its pod does not exist.
    pub async fn node_of_the_leader(&self) -> Result<String, CliError> {
        let lease = self.lease().await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        let Some(holder) = holder.filter(|holder| !holder.is_empty()) else {
            return Ok(String::new());
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pod = pods.get_opt(&holder).await;
        let pod = pod
            .map_err(|source| CliError::api("reading", format!("Pod {}/{holder}", self.namespace), source))?;
        Ok(pod.and_then(|pod| pod.spec?.node_name).unwrap_or_default())
    }

    /// The file of a cluster in memory; none for a cluster with an API server.
    pub fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_ref().map(|(file, _)| file.as_str())
    }

    /// The content of that file.
    pub fn snapshot_content(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().map(|(_, snapshot)| snapshot)
    }

    /// Reads the configuration. No request is sent yet.
    pub async fn connect(connection: &Connection) -> Result<Self, CliError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| CliError::Kubeconfig {
            path: connection.kubeconfig.clone(),
            source,
        };
        let options = KubeConfigOptions {
            context: connection.context.clone(),
            cluster: connection.cluster.clone(),
            user: connection.user.clone(),
        };
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let from_file =
            options.context.is_some() || options.cluster.is_some() || options.user.is_some() || !in_pod;
        let mut config = match &connection.kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(error.into()))?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .map_err(|error| failed(error.into()))?
            }
            // With a given context there is no fallback to the ServiceAccount of the pod. Outside of a pod there is none, and an
            // error about it would hide the one about the kubeconfig.
            None if from_file => Config::from_kubeconfig(&options)
                .await
                .map_err(|error| failed(error.into()))?,
            None => Config::infer().await.map_err(|error| failed(error.into()))?,
        };
        if connection.impersonate.is_some() {
            config.auth_info.impersonate.clone_from(&connection.impersonate);
        }
        if !connection.impersonate_groups.is_empty() {
            config.auth_info.impersonate_groups = Some(connection.impersonate_groups.clone());
        }
        config.connect_timeout = Some(connection.request_timeout);
        let address = config.cluster_url.to_string();
        let warnings = Arc::new(Warnings);
        let watching = runtime::client::client(config.clone(), warnings.clone(), RATE)
            .map_err(|error| failed(error.into()))?;
        config.read_timeout = Some(connection.request_timeout);
        let client = runtime::client::client(config, warnings, RATE).map_err(|error| failed(error.into()))?;
        Ok(Self {
            client,
            watching,
            address: address.trim_end_matches('/').to_owned(),
            namespace: connection.namespace.clone(),
            snapshot: None,
        })
    }

    /// The API for watches of Migrations.
    pub fn watched_migrations(&self) -> Api<Migration> {
        Api::all(self.watching.clone())
    }

    /// The API for watches of `NodeMigration`s.
    pub fn watched_nodes(&self) -> Api<NodeMigration> {
        Api::all(self.watching.clone())
    }

    /// Every Migration, the oldest first.
    pub async fn migrations(&self) -> Result<Vec<Migration>, CliError> {
        let api: Api<Migration> = Api::all(self.client.clone());
        let mut list = api
            .list(&ListParams::default())
            .await
            .map_err(|source| not_installed("migrations", "listing", source))?
            .items;
        list.sort_by_key(|migration| {
            (
                migration.metadata.creation_timestamp.clone().map(|time| time.0),
                migration.name_any(),
            )
        });
        Ok(list)
    }

    /// One Migration; `None` if it does not exist.
    pub async fn migration(&self, name: &str) -> Result<Option<Migration>, CliError> {
        let api: Api<Migration> = Api::all(self.client.clone());
        api.get_opt(name)
            .await
            .map_err(|source| CliError::api("reading", format!("Migration {name}"), source))
    }

    /// Every `NodeMigration`.
    pub async fn all_nodes(&self) -> Result<Vec<NodeMigration>, CliError> {
        let api: Api<NodeMigration> = Api::all(self.client.clone());
        let list = api.list(&ListParams::default()).await;
        Ok(list
            .map_err(|source| not_installed("nodemigrations", "listing", source))?
            .items)
    }

    /// The `NodeMigration`s of a Migration, in the order in which the nodes change.
    pub async fn nodes(&self, migration: &str) -> Result<Vec<NodeMigration>, CliError> {
        let mut nodes = self.all_nodes().await?;
        nodes.retain(|object| object.spec.migration == migration);
        sort(&mut nodes);
        Ok(nodes)
    }

    /// The records of a Migration.
    pub async fn records(&self, migration: &Migration) -> Result<Vec<MigrationRecord>, CliError> {
        let api: Api<MigrationRecord> = Api::all(self.client.clone());
        let uid = migration.uid().unwrap_or_default();
        let ours = ListParams::default().labels(&format!("{}={uid}", names::RECORD_OF_LABEL));
        let list = api.list(&ours).await;
        Ok(list
            .map_err(|source| not_installed("migrationrecords", "listing", source))?
            .items)
    }

    /// The records with parts of the plan; no request is sent if there are none.
    pub async fn plan_records(&self, migration: &Migration) -> Result<Vec<MigrationRecord>, CliError> {
        let plan = migration.status.as_ref().and_then(|status| status.plan.as_ref());
        match plan {
            Some(plan) if plan.prepare_in_records > 0 || plan.finish_in_records > 0 => {
                self.records(migration).await
            }
            Some(_) | None => Ok(Vec::new()),
        }
    }

    /// Pods of a node, without probe and traffic pods. Read from the cache of the API server, which has an index by node;
    /// otherwise the API server would read all pods of the cluster from etcd.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<drain::Pod>, CliError> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let there = ListParams::default()
            .fields(&format!("spec.nodeName={node}"))
            .match_any();
        let list = api.list(&there).await;
        let pods = list.map_err(|source| CliError::api("listing", format!("pods of node {node}"), source))?;
        let own = [names::TRAFFIC_COMPONENT, names::PROBE_COMPONENT];
        let is_own = |pod: &Pod| {
            let component = pod.labels().get(names::COMPONENT_LABEL);
            pod.namespace().as_deref() == Some(self.namespace.as_str())
                && component.is_some_and(|component| own.contains(&component.as_str()))
        };
        Ok(pods
            .iter()
            .filter(|pod| !is_own(pod))
            .map(|pod| resident(pod, node))
            .collect())
    }

    /// Creates a Migration.
    pub async fn create(
        &self,
        name: &str,
        labels: BTreeMap<String, String>,
        spec: MigrationSpec,
    ) -> Result<Migration, CliError> {
        let api: Api<Migration> = Api::all(self.client.clone());
        let object = Migration {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels).filter(|labels| !labels.is_empty()),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
        };
        let parameters = PostParams {
            field_manager: Some(names::CLI_FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        api.create(&parameters, &object)
            .await
            .map_err(|source| CliError::api("creating", format!("Migration {name}"), source))
    }

    /// Changes the spec of a Migration, if the spec has not changed since it was read.
    pub async fn change(&self, read: &Migration, spec: &MigrationSpec) -> Result<Migration, CliError> {
        let name = read.name_any();
        let object = || format!("Migration {name}");
        let from = serde_json::to_value(&read.spec).map_err(CliError::Json)?;
        let to = serde_json::to_value(spec).map_err(CliError::Json)?;
        let Some(change) = api::merge::difference(&from, &to) else {
            return Ok(read.clone());
        };
        let api: Api<Migration> = Api::all(self.client.clone());
        let parameters = PatchParams {
            field_manager: Some(names::CLI_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let mut version = read.resource_version();
        loop {
            let patch = serde_json::json!({ "metadata": { "resourceVersion": version }, "spec": change });
            match api.patch(&name, &parameters, &Patch::Merge(&patch)).await {
                Ok(written) => return Ok(written),
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    // The coordinator often writes the status; only a change of the spec is a conflict.
                    let now = self
                        .migration(&name)
                        .await?
                        .ok_or_else(|| CliError::Gone { name: name.clone() })?;
                    if now.metadata.generation != read.metadata.generation || now.uid() != read.uid() {
                        return Err(CliError::Changed { name });
                    }
                    version = now.resource_version();
                }
                Err(source) => return Err(CliError::api("patching", object(), source)),
            }
        }
    }

    /// The coordinator's Lease; `None` if it does not exist.
    pub async fn lease(&self) -> Result<Option<Lease>, CliError> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        api.get_opt(names::COORDINATOR).await.map_err(|source| {
            CliError::api(
                "reading",
                format!("Lease {}/{}", self.namespace, names::COORDINATOR),
                source,
            )
        })
    }

    /// The agents' `DaemonSet`; `None` if it does not exist.
    pub async fn agents(&self) -> Result<Option<DaemonSet>, CliError> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        api.get_opt(names::AGENT).await.map_err(|source| {
            CliError::api(
                "reading",
                format!("DaemonSet {}/{}", self.namespace, names::AGENT),
                source,
            )
        })
    }
}

/// The fields of a pod that decide whether it has to leave its node.
fn resident(pod: &Pod, node: &str) -> drain::Pod {
    let status = pod.status.clone().unwrap_or_default();
    drain::Pod {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        node: node.to_owned(),
        host_network: pod
            .spec
            .as_ref()
            .and_then(|spec| spec.host_network)
            .unwrap_or(false),
        mirror: pod.annotations().contains_key(MIRROR_ANNOTATION),
        finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        deleted_at: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        addresses: status
            .pod_ips
            .iter()
            .flatten()
            .filter_map(|address| address.ip.parse().ok())
            .collect(),
        ..drain::Pod::default()
    }
}

/// Sorts nodes by the order in which they change.
pub fn sort(nodes: &mut [NodeMigration]) {
    nodes.sort_by(|left, right| {
        (left.spec.position, &left.spec.node_name).cmp(&(right.spec.position, &right.spec.node_name))
    });
}

/// Maps a list with code 404 to "not installed". The code is used, since an unknown path is answered with plain text, without
/// a reason.
fn not_installed(kind: &'static str, attempt: &'static str, source: kube::Error) -> CliError {
    match source {
        kube::Error::Api(status) if status.code == 404 => CliError::NotInstalled { kind },
        other => CliError::api(attempt, kind, other),
    }
}

/// The phase of a Migration as text.
pub fn phase(migration: &Migration) -> &'static str {
    let status = migration.status.as_ref();
    status.map(|status| status.phase).unwrap_or_default().as_str()
}

/// Whether the first change has been made.
pub fn has_begun(migration: &Migration) -> bool {
    migration
        .status
        .as_ref()
        .is_some_and(|status| status.started_at.is_some())
}
