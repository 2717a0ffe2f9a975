//! The desired state of this node's kernel, computed from Calico's objects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::datastore::types::{IPAMBlockSpec, IPPoolSpec};
use crate::host::Mac;
use crate::host::firewall::Rules;
use crate::ipam::names;

/// One end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the host, with its subnet.
    pub host: Ipv4Net,
    /// Address of the tunnel device.
    pub tunnel: Ipv4Addr,
    /// Hardware address of the tunnel device.
    pub mac: Mac,
}

/// The path to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NextHop {
    /// Through the tunnel, to the tunnel address of the node with the block.
    Tunnel(Ipv4Addr),
    /// The destination is the other end of the tunnel.
    TunnelEnd,
    /// Without a tunnel, to the host with the block.
    Direct(Ipv4Addr),
    /// Blackhole: an own block, of which only assigned addresses have a better route.
    Blackhole,
}

/// The desired state of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// Whether a tunnel device is desired.
    pub vxlan: bool,
    /// The own end of the tunnel; `None` while the node's annotations are incomplete.
    pub own: Option<Endpoint>,
    /// The other ends, by node.
    pub peers: BTreeMap<String, Endpoint>,
    /// Routes that do not lead to an own pod.
    pub routes: BTreeMap<Ipv4Net, NextHop>,
    /// Own pods: their device and address.
    pub pods: BTreeMap<Ipv4Addr, String>,
    /// The packet filter.
    pub rules: Rules,
}

/// All inputs, from either datastore.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Tunnel ends, by node. A node with incomplete data has none.
    pub ends: BTreeMap<String, Endpoint>,
    /// Every block.
    pub blocks: Vec<IPAMBlockSpec>,
    /// Every pool.
    pub pools: Vec<IPPoolSpec>,
    /// The pods of this node: their device and address.
    pub pods: BTreeMap<Ipv4Addr, String>,
}

/// The settings of the tunnel that change the desired state.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Whether the settings demand or forbid it; `None`: if a pool needs it.
    pub vxlan: Option<bool>,
    /// The UDP port.
    pub port: u16,
}

impl Endpoint {
    /// Computed from a node's data; `None` if a part is missing.
    pub fn of(node: &str, address: Option<&str>, tunnel: Option<&str>, mac: Option<&str>) -> Option<Self> {
        let address = address?;
        let host = address
            .parse()
            .ok()
            .or_else(|| Ipv4Net::new(address.parse().ok()?, 32).ok())?;
        let mac = match mac.filter(|mac| !mac.is_empty()) {
            Some(mac) => mac.parse().ok()?,
            None => names::tunnel_mac(node).parse().ok()?,
        };
        let tunnel = tunnel?.parse().ok()?;
        Some(Self { host, tunnel, mac })
    }
}

impl IPPoolSpec {
    /// The range, if it is an IPv4 range.
    pub fn range(&self) -> Option<Ipv4Net> {
        self.cidr.parse().ok()
    }

    /// Whether its packets go through a VXLAN tunnel, at least between some nodes.
    pub fn is_vxlan(&self) -> bool {
        self.range().is_some()
            && self
                .vxlan_mode
                .as_deref()
                .is_some_and(|mode| !mode.is_empty() && mode != "Never")
    }
}

/// Whether these pools need a tunnel, unless the settings override them.
pub fn wants_vxlan<'a>(enabled: Option<bool>, pools: impl IntoIterator<Item = &'a IPPoolSpec>) -> bool {
    enabled.unwrap_or_else(|| pools.into_iter().any(IPPoolSpec::is_vxlan))
}

/// Computes the desired state of the kernel.
pub fn desired(node: &str, world: &World, demand: Demand) -> Desired {
    let vxlan = wants_vxlan(demand.vxlan, &world.pools);
    let mut desired = Desired {
        vxlan,
        ..Desired::default()
    };
    for pool in &world.pools {
        if let Some(range) = pool.range() {
            desired.rules.pools.insert(range);
            if pool.nat_outgoing {
                desired.rules.masqueraded.insert(range);
            }
        }
    }
    desired.pods = world.pods.clone();
    if !vxlan {
        return desired;
    }
    desired.peers = world.ends.clone();
    desired.own = desired.peers.remove(node);
    for peer in desired.peers.values() {
        // An address outside all pools is not a tunnel end: its node is about to get another one.
        if vxlan_pool(&world.pools, peer.tunnel).is_some() {
            desired.routes.insert(host_range(peer.tunnel), NextHop::TunnelEnd);
        }
    }
    for block in &world.blocks {
        add_block(&mut desired, node, &world.pools, block);
    }
    let hosts = desired.peers.values().map(|peer| peer.host.addr()).collect();
    desired.rules.tunnel = Some((demand.port, hosts));
    desired
}

fn add_block(desired: &mut Desired, own: &str, pools: &[IPPoolSpec], block: &IPAMBlockSpec) {
    let Some(range) = block.range() else { return };
    // Disabled or not: an assigned address keeps its route. A block outside all pools has none.
    let Some(pool) = vxlan_pool(pools, range.addr()) else {
        return;
    };
    let cross_subnet = pool.vxlan_mode.as_deref() == Some("CrossSubnet");
    let way = |node: &str| -> Option<NextHop> {
        let peer = desired.peers.get(node)?;
        let near = desired
            .own
            .is_some_and(|own| own.host.contains(&peer.host.addr()));
        Some(if cross_subnet && near {
            NextHop::Direct(peer.host.addr())
        } else {
            NextHop::Tunnel(peer.tunnel)
        })
    };
    let mut found = Vec::new();
    let owner = block.node();
    if owner == Some(own) {
        // A blackhole of a single address would hide its pod.
        if range.prefix_len() < 32 {
            found.push((range, NextHop::Blackhole));
        }
    } else if let Some(way) = owner.and_then(way) {
        found.push((range, way));
    }
    // Addresses that another node than the block's owner has.
    for ordinal in 0..block.allocations.len() {
        let Some(address) = names::nth(range, ordinal) else {
            break;
        };
        let attributes = block
            .owner(address)
            .and_then(|attribute| attribute.secondary.as_ref());
        let holder = attributes
            .and_then(|attributes| attributes.get("node"))
            .map(String::as_str);
        if let Some(holder) = holder.filter(|holder| Some(*holder) != owner && *holder != own)
            && let Some(way) = way(holder)
        {
            found.push((host_range(address), way));
        }
    }
    for (range, way) in found {
        desired.routes.entry(range).or_insert(way);
    }
}

/// The pool of an address, if its packets use a tunnel.
fn vxlan_pool(pools: &[IPPoolSpec], address: Ipv4Addr) -> Option<&IPPoolSpec> {
    let holds = |pool: &&IPPoolSpec| pool.range().is_some_and(|range| range.contains(&address));
    pools.iter().find(holds).filter(|pool| pool.is_vxlan())
}

fn host_range(address: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::from(address)
}

/// Every host that may send tunnel packets to this node, for the log.
pub fn hosts(desired: &Desired) -> BTreeSet<Ipv4Addr> {
    desired.peers.values().map(|peer| peer.host.addr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::block::{self, Owner};

    fn end(number: u8) -> (String, Endpoint) {
        let name = format!("n{number}");
        let texts = [
            format!("172.30.0.{number}/24"),
            format!("10.244.{number}.0"),
            format!("66:00:00:00:00:0{number}"),
        ];
        let [address, tunnel, mac] = texts.each_ref().map(|text| Some(text.as_str()));
        let end = Endpoint::of(&name, address, tunnel, mac).unwrap();
        (name, end)
    }

    fn ends<const COUNT: usize>(numbers: [u8; COUNT]) -> BTreeMap<String, Endpoint> {
        numbers.into_iter().map(end).collect()
    }

    fn pool(mode: &str) -> IPPoolSpec {
        IPPoolSpec {
            cidr: "10.244.0.0/16".to_owned(),
            vxlan_mode: Some(mode.to_owned()),
            nat_outgoing: true,
            ..IPPoolSpec::default()
        }
    }

    fn compute(
        ends: BTreeMap<String, Endpoint>,
        blocks: &[IPAMBlockSpec],
        pools: &[IPPoolSpec],
        vxlan: Option<bool>,
    ) -> Desired {
        let world = World {
            ends,
            blocks: blocks.to_vec(),
            pools: pools.to_vec(),
            pods: BTreeMap::new(),
        };
        desired("n1", &world, Demand { vxlan, port: 8472 })
    }

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn own_blocks_are_blackholes_and_other_blocks_lead_through_the_tunnel() {
        let blocks = [
            block::new(range("10.244.1.0/26"), "n1", 1),
            block::new(range("10.244.2.64/26"), "n2", 1),
        ];
        let desired = compute(ends([1, 2]), &blocks, &[pool("Always")], None);
        assert_eq!(
            desired.routes,
            BTreeMap::from([
                (range("10.244.1.0/26"), NextHop::Blackhole),
                (range("10.244.2.0/32"), NextHop::TunnelEnd),
                (
                    range("10.244.2.64/26"),
                    NextHop::Tunnel("10.244.2.0".parse().unwrap())
                ),
            ])
        );
        assert_eq!(desired.own.unwrap().mac.to_string(), "66:00:00:00:00:01");
        assert_eq!(
            desired.rules.tunnel,
            Some((8472, ["172.30.0.2".parse().unwrap()].into()))
        );
        assert_eq!(hosts(&desired), ["172.30.0.2".parse().unwrap()].into());
        assert_eq!(desired.rules.masqueraded, [range("10.244.0.0/16")].into());
    }

    #[test]
    fn a_borrowed_address_leads_to_its_borrower() {
        let mut borrowed = block::new(range("10.244.2.0/26"), "n2", 1);
        let owner = |node: &str| Owner {
            handle: format!("h-{node}"),
            attributes: BTreeMap::from([("node".to_owned(), node.to_owned())]),
        };
        assert!(borrowed.assign("10.244.2.5".parse().unwrap(), &owner("n3")));
        assert!(borrowed.assign("10.244.2.6".parse().unwrap(), &owner("n1")));
        assert!(borrowed.assign("10.244.2.7".parse().unwrap(), &owner("n2")));
        let desired = compute(ends([1, 2, 3]), &[borrowed], &[pool("Always")], None);
        let single: Vec<_> = desired
            .routes
            .iter()
            .filter(|(range, _)| range.addr().octets()[3] > 0)
            .collect();
        assert_eq!(
            single,
            [(
                &range("10.244.2.5/32"),
                &NextHop::Tunnel("10.244.3.0".parse().unwrap())
            )]
        );
    }

    #[test]
    fn within_a_subnet_cross_subnet_needs_no_tunnel() {
        let blocks = [block::new(range("10.244.2.0/26"), "n2", 1)];
        let desired = compute(ends([1, 2]), &blocks, &[pool("CrossSubnet")], None);
        assert_eq!(
            desired.routes[&range("10.244.2.0/26")],
            NextHop::Direct("172.30.0.2".parse().unwrap())
        );
    }

    #[test]
    fn without_vxlan_there_is_no_device_and_no_route() {
        let blocks = [block::new(range("10.244.1.0/26"), "n1", 1)];
        for (mode, enabled) in [("Never", None), ("Always", Some(false))] {
            let desired = compute(ends([1, 2]), &blocks, &[pool(mode)], enabled);
            assert!(!desired.vxlan && desired.routes.is_empty() && desired.own.is_none());
            assert_eq!(desired.rules.tunnel, None);
        }
        assert!(compute(ends([1, 2]), &blocks, &[pool("Never")], Some(true)).vxlan);
    }

    #[test]
    fn a_disabled_pool_keeps_its_routes_and_masquerading_and_a_deleted_one_loses_both() {
        let blocks = [
            block::new(range("10.244.1.0/26"), "n1", 1),
            block::new(range("10.244.2.0/26"), "n2", 1),
            block::new(range("10.200.1.0/26"), "n1", 1),
            block::new(range("10.200.2.0/26"), "n2", 1),
        ];
        let mut old = pool("Always");
        old.disabled = true;
        let new = IPPoolSpec {
            cidr: "10.200.0.0/16".to_owned(),
            ..pool("Always")
        };
        let both = compute(ends([1, 2]), &blocks, &[new.clone(), old], None);
        assert_eq!(both.routes.len(), 5, "{:?}", both.routes);
        assert_eq!(both.routes[&range("10.244.1.0/26")], NextHop::Blackhole);
        assert!(both.rules.pools.contains(&range("10.244.0.0/16")));
        assert!(both.rules.masqueraded.contains(&range("10.244.0.0/16")));
        let one = compute(ends([1, 2]), &blocks, &[new], None);
        let old: Vec<_> = one
            .routes
            .keys()
            .filter(|to| to.addr().octets()[1] == 244)
            .collect();
        assert!(old.is_empty(), "{old:?}");
        assert_eq!(one.routes.len(), 2, "{:?}", one.routes);
        assert_eq!(one.rules.pools, [range("10.200.0.0/16")].into());
    }
}
