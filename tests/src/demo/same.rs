//! Compares a host before and after a rollback, line by line. A short list names the lines that may differ, each with its reason.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

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
}
