//! The startup of calico-node v3.8: its writes into etcd's v3 store. **A cluster without a conversion gets a
//! `ClusterInformation` with v3 ready**, and a new pool: the first v3 node that starts too early creates them.

use std::net::Ipv4Addr;

use anyhow::Result;
use ipnet::Ipv4Net;
use serde_json::{Value, json};
use tracing::info;

use super::identifier;
use super::resource::{CLUSTER_INFORMATION, FELIX_CONFIGURATION, NODE, POOL};
use super::startup::{Starting, cluster_type, has_ipv6};
use super::store::Store;

/// Writes all objects.
pub async fn run(starting: &Starting<'_>, store: &Store) -> Result<()> {
    let host = starting.host;
    let noted = NODE.get(store, host).await?;
    let noted = noted.and_then(|(_, node)| {
        node["spec"]["bgp"]["ipv4Address"]
            .as_str()?
            .parse::<Ipv4Net>()
            .ok()
    });
    let address = starting.address(noted).await?;
    starting.refuse_conflict(address.addr(), &addresses(store).await?)?;
    let reference = starting.environment.get("CALICO_K8S_NODE_REF");
    let change = |spec: &mut Value| {
        spec["bgp"]["ipv4Address"] = json!(address.to_string());
        if let Some(node) = reference {
            spec["orchRefs"] = json!([{ "nodeName": node, "orchestrator": "k8s" }]);
        }
    };
    NODE.ensure(store, host, change).await?;
    ensure_pools(starting, store).await?;
    let types = starting.environment.get("CLUSTER_TYPE").unwrap_or_default();
    ensure_initialized(store, Some(starting.version), types).await?;
    let defaults = |spec: &mut Value| {
        set_if_absent(spec, "reportingInterval", json!("0s"));
        set_if_absent(spec, "logSeverityScreen", json!("Info"));
    };
    FELIX_CONFIGURATION.ensure(store, "default", defaults).await?;
    let own = |spec: &mut Value| set_if_absent(spec, "defaultEndpointToHostAction", json!("Return"));
    FELIX_CONFIGURATION
        .ensure(store, &format!("node.{host}"), own)
        .await
}

/// Creates `ClusterInformation` if missing, **with the datastore ready**; an existing value of false stays. The
/// version is that of the last node that started; kube-controllers set none.
pub async fn ensure_initialized(store: &Store, version: Option<&str>, types: &str) -> Result<()> {
    let identifier = identifier::hexadecimal()?;
    let change = |spec: &mut Value| {
        if let Some(version) = version {
            spec["calicoVersion"] = json!(version);
        }
        set_if_absent(spec, "clusterGUID", json!(identifier));
        set_if_absent(spec, "datastoreReady", json!(true));
        let found = spec["clusterType"].as_str().unwrap_or_default();
        let wanted = cluster_type(found, types);
        if !wanted.is_empty() {
            spec["clusterType"] = json!(wanted);
        }
    };
    CLUSTER_INFORMATION.ensure(store, "default", change).await
}

async fn ensure_pools(starting: &Starting<'_>, store: &Store) -> Result<()> {
    let Some(range) = starting.default_range() else {
        return Ok(());
    };
    let pools = POOL.list(store).await?;
    let has = |mark: char| {
        let of_family = |(_, pool): &(_, Value)| {
            pool["spec"]["cidr"]
                .as_str()
                .is_some_and(|cidr| cidr.contains(mark))
        };
        pools.iter().any(of_family)
    };
    let mut missing = Vec::new();
    if !has('.') {
        let vxlan = starting.default_vxlan()?;
        missing.push(("default-ipv4-ippool", range.to_owned(), vxlan, true, 26));
    }
    if !has(':') && has_ipv6() {
        missing.push(("default-ipv6-ippool", unique_local()?, "Never", false, 122));
    }
    for (name, range, vxlan, masquerade, size) in missing {
        let mut spec = json!({
            "cidr": range, "vxlanMode": vxlan, "ipipMode": "Never", "blockSize": size, "nodeSelector": "all()",
        });
        if masquerade {
            spec["natOutgoing"] = json!(true);
        }
        if POOL.create(store, name, spec).await? {
            info!("Created default pool {name} ({range}) with NAT outgoing {masquerade}");
        }
    }
    Ok(())
}

/// An IPv6 range that no other cluster has.
fn unique_local() -> Result<String> {
    let digits = identifier::hexadecimal()?;
    Ok(format!(
        "fd{}:{}:{}::/48",
        &digits[..2],
        &digits[2..6],
        &digits[6..10]
    ))
}

/// The hosts' objects.
pub async fn addresses(store: &Store) -> Result<Vec<(String, Ipv4Addr)>> {
    let nodes = NODE.list(store).await?;
    let found = nodes.iter().filter_map(|(_, node)| {
        let name = node["metadata"]["name"].as_str()?;
        let address = node["spec"]["bgp"]["ipv4Address"].as_str()?.split('/').next()?;
        Some((name.to_owned(), address.parse().ok()?))
    });
    Ok(found.collect())
}

fn set_if_absent(spec: &mut Value, field: &str, value: Value) {
    if spec[field].is_null() || spec[field] == "" {
        spec[field] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::environment::Environment;
    use crate::version::Generation;

    async fn start(store: &Store) {
        let environment = Environment::from([
            ("CALICO_IPV4POOL_CIDR", "10.244.0.0/16"),
            ("CLUSTER_TYPE", "k8s,bgp"),
            ("IP", "172.30.0.11/24"),
            ("CALICO_K8S_NODE_REF", "n1"),
        ]);
        let starting = Starting {
            host: "n1",
            environment: &environment,
            version: "v3.8.9",
        };
        run(&starting, store).await.unwrap();
    }

    async fn information(store: &Store) -> Value {
        let (_, found) = CLUSTER_INFORMATION.get(store, "default").await.unwrap().unwrap();
        found["spec"].clone()
    }

    #[tokio::test]
    async fn a_startup_before_any_conversion_sets_v3_ready() {
        let store = Store::in_memory(Generation::V3);
        start(&store).await;
        assert_eq!(information(&store).await["datastoreReady"], true);
        assert_eq!(
            addresses(&store).await.unwrap(),
            [("n1".to_owned(), "172.30.0.11".parse().unwrap())]
        );
        assert!(POOL.get(&store, "default-ipv4-ippool").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_startup_after_the_conversion_keeps_v3_paused_and_sets_its_version() {
        let store = Store::in_memory(Generation::V3);
        let spec = json!({ "calicoVersion": "v2.6.12", "clusterGUID": "g", "clusterType": "k8s", "datastoreReady": false });
        CLUSTER_INFORMATION.create(&store, "default", spec).await.unwrap();
        let pool = json!({ "cidr": "10.244.0.0/16", "natOutgoing": true });
        POOL.create(&store, "10-244-0-0-16", pool).await.unwrap();
        start(&store).await;
        assert_eq!(
            information(&store).await,
            json!({ "calicoVersion": "v3.8.9", "clusterGUID": "g", "clusterType": "k8s,bgp", "datastoreReady": false })
        );
        assert!(POOL.get(&store, "default-ipv4-ippool").await.unwrap().is_none());
        let before = store.list("/calico").await.unwrap();
        start(&store).await;
        assert_eq!(
            store.list("/calico").await.unwrap(),
            before,
            "a correct value is not written again"
        );
    }
}
