//! The inputs of Felix from etcd.

use anyhow::{Context, Result};
use serde_json::Value;

use super::resource::{FELIX_CONFIGURATION, NODE};
use super::store::Store;
use super::tunnel_address::FIELD;
use super::{block, endpoint, keys, pools};
use crate::datastore::types::{FelixConfiguration, FelixConfigurationSpec};
use crate::felix::model::{Endpoint, World};
use crate::felix::settings::Settings;
use crate::node::environment::Environment;
use crate::version::Generation;

/// The settings of this host, and all other inputs.
pub async fn read(store: &Store, host: &str, environment: &Environment) -> Result<(Settings, World)> {
    // v2 has neither objects with settings nor supported tunnels.
    let (nodes, configurations) = match store.generation {
        Generation::V2 => (Vec::new(), Vec::new()),
        Generation::V3 => (NODE.list(store).await?, configurations(store).await?),
    };
    let nodes: Vec<Value> = nodes.into_iter().map(|(_, node)| node).collect();
    let own = nodes.iter().find(|node| node["metadata"]["name"] == host);
    let settings = Settings::new(
        host,
        own.and_then(|node| node["spec"][FIELD].as_str()),
        &configurations,
        environment.variables(),
    );
    let ends = nodes.iter().filter_map(end);
    let blocks = store.list(keys::BLOCKS).await?;
    let blocks: Result<Vec<_>> = blocks.iter().map(block::read).collect();
    let mut blocks = blocks?;
    blocks.retain(|block| !block.deleted);
    let pools = pools::list(store).await?;
    let endpoints = endpoint::of_host(store, host).await?;
    let pods = endpoints.into_iter().flat_map(|endpoint| {
        let device = endpoint.host_device;
        let addresses = endpoint.addresses.into_iter();
        addresses.map(move |address| (address, device.clone()))
    });
    let world = World {
        ends: ends.collect(),
        blocks,
        pools: pools.into_iter().map(|pool| pool.spec).collect(),
        pods: pods.collect(),
    };
    Ok((settings, world))
}

async fn configurations(store: &Store) -> Result<Vec<FelixConfiguration>> {
    let found = FELIX_CONFIGURATION.list(store).await?;
    let parsed = found.into_iter().map(|(entry, object)| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let settings = serde_json::from_value(object["spec"].clone());
        let settings = settings.with_context(|| format!("read the settings of {}", entry.key))?;
        Ok(FelixConfiguration::new(name, FelixConfigurationSpec { settings }))
    });
    parsed.collect()
}

fn end(node: &Value) -> Option<(String, Endpoint)> {
    let name = node["metadata"]["name"].as_str()?;
    let spec = &node["spec"];
    let end = Endpoint::of(
        name,
        spec["bgp"]["ipv4Address"].as_str(),
        spec[FIELD].as_str(),
        spec["vxlanTunnelMACAddr"].as_str(),
    )?;
    Some((name.to_owned(), end))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ipam::{Ipam, owner};
    use super::super::resource::POOL;
    use super::*;
    use crate::felix::model::{Demand, NextHop, desired};

    #[tokio::test]
    async fn tunnel_ends_settings_and_routes_come_from_etcd() {
        let store = Store::in_memory(Generation::V3);
        for (host, number) in [("n1", 1), ("n2", 2)] {
            let spec = json!({ "bgp": { "ipv4Address": format!("172.30.0.{number}/24") }, FIELD: format!("10.244.{number}.0") });
            NODE.create(&store, host, spec).await.unwrap();
        }
        let spec = json!({ "bgp": { "ipv4Address": "172.30.0.3/24" } });
        NODE.create(&store, "without-tunnel", spec).await.unwrap();
        let spec = json!({ "cidr": "10.244.0.0/16", "vxlanMode": "Always", "natOutgoing": true });
        POOL.create(&store, "p", spec).await.unwrap();
        let spec = json!({ "vxlanPort": 4790 });
        FELIX_CONFIGURATION.create(&store, "default", spec).await.unwrap();
        let owner = owner(Generation::V3, "h".to_owned(), "n2", "default", "p");
        let given = Ipam::new(&store, "n2").assign_any(&owner, &[]).await.unwrap();

        let environment = Environment::from([("FELIX_VXLANMTU", "1400")]);
        let (settings, world) = read(&store, "n1", &environment).await.unwrap();
        assert_eq!(settings.tunnel_address(), Some("10.244.1.0"));
        assert_eq!((settings.port().unwrap(), settings.mtu().unwrap()), (4790, 1400));
        assert_eq!(world.ends.keys().collect::<Vec<_>>(), ["n1", "n2"]);
        let demand = Demand {
            vxlan: settings.vxlan_enabled(),
            port: 4790,
        };
        let desired = desired("n1", &world, demand);
        assert!(desired.vxlan && desired.own.is_some());
        let block = ipnet::Ipv4Net::new(given, 26).unwrap().trunc();
        assert_eq!(
            desired.routes[&block],
            NextHop::Tunnel("10.244.2.0".parse().unwrap())
        );
    }

    #[tokio::test]
    async fn v2_has_no_tunnel() {
        let store = Store::in_memory(Generation::V2);
        let pool = r#"{"cidr":"10.244.0.0/24","ipip":"","ipip_mode":"","masquerade":true,"ipam":true,"disabled":false}"#;
        store.put(&keys::pool("10.244.0.0/24", 4), pool).await.unwrap();
        let (settings, world) = read(&store, "n1", &Environment::default()).await.unwrap();
        assert_eq!(settings.tunnel_address(), None);
        let demand = Demand {
            vxlan: None,
            port: 4789,
        };
        let desired = desired("n1", &world, demand);
        assert!(!desired.vxlan && desired.routes.is_empty());
        assert_eq!(desired.rules.masqueraded.len(), 1);
    }
}
