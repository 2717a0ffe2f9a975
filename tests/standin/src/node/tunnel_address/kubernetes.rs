//! The tunnel address with the Kubernetes API: an annotation of the Node.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tracing::warn;

use super::{Read, Watched, reconcile};
use crate::datastore::types::{IPPool, IPPoolSpec};
use crate::datastore::{self, Store};
use crate::felix::objects;
use crate::ipam::block::Owner;
use crate::ipam::{Ipam, Use};
use crate::node::environment::Environment;

/// Corrects the address, and repeats this at each change of the pools.
pub async fn run(environment: &Environment, once: bool) -> Result<()> {
    let name = environment.node_name()?;
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    let ledger = Ledger::new(&client, &name);
    if once {
        return reconcile(&ledger, &name).await;
    }
    let mut seen = None;
    let pools: Api<IPPool> = Api::all(client);
    let changes = watcher(pools, watcher::Config::default().any_semantic()).default_backoff();
    pin_mut!(changes);
    while let Some(change) = changes.next().await {
        if let Err(error) = change {
            warn!("watch the pools: {error}; trying again");
            continue;
        }
        let now = Some(Watched::of(&super::Ledger::pools(&ledger).await?));
        if now != seen {
            reconcile(&ledger, &name).await?;
            seen = now;
        }
    }
    Ok(())
}

/// The Kubernetes API.
struct Ledger {
    name: String,
    nodes: Api<Node>,
    pools: Store<IPPool>,
    ipam: Ipam,
}

impl Ledger {
    fn new(client: &Client, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: Api::all(client.clone()),
            pools: Store::new(client),
            ipam: Ipam::new(client, name),
        }
    }
}

impl super::Ledger for Ledger {
    type Version = ();

    async fn node(&self) -> Result<Read<()>> {
        let name = &self.name;
        let node = self.nodes.get(name).await;
        let node = node.with_context(|| format!("read Node {name}"))?;
        let noted = node.annotations().get(objects::TUNNEL_ADDRESS);
        Ok(Read {
            address: noted.and_then(|address| address.parse().ok()),
            labels: node.metadata.labels.unwrap_or_default(),
            version: (),
        })
    }

    async fn pools(&self) -> Result<Vec<IPPoolSpec>> {
        let pools = self.pools.list("").await?;
        Ok(pools.into_iter().map(|pool| pool.spec).collect())
    }

    async fn holder(&self, address: Ipv4Addr) -> Result<Option<Owner>> {
        self.ipam.holder(address).await
    }

    async fn release(&self, handle: &str) -> Result<()> {
        self.ipam.release(handle).await.map(drop)
    }

    async fn assign(&self, owner: &Owner, requested: &[String]) -> Result<Ipv4Addr> {
        let given = self.ipam.assign_any(owner, Use::Tunnel, requested).await?;
        Ok(given.addr())
    }

    async fn note(&self, (): (), address: Option<Ipv4Addr>) -> Result<()> {
        let (name, annotation) = (&self.name, objects::TUNNEL_ADDRESS);
        let address = address.map(|address| address.to_string());
        let patch = json!({"metadata": {"annotations": {annotation: address}}});
        let parameters = PatchParams::default();
        let written = self
            .nodes
            .patch_status(name, &parameters, &Patch::Strategic(patch))
            .await;
        written.with_context(|| format!("write the annotation {annotation} of Node {name}"))?;
        Ok(())
    }
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
        let ledger = Ledger::new(&api.client(), "n1");
        reconcile(&ledger, "n1").await.unwrap();
        let node = api.get("/api/v1/nodes/n1").unwrap();
        let address = &node["metadata"]["annotations"][objects::TUNNEL_ADDRESS];
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
        assert_eq!(handle(&api), ["10.200.0.0/26"], "the old address is released");
    }

    #[tokio::test]
    async fn the_address_moves_when_its_pool_is_deleted() {
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
    async fn a_pool_without_nodes_gives_no_tunnel_an_address() {
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
