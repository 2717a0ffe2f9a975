//! Objects of Calico v3 in etcd: JSON with `kind`, `apiVersion`, `metadata` and `spec` under one key each.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::store::{Entry, Store};
use super::{identifier, keys};

/// Number of attempts of a guarded write.
const TRIES: usize = 100;

/// A kind of object without a namespace.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The name in the object.
    pub name: &'static str,
    /// The name in the key.
    pub plural: &'static str,
}

/// Cluster information for all components.
pub const CLUSTER_INFORMATION: Kind = Kind {
    name: "ClusterInformation",
    plural: "clusterinformations",
};
/// Settings of Felix.
pub const FELIX_CONFIGURATION: Kind = Kind {
    name: "FelixConfiguration",
    plural: "felixconfigurations",
};
/// A range of pod addresses.
pub const POOL: Kind = Kind {
    name: "IPPool",
    plural: "ippools",
};
/// A host.
pub const NODE: Kind = Kind {
    name: "Node",
    plural: "nodes",
};
/// The common settings of the endpoints of a namespace or a service account.
pub const PROFILE: Kind = Kind {
    name: "Profile",
    plural: "profiles",
};

impl Kind {
    /// The key of the object with this name.
    pub fn key(self, name: &str) -> String {
        format!("{}/{name}", keys::resources(self.plural))
    }

    /// The object with this name, with its entry.
    pub async fn get(self, store: &Store, name: &str) -> Result<Option<(Entry, Value)>> {
        match store.get(&self.key(name)).await? {
            Some(entry) => {
                let value = parse(&entry)?;
                Ok(Some((entry, value)))
            }
            None => Ok(None),
        }
    }

    /// Every object, with its entry.
    pub async fn list(self, store: &Store) -> Result<Vec<(Entry, Value)>> {
        let entries = store.list(&keys::resources(self.plural)).await?;
        let parsed = entries.into_iter().map(|entry| {
            let value = parse(&entry)?;
            Ok((entry, value))
        });
        parsed.collect()
    }

    /// Creates an object; `false` if one with its name exists.
    pub async fn create(self, store: &Store, name: &str, spec: Value) -> Result<bool> {
        let object = object(self.name, json!({ "name": name }), &spec)?;
        store.create(&self.key(name), &object.to_string()).await
    }

    /// Creates an object with an empty spec edited by `change`, or edits the existing one. Without a change there is no write.
    pub async fn ensure(self, store: &Store, name: &str, change: impl Fn(&mut Value)) -> Result<()> {
        for _ in 0..TRIES {
            let done = match self.get(store, name).await? {
                None => {
                    let mut spec = json!({});
                    change(&mut spec);
                    self.create(store, name, spec).await?
                }
                Some((entry, mut object)) => {
                    let before = object.clone();
                    change(&mut object["spec"]);
                    object == before || store.replace(&entry, &object.to_string()).await?
                }
            };
            if done {
                return Ok(());
            }
        }
        anyhow::bail!(
            "write {} {name}: another writer was faster {TRIES} times",
            self.name
        )
    }
}

/// A new object: Calico gives it an identifier and the time of its creation.
pub fn object(kind: &str, mut metadata: Value, spec: &Value) -> Result<Value> {
    metadata["uid"] = json!(identifier::uuid()?);
    metadata["creationTimestamp"] = json!(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    Ok(json!({
        "kind": kind,
        "apiVersion": "projectcalico.org/v3",
        "metadata": metadata,
        "spec": spec,
    }))
}

/// An entry's value as JSON.
pub fn parse(entry: &Entry) -> Result<Value> {
    serde_json::from_str(&entry.value).with_context(|| format!("read {}: it is not JSON", entry.key))
}
