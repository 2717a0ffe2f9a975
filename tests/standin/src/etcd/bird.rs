//! BIRD's part: routes to the blocks of other hosts through their addresses, blackhole routes for own blocks. In
//! Calico, BIRDs exchange routes with BGP; here every host reads the datastore. Neither BIRD nor its configuration
//! reads the flag: routes follow the blocks also while Calico is paused, and when BIRD ends, the kernel keeps them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use tracing::{info, warn};

use super::store::Store;
use super::{keys, startup2, startup3};
use crate::host::netlink::Netlink;
use crate::host::{PROTOCOL_BIRD, Route, Target};
use crate::node::environment::Environment;
use crate::version::Generation;

/// Time between two reads of the datastore.
const INTERVAL: Duration = Duration::from_secs(1);
/// The file exists when the routes are set. It is in the container: a new container starts without it.
const READY_FILE: &str = "/run/bird.ready";

/// Runs for ever.
pub async fn run(environment: &Environment, store: &Store) -> Result<ExitCode> {
    let host = environment.node_name()?;
    let netlink = Netlink::open()?;
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failed = false;
    loop {
        interval.tick().await;
        match pass(&netlink, store, &host).await {
            Ok(()) => {
                failed = false;
                mark()?;
            }
            Err(error) if !failed => {
                failed = true;
                warn!("{error:#}; retrying every {INTERVAL:?}");
            }
            Err(_) => {}
        }
    }
}

/// Whether the routes are set. The real probe checks the sessions with peers.
pub fn is_ready() -> Result<()> {
    anyhow::ensure!(
        Path::new(READY_FILE).exists(),
        "calico/node is not ready: BIRD is not ready: routes are not set yet"
    );
    Ok(())
}

fn mark() -> Result<()> {
    if Path::new(READY_FILE).exists() {
        return Ok(());
    }
    std::fs::create_dir_all("/run").context("make /run")?;
    std::fs::write(READY_FILE, "").with_context(|| format!("write {READY_FILE}"))
}

async fn pass(netlink: &Netlink, store: &Store, host: &str) -> Result<()> {
    let hosts = match store.generation {
        Generation::V2 => startup2::addresses(store).await?,
        Generation::V3 => startup3::addresses(store).await?,
    };
    let claims = store.list(keys::CLAIMS).await?;
    let claims = claims.iter().filter_map(|entry| keys::read_claim(&entry.key));
    let ways = ways(host, &hosts.into_iter().collect(), claims);
    let addresses = netlink.addresses().await?;
    let device_to = |gateway: Ipv4Addr| {
        let mut all = addresses.iter();
        all.find_map(|(index, ranges)| {
            ranges
                .iter()
                .any(|range| range.contains(&gateway))
                .then_some(*index)
        })
    };
    let mut wanted = BTreeMap::new();
    for (destination, way) in ways {
        let target = match way {
            None => Target::Blackhole,
            Some(gateway) => match device_to(gateway) {
                Some(device) => Target::Router(device, gateway),
                // Without a tunnel only neighbours can be reached.
                None => continue,
            },
        };
        let route = Route {
            destination,
            target,
            protocol: PROTOCOL_BIRD,
            mtu: None,
        };
        wanted.insert(destination, route);
    }
    let present = netlink.routes().await?;
    for route in wanted.values().filter(|route| !present.contains(route)) {
        netlink.replace_route(route).await?;
        info!(destination = %route.destination, target = ?route.target, "set a route");
    }
    for route in present
        .iter()
        .filter(|route| route.protocol == PROTOCOL_BIRD && !wanted.contains_key(&route.destination))
    {
        netlink.delete_route(route).await?;
        info!(destination = %route.destination, "deleted a route");
    }
    Ok(())
}

/// The target of each block: the address of its host, or a blackhole for an own block.
fn ways<'a>(
    own: &str,
    hosts: &BTreeMap<String, Ipv4Addr>,
    claims: impl Iterator<Item = (&'a str, Ipv4Net)>,
) -> BTreeMap<Ipv4Net, Option<Ipv4Addr>> {
    let mut ways = BTreeMap::new();
    for (host, range) in claims {
        if host == own {
            ways.insert(range, None);
        } else if let Some(address) = hosts.get(host) {
            ways.entry(range).or_insert(Some(*address));
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_blocks_are_blackholes_and_others_lead_to_their_host() {
        let range = |text: &str| text.parse::<Ipv4Net>().unwrap();
        let address: Ipv4Addr = "172.30.0.12".parse().unwrap();
        let hosts = BTreeMap::from([("n2".to_owned(), address)]);
        let claims = [
            ("n1", range("10.244.1.0/26")),
            ("n2", range("10.244.2.0/26")),
            ("gone", range("10.244.3.0/26")),
        ];
        assert_eq!(
            ways("n1", &hosts, claims.into_iter()),
            BTreeMap::from([
                (range("10.244.1.0/26"), None),
                (range("10.244.2.0/26"), Some(address)),
            ])
        );
    }
}
