//! Addresses of tunnels' ends while Calico exchanges them: what the agent adds to its host, and takes away again.
//!
//! When the last IPv4 address of a link goes, the kernel takes every route by that link with it. Calico's Felix deletes the old
//! address of its tunnel before it adds the new one, and writes its routes tens of milliseconds later: packets from and to the
//! node are lost meanwhile, and connections of the host that began at the old address are lost for good (docs/limits.md). Where
//! the new address is on the link already, nothing goes; where the old one is on the loopback, connections go on.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The link on which old addresses are kept.
pub const LOOPBACK: &str = "lo";
/// Label of an address that an agent keeps: it is known by it after whatever has happened. Only IPv4 has labels.
pub const KEPT_LABEL: &str = "lo:replumb";

/// Links that are tunnels of Calico's: what a node's tunnel ends at is on one of them.
const TUNNELS: [&str; 3] = ["vxlan.calico", "tunl0", "wireguard.cali"];
/// The bridge of a network that was there before Calico: its range may have been the node's own.
const BRIDGE: &str = "cni0";

/// `TunnelEnd` is a tunnel address of a node that changes. IPv4 only: the kernel keeps the IPv6 routes of a link that loses its
/// address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TunnelEnd {
    /// `name` is the tunnel: the last part of the key of Calico's annotation on the Node, such as `IPv4VXLANTunnelAddr`.
    pub name: String,
    /// `kept` is the old address of the tunnel.
    pub kept: Ipv4Addr,
    /// `address` is the address that Calico has last chosen for the tunnel. Unset if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
}

/// An address as it is on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// Name of the link.
    pub link: String,
    /// Address with the length of its prefix.
    pub address: IpNet,
    /// Its label; empty where it has none.
    pub label: String,
}

impl LinkAddress {
    fn is_at(&self, address: Ipv4Addr) -> bool {
        self.address.addr() == IpAddr::V4(address)
    }

    /// Whether an agent keeps it.
    fn is_kept(&self) -> bool {
        self.link == LOOPBACK && self.label == KEPT_LABEL
    }

    fn is_of_tunnel(&self) -> bool {
        TUNNELS.contains(&self.link.as_str())
    }
}

/// One change of the host: idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressChange {
    /// Put this address on the loopback, labelled.
    Keep(Ipv4Addr),
    /// Take it from there.
    Drop(Ipv4Addr),
    /// Put this address on this link, where Calico will look for it.
    Add(String, Ipv4Addr),
}

/// Whose an address is besides: the host's own, or one of a network that the host is on. On the loopback it would cut the host off from it,
/// and on a link the host would answer for it: no migration asks for that.
fn foreign<'found>(
    wanted: Ipv4Addr,
    end: &TunnelEnd,
    found: &'found [LinkAddress],
) -> Option<&'found LinkAddress> {
    let holds =
        |found: &LinkAddress, address: Ipv4Addr| found.address.contains(&IpNet::from(IpAddr::V4(address)));
    let is_end = found
        .iter()
        .any(|found| found.is_at(end.kept) && (found.is_kept() || found.is_of_tunnel()));
    found
        .iter()
        .filter(|found| !found.is_kept() && !found.is_of_tunnel() && found.link != BRIDGE)
        // Where the end that is on its tunnel is within the network of another link, pods live in there, and it says nothing.
        .find(|found| {
            let is_network_of_pods = is_end && holds(found, end.kept);
            found.is_at(wanted) || (!is_network_of_pods && holds(found, wanted))
        })
}

/// Ends that are no ends of tunnels, one line each: nothing is done about them.
pub fn refused(ends: &[TunnelEnd], found: &[LinkAddress]) -> Vec<String> {
    let line = |address: Ipv4Addr, end: &TunnelEnd| {
        let of = foreign(address, end, found)?;
        Some(format!(
            "spec.podCidr.tunnelEnds: {address} is in {} of link {}, needed the end of a tunnel of Calico's",
            of.address, of.link
        ))
    };
    let of_end = |end: &TunnelEnd| [Some(end.kept), end.address].map(|address| line(address?, end));
    ends.iter().flat_map(of_end).flatten().collect()
}

/// What is to be changed so that the ends are as they are asked for; none is asked for once the change of range is over.
pub fn changes(ends: &[TunnelEnd], found: &[LinkAddress]) -> Vec<AddressChange> {
    let kept: Vec<Ipv4Addr> = found
        .iter()
        .filter(|address| address.is_kept())
        .filter_map(|address| match address.address {
            IpNet::V4(net) => Some(net.addr()),
            IpNet::V6(_) => None,
        })
        .collect();
    // One that comes back is on its link before it goes from here: at no moment is it nowhere.
    let mut changes = Vec::new();
    let is_foreign = |address: Ipv4Addr, end: &TunnelEnd| foreign(address, end, found).is_some();
    for end in ends.iter().filter(|end| !is_foreign(end.kept, end)) {
        if !kept.contains(&end.kept) {
            changes.push(AddressChange::Keep(end.kept));
        }
        let other = |address: &Ipv4Addr| *address != end.kept && !is_foreign(*address, end);
        let Some(address) = end.address.filter(other) else {
            continue;
        };
        // Only beside the old address: once that is gone, Calico has been there.
        let links = found
            .iter()
            .filter(|found| found.is_of_tunnel() && found.is_at(end.kept));
        for link in links {
            let is_there = found
                .iter()
                .any(|found| found.link == link.link && found.is_at(address));
            if !is_there {
                changes.push(AddressChange::Add(link.link.clone(), address));
            }
        }
    }
    let is_over = |address: &&Ipv4Addr| ends.iter().all(|end| end.kept != **address);
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

    fn end(kept: &str, address: Option<&str>) -> TunnelEnd {
        TunnelEnd {
            name: "IPv4VXLANTunnelAddr".to_owned(),
            kept: kept.parse().unwrap(),
            address: address.map(|address| address.parse().unwrap()),
        }
    }

    fn address(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    const OLD: &str = "10.244.1.0";
    const NEW: &str = "10.200.1.0";

    /// As the host goes through an exchange of the address: each state, and what it asks for.
    #[test]
    fn the_old_address_is_kept_and_the_new_one_is_there_before_calico_looks() {
        let before = [on("vxlan.calico", OLD, "vxlan.calico")];
        let same = [end(OLD, Some(OLD))];
        let keep = [AddressChange::Keep(address(OLD))];
        assert_eq!(changes(&same, &before), keep);
        let kept = [before[0].clone(), on(LOOPBACK, OLD, KEPT_LABEL)];
        assert_eq!(changes(&same, &kept), []);

        // Calico has chosen another one, and its Felix starts anew.
        let chosen = [end(OLD, Some(NEW))];
        let add = AddressChange::Add("vxlan.calico".to_owned(), address(NEW));
        assert_eq!(changes(&chosen, &kept), [add]);
        let mut both = kept.to_vec();
        both.push(on("vxlan.calico", NEW, "vxlan.calico"));
        assert_eq!(changes(&chosen, &both), []);

        // Felix has taken the old one away.
        let after = [on("vxlan.calico", NEW, ""), on(LOOPBACK, OLD, KEPT_LABEL)];
        assert_eq!(changes(&chosen, &after), []);
        assert_eq!(changes(&[], &after), [AddressChange::Drop(address(OLD))]);
        assert_eq!(changes(&[], &after[..1]), []);
    }

    /// The tunnel gets back what it had: that address is on the link before it goes from the loopback.
    #[test]
    fn an_address_that_comes_back_is_never_nowhere() {
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

    /// Calico has none for a moment, or took the address away before anybody saw it: its link is left alone.
    #[test]
    fn a_link_without_the_old_address_gets_nothing() {
        let kept = [on("vxlan.calico", "10.9.9.9", ""), on(LOOPBACK, OLD, KEPT_LABEL)];
        assert_eq!(changes(&[end(OLD, Some(NEW))], &kept), []);
        assert_eq!(changes(&[end(OLD, None)], &kept), []);
    }

    /// A writer of the object may not cut a host off from its gateway, nor let it answer for another host.
    #[test]
    fn an_address_of_the_hosts_own_networks_is_not_taken() {
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
                "spec.podCidr.tunnelEnds: 192.0.2.1 is in 192.0.2.11/24 of link eth0, needed the end of a tunnel of Calico's"
            ]
        );
        let bridge = LinkAddress {
            address: "10.244.1.1/24".parse().unwrap(),
            ..on("cni0", "10.244.1.1", "cni0")
        };
        assert_eq!(refused(&[end(OLD, Some(NEW))], &[bridge]), Vec::<String>::new());
        // All of 10.0.0.0/8 is the host's network, and pods are within: longer prefixes lead to them.
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
    fn an_address_of_somebody_else_on_the_loopback_stays() {
        assert_eq!(changes(&[], &[on(LOOPBACK, OLD, "lo")]), []);
    }
}
