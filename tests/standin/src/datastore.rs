//! Access to Calico's objects in the Kubernetes API.

pub mod types;

use std::fmt::Debug;
use std::path::Path;

use anyhow::{Context, Result};
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Result of a guarded write.
pub enum Written<K> {
    /// The object is stored.
    Done(K),
    /// Another writer was faster: read again.
    Conflict,
}

/// The common operations of stored objects.
pub trait Stored: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize {}
impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize> Stored for K {}

/// A client by a kubeconfig file; without one, by the pod's service account.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("read the kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("use the kubeconfig {}", path.display()))?
        }
        None => Config::incluster().context(
            "use the pod's service account (set KUBECONFIG when this does not run in a pod of the cluster)",
        )?,
    };
    Client::try_from(config).context("create a client of the API server")
}

/// Access to one kind.
#[derive(Clone)]
pub struct Store<K: Stored> {
    api: Api<K>,
}

impl<K: Stored> Store<K> {
    /// Objects without a namespace.
    pub fn new(client: &Client) -> Self {
        Self {
            api: Api::all(client.clone()),
        }
    }

    /// The object; `None` if it does not exist.
    pub async fn get(&self, name: &str) -> Result<Option<K>> {
        self.api
            .get_opt(name)
            .await
            .with_context(|| format!("read {} {name}", K::kind(&())))
    }

    /// All objects that a label selector selects.
    pub async fn list(&self, labels: &str) -> Result<Vec<K>> {
        let list = self.api.list(&ListParams::default().labels(labels)).await;
        Ok(list
            .with_context(|| format!("list every {} with labels {labels:?}", K::kind(&())))?
            .items)
    }

    /// Stores a new object; a conflict when there is one of its name.
    pub async fn create(&self, object: &K) -> Result<Written<K>> {
        match self.api.create(&PostParams::default(), object).await {
            Ok(stored) => Ok(Written::Done(stored)),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Written::Conflict),
            Err(error) => {
                Err(error).with_context(|| format!("create {} {}", K::kind(&()), object.name_any()))
            }
        }
    }

    /// Writes an object that was read before; a conflict if it was changed since, or deleted.
    pub async fn replace(&self, object: &K) -> Result<Written<K>> {
        let name = object.name_any();
        match self.api.replace(&name, &PostParams::default(), object).await {
            Ok(stored) => Ok(Written::Done(stored)),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                Ok(Written::Conflict)
            }
            Err(error) => Err(error).with_context(|| format!("update {} {name}", K::kind(&()))),
        }
    }

    /// Deletes exactly the version that was read.
    pub async fn delete(&self, object: &K) -> Result<Written<()>> {
        let name = object.name_any();
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: object.resource_version(),
            }),
            ..DeleteParams::default()
        };
        match self.api.delete(&name, &parameters).await {
            Ok(_) => Ok(Written::Done(())),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Written::Done(())),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Written::Conflict),
            Err(error) => Err(error).with_context(|| format!("delete {} {name}", K::kind(&()))),
        }
    }
}
