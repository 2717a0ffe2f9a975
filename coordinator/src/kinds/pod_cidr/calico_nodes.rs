//! Nodes in Calico's datastore, and writes that take a node off a pool. Each write has the version that was read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::api::DynamicObject;
use kube::{Api, Client, ResourceExt};
use pod_cidr::calico_node::{CalicoNode, off_in_etcd, off_in_kubernetes};
use pod_cidr::pools::OFF_LABEL;
use pod_cidr::tunnel::TunnelAllocation;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::calico::error::CalicoStoreError;
use crate::calico::etcd;
use crate::calico::store::Store;
use crate::read;
use crate::write::{self, WriteError};

/// Every node, by its name. In etcd nodes are Calico's own objects, and Nodes that Calico does not have have no tunnel.
pub async fn read(store: &Store, cache: &Cache) -> Result<BTreeMap<String, CalicoNode>, CalicoStoreError> {
    Ok(match store {
        Store::Kubernetes(_) => {
            let nodes = cache.nodes.state();
            let nodes = nodes.iter().map(|node| {
                let found = CalicoNode::in_kubernetes(node.labels(), node.annotations());
                (node.name_any(), found)
            });
            nodes.collect()
        }
        Store::Etcd(store) => {
            let known = |node: DynamicObject| {
                let found = CalicoNode::in_etcd(node.labels(), &node.data["spec"]);
                Some((node.name_any(), found))
            };
            etcd::each_node(store, known).await?.into_iter().collect()
        }
    })
}

/// Takes this node off the pool of this mark, and gives its tunnels these addresses. A deleted node is no error.
pub async fn take_off(
    store: &Store,
    name: &str,
    mark: &str,
    ends: &BTreeMap<String, TunnelAllocation>,
) -> Result<(), CalicoStoreError> {
    match store {
        Store::Kubernetes(client) => {
            if let Some(node) = read::node(client, name).await? {
                label(client, &node, &off_in_kubernetes(mark, ends)).await?;
            }
        }
        Store::Etcd(store) => {
            if let Some(node) = etcd::node(store, name).await? {
                etcd::patch_node(store, &node, &off_in_etcd(mark, ends)).await?;
            }
        }
    }
    Ok(())
}

/// Removes the label from every node that has it.
pub async fn forget(store: &Store, cache: &Cache) -> Result<(), CalicoStoreError> {
    let change = json!({ "metadata": { "labels": { OFF_LABEL: null } } });
    match store {
        Store::Kubernetes(client) => {
            for node in cache.nodes.state() {
                if node.labels().contains_key(OFF_LABEL) {
                    label(client, &node, &change).await?;
                }
            }
        }
        Store::Etcd(store) => {
            let is_off = |node: &DynamicObject| node.labels().contains_key(OFF_LABEL);
            for node in etcd::each_node(store, |node| Some(node).filter(is_off)).await? {
                etcd::patch_node(store, &node, &change).await?;
            }
        }
    }
    Ok(())
}

async fn label(client: &Client, node: &Node, change: &Value) -> Result<(), WriteError> {
    let api: Api<Node> = Api::all(client.clone());
    write::patch(&api, node, "labelling", change).await.map(drop)
}
