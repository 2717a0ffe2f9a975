//! Profiles that kube-controllers derive from every namespace, and in v3 also from every service account.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Value, json};
use tracing::info;

use super::keys;
use super::resource::PROFILE;
use super::store::Store;
use crate::version::Generation;

/// Profiles by name, with the labels that they give to their endpoints.
pub type Wanted = BTreeMap<String, BTreeMap<String, String>>;

/// The source of one controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Namespaces.
    Namespaces,
    /// Service accounts: only in v3.
    ServiceAccounts,
}

impl Source {
    /// Prefix of the names of its profiles; other profiles belong to other writers.
    pub fn prefix(self, generation: Generation) -> &'static str {
        match (self, generation) {
            (Self::Namespaces, Generation::V2) => "k8s_ns.",
            (Self::Namespaces, Generation::V3) => "kns.",
            (Self::ServiceAccounts, _) => "ksa.",
        }
    }

    /// Prefix of the labels of its profiles.
    pub fn label_prefix(self) -> &'static str {
        match self {
            Self::Namespaces => "pcns.",
            Self::ServiceAccounts => "pcsa.",
        }
    }
}

/// Adjusts the profiles of a source: writes missing or different ones, deletes others.
pub async fn reconcile(store: &Store, source: Source, wanted: &Wanted) -> Result<()> {
    let prefix = source.prefix(store.generation);
    let names = names(store).await?;
    for name in names
        .iter()
        .filter(|name| name.starts_with(prefix) && !wanted.contains_key(*name))
    {
        delete(store, name).await?;
        info!("deleted profile {name}");
    }
    for (name, labels) in wanted {
        if write(store, name, labels).await? {
            info!("wrote profile {name}");
        }
    }
    Ok(())
}

async fn names(store: &Store) -> Result<BTreeSet<String>> {
    let directory = match store.generation {
        Generation::V2 => keys::PROFILES.to_owned(),
        Generation::V3 => keys::resources(PROFILE.plural),
    };
    let entries = store.list(&directory).await?;
    let names = entries.iter().filter_map(|entry| {
        let rest = entry.key.strip_prefix(&directory)?.strip_prefix('/')?;
        rest.split('/').next().map(str::to_owned)
    });
    Ok(names.collect())
}

async fn write(store: &Store, name: &str, labels: &BTreeMap<String, String>) -> Result<bool> {
    match store.generation {
        Generation::V2 => {
            let rules = r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#;
            let mut changed = false;
            for (part, value) in [
                ("tags", "[]".to_owned()),
                ("labels", json!(labels).to_string()),
                ("rules", rules.to_owned()),
            ] {
                let key = format!("{}/{name}/{part}", keys::PROFILES);
                if store.get(&key).await?.is_none_or(|found| found.value != value) {
                    store.put(&key, &value).await?;
                    changed = true;
                }
            }
            Ok(changed)
        }
        Generation::V3 => {
            let change = |spec: &mut Value| {
                *spec = json!({ "ingress": [rule()], "egress": [rule()] });
                if !labels.is_empty() {
                    spec["labelsToApply"] = json!(labels);
                }
            };
            let before = store.get(&PROFILE.key(name)).await?;
            PROFILE.ensure(store, name, change).await?;
            Ok(store.get(&PROFILE.key(name)).await? != before)
        }
    }
}

/// A rule that allows all traffic, with the empty parts that Calico writes.
fn rule() -> Value {
    json!({ "action": "Allow", "source": {}, "destination": {} })
}

async fn delete(store: &Store, name: &str) -> Result<()> {
    match store.generation {
        Generation::V2 => {
            let directory = format!("{}/{name}", keys::PROFILES);
            for entry in store.list(&directory).await? {
                store.delete(&entry).await?;
            }
            store.delete_empty(&directory).await?;
        }
        Generation::V3 => {
            if let Some(entry) = store.get(&PROFILE.key(name)).await? {
                // A conflict means that another writer has written it: the next pass reads it.
                store.delete(&entry).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(names: &[&str]) -> Wanted {
        let labels = || BTreeMap::from([("pcns.team".to_owned(), "x".to_owned())]);
        names.iter().map(|name| ((*name).to_owned(), labels())).collect()
    }

    #[tokio::test]
    async fn profiles_are_written_and_deleted_with_their_namespaces() {
        for generation in [Generation::V2, Generation::V3] {
            let store = Store::in_memory(generation);
            let prefix = Source::Namespaces.prefix(generation);
            let (one, two) = (format!("{prefix}one"), format!("{prefix}two"));
            let pass = async |all: &[&str]| {
                reconcile(&store, Source::Namespaces, &wanted(all)).await.unwrap();
                names(&store).await.unwrap()
            };
            let both: BTreeSet<String> = [one.clone(), two.clone()].into();
            assert_eq!(pass(&[&one, &two]).await, both);
            let before = store.list("/calico").await.unwrap();
            pass(&[&one, &two]).await;
            assert_eq!(store.list("/calico").await.unwrap(), before, "written once");
            reconcile(&store, Source::ServiceAccounts, &wanted(&["ksa.d.a"]))
                .await
                .unwrap();
            assert_eq!(
                pass(&[&two]).await,
                BTreeSet::from([two.clone(), "ksa.d.a".to_owned()])
            );
        }
    }

    #[tokio::test]
    async fn a_profile_of_v2_has_three_keys() {
        let store = Store::in_memory(Generation::V2);
        reconcile(&store, Source::Namespaces, &wanted(&["k8s_ns.a"]))
            .await
            .unwrap();
        let value = async |part: &str| {
            let key = format!("/calico/v1/policy/profile/k8s_ns.a/{part}");
            store.get(&key).await.unwrap().unwrap().value
        };
        assert_eq!(value("tags").await, "[]");
        assert_eq!(value("labels").await, r#"{"pcns.team":"x"}"#);
        assert!(value("rules").await.contains("inbound_rules"));
    }
}
