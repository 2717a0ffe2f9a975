//! The state of a node's host by other tools than ours: `ip -j`, `bridge -j`, `iptables-save`, `nft -j`, `ls`. What the
//! tool says about itself is no proof.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::Cluster;

/// One look at one host.
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
    /// Files of the CNI folder.
    conflists: Vec<String>,
    /// Files that flannel writes.
    files: Vec<String>,
    /// Files of the CNI folders and of flannel: permissions, owner, SHA-256, path.
    contents: Vec<String>,
    /// Permanent neighbours.
    neighbours: Vec<Value>,
    /// Addresses that links answer for.
    proxies: Vec<Value>,
    /// Kernel parameters of the bridge and of the tunnel: name and value.
    parameters: Vec<String>,
    /// Names of sets of addresses.
    sets: Vec<String>,
}

/// Every file with its permissions, its owner and its checksum.
const CONTENTS: &str =
    "find /etc/cni/net.d /run/flannel /var/lib/cni -type f -printf '%m %U:%G ' -exec sha256sum {} \\; | sort";
/// Every parameter of the links that the migration touches.
const PARAMETERS: &str = "for link in cni0 flannel.1 flannel-v6.1; do for family in ipv4 ipv6; do \
     grep -H . /proc/sys/net/$family/conf/$link/* /proc/sys/net/$family/neigh/$link/* 2>/dev/null || true; done; done | sort";

/// Names of links that belong to one of the two networks or to a pod.
fn is_of_a_network(link: &str) -> bool {
    is_flannels(link) || is_calicos(link) || link.starts_with("veth")
}

fn is_flannels(link: &str) -> bool {
    ["flannel.", "flannel-v6."]
        .iter()
        .any(|start| link.starts_with(start))
        || link == "cni0"
}

fn is_calicos(link: &str) -> bool {
    link.starts_with("cali") || ["vxlan.calico", "vxlan-v6.calico"].contains(&link)
}

/// Calico's, where it leads without a tunnel: by the host's own link.
fn is_birds(route: &Value) -> bool {
    route["protocol"] == "bird"
}

/// What the kernel gives every link by itself and joins by itself: link-local addresses, groups.
fn is_of_the_kernel(line: &str) -> bool {
    ["fe80::", "ff00::", "\"33:33:", "\"01:00:5e"]
        .iter()
        .any(|own| line.contains(own))
}

/// A chain that the kernel has in every table, with the policy that it has by itself: whoever looks at a table makes them.
fn is_empty_chain(line: &str) -> bool {
    line.starts_with("chain ") && line.ends_with(" ACCEPT")
}

/// Words by which a firewall rule belongs to a network, to the service proxy or to a CNI plugin.
fn is_of_kubernetes(line: &str) -> bool {
    [
        "FLANNEL", "flannel", "KUBE-", "kube-", "CNI-", "cali-", "cali:", "calico", "CALICO",
    ]
    .iter()
    .any(|word| line.contains(word))
}

impl Host {
    /// Looks at one node.
    pub async fn look(cluster: &Cluster, node: &str) -> Result<Self> {
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
        // A first look with the legacy tools makes their tables: only where somebody else has made them.
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
                of_ipv6(list(&["ip", "-j", "-6", "rule"]).await?),
            ]
            .concat(),
            forwarding: list(&["bridge", "-j", "fdb"]).await?,
            firewall,
            ruleset: ruleset["nftables"]
                .as_array()
                .cloned()
                .unwrap_or_default()
                .into_iter()
                .map(plain)
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

    /// What of flannel is on the host, one line each.
    pub fn flannel(&self) -> Vec<String> {
        let mut found = self.links_that(is_flannels);
        for route in &self.routes {
            let device = route["dev"].as_str().unwrap_or_default();
            if is_flannels(device) {
                found.push(format!("route {} dev {device}", route["dst"]));
            }
        }
        found.extend(
            self.rules
                .iter()
                .filter(|rule| is_of_subnets(rule))
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

    /// What of Calico is on the host, one line each.
    pub fn calico(&self) -> Vec<String> {
        let mut found = self.links_that(is_calicos);
        for route in &self.routes {
            let device = route["dev"].as_str().unwrap_or_default();
            if is_calicos(device) || route["type"].as_str() == Some("blackhole") || is_birds(route) {
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

    fn links_that(&self, are: impl Fn(&str) -> bool) -> Vec<String> {
        let names = self.links.iter().filter_map(|link| link["ifname"].as_str());
        names
            .filter(|name| are(name))
            .map(|name| format!("link {name}"))
            .collect()
    }

    fn rules_with(&self, word: &str) -> impl Iterator<Item = String> {
        self.firewall.iter().flat_map(move |(table, rules)| {
            let rules = rules.iter().filter(move |rule| rule.contains(word));
            rules.map(move |rule| format!("{table}: {rule}"))
        })
    }

    /// Everything at all, as comparable lines: what a way back has to restore.
    pub fn everything(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let mut add = |what: &str, values: &[Value], left_out: &[&str]| {
            for value in values {
                let mut value = value.clone();
                for key in left_out {
                    value.as_object_mut().map(|map| map.remove(*key));
                }
                // A bridge and its ports count down.
                for data in ["info_data", "info_slave_data"] {
                    let data = value
                        .get_mut("linkinfo")
                        .and_then(|info| info.get_mut(data)?.as_object_mut());
                    if let Some(data) = data {
                        data.retain(|key, _| !key.ends_with("_timer"));
                    }
                }
                let line = format!("{what} {value}");
                if !is_of_the_kernel(&line) {
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
                if !is_of_the_kernel(&line) {
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

    /// Everything that is neither network's, no pod's and not the service proxy's, as comparable lines.
    pub fn foreign(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let name = |value: &Value| value["ifname"].as_str().unwrap_or_default().to_owned();
        for link in self.links.iter().filter(|link| !is_of_a_network(&name(link))) {
            lines.insert(format!(
                "link {} mtu {} mac {} flags {}",
                name(link),
                link["mtu"],
                link["address"],
                link["flags"]
            ));
        }
        for link in self.addresses.iter().filter(|link| !is_of_a_network(&name(link))) {
            for address in link["addr_info"].as_array().into_iter().flatten() {
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
            if !is_of_a_network(device) && !blackhole && !is_birds(route) {
                lines.insert(format!("route {route}"));
            }
        }
        let others = self.rules.iter().filter(|rule| !is_of_subnets(rule));
        lines.extend(others.map(|rule| format!("rule {rule}")));
        for entry in &self.forwarding {
            if !is_of_a_network(entry["ifname"].as_str().unwrap_or_default())
                && !is_of_a_network(entry["master"].as_str().unwrap_or_default())
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
                    .filter(|rule| !is_of_kubernetes(rule) && !is_empty_chain(rule))
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
            if !of_iptables && !is_of_kubernetes(&text) && object.get("metainfo").is_none() {
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

/// Routes to whole IPv6 subnets stand in a table of the tool's own, for as long as flannel's pods live.
fn is_of_subnets(rule: &Value) -> bool {
    rule["table"] == "8282"
}

/// Rules of both families read alike.
fn of_ipv6(mut rules: Vec<Value>) -> Vec<Value> {
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

/// Without what changes by itself: handles and counters.
fn plain(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            for key in ["handle", "index", "packets", "bytes"] {
                map.remove(key);
            }
            for value in map.values_mut() {
                *value = plain(value.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = plain(item.take());
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
            ruleset: vec![json!({"table": {"family": "inet", "name": "somebody-else"}})],
            conflists: vec!["10-flannel.conflist".into(), "99-somebody-else.conf".into()],
            files: Vec::new(),
            contents: Vec::new(),
            neighbours: Vec::new(),
            proxies: Vec::new(),
            parameters: Vec::new(),
            sets: Vec::new(),
        }
    }

    const RULES: &str = "*nat\n:POSTROUTING ACCEPT [1:2]\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -j FLANNEL-POSTRTG\n-A POSTROUTING -s 198.51.100.0/24 -j SOMEBODY-ELSE\nCOMMIT";

    #[test]
    fn flannels_things_are_found_and_nobody_elses() {
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
    fn a_change_of_somebody_elses_rule_is_seen_and_a_counter_is_not() {
        let before = host(RULES).foreign();
        let counted = host(&RULES.replace("[1:2]", "[9:9]")).foreign();
        assert_eq!(before, counted);
        let changed = host(&RULES.replace("198.51.100.0/24", "198.51.100.0/25")).foreign();
        assert_ne!(before, changed);
        assert!(
            before.contains("nft {\"table\":{\"family\":\"inet\",\"name\":\"somebody-else\"}}"),
            "{before:?}"
        );
    }
}
