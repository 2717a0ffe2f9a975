//! The state of a node's host, read with `ip -j`, `bridge -j`, `iptables-save`, `nft -j` and `ls`. The reports of replumb itself
//! prove nothing here.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::Cluster;

/// One observation of one host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    links: Vec<Value>,
    addresses: Vec<Value>,
    routes: Vec<Value>,
    rules: Vec<Value>,
    forwarding: Vec<Value>,
    /// Lines of `iptables-save` and its three siblings, without counters, by backend and table.
    firewall: BTreeMap<String, BTreeSet<String>>,
    /// `nft -j list ruleset`, without handles and counters.
    ruleset: Vec<Value>,
    /// Files in the CNI folder.
    conflists: Vec<String>,
    /// Files that flannel writes.
    files: Vec<String>,
    /// Files in the CNI folders and of flannel: permissions, owner, SHA-256, path.
    contents: Vec<String>,
    /// Permanent neighbour entries.
    neighbours: Vec<Value>,
    /// Addresses for which links answer as a proxy.
    proxies: Vec<Value>,
    /// Kernel parameters of the bridge and the tunnel: name and value.
    parameters: Vec<String>,
    /// Names of IP sets.
    sets: Vec<String>,
}

/// Every file with its permissions, owner and checksum.
const CONTENTS: &str =
    "find /etc/cni/net.d /run/flannel /var/lib/cni -type f -printf '%m %U:%G ' -exec sha256sum {} \\; | sort";
/// Every parameter of the links that the migration touches.
const PARAMETERS: &str = "for link in cni0 flannel.1 flannel-v6.1; do for family in ipv4 ipv6; do \
     grep -H . /proc/sys/net/$family/conf/$link/* /proc/sys/net/$family/neigh/$link/* 2>/dev/null || true; done; done | sort";

/// Fields of a port of a bridge with its number.
const PORT_NUMBERS: [&str; 3] = ["designated_port", "id", "no"];

/// Whether a link belongs to one of the two pod networks or to a pod.
fn is_network_link(link: &str) -> bool {
    is_flannel_link(link) || is_calico_link(link) || link.starts_with("veth")
}

fn is_flannel_link(link: &str) -> bool {
    ["flannel.", "flannel-v6."]
        .iter()
        .any(|start| link.starts_with(start))
        || link == "cni0"
}

fn is_calico_link(link: &str) -> bool {
    link.starts_with("cali") || ["vxlan.calico", "vxlan-v6.calico"].contains(&link)
}

/// Whether BIRD wrote the route: Calico without a tunnel routes over the host's own link.
fn is_bird_route(route: &Value) -> bool {
    route["protocol"] == "bird"
}

/// Whether the kernel made the entry without a request: link-local addresses and multicast groups of every link.
fn is_kernel_default(line: &str) -> bool {
    ["fe80::", "ff00::", "\"33:33:", "\"01:00:5e"]
        .iter()
        .any(|own| line.contains(own))
}

/// A built-in chain with its default policy: listing a table creates its chains.
fn is_empty_chain(line: &str) -> bool {
    line.starts_with("chain ") && line.ends_with(" ACCEPT")
}

/// Whether a firewall rule belongs to a pod network, to the service proxy or to a CNI plugin.
fn is_kubernetes_rule(line: &str) -> bool {
    [
        "FLANNEL", "flannel", "KUBE-", "kube-", "CNI-", "cali-", "cali:", "calico", "CALICO",
    ]
    .iter()
    .any(|word| line.contains(word))
}

impl Host {
    /// Observes one node.
    pub async fn observe(cluster: &Cluster, node: &str) -> Result<Self> {
        let list = async |command: &[&str]| -> Result<Vec<Value>> {
            let text = cluster.run_in_node(node, command).await?;
            let text = if text.trim().is_empty() {
                "[]"
            } else {
                text.as_str()
            };
            serde_json::from_str(text).with_context(|| format!("parse the output of `{}`", command.join(" ")))
        };
        let lines = async |command: &[&str]| -> Result<Vec<String>> {
            let text = cluster.run_in_node(node, command).await?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        let mut firewall = BTreeMap::new();
        for (backend, command) in [
            ("iptables-nft", "iptables-nft-save"),
            ("ip6tables-nft", "ip6tables-nft-save"),
        ] {
            sort_rules(backend, &lines(&[command]).await?, &mut firewall);
        }
        // Listing with the legacy tools creates their tables: list them only where they exist already.
        let legacy = lines(&["sh", "-c", "cat /proc/net/ip_tables_names 2>/dev/null || true"]).await?;
        if !legacy.is_empty() {
            sort_rules(
                "iptables-legacy",
                &lines(&["iptables-legacy-save"]).await?,
                &mut firewall,
            );
        }
        let ruleset: Value = serde_json::from_str(
            &cluster
                .run_in_node(node, &["nft", "-j", "list", "ruleset"])
                .await?,
        )
        .context("parse the output of `nft -j list ruleset`")?;
        let files = "find /run/flannel /var/lib/cni/networks /var/lib/cni/flannel -type f 2>/dev/null | sort";
        Ok(Self {
            links: list(&["ip", "-j", "-d", "link"]).await?,
            addresses: list(&["ip", "-j", "address"]).await?,
            routes: list(&["ip", "-j", "route", "show", "table", "all"]).await?,
            rules: [
                list(&["ip", "-j", "-4", "rule"]).await?,
                with_ipv6_family(list(&["ip", "-j", "-6", "rule"]).await?),
            ]
            .concat(),
            forwarding: list(&["bridge", "-j", "fdb"]).await?,
            firewall,
            ruleset: ruleset["nftables"]
                .as_array()
                .cloned()
                .unwrap_or_default()
                .into_iter()
                .map(without_counters)
                .collect(),
            conflists: lines(&["ls", "/etc/cni/net.d"]).await?,
            files: lines(&["sh", "-c", files]).await?,
            contents: lines(&["sh", "-c", CONTENTS]).await?,
            neighbours: list(&["ip", "-j", "neighbour", "show", "nud", "permanent"]).await?,
            proxies: [
                list(&["ip", "-j", "-4", "neighbour", "show", "proxy"]).await?,
                list(&["ip", "-j", "-6", "neighbour", "show", "proxy"]).await?,
            ]
            .concat(),
            parameters: lines(&["sh", "-c", PARAMETERS]).await?,
            sets: lines(&["ipset", "list", "-n"]).await?,
        })
    }

    /// Everything of flannel on the host, one line each.
    pub fn flannel(&self) -> Vec<String> {
        let mut found = self.links_where(is_flannel_link);
        for route in &self.routes {
            let device = route["dev"].as_str().unwrap_or_default();
            if is_flannel_link(device) {
                found.push(format!("route {} dev {device}", route["dst"]));
            }
        }
        found.extend(
            self.rules
                .iter()
                .filter(|rule| selects_subnet_table(rule))
                .map(|rule| format!("rule {rule}")),
        );
        found.extend(self.rules_with("FLANNEL"));
        for object in &self.ruleset {
            let name = object["table"]["name"].as_str().unwrap_or_default();
            if name.starts_with("flannel") {
                found.push(format!("nft table {name}"));
            }
        }
        found.extend(
            self.conflists
                .iter()
                .filter(|file| file.contains("flannel"))
                .map(|file| format!("file {file}")),
        );
        found.extend(self.files.iter().map(|file| format!("file {file}")));
        found
    }

    /// Everything of Calico on the host, one line each.
    pub fn calico(&self) -> Vec<String> {
        let mut found = self.links_where(is_calico_link);
        for route in &self.routes {
            let device = route["dev"].as_str().unwrap_or_default();
            if is_calico_link(device) || route["type"].as_str() == Some("blackhole") || is_bird_route(route) {
                found.push(format!("route {route}"));
            }
        }
        found.extend(self.rules_with("cali"));
        found.extend(
            self.conflists
                .iter()
                .filter(|file| file.contains("calico.conflist"))
                .map(|file| format!("file {file}")),
        );
        found.extend(
            self.sets
                .iter()
                .filter(|name| name.starts_with("cali"))
                .map(|name| format!("ipset {name}")),
        );
        found
    }

    fn links_where(&self, matches: impl Fn(&str) -> bool) -> Vec<String> {
        let names = self.links.iter().filter_map(|link| link["ifname"].as_str());
        names
            .filter(|name| matches(name))
            .map(|name| format!("link {name}"))
            .collect()
    }

    /// Lines of the firewall with this word, each with its backend and table.
    pub fn rules_with(&self, word: &str) -> impl Iterator<Item = String> {
        self.firewall.iter().flat_map(move |(table, rules)| {
            let rules = rules.iter().filter(move |rule| rule.contains(word));
            rules.map(move |rule| format!("{table}: {rule}"))
        })
    }

    /// Addresses of flannel's bridge that replumb has put on the loopback interface for adopted pods.
    fn kept_addresses(&self) -> Vec<&Value> {
        let addresses = self
            .addresses
            .iter()
            .filter_map(|link| link["addr_info"].as_array());
        let kept = addresses
            .flatten()
            .filter(|address| address["label"] == "lo:adopted");
        kept.map(|address| &address["local"]).collect()
    }

    /// The whole state, as comparable lines: a rollback must restore it.
    pub fn everything(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let mut add = |what: &str, values: &[Value], omitted: &[&str]| {
            for value in values {
                let mut value = value.clone();
                for key in omitted {
                    value.as_object_mut().map(|map| map.remove(*key));
                }
                // Timers of a bridge and its ports count down. The kernel numbers the ports in the order in which they come.
                for data in ["info_data", "info_slave_data"] {
                    let data = value
                        .get_mut("linkinfo")
                        .and_then(|info| info.get_mut(data)?.as_object_mut());
                    if let Some(data) = data {
                        data.retain(|key, _| {
                            !key.ends_with("_timer") && !PORT_NUMBERS.contains(&key.as_str())
                        });
                    }
                }
                let line = format!("{what} {value}");
                if !is_kernel_default(&line) {
                    lines.insert(line);
                }
            }
        };
        add("link", &self.links, &["ifindex", "stats64", "link_index"]);
        add("route", &self.routes, &[]);
        add("rule", &self.rules, &[]);
        add("neighbour", &self.neighbours, &[]);
        add("proxy", &self.proxies, &[]);
        add("forwarding", &self.forwarding, &["ifindex"]);
        for link in &self.addresses {
            for address in link["addr_info"].as_array().into_iter().flatten() {
                let line = format!(
                    "address {} {}/{}",
                    link["ifname"], address["local"], address["prefixlen"]
                );
                if !is_kernel_default(&line) {
                    lines.insert(line);
                }
            }
        }
        for (table, rules) in &self.firewall {
            lines.extend(rules.iter().map(|rule| format!("{table}: {rule}")));
        }
        lines.extend(self.ruleset.iter().map(|object| format!("nft {object}")));
        lines.extend(self.contents.iter().map(|line| format!("file {line}")));
        lines.extend(self.parameters.iter().map(|line| format!("parameter {line}")));
        lines.extend(self.sets.iter().map(|name| format!("ipset {name}")));
        lines
    }

    /// Everything that belongs to no pod network, no pod and not to the service proxy, as comparable lines.
    pub fn foreign(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let name = |value: &Value| value["ifname"].as_str().unwrap_or_default().to_owned();
        for link in self.links.iter().filter(|link| !is_network_link(&name(link))) {
            lines.insert(format!(
                "link {} mtu {} mac {} flags {}",
                name(link),
                link["mtu"],
                link["address"],
                link["flags"]
            ));
        }
        let kept = self.kept_addresses();
        for link in self.addresses.iter().filter(|link| !is_network_link(&name(link))) {
            for address in link["addr_info"].as_array().into_iter().flatten() {
                if kept.contains(&&address["local"]) {
                    continue;
                }
                lines.insert(format!(
                    "address {} {}/{}",
                    name(link),
                    address["local"],
                    address["prefixlen"]
                ));
            }
        }
        for route in &self.routes {
            let device = route["dev"].as_str().unwrap_or_default();
            let blackhole = route["type"].as_str() == Some("blackhole");
            let is_kept = device == "lo" && kept.contains(&&route["dst"]);
            if !is_network_link(device) && !blackhole && !is_bird_route(route) && !is_kept {
                lines.insert(format!("route {route}"));
            }
        }
        let others = self.rules.iter().filter(|rule| !selects_subnet_table(rule));
        lines.extend(others.map(|rule| format!("rule {rule}")));
        for entry in &self.forwarding {
            if !is_network_link(entry["ifname"].as_str().unwrap_or_default())
                && !is_network_link(entry["master"].as_str().unwrap_or_default())
            {
                lines.insert(format!(
                    "forwarding {} {} {}",
                    entry["ifname"], entry["mac"], entry["dst"]
                ));
            }
        }
        for (table, rules) in &self.firewall {
            lines.extend(
                rules
                    .iter()
                    .filter(|rule| !is_kubernetes_rule(rule) && !is_empty_chain(rule))
                    .map(|rule| format!("{table}: {rule}")),
            );
        }
        for object in &self.ruleset {
            let text = object.to_string();
            // The tables of iptables-nft are compared above, as rules.
            let of_iptables = ["nat", "filter", "mangle", "raw", "security"]
                .iter()
                .any(|table| {
                    object.as_object().is_some_and(|object| {
                        object
                            .values()
                            .any(|value| value["table"] == *table || value["name"] == *table)
                    })
                });
            let is_other = !is_kubernetes_rule(&text) && !accepts_frames_of_pods(object);
            if !of_iptables && is_other && object.get("metainfo").is_none() {
                lines.insert(format!("nft {text}"));
            }
        }
        lines.extend(
            self.conflists
                .iter()
                .filter(|file| !file.contains("flannel") && !file.contains("calico"))
                .map(|file| format!("file {file}")),
        );
        lines
    }
}

/// Whether this is a rule of replumb for frames of adopted pods, its chain or its table.
fn accepts_frames_of_pods(object: &Value) -> bool {
    let mut parts = object.as_object().into_iter().flat_map(serde_json::Map::values);
    parts.any(|part| part["family"] == "netdev" && (part["table"] == "replumb" || part["name"] == "replumb"))
}

/// Whether a rule selects replumb's own table: routes to whole IPv6 subnets are in it as long as pods of flannel live.
fn selects_subnet_table(rule: &Value) -> bool {
    rule["table"] == "8282"
}

/// Adds the family, which `ip -6 rule` omits: rules of both families must be distinct.
fn with_ipv6_family(mut rules: Vec<Value>) -> Vec<Value> {
    for rule in &mut rules {
        rule["family"] = "inet6".into();
    }
    rules
}

/// Lines of `iptables-save` by table, without counters and comments.
fn sort_rules(backend: &str, lines: &[String], firewall: &mut BTreeMap<String, BTreeSet<String>>) {
    let mut table = String::new();
    for line in lines {
        if let Some(name) = line.strip_prefix('*') {
            table = format!("{backend} {name}");
        } else if let Some(chain) = line.strip_prefix(':') {
            let chain = chain.split(" [").next().unwrap_or(chain);
            firewall
                .entry(table.clone())
                .or_default()
                .insert(format!("chain {chain}"));
        } else if line.starts_with("-A") {
            firewall.entry(table.clone()).or_default().insert(line.clone());
        }
    }
}

/// Removes fields that change without an edit: handles and counters.
fn without_counters(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            for key in ["handle", "index", "packets", "bytes"] {
                map.remove(key);
            }
            for value in map.values_mut() {
                *value = without_counters(value.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = without_counters(item.take());
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host(rules: &str) -> Host {
        let mut firewall = BTreeMap::new();
        sort_rules(
            "iptables-nft",
            &rules.lines().map(str::to_owned).collect::<Vec<_>>(),
            &mut firewall,
        );
        Host {
            links: vec![
                json!({"ifname": "eth0", "mtu": 1500}),
                json!({"ifname": "flannel.1", "mtu": 1450}),
            ],
            addresses: Vec::new(),
            routes: vec![
                json!({"dst": "10.244.1.0/24", "dev": "flannel.1"}),
                json!({"dst": "default", "dev": "eth0"}),
            ],
            rules: Vec::new(),
            forwarding: Vec::new(),
            firewall,
            ruleset: vec![json!({"table": {"family": "inet", "name": "third-party"}})],
            conflists: vec!["10-flannel.conflist".into(), "99-third-party.conf".into()],
            files: Vec::new(),
            contents: Vec::new(),
            neighbours: Vec::new(),
            proxies: Vec::new(),
            parameters: Vec::new(),
            sets: Vec::new(),
        }
    }

    const RULES: &str = "*nat\n:POSTROUTING ACCEPT [1:2]\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -j FLANNEL-POSTRTG\n-A POSTROUTING -s 198.51.100.0/24 -j THIRD-PARTY\nCOMMIT";

    #[test]
    fn only_entries_of_flannel_are_listed() {
        let found = host(RULES).flannel();
        assert_eq!(
            found,
            [
                "link flannel.1",
                "route \"10.244.1.0/24\" dev flannel.1",
                "iptables-nft nat: -A POSTROUTING -j FLANNEL-POSTRTG",
                "iptables-nft nat: chain FLANNEL-POSTRTG -",
                "file 10-flannel.conflist",
            ]
        );
    }

    #[test]
    fn a_changed_foreign_rule_differs_and_a_changed_counter_does_not() {
        let before = host(RULES).foreign();
        let counted = host(&RULES.replace("[1:2]", "[9:9]")).foreign();
        assert_eq!(before, counted);
        let changed = host(&RULES.replace("198.51.100.0/24", "198.51.100.0/25")).foreign();
        assert_ne!(before, changed);
        assert!(
            before.contains("nft {\"table\":{\"family\":\"inet\",\"name\":\"third-party\"}}"),
            "{before:?}"
        );
    }
}
