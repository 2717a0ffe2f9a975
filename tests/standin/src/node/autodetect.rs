//! Finds the node's address among the host's addresses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;

use crate::host::Link;

/// Prefixes of the names of devices that are never the node's uplink, as in Calico.
const EXCLUDED: [&str; 17] = [
    "docker",
    "cbr",
    "dummy",
    "podman",
    "virbr",
    "lxcbr",
    "veth",
    "lo",
    "br-",
    "cali",
    "tunl",
    "flannel",
    "kube-ipvs",
    "cni",
    "vxlan.calico",
    "wireguard.cali",
    "nodelocaldns",
];

/// A device with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The name.
    pub name: String,
    /// The addresses.
    pub addresses: Vec<Ipv4Net>,
}

/// The devices that may be the uplink, the newest first: Calico checks them in this order.
pub fn candidates(mut links: Vec<Link>, addresses: &BTreeMap<u32, Vec<Ipv4Net>>) -> Vec<Device> {
    links.sort_by_key(|link| std::cmp::Reverse(link.index));
    links
        .into_iter()
        .filter(|link| !EXCLUDED.iter().any(|beginning| link.name.starts_with(beginning)))
        .map(|link| Device {
            addresses: addresses.get(&link.index).cloned().unwrap_or_default(),
            name: link.name,
        })
        .collect()
}

/// The node's address, found with one of Calico's methods (`IP_AUTODETECTION_METHOD`).
pub fn address(method: &str, node: &Node, devices: &[Device]) -> Result<Ipv4Net> {
    let found = if method.is_empty() || method == "first-found" {
        first(devices, |_, address| is_global(address.addr()))
    } else if method == "kubernetes-internal-ip" {
        let internal = internal_address(node)?;
        first(devices, |_, address| address.addr() == internal)
    } else if let Some(names) = method.strip_prefix("interface=") {
        first(devices, |device, address| {
            is_global(address.addr()) && names.split(',').any(|name| matches(name.trim(), &device.name))
        })
    } else if let Some(ranges) = method.strip_prefix("cidr=") {
        let ranges: Vec<Ipv4Net> = ranges
            .split(',')
            .map(|range| {
                range
                    .trim()
                    .parse()
                    .with_context(|| format!("read the range {range:?} of {method:?}"))
            })
            .collect::<Result<_>>()?;
        first(devices, |_, address| {
            is_global(address.addr()) && ranges.iter().any(|range| range.contains(&address.addr()))
        })
    } else {
        bail!(
            "find the node's address: the stand-in does not know IP_AUTODETECTION_METHOD {method:?} (it knows \
             first-found, kubernetes-internal-ip, interface=, cidr=)"
        );
    };
    found.with_context(|| {
        format!("find the node's address by method {method:?}: no valid IPv4 addresses found on {devices:?}")
    })
}

fn first(devices: &[Device], fits: impl Fn(&Device, &Ipv4Net) -> bool) -> Option<Ipv4Net> {
    devices.iter().find_map(|device| {
        device
            .addresses
            .iter()
            .copied()
            .find(|address| fits(device, address))
    })
}

/// Matches a name, or a prefix followed by `.*`.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern = pattern.trim_start_matches('^').trim_end_matches('$');
    match pattern.strip_suffix(".*").or_else(|| pattern.strip_suffix('*')) {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

fn is_global(address: Ipv4Addr) -> bool {
    !(address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_unspecified())
}

fn internal_address(node: &Node) -> Result<Ipv4Addr> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    addresses
        .into_iter()
        .flatten()
        .filter(|address| address.type_ == "InternalIP")
        .find_map(|address| address.address.parse().ok())
        .with_context(|| format!("read the internal address of Node {:?}: none", node.metadata.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, addresses: &[&str]) -> Device {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Device {
            name: name.to_owned(),
            addresses,
        }
    }

    #[test]
    fn the_newest_device_that_is_not_excluded_is_found_first() {
        let link = |index: u32, name: &str| Link {
            index,
            name: name.to_owned(),
            up: true,
            mtu: 1500,
            mac: None,
            vxlan: None,
        };
        let links = vec![
            link(1, "lo"),
            link(2, "eth0"),
            link(3, "eth1"),
            link(4, "cni0"),
            link(5, "flannel.1"),
        ];
        let addresses = BTreeMap::from([
            (2, vec!["172.30.0.2/24".parse().unwrap()]),
            (
                3,
                vec!["169.254.7.7/16".parse().unwrap(), "10.0.0.2/24".parse().unwrap()],
            ),
            (4, vec!["10.244.1.1/24".parse().unwrap()]),
        ]);
        let devices = candidates(links, &addresses);
        assert_eq!(
            devices
                .iter()
                .map(|device| device.name.as_str())
                .collect::<Vec<_>>(),
            ["eth1", "eth0"]
        );
        assert_eq!(
            address("", &Node::default(), &devices).unwrap().to_string(),
            "10.0.0.2/24"
        );
    }

    #[test]
    fn methods() {
        let devices = [
            device("ens5", &["10.0.0.2/24"]),
            device("eth0", &["172.30.0.2/24"]),
        ];
        let node: Node = serde_json::from_value(serde_json::json!({"status": {"addresses": [
            {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "172.30.0.2"}]}}))
        .unwrap();
        for (method, expected) in [
            ("first-found", "10.0.0.2/24"),
            ("interface=eth0", "172.30.0.2/24"),
            ("interface=eth.*", "172.30.0.2/24"),
            ("cidr=172.30.0.0/16, 192.168.0.0/16", "172.30.0.2/24"),
            ("kubernetes-internal-ip", "172.30.0.2/24"),
        ] {
            assert_eq!(
                address(method, &node, &devices).unwrap().to_string(),
                expected,
                "{method}"
            );
        }
        assert!(address("can-reach=8.8.8.8", &node, &devices).is_err());
        assert!(address("interface=wlan0", &node, &devices).is_err());
    }
}
