//! Copies of Felix's input objects, updated by watches.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tracing::warn;

use crate::datastore::types::{FelixConfiguration, IPAMBlock, IPPool};

/// The objects.
pub struct Cache {
    /// Nodes, for their annotations.
    pub nodes: Store<Node>,
    /// Blocks.
    pub blocks: Store<IPAMBlock>,
    /// Pools.
    pub pools: Store<IPPool>,
    /// Settings.
    pub configurations: Store<FelixConfiguration>,
    /// Pods of this node.
    pub pods: Store<Pod>,
    /// Notified at each change.
    pub changed: Arc<Notify>,
}

impl Cache {
    /// Starts the watches and waits for the first list of each kind.
    pub async fn start(client: &Client, node: &str) -> Result<Self> {
        let changed = Arc::new(Notify::new());
        let everything = watcher::Config::default().any_semantic();
        let local = everything.clone().fields(&format!("spec.nodeName={node}"));
        let cache = Self {
            nodes: follow(Api::all(client.clone()), everything.clone(), &changed),
            blocks: follow(Api::all(client.clone()), everything.clone(), &changed),
            pools: follow(Api::all(client.clone()), everything.clone(), &changed),
            configurations: follow(Api::all(client.clone()), everything, &changed),
            pods: follow(Api::all(client.clone()), local, &changed),
            changed,
        };
        cache.nodes.wait_until_ready().await.context("list the nodes")?;
        cache
            .blocks
            .wait_until_ready()
            .await
            .context("list the IPAM blocks")?;
        cache.pools.wait_until_ready().await.context("list the pools")?;
        cache
            .configurations
            .wait_until_ready()
            .await
            .context("list the FelixConfigurations")?;
        cache
            .pods
            .wait_until_ready()
            .await
            .context("list the node's pods")?;
        Ok(cache)
    }
}

fn follow<K>(api: Api<K>, config: watcher::Config, changed: &Arc<Notify>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let changed = Arc::clone(changed);
    tokio::spawn(async move {
        let stream = reflector::reflector(writer, watcher(api, config).default_backoff());
        futures::pin_mut!(stream);
        let mut failures = BTreeSet::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(_) => {
                    failures.clear();
                    changed.notify_one();
                }
                // Once for each different failure: an unavailable API server fails every second.
                Err(error) => {
                    if failures.insert(error.to_string()) {
                        warn!("watch every {}: {error}; retrying", K::kind(&()));
                    }
                }
            }
        }
    });
    store
}
