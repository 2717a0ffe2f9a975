//! Adjusts the kernel to the desired state, and removes other objects of Calico.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use tracing::{info, warn};

use super::model::{Desired, Endpoint, NextHop};
use crate::cni::MTU_FILE;
use crate::host::firewall::{self, Rules};
use crate::host::netlink::{self, Netlink};
use crate::host::{Link, Mac, PROTOCOL_BOOT, PROTOCOL_CALICO, PROTOCOL_KERNEL, Route, Target, Vxlan, sysctl};

/// Name of the tunnel device.
pub const DEVICE: &str = "vxlan.calico";
/// Time between two checks of the tunnel device without a change. As in Calico: a deleted device is not restored sooner.
pub const DEVICE_INTERVAL: Duration = Duration::from_secs(10);

/// Attributes of the tunnel device from the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// Network identifier.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// MTU; 0 means 50 less than the parent device.
    pub mtu: u32,
}

/// The kernel of this node.
pub struct Kernel {
    netlink: Netlink,
    tunnel: Tunnel,
    checked: Option<(Instant, Option<Endpoint>)>,
    applied: Option<Rules>,
}

impl Kernel {
    /// Connects, and enables forwarding on the node.
    pub fn open(tunnel: Tunnel) -> Result<Self> {
        sysctl::set("net/ipv4/ip_forward", "1")?;
        Ok(Self {
            netlink: Netlink::open()?,
            tunnel,
            checked: None,
            applied: None,
        })
    }

    /// Sets the desired state. A failure does not stop the other changes; the first failure is returned, and every one is logged.
    pub async fn apply(&mut self, desired: &Desired) -> Result<()> {
        let device = self.device(desired).await;
        let rules = self.rules(&desired.rules).await;
        // A new route needs the neighbour of its tunnel end; an old route needs its neighbour until the route is replaced.
        let ends = self.add_forwarding(desired).await;
        let routes = self.routes(desired).await;
        let old_ends = self.delete_forwarding(desired).await;
        for failure in [&device, &rules, &ends, &routes, &old_ends]
            .into_iter()
            .filter_map(|part| part.as_ref().err())
        {
            warn!("{failure:#}; retrying within {DEVICE_INTERVAL:?}");
        }
        device.and(rules).and(ends).and(routes).and(old_ends)
    }

    async fn rules(&mut self, wanted: &Rules) -> Result<()> {
        if self.applied.as_ref() != Some(wanted) || !firewall::present().await? {
            self.applied = None;
            firewall::apply(wanted).await?;
            info!(table = firewall::TABLE, "wrote the packet filter's table");
            self.applied = Some(wanted.clone());
        }
        Ok(())
    }

    async fn device(&mut self, desired: &Desired) -> Result<()> {
        let recent = self
            .checked
            .is_some_and(|(at, own)| at.elapsed() < DEVICE_INTERVAL && own == desired.own);
        if recent {
            return Ok(());
        }
        let found = self.netlink.link(DEVICE).await?;
        if !desired.vxlan {
            if let Some(link) = found {
                info!("VXLAN is off: deleting {DEVICE}");
                self.netlink.delete_link(&link).await?;
            }
        } else if let Some(own) = desired.own {
            self.tunnel_device(own, found).await?;
        } else {
            warn!("the Node lacks its address or tunnel address: no tunnel yet");
        }
        self.checked = Some((Instant::now(), desired.own));
        Ok(())
    }

    async fn tunnel_device(&self, own: Endpoint, found: Option<Link>) -> Result<()> {
        let parent = self.parent(own.host.addr()).await?;
        let wanted = Vxlan {
            vni: self.tunnel.vni,
            parent: parent.index,
            local: own.host.addr(),
            port: self.tunnel.port,
        };
        let link = match found {
            Some(link) if link.vxlan == Some(wanted) && link.mac == Some(own.mac) => link,
            Some(link) => {
                warn!(
                    "{DEVICE} has other attributes ({:?}, {:?}) than wanted ({wanted:?}, {}): recreating it",
                    link.vxlan, link.mac, own.mac
                );
                self.netlink.delete_link(&link).await?;
                self.create(wanted, own.mac).await?
            }
            None => self.create(wanted, own.mac).await?,
        };
        let mtu = if self.tunnel.mtu == 0 {
            parent.mtu.saturating_sub(50)
        } else {
            self.tunnel.mtu
        };
        if link.mtu != mtu {
            self.netlink.set_mtu(&link, mtu).await?;
        }
        note_mtu(mtu)?;
        let address = Ipv4Net::from(own.tunnel);
        let present = self
            .netlink
            .addresses()
            .await?
            .remove(&link.index)
            .unwrap_or_default();
        for other in present.iter().filter(|present| **present != address) {
            warn!("removing the address {other} from {DEVICE}");
            self.netlink.delete_address(&link, *other).await?;
        }
        if !present.contains(&address) {
            self.netlink.add_address(&link, address).await?;
        }
        if !link.up {
            self.netlink.set_up(&link).await?;
        }
        Ok(())
    }

    async fn parent(&self, address: Ipv4Addr) -> Result<Link> {
        let addresses = self.netlink.addresses().await?;
        let index = addresses.iter().find_map(|(index, ranges)| {
            ranges
                .iter()
                .any(|range| range.addr() == address)
                .then_some(*index)
        });
        let links = self.netlink.links().await?;
        index
            .and_then(|index| links.into_iter().find(|link| link.index == index))
            .with_context(|| {
                format!("find the device with the node's address {address}: none of {addresses:?}")
            })
    }

    async fn create(&self, wanted: Vxlan, mac: Mac) -> Result<Link> {
        if let Err(error) = self.netlink.add_vxlan(DEVICE, wanted, mac).await {
            if netlink::exists(&error) {
                bail!(
                    "can't locate created tunnel device {DEVICE}: another device has VNI {} and port {} (is \
                     flannel's still there?)",
                    wanted.vni,
                    wanted.port
                );
            }
            return Err(error);
        }
        info!(?wanted, %mac, "created {DEVICE}");
        netlink::existing(&self.netlink, DEVICE).await
    }

    async fn add_forwarding(&self, desired: &Desired) -> Result<()> {
        let Some(link) = self.netlink.link(DEVICE).await?.filter(|_| desired.own.is_some()) else {
            return Ok(());
        };
        let (neighbours, hosts) = ends(desired);
        let known_neighbours = self.netlink.neighbours(&link).await?;
        let known_hosts = self.netlink.forwarding(&link).await?;
        for (mac, host) in hosts
            .iter()
            .filter(|(mac, host)| !known_hosts.contains(&(**mac, **host)))
        {
            self.netlink.set_forwarding(&link, *mac, *host).await?;
        }
        for (address, mac) in neighbours
            .iter()
            .filter(|(address, mac)| known_neighbours.get(*address) != Some(*mac))
        {
            self.netlink.set_neighbour(&link, *address, *mac).await?;
        }
        Ok(())
    }

    async fn delete_forwarding(&self, desired: &Desired) -> Result<()> {
        let Some(link) = self.netlink.link(DEVICE).await?.filter(|_| desired.own.is_some()) else {
            return Ok(());
        };
        let (neighbours, hosts) = ends(desired);
        let known_neighbours = self.netlink.neighbours(&link).await?;
        let known_hosts = self.netlink.forwarding(&link).await?;
        for address in known_neighbours
            .keys()
            .filter(|address| !neighbours.contains_key(*address))
        {
            self.netlink.delete_neighbour(&link, *address).await?;
        }
        for (mac, host) in known_hosts.iter().filter(|(mac, _)| !hosts.contains_key(mac)) {
            self.netlink.delete_forwarding(&link, *mac, *host).await?;
        }
        Ok(())
    }

    async fn routes(&self, desired: &Desired) -> Result<()> {
        let links: BTreeMap<String, Link> = self
            .netlink
            .links()
            .await?
            .into_iter()
            .map(|link| (link.name.clone(), link))
            .collect();
        let tunnel = links.get(DEVICE);
        let parent = match desired.own {
            Some(own) => Some(self.parent(own.host.addr()).await?.index),
            None => None,
        };
        let mut wanted: BTreeMap<Ipv4Net, Route> = desired
            .routes
            .iter()
            .filter_map(|(destination, way)| Some((*destination, route(*destination, *way, tunnel, parent)?)))
            .collect();
        for (address, device) in &desired.pods {
            if let Some(link) = links.get(device) {
                let destination = Ipv4Net::from(*address);
                let target = Target::Device(link.index);
                let route = Route {
                    destination,
                    target,
                    protocol: PROTOCOL_BOOT,
                    mtu: None,
                };
                wanted.insert(destination, route);
            }
        }
        let present = self.netlink.routes().await?;
        let mut first = None;
        // First missing routes are added, then others removed: a destination always has a route.
        for route in wanted.values().filter(|route| !present.contains(route)) {
            if let Err(error) = self.netlink.replace_route(route).await {
                warn!("{error:#}");
                first = first.or(Some(error));
            }
        }
        for route in present
            .iter()
            .filter(|route| is_stale(route, tunnel.map(|link| link.index), &wanted))
        {
            if let Err(error) = self.netlink.delete_route(route).await {
                warn!("{error:#}");
                first = first.or(Some(error));
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// The other nodes' tunnel ends: the MAC of each address, and the host behind each MAC.
fn ends(desired: &Desired) -> (BTreeMap<Ipv4Addr, Mac>, BTreeMap<Mac, Ipv4Addr>) {
    let peers = || desired.peers.values();
    (
        peers().map(|peer| (peer.tunnel, peer.mac)).collect(),
        peers().map(|peer| (peer.mac, peer.host.addr())).collect(),
    )
}

/// Tells the plugin the MTU of pods' devices, for configurations without a value.
fn note_mtu(mtu: u32) -> Result<()> {
    let text = mtu.to_string();
    if std::fs::read_to_string(MTU_FILE).is_ok_and(|found| found.trim() == text) {
        return Ok(());
    }
    std::fs::write(MTU_FILE, text).with_context(|| format!("write {MTU_FILE}"))
}

fn route(destination: Ipv4Net, way: NextHop, tunnel: Option<&Link>, parent: Option<u32>) -> Option<Route> {
    let (target, protocol, mtu) = match way {
        NextHop::Tunnel(gateway) => {
            let tunnel = tunnel?;
            (
                Target::Gateway(tunnel.index, gateway),
                PROTOCOL_BOOT,
                Some(tunnel.mtu),
            )
        }
        NextHop::TunnelEnd => {
            let tunnel = tunnel?;
            (Target::Device(tunnel.index), PROTOCOL_BOOT, Some(tunnel.mtu))
        }
        NextHop::Direct(host) => (Target::Gateway(parent?, host), PROTOCOL_CALICO, None),
        NextHop::Blackhole => (Target::Blackhole, PROTOCOL_CALICO, None),
    };
    Some(Route {
        destination,
        target,
        protocol,
        mtu,
    })
}

/// Whether a route belongs to Calico (on the tunnel device or with Calico's mark) and its destination is not desired.
/// A route to a desired destination has been replaced by now, and deleting it could hit the new one.
fn is_stale(route: &Route, tunnel: Option<u32>, wanted: &BTreeMap<Ipv4Net, Route>) -> bool {
    let on_tunnel = match route.target {
        Target::Device(device) | Target::Gateway(device, _) | Target::Router(device, _) => {
            Some(device) == tunnel
        }
        Target::Blackhole | Target::Other => false,
    };
    let ours = (on_tunnel && route.protocol != PROTOCOL_KERNEL) || route.protocol == PROTOCOL_CALICO;
    ours && !wanted.contains_key(&route.destination)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn a_flannel_route_on_an_adopted_device_is_stale_and_a_route_of_an_old_pod_is_not() {
        let wanted = BTreeMap::new();
        let flannel = Route {
            destination: range("10.244.2.0/24"),
            target: Target::Gateway(7, "10.244.2.0".parse().unwrap()),
            protocol: PROTOCOL_BOOT,
            mtu: None,
        };
        assert!(is_stale(&flannel, Some(7), &wanted));
        assert!(!is_stale(&flannel, Some(8), &wanted));
        let legacy = Route {
            destination: range("10.244.1.5/32"),
            target: Target::Device(3),
            protocol: PROTOCOL_BOOT,
            mtu: None,
        };
        assert!(!is_stale(&legacy, Some(7), &wanted));
    }

    #[test]
    fn an_old_blackhole_is_stale() {
        let old = Route {
            destination: range("10.244.1.0/26"),
            target: Target::Blackhole,
            protocol: PROTOCOL_CALICO,
            mtu: None,
        };
        assert!(is_stale(&old, None, &BTreeMap::new()));
        assert!(!is_stale(&old, None, &BTreeMap::from([(old.destination, old)])));
    }

    #[test]
    fn without_a_tunnel_device_only_blackholes_are_set() {
        assert_eq!(
            route(range("10.244.2.0/26"), NextHop::TunnelEnd, None, Some(2)),
            None
        );
        let hole = route(range("10.244.1.0/26"), NextHop::Blackhole, None, None).unwrap();
        assert_eq!((hole.target, hole.protocol), (Target::Blackhole, PROTOCOL_CALICO));
    }
}
