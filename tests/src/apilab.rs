//! A real etcd and kube-apiserver on the loopback, with the objects of `deploy/`: for rules, rights and conflicts
//! that only a real API server has. No node runs in it, and no controllers except those of Services: endpoints of
//! pods whose status says that they run, and ranges of addresses.

mod own;
mod programs;
mod server;
mod settings;
mod start;

pub use own::OwnApiLab;
pub use programs::built;
pub use server::SecondServer;
pub use settings::Settings;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;

use crate::cluster::authority::Authority;
use crate::started::{Ended, Process};
use crate::store::Store;
use programs::run;

/// A running API server with replumb's definitions, roles and policy.
#[derive(Debug)]
pub struct ApiLab {
    folder: PathBuf,
    programs: PathBuf,
    server: String,
    /// How the API server is started.
    own: server::Server,
    authority: Authority,
    /// The started processes, etcd first.
    processes: Mutex<Vec<Process>>,
}

impl ApiLab {
    /// The one API server of this process: started at the first use, ended with the process.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<std::result::Result<ApiLab, String>> = OnceLock::new();
        SHARED
            .get_or_init(|| start::kept(None, Settings::default()).map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    /// The folder with keys and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.conf")
    }

    /// The address of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The etcd of the API server.
    pub fn store(&self) -> Store {
        Store::new(Ipv4Addr::LOCALHOST, self.own.etcd.number())
    }

    /// Starts one more program, which ends with the lab and with the thread that calls this.
    pub fn run(&self, name: &str, arguments: &str) -> Result<()> {
        let child = start::spawn(&self.programs, &self.folder, name, arguments)?;
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(child);
        Ok(())
    }

    /// The exit of the first program that has ended.
    fn ended(&self) -> Result<Option<Ended>> {
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        for process in processes.iter_mut() {
            if let Some(ended) = process.ended()? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }

    /// An administrator's client. A client belongs to the runtime that made it: each test creates its own.
    pub async fn admin(&self) -> Result<Client> {
        client(&fs::read_to_string(self.kubeconfig()).context("read the administrator's kubeconfig")?).await
    }

    /// The administrator's configuration of a client.
    pub async fn admin_config(&self) -> Result<Config> {
        config(&fs::read_to_string(self.kubeconfig()).context("read the administrator's kubeconfig")?).await
    }

    /// A kubeconfig of a user with a certificate.
    pub fn kubeconfig_of(&self, user: &str) -> Result<String> {
        self.kubeconfig_in(user, None)
    }

    /// A kubeconfig of a user with a certificate, in a group or in none.
    pub fn kubeconfig_in(&self, user: &str, group: Option<&str>) -> Result<String> {
        self.authority
            .kubeconfig(&self.server, user, &self.authority.client(user, group)?)
    }

    /// A kubeconfig with this token.
    pub fn kubeconfig_with_token(&self, token: &str) -> Result<String> {
        self.kubeconfig_through(&self.server, token)
    }

    /// The same for an API server at another address.
    pub fn kubeconfig_through(&self, server: &str, token: &str) -> Result<String> {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "token",
            "clusters": [{"name": "lab", "cluster": {
                "server": server, "certificate-authority": self.authority.folder().join("ca.crt"),
            }}],
            "users": [{"name": "token", "user": {"token": token}}],
            "contexts": [{"name": "token", "context": {"cluster": "lab", "user": "token"}}],
        });
        serde_json::to_string(&kubeconfig).context("write a kubeconfig")
    }

    /// A client with this token.
    pub async fn with_token(&self, token: &str) -> Result<Client> {
        client(&self.kubeconfig_with_token(token)?).await
    }

    /// The configuration of a client with this token, for a client with its own layers.
    pub async fn config_with_token(&self, token: &str) -> Result<Config> {
        config(&self.kubeconfig_with_token(token)?).await
    }

    /// A token of a `ServiceAccount`, bound to a pod or not.
    pub async fn token(&self, namespace: &str, account: &str, pod: Option<&Pod>) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                bound_object_ref: pod.map(|pod| BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
                expiration_seconds: None,
            },
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("request a token of ServiceAccount {namespace}/{account}"))?;
        Ok(answer
            .status
            .context("read the status of the TokenRequest")?
            .token)
    }

    /// Creates a Node object with this name, without a machine.
    pub async fn node(&self, name: &str) -> Result<Node> {
        let nodes: Api<Node> = Api::all(self.admin().await?);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        nodes
            .create(&PostParams::default(), &node)
            .await
            .with_context(|| format!("create Node {name}"))
    }

    /// Creates a pod object of this `ServiceAccount` on this node; the pod does not run.
    pub async fn pod_on(&self, namespace: &str, account: &str, node: &str) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.admin().await?, namespace);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("{account}-{node}")},
            "spec": {
                "serviceAccountName": account, "nodeName": node,
                "containers": [{"name": "main", "image": "nothing"}],
            },
        }))?;
        pods.create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("create pod {} on node {node}", pod.name_any()))
    }

    /// A new namespace. At the end it is deleted with its contents as far as an API server alone does that.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.admin().await?);
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("create Namespace {name}"))?;
        Ok(())
    }

    /// Runs kubectl as the administrator; an exit code other than 0 is an error. Returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        run(Command::new(self.programs.join("kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments))
    }

    /// Installs replumb with the command in the documentation, and waits until its objects are served.
    pub async fn install(&self) -> Result<()> {
        start::install(self).await
    }

    /// Removes every Migration and every `NodeMigration`, so that no case sees the objects of another.
    pub async fn clear(&self) -> Result<()> {
        let client = self.admin().await?;
        let migrations: Api<api::Migration> = Api::all(client.clone());
        let nodes: Api<api::NodeMigration> = Api::all(client.clone());
        let records: Api<api::MigrationRecord> = Api::all(client);
        for name in migrations
            .list(&kube::api::ListParams::default())
            .await?
            .iter()
            .map(ResourceExt::name_any)
        {
            // A Migration that a case has left running would not be deleted.
            let over = serde_json::json!({ "status": { "phase": "Completed" } });
            migrations
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(over))
                .await?;
            migrations.delete(&name, &DeleteParams::default()).await?;
        }
        for name in nodes
            .list(&kube::api::ListParams::default())
            .await?
            .iter()
            .map(ResourceExt::name_any)
        {
            nodes.delete(&name, &DeleteParams::default()).await?;
        }
        // No garbage collector runs here for the objects that a deleted Migration owned.
        records
            .delete_collection(&DeleteParams::default(), &kube::api::ListParams::default())
            .await?;
        Ok(())
    }
}

/// A client with this kubeconfig.
pub async fn client(kubeconfig: &str) -> Result<Client> {
    Client::try_from(config(kubeconfig).await?).context("create a client")
}

async fn config(kubeconfig: &str) -> Result<Config> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).context("read a kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("use a kubeconfig")?;
    // A proxy from the host's environment cannot reach the loopback.
    config.proxy_url = None;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(config)
}
