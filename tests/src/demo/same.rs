//! Compares a host before and after a rollback, line by line. A short list names the lines that may differ, each with its reason.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::host::Host;

/// Lines that may differ after a rollback: the reason, and words of the line.
const MAY_DIFFER: [(&str, &[&str]); 5] = [
    (
        "entries of the service proxy: endpoints change",
        &["KUBE-", "kube-proxy", "\"kube-"],
    ),
    (
        "written by Calico's installer; not read without Calico's conflist",
        &["/etc/cni/net.d/calico-kubeconfig"],
    ),
    (
        "the proof allocated an address on the bridge and released it: the next address is another one",
        &["last_reserved_ip."],
    ),
    (
        "an empty built-in chain: listing a table creates it",
        &[
            "chain PREROUTING ACCEPT",
            "chain INPUT ACCEPT",
            "chain OUTPUT ACCEPT",
            "chain FORWARD ACCEPT",
            "chain POSTROUTING ACCEPT",
        ],
    ),
    (
        "state that the kernel has learnt or measured",
        &["\"state\":\"\"", "nft {\"metainfo\":"],
    ),
];

/// One host, before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Number of equal lines.
    pub same: usize,
    /// Lines that are gone, and lines that are new.
    pub different: Vec<String>,
    /// Lines that differ, and are allowed to.
    pub allowed: Vec<Allowed>,
}

/// A line that differs, and is allowed to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Allowed {
    /// The line.
    pub line: String,
    /// The reason.
    pub reason: &'static str,
}

impl Comparison {
    /// Compares two observations.
    pub fn of(before: &Host, after: &Host) -> Self {
        Self::of_lines(&before.everything(), &after.everything())
    }

    /// Compares two observations, between which all pods have left the host: without what belongs to pods. flannel's CNI plugin makes
    /// the bridge with the first pod, with a random MAC address.
    pub fn without_pods(before: &Host, after: &Host) -> Self {
        let lasting = |host: &Host| {
            let lines = without_pods(&host.everything());
            lines
                .iter()
                .filter_map(|line| without_mac_of_bridge(line))
                .collect()
        };
        Self::of_lines(&lasting(before), &lasting(after))
    }

    /// Compares two sets of lines.
    pub fn of_lines(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Self {
        let mut comparison = Self {
            same: before.intersection(after).count(),
            ..Self::default()
        };
        let gone = before.difference(after).map(|line| ("gone", line));
        let new = after.difference(before).map(|line| ("new", line));
        for (what, line) in gone.chain(new) {
            match allowed_reason(line) {
                Some(reason) => comparison.allowed.push(Allowed {
                    line: format!("{what}: {line}"),
                    reason,
                }),
                None => comparison.different.push(format!("{what}: {line}")),
            }
        }
        comparison
    }
}

/// The lines that do not belong to pods: pods come and go with every migration.
pub fn without_pods(lines: &BTreeSet<String>) -> BTreeSet<String> {
    lines
        .iter()
        .filter(|line| !belongs_to_a_pod(line))
        .cloned()
        .collect()
}

fn belongs_to_a_pod(line: &str) -> bool {
    let link = ["\"veth", "\"cali", " veth", " cali"];
    let record = [
        "/var/lib/cni/results/",
        "/var/lib/cni/networks/",
        "/var/lib/cni/flannel/",
    ];
    // The pod's own route: an address without a length.
    let route = line.starts_with("route ") && line.contains("\"dev\":\"cni0\"") && !line.contains('/');
    route || link.iter().chain(&record).any(|part| line.contains(part))
}

/// The line without the MAC address of flannel's bridge; `None` for the line of this address alone.
fn without_mac_of_bridge(line: &str) -> Option<String> {
    if !line.contains("\"ifname\":\"cni0\"") {
        return Some(line.to_owned());
    }
    if line.starts_with("forwarding ") {
        return None;
    }
    let Some(mut link) = line
        .strip_prefix("link ")
        .and_then(|link| serde_json::from_str::<Value>(link).ok())
    else {
        return Some(line.to_owned());
    };
    if let Some(fields) = link.as_object_mut() {
        fields.remove("address");
    }
    if let Some(fields) = link
        .pointer_mut("/linkinfo/info_data")
        .and_then(Value::as_object_mut)
    {
        fields.retain(|key, _| !["bridge_id", "root_id"].contains(&key.as_str()));
    }
    Some(format!("link {link}"))
}

/// Whether an object of nftables is in a table of iptables-nft, or is such a table.
fn is_iptables_object(line: &str) -> bool {
    ["nat", "filter", "mangle", "raw", "security"]
        .iter()
        .any(|table| {
            line.contains(&format!("\"table\":\"{table}\""))
                || (line.contains("{\"table\":{") && line.contains(&format!("\"name\":\"{table}\"")))
        })
}

/// Why this line may differ; `None` when it may not.
fn allowed_reason(line: &str) -> Option<&'static str> {
    // Tables of flannel do not belong to iptables.
    if line.contains("flannel") && !line.contains("KUBE-") {
        return None;
    }
    if line.starts_with("nft ") && is_iptables_object(line) {
        return Some("tables, chains and rules of iptables: compared by iptables-save");
    }
    MAY_DIFFER
        .iter()
        .find(|(_, words)| words.iter().any(|word| line.contains(word)))
        .map(|(reason, _)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_either_network_must_not_differ() {
        for line in [
            "iptables-nft nat: -A POSTROUTING -j FLANNEL-POSTRTG",
            "iptables-nft filter: chain cali-FORWARD -",
            "route {\"dst\":\"10.244.1.0/26\",\"type\":\"blackhole\"}",
            "link {\"ifname\":\"vxlan.calico\"}",
            "ipset cali40all-vxlan-net",
            "nft {\"table\":{\"family\":\"ip\",\"name\":\"calico\"}}",
            "nft {\"chain\":{\"family\":\"ip\",\"name\":\"input\",\"table\":\"calico\"}}",
            "file 644 0:0 abc  /etc/cni/net.d/10-calico.conflist",
            "parameter /proc/sys/net/ipv4/conf/cni0/proxy_arp:1",
        ] {
            assert_eq!(allowed_reason(line), None, "{line}");
        }
        assert!(allowed_reason("iptables-nft nat: -A KUBE-SVC-X -j KUBE-SEP-Y").is_some());
    }

    #[test]
    fn settings_of_pods_are_separated_from_settings_of_the_network() {
        for line in [
            "route {\"dev\":\"cni0\",\"dst\":\"10.244.1.7\",\"flags\":[]}",
            "link {\"ifname\":\"veth1a2b\"}",
            "link {\"ifname\":\"cali0123\"}",
            "file 600 0:0 abc  /var/lib/cni/results/k8s-pod-network-1-eth0",
        ] {
            assert!(belongs_to_a_pod(line), "{line}");
        }
        for line in [
            "route {\"dev\":\"cni0\",\"dst\":\"10.244.1.0/24\"}",
            "route {\"dst\":\"10.244.1.0/26\",\"type\":\"blackhole\"}",
            "route {\"dev\":\"vxlan.calico\",\"dst\":\"10.244.2.0/26\"}",
            "link {\"ifname\":\"vxlan.calico\"}",
            "link {\"ifname\":\"cni0\"}",
            "file 644 0:0 abc  /etc/cni/net.d/10-calico.conflist",
            "parameter /proc/sys/net/ipv4/conf/cni0/proxy_arp:1",
        ] {
            assert!(!belongs_to_a_pod(line), "{line}");
        }
    }

    #[test]
    fn only_the_mac_address_of_the_bridge_may_differ_once_pods_have_left() {
        let link = |mac: &str, mtu: u32| {
            format!(
                "link {{\"address\":\"{mac}\",\"ifname\":\"cni0\",\"linkinfo\":{{\"info_data\":{{\"bridge_id\":\"8000.{mac}\"}}}},\"mtu\":{mtu}}}"
            )
        };
        let of = |mac, mtu| without_mac_of_bridge(&link(mac, mtu));
        assert_eq!(of("02:1", 1450), of("02:2", 1450));
        assert_ne!(of("02:1", 1450), of("02:1", 1400));
        let forwarding = "forwarding {\"ifname\":\"cni0\",\"mac\":\"02:1\"}";
        assert_eq!(without_mac_of_bridge(forwarding), None);
        let route = "route {\"dev\":\"cni0\",\"dst\":\"10.244.1.0/24\"}".to_owned();
        assert_eq!(without_mac_of_bridge(&route), Some(route));
    }
}
