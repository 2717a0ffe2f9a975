//! Whether a host is as it was: every line that other tools than ours say of it, before and after, but for a short list of
//! what may differ, each with its reason.

use std::collections::BTreeSet;

use serde::Serialize;

use super::host::Host;

/// What may differ after a way back: words of the line, and why.
const MAY_DIFFER: [(&str, &[&str]); 5] = [
    (
        "the service proxy's: endpoints come and go",
        &["KUBE-", "kube-proxy", "\"kube-"],
    ),
    (
        "Calico's installer put it there; nothing reads it without Calico's conflist",
        &["/etc/cni/net.d/calico-kubeconfig"],
    ),
    (
        "the proof took an address on the bridge and gave it back: the next one is another",
        &["last_reserved_ip."],
    ),
    (
        "an empty chain of the kernel's: whoever looks into a table makes it",
        &[
            "chain PREROUTING ACCEPT",
            "chain INPUT ACCEPT",
            "chain OUTPUT ACCEPT",
            "chain FORWARD ACCEPT",
            "chain POSTROUTING ACCEPT",
        ],
    ),
    (
        "the kernel's own account of what it has learnt or measured",
        &["\"state\":\"\"", "nft {\"metainfo\":"],
    ),
];

/// One host, before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// How many lines are the same.
    pub same: usize,
    /// Lines that are gone, and lines that are new.
    pub different: Vec<String>,
    /// Lines that differ and may.
    pub allowed: Vec<Allowed>,
}

/// A line that differs and may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Allowed {
    /// The line.
    pub line: String,
    /// Why it may.
    pub reason: &'static str,
}

impl Comparison {
    /// Compares the two looks.
    pub fn of(before: &Host, after: &Host) -> Self {
        Self::of_lines(&before.everything(), &after.everything())
    }

    /// The same with lines of one's choice.
    pub fn of_lines(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Self {
        let mut comparison = Self {
            same: before.intersection(after).count(),
            ..Self::default()
        };
        let gone = before.difference(after).map(|line| ("gone", line));
        let new = after.difference(before).map(|line| ("new", line));
        for (what, line) in gone.chain(new) {
            match reason(line) {
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

/// Whether an object of nftables is in one of the tables that iptables has there, or is that table.
fn is_of_iptables(line: &str) -> bool {
    ["nat", "filter", "mangle", "raw", "security"]
        .iter()
        .any(|table| {
            line.contains(&format!("\"table\":\"{table}\""))
                || (line.contains("{\"table\":{") && line.contains(&format!("\"name\":\"{table}\"")))
        })
}

/// Why this line may differ; `None` when it may not.
fn reason(line: &str) -> Option<&'static str> {
    // flannel's own tables are no business of iptables'.
    if line.contains("flannel") && !line.contains("KUBE-") {
        return None;
    }
    if line.starts_with("nft ") && is_of_iptables(line) {
        return Some("tables, chains and rules of iptables, compared as iptables-save lists them");
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
    fn what_either_network_left_or_took_is_no_excuse() {
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
            assert_eq!(reason(line), None, "{line}");
        }
        assert!(reason("iptables-nft nat: -A KUBE-SVC-X -j KUBE-SEP-Y").is_some());
    }
}
