//! What v2 is converted to, ready to be written: the same bytes whoever writes them, and however often.

use calico::etcd::uid;
use calico_datastore::convert::{Conversion, convert};
use calico_datastore::left::Left;
use calico_datastore::v2::{READY, Tree};
use calico_datastore::version::{VersionRefused, gate};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::backup::hexadecimal;
use crate::stores::CLUSTER_GUID;

/// v2 cannot be converted.
#[derive(Debug, Error)]
pub enum NotConvertible {
    /// Nothing is there.
    #[error("etcd v2 has nothing below /calico")]
    Empty,
    /// Its version.
    #[error("{0}")]
    Version(#[from] VersionRefused),
    /// Its values.
    #[error("{} values of etcd v2 cannot be converted, {} names would be the same", .0.conversion_errors.len() + .0.validation_errors.len(), .0.clashes.len())]
    Values(Box<Conversion>),
}

impl NotConvertible {
    /// What a person does about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Empty => "are these the endpoints of the etcd that Calico v2 uses?",
            Self::Version(_) => "upgrade Calico to the last release of v2.6 first, on every node",
            Self::Values(_) => {
                "each is named in the report: mend or remove them with calicoctl of v2, then try again"
            }
        }
    }
}

/// What v2 is converted to.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Everything that the conversion found.
    pub conversion: Option<Box<Conversion>>,
    /// `ClusterGUID`; empty when nothing was read or it says none.
    pub cluster: String,
    /// SHA-256 of keys and values without what only a run gives them: `uid` and time.
    pub hash: String,
    /// What the conversion leaves to Calico's controllers.
    pub left: Left,
}

/// One key as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
}

impl Prepared {
    /// Nothing but which cluster it is.
    pub fn nothing(cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            ..Self::default()
        }
    }

    /// Converts it.
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
            hash: hexadecimal(&hash.finalize()),
            left: Left::of(tree),
            conversion: Some(conversion),
        })
    }

    /// How many keys are written.
    pub fn objects(&self) -> usize {
        self.conversion
            .as_ref()
            .map_or(0, |conversion| conversion.objects.len())
    }

    /// The key at this place, as this run writes it.
    pub fn written(&self, place: usize, run: &str, taken_at: Timestamp) -> Option<Written> {
        let object = self.conversion.as_ref()?.objects.get(place)?;
        let mut value = object.value.clone();
        // Of what Calico's IPAM keeps, nothing has metadata.
        if let Some(metadata) = value.get_mut("metadata") {
            metadata["uid"] = json!(uid(run, &object.key));
            metadata["creationTimestamp"] = json!(taken_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
        Some(Written {
            key: object.key.clone(),
            value: bytes(&value),
        })
    }

    /// All of them.
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
    fn the_flag_does_not_change_what_is_converted_and_everything_else_does() {
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
    fn whoever_goes_on_writes_the_same_bytes() {
        let prepared = Prepared::of(&tree(&[])).unwrap();
        let at: Timestamp = "2026-11-24T07:00:00.5Z".parse().unwrap();
        let all = |run: &str| prepared.all(run, at).collect::<Vec<_>>();
        assert_eq!(all("a"), all("a"));
        assert_ne!(all("a"), all("b"), "another run is another uid");
        let value: Value = serde_json::from_slice(&all("a")[0].value).unwrap();
        assert_eq!(value["metadata"]["creationTimestamp"], "2026-11-24T07:00:00Z");
        let uid = value["metadata"]["uid"].as_str().unwrap();
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
    }

    #[test]
    fn what_cannot_be_converted_says_why() {
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
