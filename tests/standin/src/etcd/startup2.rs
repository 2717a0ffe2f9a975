//! The startup of calico-node v2.6: its writes into etcd's v2 store.

use std::net::Ipv4Addr;

use anyhow::Result;
use ipnet::Ipv4Net;
use serde_json::json;
use tracing::info;

use super::pools::PoolV2;
use super::startup::{Starting, cluster_type, has_ipv6};
use super::store::Store;
use super::{identifier, keys};

/// The IPv6 pool of every cluster.
const IPV6_POOL: &str = "fd80:24e2:f998:72d6::/64";

/// Writes all keys.
pub async fn run(starting: &Starting<'_>, store: &Store) -> Result<()> {
    let host = starting.host;
    let address = starting.address(noted(store, host).await?).await?;
    starting.refuse_conflict(address.addr(), &addresses(store).await?)?;
    initialize(store).await?;
    write_host(starting, store, address).await?;
    ensure_pools(starting, store).await?;
    let global = |name: &str| format!("{}/{name}", keys::CONFIG);
    store.create(&global("ReportingIntervalSecs"), "0").await?;
    store.create(&global("LogSeverityScreen"), "info").await?;
    let own = format!("{}/{host}/config/DefaultEndpointToHostAction", keys::HOSTS);
    store.create(&own, "RETURN").await?;
    store.put(&global("CalicoVersion"), starting.version).await?;
    let key = global("ClusterType");
    let found = store
        .get(&key)
        .await?
        .map(|entry| entry.value)
        .unwrap_or_default();
    let wanted = cluster_type(
        &found,
        starting.environment.get("CLUSTER_TYPE").unwrap_or_default(),
    );
    if wanted != found {
        store.put(&key, &wanted).await?;
    }
    let bgp = |name: &str| format!("{}/{name}", keys::BGP_GLOBAL);
    store.create(&bgp("node_mesh"), r#"{"enabled":true}"#).await?;
    store.create(&bgp("as_num"), "64512").await?;
    store.create(&bgp("loglevel"), "info").await?;
    for directory in [
        format!("{}/v4/pool", keys::POOLS),
        format!("{}/v6/pool", keys::POOLS),
        bgp("custom_filters/v4"),
        bgp("custom_filters/v6"),
        keys::claims(host),
        format!("{}/{host}/ipv6/block", keys::CLAIMS),
    ] {
        store.make_directory(&directory).await?;
    }
    Ok(())
}

/// Both are written only if missing: a flag with another value stays.
async fn initialize(store: &Store) -> Result<()> {
    if store.create(keys::READY, "true").await? {
        info!("Ready flag is now set");
    } else {
        info!("Ready flag is already set");
    }
    let identifier = identifier::hexadecimal()?;
    store
        .create(&format!("{}/ClusterGUID", keys::CONFIG), &identifier)
        .await?;
    Ok(())
}

async fn write_host(starting: &Starting<'_>, store: &Store, address: Ipv4Net) -> Result<()> {
    let host = starting.host;
    let felix = |name: &str| format!("{}/{host}/{name}", keys::HOSTS);
    let bgp = |name: &str| format!("{}/{host}/{name}", keys::BGP_HOSTS);
    store.put(&felix("metadata"), "{}").await?;
    store.put(&bgp("ip_addr_v4"), &address.addr().to_string()).await?;
    // BIRD's configuration reads the key in any case.
    store.put(&bgp("ip_addr_v6"), "").await?;
    store.put(&felix("bird_ip"), &address.addr().to_string()).await?;
    store
        .put(&bgp("network_v4"), &address.trunc().to_string())
        .await?;
    if let Some(node) = starting.environment.get("CALICO_K8S_NODE_REF") {
        let references = json!([{ "orchestrator": "k8s", "nodeName": node }]);
        store
            .put(&felix("orchestrator_refs"), &references.to_string())
            .await?;
    }
    Ok(())
}

async fn ensure_pools(starting: &Starting<'_>, store: &Store) -> Result<()> {
    let Some(range) = starting.default_range() else {
        return Ok(());
    };
    let mut wanted = vec![(4, range, true)];
    if has_ipv6() {
        wanted.push((6, IPV6_POOL, false));
    }
    for (family, range, masquerade) in wanted {
        if !store
            .list(&format!("{}/v{family}/pool", keys::POOLS))
            .await?
            .is_empty()
        {
            continue;
        }
        starting.refuse_ipip()?;
        let pool = PoolV2 {
            cidr: range.to_owned(),
            ipip: String::new(),
            ipip_mode: String::new(),
            masquerade,
            ipam: true,
            disabled: false,
        };
        if store
            .create(&keys::pool(range, family), &serde_json::to_string(&pool)?)
            .await?
        {
            info!("Created default IPv{family} pool ({range}) with NAT outgoing {masquerade}");
        }
    }
    Ok(())
}

/// The hosts' keys.
pub async fn addresses(store: &Store) -> Result<Vec<(String, Ipv4Addr)>> {
    let entries = store.list(keys::BGP_HOSTS).await?;
    let found = entries.iter().filter_map(|entry| {
        let rest = entry.key.strip_prefix(keys::BGP_HOSTS)?.strip_prefix('/')?;
        let host = rest.strip_suffix("/ip_addr_v4")?;
        Some((host.to_owned(), entry.value.parse().ok()?))
    });
    Ok(found.collect())
}

async fn noted(store: &Store, host: &str) -> Result<Option<Ipv4Net>> {
    let value = async |name: &str| -> Result<Option<String>> {
        let entry = store.get(&format!("{}/{host}/{name}", keys::BGP_HOSTS)).await?;
        Ok(entry.map(|entry| entry.value))
    };
    let address: Option<Ipv4Addr> = value("ip_addr_v4").await?.and_then(|text| text.parse().ok());
    let network: Option<Ipv4Net> = value("network_v4").await?.and_then(|text| text.parse().ok());
    Ok(match (address, network) {
        (Some(address), Some(network)) => Ipv4Net::new(address, network.prefix_len()).ok(),
        (Some(address), None) => Some(address.into()),
        (None, _) => None,
    })
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
        ]);
        let starting = Starting {
            host: "n1",
            environment: &environment,
            version: "v2.6.12",
        };
        run(&starting, store).await.unwrap();
    }

    async fn value(store: &Store, key: &str) -> String {
        store.get(key).await.unwrap().unwrap().value
    }

    #[tokio::test]
    async fn a_startup_writes_the_keys_that_a_conversion_reads() {
        let store = Store::in_memory(Generation::V2);
        start(&store).await;
        for (key, expected) in [
            ("/calico/v1/Ready", "true"),
            ("/calico/v1/config/CalicoVersion", "v2.6.12"),
            ("/calico/v1/config/ClusterType", "k8s,bgp"),
            ("/calico/v1/host/n1/metadata", "{}"),
            ("/calico/bgp/v1/host/n1/ip_addr_v4", "172.30.0.11"),
            ("/calico/bgp/v1/host/n1/network_v4", "172.30.0.0/24"),
            ("/calico/bgp/v1/global/node_mesh", r#"{"enabled":true}"#),
            (
                "/calico/v1/ipam/v4/pool/10.244.0.0-16",
                r#"{"cidr":"10.244.0.0/16","ipip":"","ipip_mode":"","masquerade":true,"ipam":true,"disabled":false}"#,
            ),
        ] {
            assert_eq!(value(&store, key).await, expected, "{key}");
        }
        assert_eq!(
            addresses(&store).await.unwrap(),
            [("n1".to_owned(), "172.30.0.11".parse().unwrap())]
        );
        assert_eq!(
            noted(&store, "n1").await.unwrap(),
            Some("172.30.0.11/24".parse().unwrap())
        );
    }

    #[tokio::test]
    async fn a_startup_while_calico_is_paused_keeps_it_paused() {
        let store = Store::in_memory(Generation::V2);
        start(&store).await;
        let identifier = value(&store, "/calico/v1/config/ClusterGUID").await;
        store.put(keys::READY, "false").await.unwrap();
        store
            .put("/calico/v1/config/CalicoVersion", "v2.6.5")
            .await
            .unwrap();
        start(&store).await;
        assert_eq!(value(&store, keys::READY).await, "false");
        assert_eq!(value(&store, "/calico/v1/config/ClusterGUID").await, identifier);
        assert_eq!(value(&store, "/calico/v1/config/CalicoVersion").await, "v2.6.12");
    }
}
