//! The address of the node's tunnel device with etcd v3: a field of Calico's own Node. The steps are those with the
//! Kubernetes API ([`crate::node::tunnel_address`]), as in Calico's code; but v3.8 takes them only at its start.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::ipam::Ipam;
use super::pools;
use super::resource::NODE;
use super::store::{Entry, Store};
use crate::datastore::types::IPPoolSpec;
use crate::ipam::block::Owner;
use crate::node::tunnel_address::{Ledger, Read, reconcile};

/// The field in the spec of Calico's Node.
pub const FIELD: &str = "ipv4VXLANTunnelAddr";
/// Corrects the address.
pub async fn allocate(store: &Store, host: &str) -> Result<()> {
    reconcile(&EtcdLedger { store, host }, host).await
}

struct EtcdLedger<'store> {
    store: &'store Store,
    host: &'store str,
}

impl EtcdLedger<'_> {
    fn ipam(&self) -> Ipam<'_> {
        Ipam::new(self.store, self.host)
    }
}

impl Ledger for EtcdLedger<'_> {
    type Version = (Entry, Value);

    async fn node(&self) -> Result<Read<Self::Version>> {
        let host = self.host;
        let found = NODE.get(self.store, host).await?;
        let (entry, node) = found.with_context(|| {
            format!("read Node {host} of Calico: not found (does calico-node -startup run before?)")
        })?;
        Ok(Read {
            labels: pools::labels(&entry, &node)?,
            address: node["spec"][FIELD].as_str().and_then(|text| text.parse().ok()),
            version: (entry, node),
        })
    }

    async fn pools(&self) -> Result<Vec<IPPoolSpec>> {
        let pools = pools::list(self.store).await?;
        Ok(pools.into_iter().map(|pool| pool.spec).collect())
    }

    async fn holder(&self, address: Ipv4Addr) -> Result<Option<Owner>> {
        self.ipam().holder(address).await
    }

    async fn release(&self, handle: &str) -> Result<()> {
        self.ipam().release(handle).await.map(drop)
    }

    async fn assign(&self, owner: &Owner, requested: &[String]) -> Result<Ipv4Addr> {
        self.ipam().assign_any(owner, requested).await
    }

    async fn note(&self, (entry, mut node): Self::Version, address: Option<Ipv4Addr>) -> Result<()> {
        let spec = node["spec"].as_object_mut();
        let spec = spec.with_context(|| format!("write {}: its spec is not an object", entry.key))?;
        match address {
            Some(address) => {
                spec.insert(FIELD.to_owned(), json!(address.to_string()));
            }
            None => {
                spec.remove(FIELD);
            }
        }
        // Calico does not retry, either: it ends, is restarted, and reads everything again.
        ensure!(
            self.store.replace(&entry, &node.to_string()).await?,
            "write {FIELD} into {}: another writer was faster",
            entry.key
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::super::resource::POOL;
    use super::*;
    use crate::version::Generation;

    async fn store() -> Store {
        let store = Store::in_memory(Generation::V3);
        let spec = json!({ "bgp": { "ipv4Address": "172.30.0.2/24" } });
        NODE.create(&store, "n1", spec).await.unwrap();
        pool(
            &store,
            "old",
            &json!({ "cidr": "10.244.0.0/26", "vxlanMode": "Always" }),
        )
        .await;
        store
    }

    async fn pool(store: &Store, name: &str, fields: &Value) {
        let merge = |spec: &mut Value| {
            for (field, value) in fields.as_object().unwrap() {
                spec[field] = value.clone();
            }
        };
        POOL.ensure(store, name, merge).await.unwrap();
    }

    async fn address(store: &Store) -> Value {
        let ledger = EtcdLedger { store, host: "n1" };
        reconcile(&ledger, "n1").await.unwrap();
        let (_, node) = NODE.get(store, "n1").await.unwrap().unwrap();
        assert_eq!(node["spec"]["bgp"]["ipv4Address"], "172.30.0.2/24");
        node["spec"].get(FIELD).cloned().unwrap_or_default()
    }

    async fn value(store: &Store, key: &str) -> String {
        store
            .get(key)
            .await
            .unwrap()
            .map_or_else(String::new, |entry| entry.value)
    }

    #[tokio::test]
    async fn the_address_has_the_form_of_calico_and_moves_when_its_pool_is_disabled() {
        let store = store().await;
        assert_eq!(address(&store).await, "10.244.0.0");
        let handle = keys::handle("vxlan-tunnel-addr-n1");
        assert_eq!(
            value(&store, &handle).await,
            r#"{"block":{"10.244.0.0/26":1},"deleted":false}"#
        );
        let block = value(&store, &keys::block("10.244.0.0/26".parse().unwrap())).await;
        assert!(
            block.contains(
                r#""attributes":[{"handle_id":"vxlan-tunnel-addr-n1","secondary":{"node":"n1","type":"vxlanTunnelAddress"}}]"#
            ),
            "{block}"
        );
        pool(
            &store,
            "new",
            &json!({ "cidr": "10.200.0.0/26", "vxlanMode": "Always" }),
        )
        .await;
        assert_eq!(address(&store).await, "10.244.0.0");
        pool(&store, "old", &json!({ "disabled": true })).await;
        assert_eq!(address(&store).await, "10.200.0.0");
        assert_eq!(
            value(&store, &handle).await,
            r#"{"block":{"10.200.0.0/26":1},"deleted":false}"#
        );
        pool(&store, "new", &json!({ "nodeSelector": "!all()" })).await;
        assert_eq!(address(&store).await, Value::Null);
        assert_eq!(value(&store, &handle).await, "", "the address is released");
    }

    #[tokio::test]
    async fn a_node_written_meanwhile_is_not_overwritten() {
        let store = store().await;
        let ledger = EtcdLedger {
            store: &store,
            host: "n1",
        };
        let read = ledger.node().await.unwrap();
        let others = |spec: &mut Value| spec[FIELD] = json!("10.244.0.9");
        NODE.ensure(&store, "n1", others).await.unwrap();
        let given = "10.244.0.1".parse().unwrap();
        let refused = ledger.note(read.version, Some(given)).await.unwrap_err();
        assert!(refused.to_string().contains("another writer was faster"));
        let (_, node) = NODE.get(&store, "n1").await.unwrap().unwrap();
        assert_eq!(node["spec"][FIELD], "10.244.0.9");
    }
}
