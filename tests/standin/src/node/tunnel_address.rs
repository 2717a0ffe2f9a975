//! The address of the node's tunnel device: kept when the IPAM agrees that it is the node's, else a new one.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::environment::Environment;
use crate::datastore::types::{IPPool, IPPoolSpec};
use crate::datastore::{self, Store};
use crate::felix::model;
use crate::ipam::block::Owner;
use crate::ipam::{Ipam, Use, names, selects_node};

/// Makes the address right, and then again at each change of the pools.
pub async fn run(environment: &Environment, once: bool) -> Result<()> {
    let name = environment.node_name()?;
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    reconcile(&client, &name).await?;
    if once {
        return Ok(());
    }
    let pools: Api<IPPool> = Api::all(client.clone());
    let changes = watcher(pools, watcher::Config::default().any_semantic()).default_backoff();
    pin_mut!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(_) => reconcile(&client, &name).await?,
            Err(error) => warn!("watch the pools: {error}; trying again"),
        }
    }
    Ok(())
}

async fn reconcile(client: &Client, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes
        .get(name)
        .await
        .with_context(|| format!("read Node {name}"))?;
    let pools: Vec<IPPool> = Store::new(client).list("").await?;
    let mut usable: Vec<&IPPoolSpec> = Vec::new();
    for pool in &pools {
        // As in Calico's own allocateip: a pool that does not select the node gives no tunnel an address.
        if fits(&pool.spec) && selects_node(&pool.spec, node.labels())? {
            usable.push(&pool.spec);
        }
    }
    let noted: Option<Ipv4Addr> = node
        .annotations()
        .get(model::TUNNEL_ADDRESS)
        .and_then(|address| address.parse().ok());
    let ipam = Ipam::new(client, name);
    let handle = names::tunnel_handle(name);
    if usable.is_empty() {
        ipam.release(&handle).await?;
        if noted.is_some() {
            info!("no enabled pool with VXLAN selects the node: the tunnel's address is given back");
            annotate(&nodes, name, Value::Null).await?;
        }
        return Ok(());
    }
    if let Some(address) = noted {
        let in_pool = usable
            .iter()
            .any(|pool| pool.range().is_some_and(|range| range.contains(&address)));
        match ipam.holder(address).await? {
            Some(holder) if is_tunnel(&holder, name) && in_pool => return Ok(()),
            Some(holder) if !is_tunnel(&holder, name) => {
                warn!(%address, ?holder, "current address is occupied, assign a new one");
            }
            _ => {
                info!(%address, "current address is not assigned, or not in a valid pool: assign a new one");
                ipam.release(&handle).await?;
            }
        }
    } else {
        ipam.release(&handle).await?;
    }
    let owner = Owner {
        handle,
        attributes: BTreeMap::from([
            ("node".to_owned(), name.to_owned()),
            ("type".to_owned(), "vxlanTunnelAddress".to_owned()),
        ]),
    };
    let requested: Vec<String> = usable.iter().map(|pool| pool.cidr.clone()).collect();
    let address = ipam.assign_any(&owner, Use::Tunnel, &requested).await?.addr();
    annotate(&nodes, name, json!(address.to_string())).await?;
    info!(%address, "assigned a new tunnel address");
    Ok(())
}

fn fits(pool: &IPPoolSpec) -> bool {
    let tunnel = pool
        .allowed_uses
        .as_ref()
        .is_none_or(|uses| uses.is_empty() || uses.iter().any(|it| it == "Tunnel"));
    !pool.disabled && pool.is_vxlan() && tunnel
}

fn is_tunnel(holder: &Owner, node: &str) -> bool {
    let attribute = |name: &str| holder.attributes.get(name).map(String::as_str);
    attribute("type") == Some("vxlanTunnelAddress") && attribute("node") == Some(node)
}

async fn annotate(nodes: &Api<Node>, name: &str, address: Value) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {model::TUNNEL_ADDRESS: address}}});
    let written = nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await;
    written.with_context(|| format!("write the annotation {} of Node {name}", model::TUNNEL_ADDRESS))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::{CALICO, FakeApi};

    fn api() -> FakeApi {
        let api = FakeApi::default();
        api.put("/api/v1/nodes/n1", json!({}));
        api.put(
            &pool("old"),
            json!({ "spec": { "cidr": "10.244.0.0/26", "vxlanMode": "Always" } }),
        );
        api
    }

    fn pool(name: &str) -> String {
        format!("{CALICO}/ippools/{name}")
    }

    async fn address(api: &FakeApi) -> String {
        reconcile(&api.client(), "n1").await.unwrap();
        let node = api.get("/api/v1/nodes/n1").unwrap();
        let address = &node["metadata"]["annotations"][model::TUNNEL_ADDRESS];
        address.as_str().unwrap_or_default().to_owned()
    }

    fn handle(api: &FakeApi) -> Vec<String> {
        let object = api.get(&format!("{CALICO}/ipamhandles/vxlan-tunnel-addr-n1"));
        let blocks = object.map(|object| object["spec"]["block"].as_object().cloned().unwrap_or_default());
        blocks.unwrap_or_default().keys().cloned().collect()
    }

    #[tokio::test]
    async fn the_address_stays_while_its_pool_is_enabled_and_moves_when_it_is_disabled() {
        let api = api();
        assert_eq!(address(&api).await, "10.244.0.0");
        api.put(
            &pool("new"),
            json!({ "spec": { "cidr": "10.200.0.0/26", "vxlanMode": "Always" } }),
        );
        assert_eq!(address(&api).await, "10.244.0.0");
        api.edit(&pool("old"), &json!({ "spec": { "disabled": true } }));
        assert_eq!(address(&api).await, "10.200.0.0");
        assert_eq!(handle(&api), ["10.200.0.0/26"], "the old one is given back");
    }

    #[tokio::test]
    async fn the_address_moves_when_its_pool_is_gone() {
        let api = api();
        address(&api).await;
        api.put(
            &pool("new"),
            json!({ "spec": { "cidr": "10.200.0.0/26", "vxlanMode": "Always" } }),
        );
        api.remove(&pool("old"));
        assert_eq!(address(&api).await, "10.200.0.0");
    }

    #[tokio::test]
    async fn a_pool_that_selects_nobody_gives_no_tunnel_an_address() {
        let api = api();
        address(&api).await;
        api.put(
            &pool("new"),
            json!({ "spec": { "cidr": "10.200.0.0/26", "vxlanMode": "Always", "nodeSelector": "!all()" } }),
        );
        api.edit(&pool("old"), &json!({ "spec": { "disabled": true } }));
        assert_eq!(address(&api).await, "");
        assert_eq!(handle(&api), Vec::<String>::new());
    }
}
