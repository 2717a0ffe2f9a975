//! What kube-proxy has written into the kernel: how it works, and which addresses it knows. Reads the rules that packets go by.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use plan::flannel_to_calico::facts::FirewallBackend;
use plan::found::Found;
use plan::service_cidr::host::{ProxyMode, ServicePort};
use serde_json::Value;

use crate::host::firewall::{FirewallError, Nftables, legacy_tables, save};
use crate::host::program::run;

/// kube-proxy's chain of iptables that every connection to a Service goes through, in the tables nat and filter.
const CHAIN: &str = "KUBE-SERVICES";
/// Its table of nftables, and the two maps in it: of Services with endpoints, and of those without.
const TABLE: &str = "kube-proxy";
const MAPS: [&str; 2] = ["service-ips", "no-endpoint-services"];
/// The backends of iptables with the families that nftables calls them by.
const BACKENDS: [(FirewallBackend, &str); 4] = [
    (FirewallBackend::IptablesNft, "ip"),
    (FirewallBackend::Ip6tablesNft, "ip6"),
    (FirewallBackend::IptablesLegacy, ""),
    (FirewallBackend::Ip6tablesLegacy, ""),
];
/// Tables of iptables that have rules for Services: those with endpoints, and those without.
const TABLES: [&str; 2] = ["nat", "filter"];

/// What kube-proxy knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How it works; both at once where it was changed and not tidied up.
    pub modes: BTreeSet<ProxyMode>,
    /// Every port of every Service that it has a rule for.
    pub known: BTreeSet<ServicePort>,
}

impl Rules {
    /// How it works, in the agent's words.
    pub fn mode(&self) -> Found<ProxyMode> {
        let names: Vec<&str> = self.modes.iter().map(|mode| mode.as_str()).collect();
        match self.modes.iter().next() {
            None => Found::Absent,
            Some(mode) if names.len() == 1 => Found::Present(*mode),
            Some(_) => Found::Malformed(format!(
                "rules of kube-proxy in modes {}: `kube-proxy --cleanup` takes away those of the mode that it does not work in",
                names.join(" and ")
            )),
        }
    }
}

/// Reads every mode's rules.
pub async fn read(proc: &Path) -> Result<Rules, FirewallError> {
    let mut rules = Rules::default();
    let nft = Nftables::read().await?;
    for family in ["ip", "ip6"] {
        if nft.has_table(family, TABLE) {
            rules.modes.insert(ProxyMode::Nftables);
            for map in MAPS {
                let text = run("nft", &["-j", "list", "map", family, TABLE, map], None).await?;
                rules.known.extend(of_map(&text));
            }
        }
    }
    for (backend, family) in BACKENDS {
        let legacy = if family.is_empty() {
            legacy_tables(proc, backend)?
        } else {
            BTreeSet::new()
        };
        for table in TABLES {
            if !legacy.contains(table) && !nft.has_chain(family, table, CHAIN) {
                continue;
            }
            let lines = save(backend, table).await?;
            if lines.iter().any(|line| line.starts_with(&format!(":{CHAIN} "))) {
                rules.modes.insert(ProxyMode::Iptables);
                rules.known.extend(lines.iter().filter_map(|line| of_rule(line)));
            }
        }
    }
    if has_virtual_servers(proc) {
        rules.modes.insert(ProxyMode::Ipvs);
    }
    Ok(rules)
}

/// `-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "…" -m udp --dport 53 -j KUBE-SVC-…`, or `-j REJECT …`.
fn of_rule(line: &str) -> Option<ServicePort> {
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some("-A") || words.next() != Some(CHAIN) {
        return None;
    }
    let (mut address, mut protocol, mut port) = (None, None, None);
    while let Some(word) = words.next() {
        match word {
            "-d" => address = words.next().and_then(single),
            "-p" => protocol = words.next(),
            "--dport" => port = words.next().and_then(|text| text.parse().ok()),
            _ => {}
        }
    }
    Some(ServicePort {
        address: address?,
        protocol: protocol?.to_ascii_uppercase(),
        port: port?,
    })
}

fn single(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

/// Elements of a map whose keys are an address, a protocol and a port.
fn of_map(text: &str) -> Vec<ServicePort> {
    let listed: Value = serde_json::from_str(text).unwrap_or_default();
    let objects = listed["nftables"].as_array().into_iter().flatten();
    objects
        .flat_map(|object| object["map"]["elem"].as_array().into_iter().flatten())
        .filter_map(|element| {
            let key = element.get(0)?;
            // With a comment or a time the key is one level deeper.
            let key = if key["elem"].is_object() {
                &key["elem"]["val"]
            } else {
                key
            };
            let parts = key["concat"].as_array()?;
            let [address, protocol, port] = parts.as_slice() else {
                return None;
            };
            Some(ServicePort {
                address: address.as_str()?.parse().ok()?,
                protocol: protocol.as_str()?.to_ascii_uppercase(),
                port: u16::try_from(port.as_u64()?).ok()?,
            })
        })
        .collect()
}

/// Whether the kernel has virtual servers: three lines of headings, and one for each.
fn has_virtual_servers(proc: &Path) -> bool {
    std::fs::read_to_string(proc.join("thread-self/net/ip_vs")).is_ok_and(|text| text.lines().count() > 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ports: impl IntoIterator<Item = ServicePort>) -> Vec<String> {
        ports.into_iter().map(|port| port.to_string()).collect()
    }

    #[test]
    fn rules_of_iptables() {
        let lines = [
            r#"-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU"#,
            r#"-A KUBE-SERVICES -d 10.96.7.7/32 -p tcp -m comment --comment "shop/web has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable"#,
            r#"-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"#,
            r#"-A KUBE-SVC-TCOU7JCQXEZGVUNU ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-MARK-MASQ"#,
        ];
        assert_eq!(
            texts(lines.iter().filter_map(|line| of_rule(line))),
            ["10.96.0.10:53/UDP", "10.96.7.7:80/TCP"]
        );
    }

    #[test]
    fn elements_of_a_map_of_nftables() {
        let text = r#"{"nftables":[{"metainfo":{"version":"1.0.6"}},{"map":{"family":"ip","name":"service-ips","table":"kube-proxy",
            "type":["ipv4_addr","inet_proto","inet_service"],"handle":9,"map":"verdict","elem":[
            [{"concat":["10.96.0.1","tcp",443]},{"goto":{"target":"service-2QRHZV4L-default/kubernetes/tcp/https"}}],
            [{"elem":{"val":{"concat":["10.96.0.10","udp",53]},"comment":"x"}},{"drop":null}]]}}]}"#;
        assert_eq!(texts(of_map(text)), ["10.96.0.1:443/TCP", "10.96.0.10:53/UDP"]);
        assert_eq!(of_map("{}"), Vec::new());
    }

    #[test]
    fn two_modes_at_once_are_none() {
        let mut rules = Rules::default();
        assert_eq!(rules.mode(), Found::Absent);
        rules.modes.insert(ProxyMode::Nftables);
        assert_eq!(rules.mode(), Found::Present(ProxyMode::Nftables));
        rules.modes.insert(ProxyMode::Iptables);
        assert!(matches!(rules.mode(), Found::Malformed(what) if what.contains("iptables and nftables")));
    }
}
