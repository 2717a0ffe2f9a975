//! Calico's objects, wherever Calico keeps them: in the Kubernetes API, or in etcd v3. Both tell them in the same way, and let nobody
//! write what has changed since it was read.

use std::sync::Arc;

use calico::etcd::Id;
use datastore::etcd3::Etcd3;
use ipnet::IpNet;
use kube::Client;
use kube::api::DynamicObject;
use serde_json::Value;

use super::{BLOCK_AFFINITY, Created, IP_POOL, IPAM_BLOCK, IPAM_CONFIG, IPAM_HANDLE, Kind, etcd, kubernetes};
use crate::write::WriteError;

/// Where Calico's objects are.
#[derive(Clone)]
pub enum Store {
    /// In the Kubernetes API: `crd.projectcalico.org/v1`.
    Kubernetes(Client),
    /// In etcd v3.
    Etcd(Arc<Etcd3>),
}

impl Store {
    /// Every object of the kind; none when the kind is not served. For kinds of which a cluster has few.
    pub async fn list(&self, kind: Kind) -> Result<Vec<DynamicObject>, WriteError> {
        self.each(kind, Some).await
    }

    /// What `choose` takes of each object of the kind, page by page; none when the kind is not served.
    pub async fn each<T>(
        &self,
        kind: Kind,
        choose: impl FnMut(DynamicObject) -> Option<T>,
    ) -> Result<Vec<T>, WriteError> {
        match self {
            Self::Kubernetes(client) => kind.each(client, choose).await,
            Self::Etcd(store) => etcd::each(store, kind, choose).await,
        }
    }

    /// The `IPPool` of this name, if there is one.
    pub async fn pool(&self, name: &str) -> Result<Option<DynamicObject>, WriteError> {
        self.get(IP_POOL, &Id::Named(name.to_owned())).await
    }

    /// The block of this range.
    pub async fn block(&self, range: IpNet) -> Result<Option<DynamicObject>, WriteError> {
        self.get(IPAM_BLOCK, &Id::Block(range)).await
    }

    /// The claim of this name on a block, which is this node's on this range.
    pub async fn claim(
        &self,
        name: &str,
        node: &str,
        range: IpNet,
    ) -> Result<Option<DynamicObject>, WriteError> {
        match self {
            Self::Kubernetes(client) => BLOCK_AFFINITY.get(client, name).await,
            Self::Etcd(store) => {
                etcd::get(store, BLOCK_AFFINITY, &Id::Affinity(node.to_owned(), range)).await
            }
        }
    }

    /// This handle, in its own letters.
    pub async fn handle(&self, handle: &str) -> Result<Option<DynamicObject>, WriteError> {
        self.get(IPAM_HANDLE, &Id::Handle(handle.to_owned())).await
    }

    /// What the IPAM goes by.
    pub async fn ipam_config(&self) -> Result<Option<DynamicObject>, WriteError> {
        self.get(IPAM_CONFIG, &Id::Named("default".to_owned())).await
    }

    /// An object that was read, as it is by now.
    pub async fn again(&self, kind: Kind, read: &DynamicObject) -> Result<Option<DynamicObject>, WriteError> {
        match self {
            Self::Kubernetes(client) => kind.get(client, &kubernetes::name(read)).await,
            Self::Etcd(store) => etcd::get(store, kind, &etcd::id(kind, read)).await,
        }
    }

    async fn get(&self, kind: Kind, id: &Id) -> Result<Option<DynamicObject>, WriteError> {
        match self {
            Self::Kubernetes(client) => kind.get(client, &id.name()).await,
            Self::Etcd(store) => etcd::get(store, kind, id).await,
        }
    }

    /// Creates the object; one that is there already is an answer, not an error.
    pub async fn create(&self, kind: Kind, object: &Value) -> Result<Created, WriteError> {
        match self {
            Self::Kubernetes(client) => kind.create(client, object).await,
            Self::Etcd(store) => etcd::create(store, kind, object).await,
        }
    }

    /// Creates the handle, or changes what differs in the one that is there.
    pub async fn ensure_handle(
        &self,
        handle: &str,
        object: &Value,
        change: impl Fn(&Value) -> Option<Value>,
    ) -> Result<(), WriteError> {
        if self.create(IPAM_HANDLE, object).await? == Created::Now {
            return Ok(());
        }
        if let Some(found) = self.handle(handle).await?
            && let Some(change) = change(&found.data["spec"])
        {
            self.patch_spec(IPAM_HANDLE, &found, &change).await?;
        }
        Ok(())
    }

    /// Merges `change` into the spec of the object as it was read.
    pub async fn patch_spec(
        &self,
        kind: Kind,
        read: &DynamicObject,
        change: &Value,
    ) -> Result<(), WriteError> {
        match self {
            Self::Kubernetes(client) => kind.patch_spec(client, read, change).await,
            Self::Etcd(store) => etcd::patch_spec(store, kind, read, change).await,
        }
    }

    /// Deletes an object of the IPAM as it was read. In the Kubernetes API it is marked first, as Calico does: a write that was made
    /// meanwhile is refused by the mark, and not lost with the object. etcd compares and deletes at once.
    pub async fn delete_marked(&self, kind: Kind, read: &DynamicObject) -> Result<(), WriteError> {
        match self {
            Self::Kubernetes(client) => kubernetes::delete_marked(client, kind, read).await,
            Self::Etcd(store) => etcd::delete(store, kind, read).await,
        }
    }

    /// Deletes the `IPPool` of this name; one that is gone already is fine.
    pub async fn delete_pool(&self, name: &str) -> Result<(), WriteError> {
        match self {
            Self::Kubernetes(client) => IP_POOL.delete(client, name).await,
            Self::Etcd(store) => match self.pool(name).await? {
                Some(read) => etcd::delete(store, IP_POOL, &read).await,
                None => Ok(()),
            },
        }
    }
}
