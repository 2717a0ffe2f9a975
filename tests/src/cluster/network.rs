//! The lab's links: one bridge inside the control plane's namespace, a link to every node and one to the host.
//!
//! The bridge is not on the host, so the host's packet filter and bridge settings do not apply to the lab's traffic,
//! and the host sees only one interface of the lab, which ends with the control plane.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use serde::Deserialize;

use super::command;
use super::families::IpFamilies;
use super::wait::{Observation, until};

/// The bridge inside the control plane's namespace.
pub const BRIDGE: &str = "br0";

#[derive(Deserialize)]
struct Interface {
    ifname: String,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    #[serde(default)]
    local: Option<String>,
}

#[derive(Deserialize)]
struct Route {
    dst: String,
}

/// Waits until no other lab on this machine is choosing a subnet, and blocks the others until it is dropped. A socket
/// without a file: it ends with its process, and no file remains.
pub async fn alone(logs: &Path) -> Result<UnixListener> {
    let name = SocketAddr::from_abstract_name("replumb-lab-network").context("name a socket")?;
    until(
        "another lab to choose its subnet",
        Duration::from_mins(1),
        logs,
        async || match UnixListener::bind_addr(&name) {
            Ok(listener) => Ok(Observation::Done(listener)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                Ok(Observation::NotYet("still choosing".into()))
            }
            Err(error) => Err(error).context("listen on the lab's own name"),
        },
    )
    .await
}

/// The first /24 of 172.30.0.0/16 that overlaps no address and no route of the host.
pub async fn free_subnet() -> Result<Ipv4Net> {
    let addresses: Vec<Interface> =
        serde_json::from_str(&command::run("ip", &["-j", "-4", "address"]).await?)
            .context("parse `ip -j address`")?;
    let routes: Vec<Route> = serde_json::from_str(&command::run("ip", &["-j", "-4", "route"]).await?)
        .context("parse `ip -j route`")?;
    let addresses = addresses
        .into_iter()
        .flat_map(|interface| interface.addr_info)
        .filter_map(|info| info.local);
    let taken: Vec<Ipv4Net> = addresses
        .chain(routes.into_iter().map(|route| route.dst))
        .filter_map(|text| {
            text.parse::<Ipv4Net>()
                .ok()
                .or_else(|| text.parse::<Ipv4Addr>().ok().map(Ipv4Net::from))
        })
        .collect();
    let free = |subnet: &Ipv4Net| !taken.iter().any(|other| overlaps(*subnet, *other));
    for third in 0..=255 {
        let subnet =
            Ipv4Net::new(Ipv4Addr::new(172, 30, third, 0), 24).context("build the /24 of the lab")?;
        if free(&subnet) {
            return Ok(subnet);
        }
    }
    bail!(
        "every /24 of 172.30.0.0/16 is in use on this machine (see `ip -4 route`): the lab needs a free one"
    )
}

fn overlaps(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// Connects the host and the control plane: the host gets `.1`, the bridge `.2`.
pub async fn connect_control_plane(
    pid: u32,
    host_link: &str,
    subnet: Ipv4Net,
    families: IpFamilies,
) -> Result<()> {
    let pid = pid.to_string();
    let host = format!("{}/24", super::state::nth(subnet, 1));
    let address = super::state::nth(subnet, 2);
    let bridge = format!("{address}/24");
    ip(&[
        "link", "add", host_link, "type", "veth", "peer", "name", "host", "netns", &pid,
    ])
    .await?;
    ip(&["address", "add", &host, "dev", host_link]).await?;
    ip(&["link", "set", host_link, "up"]).await?;
    ip_in(&pid, &["link", "add", BRIDGE, "type", "bridge"]).await?;
    ip_in(&pid, &["link", "set", "host", "master", BRIDGE, "up"]).await?;
    ip_in(&pid, &["address", "add", &bridge, "dev", BRIDGE]).await?;
    if let Some(address) = families.ipv6_of(address) {
        add_ipv6(&pid, address, BRIDGE).await?;
    }
    ip_in(&pid, &["link", "set", BRIDGE, "up"]).await
}

/// Connects a node to the bridge and sets its addresses and default routes.
pub async fn connect_node(
    control_plane: u32,
    node: u32,
    address: Ipv4Addr,
    gateway: Ipv4Addr,
    families: IpFamilies,
) -> Result<()> {
    let (control_plane, node) = (control_plane.to_string(), node.to_string());
    let [_, _, third, host] = address.octets();
    let port = format!("port{host}");
    // The hardware address is derived from the IP address, so that the others still reach a node after a power cycle.
    let hardware = format!("02:1a:b0:00:{third:02x}:{host:02x}");
    let network = format!("{address}/24");
    // A node that was powered off leaves its port for a moment.
    if command::output(
        "nsenter",
        &["-t", &control_plane, "-n", "ip", "link", "show", &port],
    )
    .await?
    .status
    .success()
    {
        ip_in(&control_plane, &["link", "delete", &port]).await?;
    }
    let peer = [
        "link", "add", &port, "type", "veth", "peer", "name", "eth0", "address", &hardware, "netns", &node,
    ];
    ip_in(&control_plane, &peer).await?;
    ip_in(&control_plane, &["link", "set", &port, "master", BRIDGE, "up"]).await?;
    ip_in(&node, &["address", "add", &network, "dev", "eth0"]).await?;
    ip_in(&node, &["link", "set", "eth0", "up"]).await?;
    ip_in(&node, &["route", "add", "default", "via", &gateway.to_string()]).await?;
    if let (Some(address), Some(gateway)) = (families.ipv6_of(address), families.ipv6_of(gateway)) {
        add_ipv6(&node, address, "eth0").await?;
        let gateway = gateway.to_string();
        ip_in(
            &node,
            &["-6", "route", "add", "default", "via", &gateway, "dev", "eth0"],
        )
        .await?;
    }
    Ok(())
}

async fn add_ipv6(pid: &str, address: Ipv6Addr, device: &str) -> Result<()> {
    let network = format!("{address}/64");
    // No other machine can have the address, and programs can bind to it without a wait.
    ip_in(pid, &["-6", "address", "add", &network, "dev", device, "nodad"]).await
}

/// Removes the host's end of the link if it exists.
pub async fn remove_host_link(host_link: &str) -> Result<()> {
    if host_link_exists(host_link).await? {
        // The kernel may remove it at the same moment, with the control plane's namespace.
        let removed = ip(&["link", "delete", host_link]).await;
        if host_link_exists(host_link).await? {
            return removed;
        }
    }
    Ok(())
}

/// Whether the host's end of the link exists.
pub async fn host_link_exists(host_link: &str) -> Result<bool> {
    let links: Vec<Interface> =
        serde_json::from_str(&command::run("ip", &["-j", "link"]).await?).context("parse `ip -j link`")?;
    Ok(links.iter().any(|link| link.ifname == host_link))
}

async fn ip(arguments: &[&str]) -> Result<()> {
    command::run("ip", arguments).await.map(drop)
}

async fn ip_in(pid: &str, arguments: &[&str]) -> Result<()> {
    let mut all = vec!["-t", pid, "-n", "ip"];
    all.extend(arguments);
    command::run("nsenter", &all).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_route_of_the_host_covers_the_subnets_inside() {
        let subnet = "172.30.3.0/24".parse().unwrap();
        assert!(overlaps(subnet, "172.16.0.0/12".parse().unwrap()));
        assert!(overlaps(subnet, "172.30.3.7/32".parse().unwrap()));
        assert!(!overlaps(subnet, "172.30.4.0/24".parse().unwrap()));
    }
}
