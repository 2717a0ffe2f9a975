//! Calico's objects, read and written as stored: in `crd.projectcalico.org/v1`, or, with Calico's etcd datastore, through
//! [`store`].

pub mod error;
pub mod etcd;
mod kubernetes;
pub mod store;

use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::lenient_requests;
use crate::read_error::ReadError;
use crate::write::{WriteError, parameters, post_parameters};

/// A resource of Calico: kind and plural name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(pub &'static str, pub &'static str);

/// `IPPool`.
pub const IP_POOL: Kind = Kind("IPPool", "ippools");
/// `FelixConfiguration`.
pub const FELIX_CONFIGURATION: Kind = Kind("FelixConfiguration", "felixconfigurations");
/// `IPAMConfig`.
pub const IPAM_CONFIG: Kind = Kind("IPAMConfig", "ipamconfigs");
/// `IPAMBlock`.
pub const IPAM_BLOCK: Kind = Kind("IPAMBlock", "ipamblocks");
/// `IPReservation`: addresses that Calico's IPAM does not assign; since v3.22.
pub const IP_RESERVATION: Kind = Kind("IPReservation", "ipreservations");
/// `BlockAffinity`.
pub const BLOCK_AFFINITY: Kind = Kind("BlockAffinity", "blockaffinities");
/// `Node`, a resource of Calico in etcd only.
pub const NODE: Kind = Kind("Node", "nodes");
/// `IPAMHandle`.
pub const IPAM_HANDLE: Kind = Kind("IPAMHandle", "ipamhandles");

impl Kind {
    fn api(self, client: &Client) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("crd.projectcalico.org", "v1", self.0);
        Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, self.1))
    }

    fn describe(self, name: &str) -> String {
        format!("{} {name}", self.0)
    }

    /// Every object of the kind; empty if the kind is not served. For kinds with few objects.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn list(self, client: &Client) -> Result<Vec<DynamicObject>, ReadError> {
        self.each(client, Some).await
    }

    /// Collects what `choose` returns for each object of the kind, page by page: there may be several objects for each node, and
    /// few are in memory at once. Empty if the kind is not served.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn each<T>(
        self,
        client: &Client,
        choose: impl FnMut(DynamicObject) -> Option<T>,
    ) -> Result<Vec<T>, ReadError> {
        self.pages(client, ListParams::default(), choose).await
    }

    /// The same for objects of the kind with these labels.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn each_labelled<T>(
        self,
        client: &Client,
        labels: &str,
        choose: impl FnMut(DynamicObject) -> Option<T>,
    ) -> Result<Vec<T>, ReadError> {
        self.pages(client, ListParams::default().labels(labels), choose)
            .await
    }

    async fn pages<T>(
        self,
        client: &Client,
        asked: ListParams,
        choose: impl FnMut(DynamicObject) -> Option<T>,
    ) -> Result<Vec<T>, ReadError> {
        match lenient_requests::pages(&self.api(client), asked, choose).await {
            // An unknown resource is answered with plain text, without the reason NotFound.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            found => found.map_err(|source| ReadError::of("listing", self.1, source)),
        }
    }

    /// The object of this name, if there is one.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn get(self, client: &Client, name: &str) -> Result<Option<DynamicObject>, ReadError> {
        match lenient_requests::get_opt(&self.api(client), name).await {
            Ok(found) => Ok(found),
            // No object of this name, or, as plain text, no such kind: see above.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(source) => Err(ReadError::of("reading", self.describe(name), source)),
        }
    }

    /// Creates the object; an existing object is not an error.
    ///
    /// # Errors
    ///
    /// The API server refuses the write or does not answer.
    pub async fn create(self, client: &Client, object: &Value) -> Result<Created, WriteError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let attempt = |source| WriteError::of("creating", self.describe(&name), source);
        let object: DynamicObject = serde_json::from_value(object.clone())
            .map_err(|source| attempt(kube::Error::SerdeError(source)))?;
        match self.api(client).create(&post_parameters(), &object).await {
            Ok(_) => Ok(Created::Now),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(Created::Before),
            Err(source) => Err(attempt(source)),
        }
    }

    /// Creates the object, or patches what differs in the existing one.
    ///
    /// # Errors
    ///
    /// The object changed between read and write, or the API server refuses a request or does not answer.
    pub async fn ensure(
        self,
        client: &Client,
        object: &Value,
        change: impl Fn(&Value) -> Option<Value>,
    ) -> Result<(), WriteError> {
        if self.create(client, object).await? == Created::Now {
            return Ok(());
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        self.amend(client, name, change).await?;
        Ok(())
    }

    /// Patches what differs in the object of this name. Returns whether the object exists.
    ///
    /// # Errors
    ///
    /// The object changed between read and write, or the API server refuses a request or does not answer.
    pub async fn amend(
        self,
        client: &Client,
        name: &str,
        change: impl Fn(&Value) -> Option<Value>,
    ) -> Result<bool, WriteError> {
        let Some(found) = self.get(client, name).await? else {
            return Ok(false);
        };
        let spec = found.data.get("spec").cloned().unwrap_or_default();
        if let Some(change) = change(&spec) {
            self.patch_spec(client, &found, &change).await?;
        }
        Ok(true)
    }

    /// Applies a merge patch to the object as read; `change` goes under `spec`.
    ///
    /// # Errors
    ///
    /// The object changed since it was read, or the API server refuses the write or does not answer.
    pub async fn patch_spec(
        self,
        client: &Client,
        read: &DynamicObject,
        change: &Value,
    ) -> Result<(), WriteError> {
        let patch = json!({
            "metadata": { "resourceVersion": read.metadata.resource_version },
            "spec": change,
        });
        lenient_requests::patch(
            &self.api(client),
            &read.name_any(),
            &parameters(),
            &Patch::Merge(patch),
        )
        .await
        .map_err(|source| WriteError::of("patching", self.describe(&read.name_any()), source))?;
        Ok(())
    }

    /// Deletes the object of this name; a missing object is not an error.
    ///
    /// # Errors
    ///
    /// The API server refuses the write or does not answer.
    pub async fn delete(self, client: &Client, name: &str) -> Result<(), WriteError> {
        match lenient_requests::delete(&self.api(client), name, &DeleteParams::default()).await {
            Ok(()) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(source) => Err(WriteError::of("deleting", self.describe(name), source)),
        }
    }
}

/// Whether an object was created by this call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// By this call.
    Now,
    /// The object existed.
    Before,
}
