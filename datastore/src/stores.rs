//! Reads the objects of both stores that a conversion depends on.

use std::sync::Arc;

use calico_datastore::controller_objects::{ControllerObjects, DIRECTORIES};
use calico_datastore::run::decide::{ReadyV2, ReadyV3};
use calico_datastore::run::record::{PREFIX, Record};
use calico_datastore::v2;
use serde_json::Value;

use crate::access::Access;
use crate::error::StoreError;
use crate::etcd2::Etcd2;
use crate::etcd3::{Entry, Etcd3};

/// Prefix of all of Calico's keys in v3.
pub const ROOT: &str = "/calico/";
/// Key of the object with the flag of v3.
pub const CLUSTER_INFORMATION: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

/// Key in v2 with the name of the cluster.
pub const CLUSTER_GUID: &str = "/calico/v1/config/ClusterGUID";

/// Key of the record.
pub fn record_key() -> String {
    format!("{PREFIX}run")
}

/// Key of the copy of a former key of v3.
pub fn copy_key(key: &str) -> String {
    format!("{}{key}", copies_prefix())
}

/// Prefix of all copies.
pub fn copies_prefix() -> String {
    format!("{PREFIX}before")
}

/// Both stores.
#[derive(Debug)]
pub struct Stores {
    /// The store of Calico v2.
    pub v2: Etcd2,
    /// The store of Calico v3.
    pub v3: Arc<Etcd3>,
}

/// The record, and the revision of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The record.
    pub record: Record,
    /// The revision.
    pub revision: i64,
}

impl Stores {
    /// Connects to both stores and reads their versions. Changes nothing.
    ///
    /// # Errors
    ///
    /// A store does not answer, refuses the connection, or does not have the API of its version.
    pub async fn connect(v2: &Access, v3: &Access) -> Result<Self, StoreError> {
        let (v2, v3) = tokio::join!(Etcd2::connect(v2), Etcd3::connect(v3));
        Ok(Self {
            v2: v2?,
            v3: Arc::new(v3?),
        })
    }

    /// The same for a caller that reads regularly: an unreachable store is reported at once.
    ///
    /// # Errors
    ///
    /// A store does not answer, refuses the connection, or does not have the API of its version.
    pub async fn connect_for_observation(v2: &Access, v3: &Access) -> Result<Self, StoreError> {
        let (v2, v3) = tokio::join!(Etcd2::connect(v2), Etcd3::connect(v3));
        let (mut v2, mut v3) = (v2?, v3?);
        v2.be_impatient();
        v3.be_impatient();
        Ok(Self { v2, v3: Arc::new(v3) })
    }

    /// The record of a conversion.
    ///
    /// # Errors
    ///
    /// etcd v3 does not answer, or another version of this tool wrote the record.
    pub async fn record(&self) -> Result<Option<Recorded>, StoreError> {
        let Some(entry) = self.v3.get(&record_key()).await? else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&entry.value).map_err(|error| StoreError::Answer {
            store: crate::access::V3,
            attempt: format!("reading {}", record_key()),
            why: format!("the record cannot be read by this version of the tool: {error}"),
        })?;
        Ok(Some(Recorded {
            record,
            revision: entry.revision,
        }))
    }

    /// Whether Calico works with v2.
    ///
    /// # Errors
    ///
    /// etcd v2 does not answer, or the key is a directory.
    pub async fn ready_v2(&self) -> Result<ReadyV2, StoreError> {
        let flag = self.v2.get(v2::READY).await?;
        Ok(ReadyV2::of(flag.as_ref().map(|flag| flag.value.as_str())))
    }

    /// Name of the cluster in v2; empty when it is not set.
    ///
    /// # Errors
    ///
    /// etcd v2 does not answer, or the key is a directory.
    pub async fn cluster(&self) -> Result<String, StoreError> {
        let found = self.v2.get(CLUSTER_GUID).await?;
        Ok(found.map(|found| found.value).unwrap_or_default())
    }

    /// Objects that Calico's controllers write and not the conversion, by v2 as it is now.
    ///
    /// # Errors
    ///
    /// etcd v2 does not answer, refuses a read, or sends an answer that cannot be read.
    pub async fn remaining(&self) -> Result<ControllerObjects, StoreError> {
        let [profiles, policies] = DIRECTORIES.map(|directory| self.v2.below(directory));
        let (mut tree, policies) = tokio::try_join!(profiles, policies)?;
        tree.values.extend(policies.values);
        Ok(ControllerObjects::of(&tree))
    }

    /// The given objects that are missing in v3.
    ///
    /// # Errors
    ///
    /// etcd v3 does not answer, refuses a read, or sends an answer that cannot be read.
    pub async fn missing(&self, left: ControllerObjects) -> Result<ControllerObjects, StoreError> {
        if left.is_empty() {
            return Ok(left);
        }
        let [profiles, policies] = ControllerObjects::prefixes();
        let (profiles, policies) = tokio::try_join!(self.v3.list(&profiles), self.v3.list(&policies))?;
        let keys = profiles.iter().chain(&policies).map(|entry| entry.key.as_str());
        Ok(left.missing(keys))
    }

    /// `ClusterInformation` of v3.
    ///
    /// # Errors
    ///
    /// etcd v3 does not answer, or the value is not JSON.
    pub async fn cluster_information(&self) -> Result<Option<(Entry, Value)>, StoreError> {
        let Some(entry) = self.v3.get(CLUSTER_INFORMATION).await? else {
            return Ok(None);
        };
        let value = entry.json().map_err(|error| StoreError::Answer {
            store: crate::access::V3,
            attempt: format!("reading {CLUSTER_INFORMATION}"),
            why: format!("the value is not JSON: {error}"),
        })?;
        Ok(Some((entry, value)))
    }
}

/// Whether Calico works with v3, by `ClusterInformation`. An object without the flag is not open: Calico's CNI plugin crashes on
/// it.
///
/// # Errors
///
/// `spec.datastoreReady` is neither true nor false.
pub fn ready_v3(information: Option<&Value>) -> Result<ReadyV3, StoreError> {
    match information.map(|value| &value["spec"]["datastoreReady"]) {
        None => Ok(ReadyV3::Missing),
        Some(Value::Bool(true)) => Ok(ReadyV3::Open),
        Some(Value::Bool(false) | Value::Null) => Ok(ReadyV3::Paused),
        Some(other) => Err(StoreError::Answer {
            store: crate::access::V3,
            attempt: format!("reading {CLUSTER_INFORMATION}"),
            why: format!("spec.datastoreReady is {other}, needed true or false"),
        }),
    }
}
