//! The converted data of v2, ready to be written. The bytes are the same for every process and every attempt.

use calico::etcd::uid;
use calico_datastore::controller_objects::ControllerObjects;
use calico_datastore::convert::{Conversion, convert};
use calico_datastore::v2::{READY, Tree};
use calico_datastore::version::{VersionRefused, gate};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::stores::CLUSTER_GUID;

/// Reason why the data of v2 cannot be converted.
#[derive(Debug, Error)]
pub enum NotConvertible {
    /// v2 has no data.
    #[error("etcd v2 has no data below /calico")]
    Empty,
    /// The version of Calico is not supported.
    #[error("{0}")]
    Version(#[from] VersionRefused),
    /// Some values cannot be converted.
    #[error(
        "values of etcd v2 that cannot be converted: {}, names that would collide: {}",
        .0.conversion_errors.len() + .0.validation_errors.len(),
        .0.clashes.len()
    )]
    Values(Box<Conversion>),
}

impl NotConvertible {
    /// The fix for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Empty => "check that these are the endpoints of the etcd of Calico v2",
            Self::Version(_) => "upgrade Calico to the last release of v2.6 first, on every node",
            Self::Values(_) => {
                "the report names each value: correct or remove it with calicoctl of v2, then try again"
            }
        }
    }
}

/// The converted data of v2.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// The whole result of the conversion.
    pub conversion: Option<Box<Conversion>>,
    /// `ClusterGUID`; empty when it was not read or is not set.
    pub cluster: String,
    /// SHA-256 of keys and values without `uid` and time, which differ in each run.
    pub hash: String,
    /// Objects that Calico's controllers write and not the conversion.
    pub remaining: ControllerObjects,
}

/// One key with the value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
}

impl Prepared {
    /// No data, only the cluster.
    pub fn without_data(cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            ..Self::default()
        }
    }

    /// Converts the data of v2.
    ///
    /// # Errors
    ///
    /// The store is empty, its version cannot be migrated, or a value cannot be converted.
    pub fn of(tree: &Tree) -> Result<Self, NotConvertible> {
        if tree.values.keys().all(|key| key == READY) {
            return Err(NotConvertible::Empty);
        }
        gate(tree.calico_version())?;
        let conversion = Box::new(convert(tree));
        if !conversion.has_resources() {
            return Err(NotConvertible::Empty);
        }
        if !conversion.is_clean() {
            return Err(NotConvertible::Values(conversion));
        }
        let mut hash = Sha256::new();
        for object in &conversion.objects {
            hash.update(object.key.as_bytes());
            hash.update([0]);
            hash.update(object.value.to_string().as_bytes());
            hash.update([0]);
        }
        Ok(Self {
            cluster: tree.value(CLUSTER_GUID).unwrap_or_default().to_owned(),
            hash: HEXLOWER.encode(&hash.finalize()),
            remaining: ControllerObjects::of(tree),
            conversion: Some(conversion),
        })
    }

    /// Number of keys to write.
    pub fn objects(&self) -> usize {
        self.conversion
            .as_ref()
            .map_or(0, |conversion| conversion.objects.len())
    }

    /// The key at this position, as this run writes it.
    pub fn written(&self, place: usize, run: &str, taken_at: Timestamp) -> Option<Written> {
        let object = self.conversion.as_ref()?.objects.get(place)?;
        let mut value = object.value.clone();
        // Objects of Calico's IPAM have no metadata.
        if let Some(metadata) = value.get_mut("metadata") {
            metadata["uid"] = json!(uid(run, &object.key));
            metadata["creationTimestamp"] = json!(taken_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
        Some(Written {
            key: object.key.clone(),
            value: bytes(&value),
        })
    }

    /// All keys, as this run writes them.
    pub fn all(&self, run: &str, taken_at: Timestamp) -> impl Iterator<Item = Written> {
        (0..self.objects()).filter_map(move |place| self.written(place, run, taken_at))
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn tree(more: &[(&str, &str)]) -> Tree {
        let base = [
            ("/calico/v1/Ready", "true"),
            ("/calico/v1/config/CalicoVersion", "v2.6.12"),
        ];
        let all = base.iter().chain(more);
        let values: BTreeMap<String, String> = all
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Tree::of(values)
    }

    #[test]
    fn the_hash_ignores_the_ready_flag_and_depends_on_all_other_keys() {
        let hash = |tree: &Tree| Prepared::of(tree).unwrap().hash;
        let before = tree(&[]);
        let mut paused = before.clone();
        paused
            .values
            .insert("/calico/v1/Ready".to_owned(), "false".to_owned());
        assert_eq!(hash(&before), hash(&paused));
        assert_ne!(
            hash(&before),
            hash(&tree(&[("/calico/v1/config/ClusterGUID", "x")]))
        );
    }

    #[test]
    fn the_same_run_writes_the_same_bytes_again() {
        let prepared = Prepared::of(&tree(&[])).unwrap();
        let at: Timestamp = "2026-11-24T07:00:00.5Z".parse().unwrap();
        let all = |run: &str| prepared.all(run, at).collect::<Vec<_>>();
        assert_eq!(all("a"), all("a"));
        assert_ne!(all("a"), all("b"), "another run has another uid");
        let value: Value = serde_json::from_slice(&all("a")[0].value).unwrap();
        assert_eq!(value["metadata"]["creationTimestamp"], "2026-11-24T07:00:00Z");
        let uid = value["metadata"]["uid"].as_str().unwrap();
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
    }

    #[test]
    fn data_that_cannot_be_converted_is_refused_with_its_cause() {
        let empty = Prepared::of(&Tree::default()).unwrap_err();
        assert!(matches!(empty, NotConvertible::Empty));
        let bad = tree(&[("/calico/v1/policy/tier/default/policy/p", "{not json")]);
        let refused = Prepared::of(&bad).unwrap_err();
        assert!(
            matches!(&refused, NotConvertible::Values(found) if found.conversion_errors.len() == 1),
            "{refused}"
        );
    }
}
