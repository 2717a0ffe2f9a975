//! Calico's data of a node about its tunnels: labels and annotations of the Node in the Kubernetes API, or Calico's own Node in
//! etcd.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::pools::OFF_LABEL;
use super::tunnel::TunnelAllocation;

/// The prefix of the key of an annotation with a tunnel address, and a word that such a key contains.
const TUNNEL_MARKS: [&str; 2] = ["projectcalico.org/", "Tunnel"];
/// The last part of the annotation's key in the Kubernetes API, and the field of Calico's Node in etcd.
const IN_ETCD: [(&str, &str); 3] = [
    ("IPv4VXLANTunnelAddr", "/ipv4VXLANTunnelAddr"),
    ("IPv6VXLANTunnelAddr", "/ipv6VXLANTunnelAddr"),
    ("IPv4IPIPTunnelAddr", "/bgp/ipv4IPIPTunnelAddr"),
];

/// The annotation with the address of `WireGuard`, and the field in etcd.
const WIREGUARD: (&str, &str) = (
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "/wireguard/interfaceIPv4Address",
);

/// Tunnel addresses of a node, by the last part of the key of Calico's annotation.
pub type TunnelAddresses = BTreeMap<String, IpAddr>;

/// Calico's data of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CalicoNode {
    /// The pool from which the node was removed: the value of [`OFF_LABEL`].
    pub off: Option<String>,
    /// Its tunnel addresses.
    pub ends: TunnelAddresses,
    /// The address of `WireGuard`.
    pub wireguard: Option<IpAddr>,
}

impl CalicoNode {
    /// Reads a Node of the Kubernetes API.
    pub fn in_kubernetes(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Self {
        let ends = annotations.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(TUNNEL_MARKS[0])?;
            let is_tunnel = name.contains(TUNNEL_MARKS[1]);
            Some((name.to_owned(), value.parse().ok().filter(|_| is_tunnel)?))
        });
        let wireguard = annotations.get(WIREGUARD.0);
        Self {
            off: labels.get(OFF_LABEL).cloned(),
            ends: ends.collect(),
            wireguard: wireguard.and_then(|address| address.parse().ok()),
        }
    }

    /// Reads Calico's Node in etcd.
    pub fn in_etcd(labels: &BTreeMap<String, String>, spec: &Value) -> Self {
        let ends = IN_ETCD.iter().filter_map(|(name, path)| {
            let address = spec.pointer(path)?.as_str()?;
            Some(((*name).to_owned(), address.parse().ok()?))
        });
        let wireguard = spec.pointer(WIREGUARD.1).and_then(Value::as_str);
        Self {
            off: labels.get(OFF_LABEL).cloned(),
            ends: ends.collect(),
            wireguard: wireguard.and_then(|address| address.parse().ok()),
        }
    }
}

/// The merge patch of a Node that removes it from the pool of this mark, and sets these tunnel addresses.
pub fn off_in_kubernetes(mark: &str, ends: &BTreeMap<String, TunnelAllocation>) -> Value {
    let annotations: Map<String, Value> = ends
        .iter()
        .map(|(name, end)| (format!("{}{name}", TUNNEL_MARKS[0]), address(end)))
        .collect();
    json!({ "metadata": { "labels": { OFF_LABEL: mark }, "annotations": annotations } })
}

/// The same merge patch for Calico's Node in etcd.
pub fn off_in_etcd(mark: &str, ends: &BTreeMap<String, TunnelAllocation>) -> Value {
    let mut change = json!({ "metadata": { "labels": { OFF_LABEL: mark } } });
    for (name, end) in ends {
        let Some((_, path)) = IN_ETCD.iter().find(|(known, _)| known == name) else {
            continue;
        };
        let mut place = &mut change["spec"];
        for part in path.split('/').skip(1) {
            place = &mut place[part];
        }
        *place = address(end);
    }
    change
}

fn address(end: &TunnelAllocation) -> Value {
    json!(end.allocation.address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use calico::Allocation;

    fn texts<const COUNT: usize>(all: [(&str, &str); COUNT]) -> BTreeMap<String, String> {
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    fn ends() -> TunnelAddresses {
        [
            ("IPv4IPIPTunnelAddr", "10.244.1.1"),
            ("IPv4VXLANTunnelAddr", "10.244.1.0"),
            ("IPv6VXLANTunnelAddr", "fd00::1"),
        ]
        .map(|(name, address)| (name.to_owned(), address.parse().unwrap()))
        .into()
    }

    fn labels() -> BTreeMap<String, String> {
        texts([("replumb.dev/off-pool", "old"), ("zone", "a")])
    }

    #[test]
    fn a_node_reads_the_same_from_kubernetes_and_etcd() {
        let annotations = texts([
            ("projectcalico.org/IPv4VXLANTunnelAddr", "10.244.1.0"),
            ("projectcalico.org/IPv4IPIPTunnelAddr", "10.244.1.1"),
            ("projectcalico.org/IPv6VXLANTunnelAddr", "fd00::1"),
            ("projectcalico.org/IPv4Address", "10.244.9.9"),
            ("projectcalico.org/IPv4WireguardInterfaceAddr", "10.244.1.2"),
            ("example.org/Tunnel", "10.244.9.9"),
        ]);
        let spec = json!({
            "ipv4VXLANTunnelAddr": "10.244.1.0", "ipv6VXLANTunnelAddr": "fd00::1", "vxlanTunnelMACAddr": "66:00:00:00:00:01",
            "bgp": { "ipv4Address": "10.244.9.9/24", "ipv4IPIPTunnelAddr": "10.244.1.1" },
            "wireguard": { "interfaceIPv4Address": "10.244.1.2" },
        });
        let node = CalicoNode {
            off: Some("old".to_owned()),
            ends: ends(),
            wireguard: Some("10.244.1.2".parse().unwrap()),
        };
        assert_eq!(CalicoNode::in_kubernetes(&labels(), &annotations), node);
        assert_eq!(CalicoNode::in_etcd(&labels(), &spec), node);
        assert_eq!(
            CalicoNode::in_etcd(&BTreeMap::new(), &Value::Null),
            CalicoNode::default()
        );
    }

    #[test]
    fn written_tunnel_addresses_are_read_back() {
        let held = |address: IpAddr| TunnelAllocation {
            node: "a".to_owned(),
            block: "10.244.1.0/26".parse().unwrap(),
            allocation: Allocation {
                address,
                handle: "a-handle".to_owned(),
                attributes: BTreeMap::new(),
            },
        };
        let returns: BTreeMap<String, TunnelAllocation> = ends()
            .into_iter()
            .map(|(name, address)| (name, held(address)))
            .collect();
        let text =
            |value: &Value| -> BTreeMap<String, String> { serde_json::from_value(value.clone()).unwrap() };
        let change = off_in_kubernetes("old", &returns);
        let metadata = &change["metadata"];
        let node = CalicoNode::in_kubernetes(&text(&metadata["labels"]), &text(&metadata["annotations"]));
        assert_eq!((node.off.as_deref(), node.ends), (Some("old"), ends()));
        let change = off_in_etcd("old", &returns);
        let node = CalicoNode::in_etcd(&text(&change["metadata"]["labels"]), &change["spec"]);
        assert_eq!((node.off.as_deref(), node.ends), (Some("old"), ends()));
        // Without addresses the spec does not change.
        assert_eq!(off_in_etcd("new", &BTreeMap::new()).get("spec"), None);
    }
}
