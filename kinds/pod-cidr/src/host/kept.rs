//! Tunnel addresses during their change: the addresses that the agent adds to its host, and removes again.
//!
//! When the last IPv4 address of a link is removed, the kernel removes every route through that link. Calico's Felix removes
//! the old address of its tunnel before it adds the new one, and writes its routes tens of milliseconds later: packets from and
//! to the node are lost in between, and connections of the host that began at the old address break (docs/limits.md). If the
//! new address is already on the link, the routes stay; if the old one is on the loopback link, connections continue.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The link on which old addresses are kept.
pub const LOOPBACK: &str = "lo";
/// Label of an address that an agent keeps, by which the agent recognizes it after a restart. Only IPv4 addresses have labels.
pub const KEPT_LABEL: &str = "lo:replumb";

/// Calico's tunnel links: the tunnel addresses of a node are on these.
const TUNNELS: [&str; 3] = ["vxlan.calico", "tunl0", "wireguard.cali"];
/// The bridge of a network before Calico, whose range may be the one of this node.
const BRIDGE: &str = "cni0";

/// `ChangedTunnelAddress` is a tunnel address of a node that changes. IPv4 only: the kernel keeps the IPv6 routes of a link that
/// loses its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedTunnelAddress {
    /// `name` is the tunnel: the last part of the key of Calico's annotation on the Node, such as `IPv4VXLANTunnelAddr`.
    pub name: String,
    /// `old` is the old address of the tunnel.
    pub old: Ipv4Addr,
    /// `new` is the address that Calico has last chosen for the tunnel. Unset if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Ipv4Addr>,
}

/// An address on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// Name of the link.
    pub link: String,
    /// Address with its prefix length.
    pub address: IpNet,
    /// Its label; empty if it has none.
    pub label: String,
}

impl LinkAddress {
    fn is_at(&self, address: Ipv4Addr) -> bool {
        self.address.addr() == IpAddr::V4(address)
    }

    /// Whether an agent has put it on the loopback link.
    fn is_kept(&self) -> bool {
        self.link == LOOPBACK && self.label == KEPT_LABEL
    }

    fn is_of_tunnel(&self) -> bool {
        TUNNELS.contains(&self.link.as_str())
    }
}

/// One idempotent change of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressChange {
    /// Add this address, with the label, to the loopback link.
    Keep(Ipv4Addr),
    /// Remove this address from the loopback link.
    Drop(Ipv4Addr),
    /// Add this address to this tunnel link, where Calico will expect it.
    Add(String, Ipv4Addr),
}

/// The host's address or connected network that contains an address. On the loopback link such an address would become
/// unreachable for the host, and on a tunnel link the host would answer for it: no migration needs that.
fn foreign<'found>(
    wanted: Ipv4Addr,
    end: &ChangedTunnelAddress,
    found: &'found [LinkAddress],
) -> Option<&'found LinkAddress> {
    let holds =
        |found: &LinkAddress, address: Ipv4Addr| found.address.contains(&IpNet::from(IpAddr::V4(address)));
    let is_end = found
        .iter()
        .any(|found| found.is_at(end.old) && (found.is_kept() || found.is_of_tunnel()));
    found
        .iter()
        .filter(|found| !found.is_kept() && !found.is_of_tunnel() && found.link != BRIDGE)
        // If the tunnel address is within the network of another link, pods are in that network too, and it does not count.
        .find(|found| {
            let is_network_of_pods = is_end && holds(found, end.old);
            found.is_at(wanted) || (!is_network_of_pods && holds(found, wanted))
        })
}

/// Addresses of the list that are no tunnel addresses, one line each. The agent does not change these.
pub fn refused(ends: &[ChangedTunnelAddress], found: &[LinkAddress]) -> Vec<String> {
    let line = |address: Ipv4Addr, end: &ChangedTunnelAddress| {
        let of = foreign(address, end, found)?;
        Some(format!(
            "spec.podCidr.tunnelAddresses: {address} is in {} of link {}, needed an address of a Calico tunnel",
            of.address, of.link
        ))
    };
    let of_end = |end: &ChangedTunnelAddress| [Some(end.old), end.new].map(|address| line(address?, end));
    ends.iter().flat_map(of_end).flatten().collect()
}

/// The changes that implement the list. Once the migration is complete, the list is empty.
pub fn changes(ends: &[ChangedTunnelAddress], found: &[LinkAddress]) -> Vec<AddressChange> {
    let kept: Vec<Ipv4Addr> = found
        .iter()
        .filter(|address| address.is_kept())
        .filter_map(|address| match address.address {
            IpNet::V4(net) => Some(net.addr()),
            IpNet::V6(_) => None,
        })
        .collect();
    // A returning address is added to its link before it is removed from the loopback link, so that it is always on the host.
    let mut changes = Vec::new();
    let is_foreign = |address: Ipv4Addr, end: &ChangedTunnelAddress| foreign(address, end, found).is_some();
    for end in ends.iter().filter(|end| !is_foreign(end.old, end)) {
        if !kept.contains(&end.old) {
            changes.push(AddressChange::Keep(end.old));
        }
        let other = |address: &Ipv4Addr| *address != end.old && !is_foreign(*address, end);
        let Some(address) = end.new.filter(other) else {
            continue;
        };
        // Only beside the old address: if that is missing, Calico has already changed the link.
        let links = found
            .iter()
            .filter(|found| found.is_of_tunnel() && found.is_at(end.old));
        for link in links {
            let is_there = found
                .iter()
                .any(|found| found.link == link.link && found.is_at(address));
            if !is_there {
                changes.push(AddressChange::Add(link.link.clone(), address));
            }
        }
    }
    let is_over = |address: &&Ipv4Addr| ends.iter().all(|end| end.old != **address);
    changes.extend(
        kept.iter()
            .filter(is_over)
            .map(|address| AddressChange::Drop(*address)),
    );
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(link: &str, address: &str, label: &str) -> LinkAddress {
        LinkAddress {
            link: link.to_owned(),
            address: format!("{address}/32").parse().unwrap(),
            label: label.to_owned(),
        }
    }

    fn end(kept: &str, address: Option<&str>) -> ChangedTunnelAddress {
        ChangedTunnelAddress {
            name: "IPv4VXLANTunnelAddr".to_owned(),
            old: kept.parse().unwrap(),
            new: address.map(|address| address.parse().unwrap()),
        }
    }

    fn address(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    const OLD: &str = "10.244.1.0";
    const NEW: &str = "10.200.1.0";

    /// Each state of the host during a change of its tunnel address, and the resulting changes.
    #[test]
    fn the_old_address_is_kept_and_the_new_one_is_added_before_calico_does() {
        let before = [on("vxlan.calico", OLD, "vxlan.calico")];
        let same = [end(OLD, Some(OLD))];
        let keep = [AddressChange::Keep(address(OLD))];
        assert_eq!(changes(&same, &before), keep);
        let kept = [before[0].clone(), on(LOOPBACK, OLD, KEPT_LABEL)];
        assert_eq!(changes(&same, &kept), []);

        // Calico has chosen another address, and Felix restarts.
        let chosen = [end(OLD, Some(NEW))];
        let add = AddressChange::Add("vxlan.calico".to_owned(), address(NEW));
        assert_eq!(changes(&chosen, &kept), [add]);
        let mut both = kept.to_vec();
        both.push(on("vxlan.calico", NEW, "vxlan.calico"));
        assert_eq!(changes(&chosen, &both), []);

        // Felix has removed the old address.
        let after = [on("vxlan.calico", NEW, ""), on(LOOPBACK, OLD, KEPT_LABEL)];
        assert_eq!(changes(&chosen, &after), []);
        assert_eq!(changes(&[], &after), [AddressChange::Drop(address(OLD))]);
        assert_eq!(changes(&[], &after[..1]), []);
    }

    /// The tunnel gets its former address back: it is added to the link before it is removed from the loopback link.
    #[test]
    fn a_returning_address_is_always_on_the_host() {
        let turned = [on("vxlan.calico", NEW, ""), on(LOOPBACK, OLD, KEPT_LABEL)];
        let ends = [end(NEW, Some(NEW)), end(OLD, None)];
        assert_eq!(changes(&ends, &turned), [AddressChange::Keep(address(NEW))]);
        let mut kept = turned.to_vec();
        kept.push(on(LOOPBACK, NEW, KEPT_LABEL));
        assert_eq!(changes(&ends, &kept), []);
        let returned = [end(NEW, Some(OLD))];
        let add = AddressChange::Add("vxlan.calico".to_owned(), address(OLD));
        assert_eq!(
            changes(&returned, &kept),
            [add, AddressChange::Drop(address(OLD))]
        );
    }

    /// Calico has no address for a moment, or has removed it before the agent noticed.
    #[test]
    fn a_link_without_the_old_address_is_not_changed() {
        let kept = [on("vxlan.calico", "10.9.9.9", ""), on(LOOPBACK, OLD, KEPT_LABEL)];
        assert_eq!(changes(&[end(OLD, Some(NEW))], &kept), []);
        assert_eq!(changes(&[end(OLD, None)], &kept), []);
    }

    /// A writer of the NodeMigration must not disconnect a host from its gateway, or make it answer for another host.
    #[test]
    fn an_address_of_a_host_network_is_refused() {
        let host = [
            LinkAddress {
                address: "192.0.2.11/24".parse().unwrap(),
                ..on("eth0", "192.0.2.11", "eth0")
            },
            LinkAddress {
                address: "127.0.0.1/8".parse().unwrap(),
                ..on(LOOPBACK, "127.0.0.1", "lo")
            },
            on("kube-ipvs0", "10.96.0.1", "kube-ipvs0"),
            on("vxlan.calico", OLD, "vxlan.calico"),
        ];
        for (kept, added, refuses) in [
            ("192.0.2.1", None, 1),
            ("192.0.2.11", Some("192.0.2.1"), 2),
            ("127.0.0.9", None, 1),
            ("10.96.0.1", None, 1),
        ] {
            let ends = [end(kept, added)];
            assert_eq!(changes(&ends, &host), [], "{kept}");
            assert_eq!(refused(&ends, &host).len(), refuses, "{kept}");
        }
        let ends = [end(OLD, Some("192.0.2.1"))];
        assert_eq!(changes(&ends, &host), [AddressChange::Keep(address(OLD))]);
        assert_eq!(
            refused(&ends, &host),
            [
                "spec.podCidr.tunnelAddresses: 192.0.2.1 is in 192.0.2.11/24 of link eth0, needed an address of a Calico tunnel"
            ]
        );
        let bridge = LinkAddress {
            address: "10.244.1.1/24".parse().unwrap(),
            ..on("cni0", "10.244.1.1", "cni0")
        };
        assert_eq!(refused(&[end(OLD, Some(NEW))], &[bridge]), Vec::<String>::new());
        // The host's network 10.0.0.0/8 contains the pod range: longer prefixes lead to pods.
        let wide = LinkAddress {
            address: "10.0.0.5/8".parse().unwrap(),
            ..on("eth0", "10.0.0.5", "eth0")
        };
        let both = [wide, on("vxlan.calico", OLD, "vxlan.calico")];
        let keep = AddressChange::Keep(address(OLD));
        let add = AddressChange::Add("vxlan.calico".to_owned(), address(NEW));
        assert_eq!(changes(&[end(OLD, Some(NEW))], &both), [keep, add]);
        let of_the_host = [end(OLD, Some("10.0.0.5"))];
        assert_eq!(refused(&of_the_host, &both).len(), 1);
    }

    #[test]
    fn a_foreign_address_on_the_loopback_link_stays() {
        assert_eq!(changes(&[], &[on(LOOPBACK, OLD, "lo")]), []);
    }
}
