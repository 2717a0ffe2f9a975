//! Simulated hosts with Calico: the kernel's state of both ranges. The agent's own code selects the relevant part,
//! and decides about tunnel ends.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use engine::kernel::{Device, FELIX, Hop, MAIN_TABLE, Route, RouteKind, Tables};
use ipnet::{IpNet, Ipv4Net};
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Resource, ResourceExt};
use pod_cidr::host::{
    AddressChange, HostFacts, HostSettings, KEPT_LABEL, LOOPBACK, LinkAddress, changes, conflist, facts,
};

use super::pods::{Pods, Role};
use crate::scale::calico::{self, TUNNEL_ANNOTATION};

const TUNNEL: &str = "vxlan.calico";
const UPLINK: &str = "eth0";
const MTU: u32 = 1500;
const CNI_FOLDER: &str = "/etc/cni/net.d";
const CONFLIST: (&str, &str) = (
    "10-calico.conflist",
    r#"{"name":"k8s-pod-network","cniVersion":"1.0.0","plugins":[{"type":"calico","ipam":{"type":"calico-ipam"}},{"type":"portmap"}]}"#,
);
/// The kernel's number for routes of the host's own configuration.
const BOOT: u8 = 3;

/// The blocks and tunnels of all nodes, as every Felix knows them.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Blocks and the nodes that have them.
    blocks: BTreeMap<Ipv4Net, String>,
    /// Tunnel ends by node.
    ends: BTreeMap<String, Ipv4Addr>,
}

impl Known {
    /// Adds a block. Returns whether its node has changed.
    pub fn see_block(&mut self, block: &DynamicObject) -> bool {
        let Some((range, node)) = calico::owner(block) else {
            return false;
        };
        self.blocks.insert(range, node.clone()).as_ref() != Some(&node)
    }

    /// Removes a block.
    pub fn forget_block(&mut self, block: &DynamicObject) {
        if let Some((range, _)) = calico::owner(block) {
            self.blocks.remove(&range);
        }
    }

    /// Adds a Node. Returns whether its tunnel end has changed.
    pub fn see_node<K: Resource>(&mut self, node: &PartialObjectMeta<K>) -> bool {
        let end = node.annotations().get(TUNNEL_ANNOTATION);
        let Some(end) = end.and_then(|text| text.parse().ok()) else {
            return false;
        };
        self.ends.insert(node.name_any(), end) != Some(end)
    }
}

/// A host with Calico.
#[derive(Clone, Debug, Default)]
pub struct CalicoHost {
    /// Addresses of the tunnel, and those that are kept on the loopback.
    addresses: Vec<LinkAddress>,
}

impl CalicoHost {
    /// Handles tunnel ends by the agent's code, then runs Felix, and returns the state.
    pub fn observe(&mut self, settings: &HostSettings, node: &str, known: &Known, pods: &Pods) -> HostFacts {
        for change in changes(&settings.tunnel_addresses, &self.addresses) {
            self.change(change);
        }
        if let Some(end) = known.ends.get(node) {
            self.follow(*end);
        }
        let files = [(CONFLIST.0.to_owned(), Ok(CONFLIST.1.as_bytes().to_vec()))];
        facts(
            settings,
            conflist(CNI_FOLDER, &files),
            // A hollow node has no kube-proxy: its configuration in the API counts.
            engine::found::Found::Absent,
            &self.tables(node, known, pods),
        )
    }

    fn change(&mut self, change: AddressChange) {
        match change {
            AddressChange::Keep(address) => self.addresses.push(on(LOOPBACK, address, KEPT_LABEL)),
            AddressChange::Drop(address) => self
                .addresses
                .retain(|found| *found != on(LOOPBACK, address, KEPT_LABEL)),
            AddressChange::Add(link, address) => self.addresses.push(on(&link, address, "")),
        }
    }

    /// Felix has only this address on its tunnel.
    fn follow(&mut self, end: Ipv4Addr) {
        let wanted = on(TUNNEL, end, "");
        self.addresses
            .retain(|found| found.link != TUNNEL || *found == wanted);
        if !self.addresses.contains(&wanted) {
            self.addresses.push(wanted);
        }
    }

    fn tables(&self, node: &str, known: &Known, pods: &Pods) -> Tables {
        let device = |name: &str, mtu: u32| Device {
            name: name.to_owned(),
            mtu,
            up: true,
            addresses: self
                .addresses
                .iter()
                .filter(|found| found.link == name)
                .map(|found| found.address)
                .collect(),
        };
        let to_pods = pods.iter().filter_map(|(uid, pod)| match pod.role {
            Role::OnPodNetwork(address) => {
                let short: String = uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
                Some(route(
                    RouteKind::Unicast,
                    address.into(),
                    vec![(None, format!("cali{short}"))],
                    FELIX,
                ))
            }
            Role::Flannel | Role::CalicoNode | Role::OnHost => None,
        });
        let to_blocks = known.blocks.iter().map(|(block, owner)| {
            if owner == node {
                return route(RouteKind::Blackhole, (*block).into(), Vec::new(), FELIX);
            }
            let gateway = known.ends.get(owner).map(|end| IpAddr::V4(*end));
            route(
                RouteKind::Unicast,
                (*block).into(),
                vec![(gateway, TUNNEL.to_owned())],
                FELIX,
            )
        });
        let everywhere = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
        let default = route(
            RouteKind::Unicast,
            everywhere,
            vec![(None, UPLINK.to_owned())],
            BOOT,
        );
        Tables {
            devices: vec![
                device(LOOPBACK, 65_536),
                device(UPLINK, MTU),
                device(TUNNEL, MTU - 50),
            ],
            routes: std::iter::once(default).chain(to_pods).chain(to_blocks).collect(),
            rules: Vec::new(),
        }
    }
}

fn on(link: &str, address: Ipv4Addr, label: &str) -> LinkAddress {
    LinkAddress {
        link: link.to_owned(),
        address: IpNet::V4(Ipv4Net::new_assert(address, 32)),
        label: label.to_owned(),
    }
}

fn route(kind: RouteKind, destination: IpNet, hops: Vec<(Option<IpAddr>, String)>, protocol: u8) -> Route {
    Route {
        kind,
        destination,
        hops: hops
            .into_iter()
            .map(|(gateway, link)| Hop {
                gateway,
                link: Some(link),
            })
            .collect(),
        table: MAIN_TABLE,
        protocol,
        metric: 0,
    }
}

#[cfg(test)]
mod tests {
    use pod_cidr::host::ChangedTunnelAddress;
    use serde_json::json;

    use super::super::pods::{PodOnHost, Told};
    use super::*;

    fn block(range: &str, node: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": {"name": "x"},
            "spec": {"cidr": range, "affinity": format!("host:{node}")},
        }))
        .unwrap()
    }

    fn settings(ends: Vec<ChangedTunnelAddress>) -> HostSettings {
        HostSettings {
            from: "10.128.0.0/10".parse().unwrap(),
            to: "10.0.0.0/10".parse().unwrap(),
            mtu: None,
            cni_configuration_directory: None,
            tunnel_addresses: ends,
        }
    }

    #[test]
    fn a_host_has_routes_to_its_pods_and_to_the_blocks_of_others() {
        let mut known = Known::default();
        assert!(
            known.see_block(&block("10.128.0.0/26", "a")) && known.see_block(&block("10.128.0.64/26", "b"))
        );
        assert!(
            !known.see_block(&block("10.128.0.64/26", "b")),
            "the block is known"
        );
        known.ends.insert("a".to_owned(), Ipv4Addr::new(10, 128, 0, 0));
        let pod = PodOnHost {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            role: Role::OnPodNetwork("10.128.0.5".parse().unwrap()),
            told: Told::default(),
        };
        let pods = Pods::from([("0a-1".to_owned(), pod)]);
        let mut host = CalicoHost::default();
        let found = host.observe(&settings(Vec::new()), "a", &known, &pods);
        assert_eq!(found.ipam(), Ok("calico-ipam"));
        let old = &found.source;
        let counts = [&old.pods, &old.blocks, &old.discards].map(engine::kernel::Listed::count);
        assert_eq!((counts, old.addresses.count()), ([1, 1, 1], 1));
        known.forget_block(&block("10.128.0.64/26", "b"));
        let found = host.observe(&settings(Vec::new()), "a", &known, &Pods::new());
        assert!(found.source.blocks.is_empty() && found.source.pods.is_empty());
    }

    #[test]
    fn the_old_end_of_a_tunnel_is_kept_while_felix_takes_the_new_one() {
        let (old, new) = (Ipv4Addr::new(10, 128, 0, 0), Ipv4Addr::new(10, 0, 0, 63));
        let end = |address| ChangedTunnelAddress {
            name: "IPv4VXLANTunnelAddr".to_owned(),
            old,
            new: Some(address),
        };
        let mut known = Known::default();
        known.ends.insert("a".to_owned(), old);
        let mut host = CalicoHost::default();
        let pods = Pods::new();
        host.observe(&settings(vec![end(old)]), "a", &known, &pods);
        assert_eq!(
            host.addresses,
            [on(LOOPBACK, old, KEPT_LABEL), on(TUNNEL, old, "")]
        );
        known.ends.insert("a".to_owned(), new);
        let found = host.observe(&settings(vec![end(new)]), "a", &known, &pods);
        assert_eq!(
            host.addresses,
            [on(LOOPBACK, old, KEPT_LABEL), on(TUNNEL, new, "")]
        );
        assert_eq!(found.source.addresses.count(), 1, "the one that is kept");
        let found = host.observe(&settings(Vec::new()), "a", &known, &pods);
        assert!(found.source.addresses.is_empty());
    }
}
