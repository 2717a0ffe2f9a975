//! The sizes of replumb's objects.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use api::names;
use futures::StreamExt;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use tokio::task::JoinSet;

/// The largest object of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Largest {
    /// The name.
    pub name: String,
    /// Bytes of its JSON, as in etcd.
    pub bytes: usize,
}

/// Follows every object of the group and keeps the size of the largest, by resource.
#[derive(Debug)]
pub struct Objects {
    largest: Arc<Mutex<BTreeMap<String, Largest>>>,
    tasks: JoinSet<()>,
}

impl Objects {
    /// Starts to follow every kind that the group serves.
    pub async fn follow(client: &Client) -> Result<Self> {
        let group = format!("{}/{}", names::GROUP, names::VERSION);
        let served = client
            .list_api_group_resources(&group)
            .await
            .with_context(|| format!("read the kinds of {group}"))?;
        let largest = Arc::new(Mutex::new(BTreeMap::new()));
        let mut tasks = JoinSet::new();
        for resource in served
            .resources
            .into_iter()
            .filter(|resource| !resource.name.contains('/'))
        {
            let kind = ApiResource {
                group: names::GROUP.to_owned(),
                version: names::VERSION.to_owned(),
                api_version: group.clone(),
                kind: resource.kind,
                plural: resource.name,
            };
            tasks.spawn(follow(client.clone(), kind, Arc::clone(&largest)));
        }
        Ok(Self { largest, tasks })
    }

    /// The largest so far, by resource.
    pub fn largest(&self) -> BTreeMap<String, Largest> {
        self.largest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// An error once one of the kinds is no longer followed.
    pub fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => anyhow::bail!(
                "the objects of {} are no longer followed: {ended:?}",
                names::GROUP
            ),
        }
    }
}

async fn follow(client: Client, kind: ApiResource, largest: Arc<Mutex<BTreeMap<String, Largest>>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &kind);
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        // The watcher restarts a broken watch, and reads every object once more.
        let Ok(Event::Apply(object) | Event::InitApply(object)) = event else {
            continue;
        };
        let Ok(text) = serde_json::to_vec(&object) else {
            continue;
        };
        let mut largest = largest.lock().unwrap_or_else(PoisonError::into_inner);
        let known = largest.entry(kind.plural.clone()).or_default();
        if text.len() > known.bytes {
            *known = Largest {
                name: object.name_any(),
                bytes: text.len(),
            };
        }
    }
}
