//! In place: addresses of running flannel pods, which Calico's IPAM must not assign to other pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::facts::HostFacts;
use super::objects::{self, Allocation};
use super::settings::PodNetwork;
use engine::cluster::Node;
use engine::words;

/// `ImportedAddress` is an address on the node that the migration has written into Calico's IPAM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportedAddress {
    /// `address` is the address.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// `handle` is the IPAM handle of the address. For a pod, it is the handle that Calico's CNI plugin releases when the pod is
    /// deleted.
    pub handle: String,
}

/// Prefix of the IPAM handles of pods.
const POD_HANDLE: &str = "k8s-pod-network.";

/// The IPAM handle that Calico's CNI plugin uses for the addresses of a pod.
pub fn pod_handle(sandbox: &str) -> String {
    format!("{POD_HANDLE}{sandbox}")
}

/// The longest accepted sandbox ID. Container runtimes use 64 hexadecimal digits.
const LONGEST_SANDBOX: usize = 128;

/// Whether this is a possible sandbox ID. The name of an IPAM handle is made from it.
pub fn is_sandbox(id: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
    let bytes = id.as_bytes();
    bytes.len() <= LONGEST_SANDBOX
        && bytes.first().is_some_and(is_plain)
        && bytes.last().is_some_and(is_plain)
        && bytes.iter().all(|byte| is_plain(byte) || *byte == b'-')
}

/// The first handle with an impossible sandbox ID, as a sentence. Without this check, a text from an agent would become the
/// name of an object.
pub fn invalid_sandbox(node: &str, allocations: &[Allocation]) -> Option<String> {
    let mut sandboxes = allocations
        .iter()
        .filter_map(|allocation| allocation.handle.strip_prefix(POD_HANDLE));
    sandboxes.find(|sandbox| !is_sandbox(sandbox)).map(|sandbox| {
        format!(
            "the agent of node {node} reports a pod with sandbox ID {sandbox:?}, needed letters, digits and dashes: no address \
             of the node's pods is written"
        )
    })
}

/// The first pod address outside the blocks of the node, as a sentence. Calico would assign this address to another pod.
pub fn address_outside_blocks(node: &str, allocations: &[Allocation], blocks: &[IpNet]) -> Option<String> {
    let stray = allocations.iter().find(|allocation| {
        allocation.handle.starts_with(POD_HANDLE)
            && !blocks.iter().any(|block| block.contains(&allocation.address))
    })?;
    let of = |key: &str| stray.attributes.get(key).map_or("", String::as_str);
    let blocks: Vec<String> = blocks.iter().map(IpNet::to_string).collect();
    Some(format!(
        "the agent of node {node} reports pod {}/{} with address {}, which is in none of the node's blocks ({}): no address of \
         the node's pods is written. Delete that pod, or find out why the agent reports it",
        of("namespace"),
        of("pod"),
        stray.address,
        words::names(&blocks)
    ))
}

/// The handle for reserved addresses of a node: those of `cni0`, the gateway of all legacy pods, and the last address of the
/// subnet, which is the broadcast address of the legacy pods.
pub fn reserved_handle(node: &str) -> String {
    format!("replumb-reserved-{node}")
}

/// A subnet of a node, with the IPAM blocks that belong to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedRange {
    /// The subnet.
    pub range: IpNet,
    /// The blocks.
    pub blocks: Vec<IpNet>,
}

/// The subnets and blocks of a node in these networks.
pub fn claimed(node: &Node, networks: &[PodNetwork]) -> Vec<ClaimedRange> {
    networks
        .iter()
        .filter_map(|network| {
            let range = node.range_of(&network.range)?.trunc();
            Some(ClaimedRange {
                range,
                // The check IpamBlocks names a subnet that contains no whole block.
                blocks: objects::blocks(range, objects::block_size(network)).unwrap_or_default(),
            })
        })
        .collect()
}

/// All addresses on this host that Calico's IPAM must contain, in order.
///
/// For IPv6, these are the addresses in blocks of the node: Calico assigns no other addresses of the subnet.
pub fn wanted(node: &str, claimed: &[ClaimedRange], host: &HostFacts) -> Vec<Allocation> {
    let mut found: BTreeMap<IpAddr, Allocation> = BTreeMap::new();
    let is_known = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(_) => claimed
            .iter()
            .flat_map(|claimed| &claimed.blocks)
            .any(|block| block.contains(address)),
    };
    let reserved = |address: IpAddr| Allocation {
        address,
        handle: reserved_handle(node),
        attributes: text([("node", node), ("type", "replumbReserved")]),
    };
    // Adopted pods keep the gateway and the broadcast address after the end of the bridge.
    let bridge = host.bridge.present().map(|bridge| &bridge.addresses);
    let kept = &host.calico.kept_addresses;
    if bridge.is_some() || !kept.is_empty() {
        let own = bridge.into_iter().flatten().map(IpNet::addr);
        let own = own.chain(kept.iter().copied());
        // IPv6 has no broadcast address.
        let last = claimed.iter().filter_map(|claimed| match claimed.range {
            IpNet::V4(range) => Some(IpAddr::V4(range.broadcast())),
            IpNet::V6(_) => None,
        });
        let reserved = own
            .filter(is_known)
            .chain(last)
            .map(|address| (address, reserved(address)));
        found.extend(reserved);
    }
    for pod in host.legacy_pods.iter().filter(|pod| pod.is_running()) {
        for address in pod.addresses.iter().filter(|address| is_known(address)) {
            let allocation = Allocation {
                address: *address,
                handle: pod_handle(&pod.sandbox),
                attributes: text([("node", node), ("namespace", &pod.namespace), ("pod", &pod.name)]),
            };
            found.insert(*address, allocation);
        }
    }
    found.into_values().collect()
}

/// The wanted allocations that are not imported yet.
pub fn missing(wanted: &[Allocation], imported: &[ImportedAddress]) -> Vec<Allocation> {
    wanted
        .iter()
        .filter(|allocation| !imported.contains(&imported_as(allocation)))
        .cloned()
        .collect()
}

/// The imported addresses that are no longer wanted.
pub fn outdated(wanted: &[Allocation], imported: &[ImportedAddress]) -> Vec<ImportedAddress> {
    imported
        .iter()
        .filter(|address| {
            !wanted
                .iter()
                .any(|allocation| imported_as(allocation) == **address)
        })
        .cloned()
        .collect()
}

/// The record of an imported allocation.
pub fn imported_as(allocation: &Allocation) -> ImportedAddress {
    ImportedAddress {
        address: allocation.address,
        handle: allocation.handle.clone(),
    }
}

fn text<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture;
    use crate::facts::{Found, LegacyPod};
    use crate::settings::Settings;

    fn host() -> HostFacts {
        let pod = |sandbox: &str, address: &str, attached| LegacyPod {
            other_link: None,
            namespace: "shop".to_owned(),
            name: format!("pod-{sandbox}"),
            sandbox: sandbox.to_owned(),
            link: format!("veth-{sandbox}"),
            addresses: vec![address.parse().unwrap()],
            attached,
            routed: false,
            mac: String::new(),
            pod_link: None,
            obstacle: None,
            not_taken_within: None,
        };
        HostFacts {
            legacy_pods: vec![pod("s1", "10.244.1.7", true), pod("s2", "10.244.1.8", false)],
            ..fixture::host(1)
        }
    }

    fn claimed_by_node_a() -> Vec<ClaimedRange> {
        claimed(&fixture::node("a", 1), &fixture::settings().pod_networks())
    }

    #[test]
    fn a_pod_address_outside_the_nodes_blocks_is_named() {
        let blocks: Vec<IpNet> = ["10.244.1.0/26", "10.244.1.64/26"]
            .map(|block| block.parse().unwrap())
            .into();
        let allocation = |address: &str| Allocation {
            address: address.parse().unwrap(),
            handle: pod_handle("a"),
            attributes: text([("node", "a"), ("namespace", "shop"), ("pod", "web")]),
        };
        let own = [allocation("10.244.1.5"), allocation("10.244.1.70")];
        assert_eq!(address_outside_blocks("a", &own, &blocks), None);
        let message = address_outside_blocks(
            "a",
            &[allocation("10.244.1.5"), allocation("192.0.2.77")],
            &blocks,
        )
        .unwrap();
        for words in ["node a", "shop/web", "192.0.2.77", "10.244.1.64/26"] {
            assert!(message.contains(words), "{message}");
        }
        assert!(!message.contains("  "), "{message}");
        let of_bridge = Allocation {
            handle: reserved_handle("a"),
            ..allocation("192.0.2.1")
        };
        assert_eq!(
            address_outside_blocks("a", &[of_bridge], &blocks),
            None,
            "the address of no pod"
        );
    }

    #[test]
    fn an_invalid_sandbox_id_is_named() {
        let of = |sandbox: &str| {
            let mut host = host();
            host.legacy_pods[0].sandbox = sandbox.to_owned();
            invalid_sandbox("a", &wanted("a", &claimed_by_node_a(), &host))
        };
        for good in ["s1", "0a", &"f".repeat(64), "A-b"] {
            assert_eq!(of(good), None, "{good}");
        }
        for bad in ["", "-a", "a-", "a/b", "a b", "../x", "a.b", "ä", &"f".repeat(129)] {
            let words = of(bad).unwrap_or_else(|| panic!("{bad:?} was accepted"));
            assert!(
                words.contains("the agent of node a") && words.contains(&format!("{bad:?}")),
                "{words}"
            );
        }
    }

    #[test]
    fn running_pods_the_gateway_and_the_last_address_are_wanted() {
        let wanted = wanted("a", &claimed_by_node_a(), &host());
        let found: Vec<(String, &str)> = wanted
            .iter()
            .map(|allocation| (allocation.address.to_string(), allocation.handle.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("10.244.1.1".to_owned(), "replumb-reserved-a"),
                ("10.244.1.7".to_owned(), "k8s-pod-network.s1"),
                ("10.244.1.255".to_owned(), "replumb-reserved-a"),
            ]
        );
        assert_eq!(wanted[1].attributes["pod"], "pod-s1");
        assert_eq!(
            wanted[0].attributes.get("pod"),
            None,
            "Calico's garbage collection would treat it as a pod"
        );
    }

    #[test]
    fn imported_addresses_are_not_missing_and_those_of_deleted_pods_are_outdated() {
        let claimed = claimed_by_node_a();
        let all = wanted("a", &claimed, &host());
        let imported: Vec<ImportedAddress> = all.iter().map(imported_as).collect();
        assert_eq!(missing(&all, &imported), []);
        assert_eq!(missing(&all, &imported[1..]), all[..1]);
        let mut later = host();
        later.legacy_pods[0].attached = false;
        let outdated = outdated(&wanted("a", &claimed, &later), &imported);
        assert_eq!(outdated, [imported[1].clone()]);
    }

    #[test]
    fn a_host_without_the_bridge_needs_no_addresses() {
        let host = HostFacts {
            bridge: Found::Absent,
            ..fixture::host(1)
        };
        assert_eq!(wanted("a", &claimed_by_node_a(), &host), []);
    }

    #[test]
    fn only_ipv6_addresses_in_the_nodes_blocks_are_wanted() {
        let settings = Settings {
            ipv6: Some(fixture::ipv6_settings()),
            ..fixture::settings()
        };
        let mut node = fixture::node("a", 1);
        node.pod_cidrs.push("fd00:10:244:1::/64".to_owned());
        let mut host = host();
        host.legacy_pods[0]
            .addresses
            .push("fd00:10:244:1::7".parse().unwrap());
        // An address after the blocks: host-local assigns ascending addresses up to the end of a /64.
        host.legacy_pods[1].attached = true;
        host.legacy_pods[1]
            .addresses
            .push("fd00:10:244:1::4e20".parse().unwrap());
        let Found::Present(bridge) = &mut host.bridge else {
            panic!("the host has a bridge")
        };
        bridge.addresses.push("fd00:10:244:1::1/64".parse().unwrap());
        let claimed = claimed(&node, &settings.pod_networks());
        let found: Vec<String> = wanted("a", &claimed, &host)
            .iter()
            .map(|allocation| allocation.address.to_string())
            .collect();
        assert_eq!(
            found,
            [
                "10.244.1.1",
                "10.244.1.7",
                "10.244.1.8",
                "10.244.1.255",
                "fd00:10:244:1::1",
                "fd00:10:244:1::7"
            ]
        );
    }
}
