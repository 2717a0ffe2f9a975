//! Calico's objects in the datastore that Calico uses: the Kubernetes API, or etcd v3. Both have the same form, and both refuse a
//! write to an object that changed since it was read.

use std::sync::Arc;

use calico::etcd::Id;
use datastore::etcd3::Etcd3;
use ipnet::IpNet;
use kube::Client;
use kube::api::DynamicObject;
use serde_json::Value;

use super::error::CalicoStoreError;
use super::{BLOCK_AFFINITY, Created, IP_POOL, IPAM_BLOCK, IPAM_CONFIG, IPAM_HANDLE, Kind, etcd, kubernetes};

/// The datastore of Calico's objects.
#[derive(Clone)]
pub enum Store {
    /// In the Kubernetes API: `crd.projectcalico.org/v1`.
    Kubernetes(Client),
    /// In etcd v3.
    Etcd(Arc<Etcd3>),
}

impl Store {
    /// Every object of the kind; empty if the kind is not served. For kinds with few objects.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn list(&self, kind: Kind) -> Result<Vec<DynamicObject>, CalicoStoreError> {
        self.each(kind, Some).await
    }

    /// Collects what `choose` returns for each object of the kind, page by page; empty if the kind is not served.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn each<T>(
        &self,
        kind: Kind,
        choose: impl FnMut(DynamicObject) -> Option<T>,
    ) -> Result<Vec<T>, CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(kind.each(client, choose).await?),
            Self::Etcd(store) => etcd::each(store, kind, choose).await,
        }
    }

    /// The `IPPool` of this name, if it exists.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn pool(&self, name: &str) -> Result<Option<DynamicObject>, CalicoStoreError> {
        self.get(IP_POOL, &Id::Named(name.to_owned())).await
    }

    /// The block of this range.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn block(&self, range: IpNet) -> Result<Option<DynamicObject>, CalicoStoreError> {
        self.get(IPAM_BLOCK, &Id::Block(range)).await
    }

    /// The block affinity of this name, which is this node's for this range.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn claim(
        &self,
        name: &str,
        node: &str,
        range: IpNet,
    ) -> Result<Option<DynamicObject>, CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(BLOCK_AFFINITY.get(client, name).await?),
            Self::Etcd(store) => {
                etcd::get(store, BLOCK_AFFINITY, &Id::Affinity(node.to_owned(), range)).await
            }
        }
    }

    /// This handle, in its original case.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn handle(&self, handle: &str) -> Result<Option<DynamicObject>, CalicoStoreError> {
        self.get(IPAM_HANDLE, &Id::Handle(handle.to_owned())).await
    }

    /// The settings of the IPAM.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn ipam_config(&self) -> Result<Option<DynamicObject>, CalicoStoreError> {
        self.get(IPAM_CONFIG, &Id::Named("default".to_owned())).await
    }

    /// The current version of an object that was read.
    ///
    /// # Errors
    ///
    /// The store does not answer, refuses the read, or sends an answer that cannot be read.
    pub async fn again(
        &self,
        kind: Kind,
        read: &DynamicObject,
    ) -> Result<Option<DynamicObject>, CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(kind.get(client, &kubernetes::name(read)).await?),
            Self::Etcd(store) => etcd::get(store, kind, &etcd::id(kind, read)).await,
        }
    }

    async fn get(&self, kind: Kind, id: &Id) -> Result<Option<DynamicObject>, CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(kind.get(client, &id.name()).await?),
            Self::Etcd(store) => etcd::get(store, kind, id).await,
        }
    }

    /// Creates the object; an existing object is not an error.
    ///
    /// # Errors
    ///
    /// The store refuses the write or does not answer.
    pub async fn create(&self, kind: Kind, object: &Value) -> Result<Created, CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(kind.create(client, object).await?),
            Self::Etcd(store) => etcd::create(store, kind, object).await,
        }
    }

    /// Creates the handle, or changes what differs in the existing one.
    ///
    /// # Errors
    ///
    /// The handle changed between read and write, or the store refuses a request or does not answer.
    pub async fn ensure_handle(
        &self,
        handle: &str,
        object: &Value,
        change: impl Fn(&Value) -> Option<Value>,
    ) -> Result<(), CalicoStoreError> {
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

    /// Merges `change` into the spec of the object as read.
    ///
    /// # Errors
    ///
    /// The object changed since it was read, or the store refuses the write or does not answer.
    pub async fn patch_spec(
        &self,
        kind: Kind,
        read: &DynamicObject,
        change: &Value,
    ) -> Result<(), CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(kind.patch_spec(client, read, change).await?),
            Self::Etcd(store) => etcd::patch_spec(store, kind, read, change).await,
        }
    }

    /// Deletes an object of the IPAM as read. In the Kubernetes API it is marked first, as Calico does: a concurrent write makes
    /// the mark fail, instead of being lost with the object. etcd compares and deletes in one transaction.
    ///
    /// # Errors
    ///
    /// The object changed since it was read, or the store refuses the write or does not answer.
    pub async fn delete_marked(&self, kind: Kind, read: &DynamicObject) -> Result<(), CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(kubernetes::delete_marked(client, kind, read).await?),
            Self::Etcd(store) => etcd::delete(store, kind, read).await,
        }
    }

    /// Deletes the `IPPool` of this name; a missing pool is not an error.
    ///
    /// # Errors
    ///
    /// The store refuses the deletion or does not answer; in etcd also when the pool changed between read and write.
    pub async fn delete_pool(&self, name: &str) -> Result<(), CalicoStoreError> {
        match self {
            Self::Kubernetes(client) => Ok(IP_POOL.delete(client, name).await?),
            Self::Etcd(store) => match self.pool(name).await? {
                Some(read) => etcd::delete(store, IP_POOL, &read).await,
                None => Ok(()),
            },
        }
    }
}
