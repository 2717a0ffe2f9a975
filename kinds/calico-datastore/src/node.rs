//! Converts hosts to nodes: every directory below `/calico/v1/host`, with its settings of BGP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;

use super::as_number::as_number;
use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::difference::Difference;
use super::felix::TUNNEL_ADDRESS;
use super::finding::Findings;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::network::{Network, address, cidr};
use super::note::Note;
use super::report::Cause;
use super::resource::Resource;
use super::v2::Tree;
use super::validate::metadata;

const HOSTS: &str = "/calico/v1/host";
const BGP_HOSTS: &str = "/calico/bgp/v1/host";
/// Settings of BGP that v3's Node has.
const BGP_VALUES: [&str; 5] = ["ip_addr_v4", "network_v4", "ip_addr_v6", "network_v6", "as_num"];

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    bgp: Option<Bgp>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    orch_refs: Vec<OrchestratorReference>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Bgp {
    #[serde(skip_serializing_if = "Option::is_none")]
    as_number: Option<u32>,
    #[serde(rename = "ipv4Address", skip_serializing_if = "Option::is_none")]
    ipv4_address: Option<String>,
    #[serde(rename = "ipv6Address", skip_serializing_if = "Option::is_none")]
    ipv6_address: Option<String>,
    #[serde(rename = "ipv4IPIPTunnelAddr", skip_serializing_if = "Option::is_none")]
    tunnel_address: Option<String>,
}

/// The name of a host in an orchestrator.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct OrchestratorReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    node_name: String,
    orchestrator: String,
}

impl Decode for OrchestratorReference {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            node_name: fields.get("nodeName")?,
            orchestrator: fields.get("orchestrator")?,
        })
    }
}

/// Converts all nodes.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let hosts = tree.children(HOSTS);
    let tunnels = tunnels(tree);
    let mut batch = conversion.batch();
    for host in &hosts {
        let resource = node(tree, host, &tunnels, batch.conversion);
        batch.add(
            V2Key::Node((*host).to_owned()),
            &format!("{HOSTS}/{host}"),
            resource,
        );
    }
    note_ignored_settings(tree, &hosts, conversion);
}

/// Addresses of tunnels by node, each with its path. Of several hosts that become one node, the last is used.
fn tunnels(tree: &Tree) -> BTreeMap<String, (&str, &str)> {
    tree.matching(&format!("{HOSTS}/*/config/{TUNNEL_ADDRESS}"))
        .into_iter()
        .map(|entry| (names::node(entry.parts[0]), (entry.path, entry.value)))
        .collect()
}

fn node(
    tree: &Tree,
    host: &str,
    tunnels: &BTreeMap<String, (&str, &str)>,
    conversion: &mut Conversion,
) -> Result<Resource, Cause> {
    let name = names::node(host);
    let mut findings = Findings::default();
    let mut bgp = bgp(tree, host, conversion, &mut findings);
    if let Some((path, text)) = tunnels.get(&name).filter(|(_, text)| !text.is_empty()) {
        let key = V2Key::HostSetting(name.clone(), TUNNEL_ADDRESS.to_owned());
        match (&mut bgp, address(text)) {
            (Some(bgp), Some(IpAddr::V4(_))) => bgp.tunnel_address = Some((*text).to_owned()),
            (Some(_), _) => {
                let cause = Cause::Value {
                    found: (*text).to_owned(),
                    needed: "an IPv4 address",
                    difference: Some(Difference::TunnelAddress),
                };
                conversion.fail(key, *path, cause);
            }
            (None, _) => conversion.notes.push(Note::TunnelAddressLost {
                key,
                address: (*text).to_owned(),
            }),
        }
    }
    let spec = Spec {
        bgp,
        orch_refs: orchestrator_references(tree, host, conversion),
    };
    metadata::name(&name, &mut findings);
    let mut resource = Resource::new(ObjectKind::Node, name, &spec)?;
    resource.findings = findings.0;
    Ok(resource)
}

/// A value of BGP on a host; `None` when it is missing, empty or invalid. An invalid value is reported.
fn value<T>(
    tree: &Tree,
    host: &str,
    name: &str,
    needed: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    conversion: &mut Conversion,
) -> Option<T> {
    let path = format!("{BGP_HOSTS}/{host}/{name}");
    let text = tree.value(&path).filter(|text| !text.is_empty())?;
    let parsed = parse(text);
    if parsed.is_none() {
        let cause = Cause::Value {
            found: text.to_owned(),
            needed,
            difference: Some(Difference::NodeValue),
        };
        conversion.fail(
            V2Key::HostBgpSetting(host.to_owned(), name.to_owned()),
            path,
            cause,
        );
    }
    parsed
}

/// The settings of BGP of a node; `None` when it has no address.
fn bgp(tree: &Tree, host: &str, conversion: &mut Conversion, findings: &mut Findings) -> Option<Bgp> {
    let mut of_family = |family: u8, needed: &'static str| -> Option<String> {
        let own = value(
            tree,
            host,
            &format!("ip_addr_v{family}"),
            "an address like 10.0.0.1 or fd00::1",
            address,
            conversion,
        );
        let network = value(
            tree,
            host,
            &format!("network_v{family}"),
            "a network like 10.0.0.0/24 or fd00::/64",
            |text| cidr(text).map(|(_, network)| network),
            conversion,
        );
        let own = own?;
        let network = network.map_or_else(
            || Network::of(own),
            |network| Network::with_length_of(own, &network),
        );
        let text = network.to_string();
        let is_of_family = cidr(&text).is_some_and(|(_, network)| network.version() == family);
        findings.text(
            is_of_family,
            format!("spec.bgp.ipv{family}Address"),
            &text,
            needed,
        );
        Some(text)
    };
    let ipv4_address = of_family(4, "an IPv4 address, and a network of its family");
    let ipv6_address = of_family(6, "an IPv6 address, and a network of its family");
    let as_number = value(
        tree,
        host,
        "as_num",
        "an AS number like 64512 or 1.10",
        as_number,
        conversion,
    );
    (ipv4_address.is_some() || ipv6_address.is_some()).then_some(Bgp {
        as_number,
        ipv4_address,
        ipv6_address,
        tunnel_address: None,
    })
}

fn orchestrator_references(
    tree: &Tree,
    host: &str,
    conversion: &mut Conversion,
) -> Vec<OrchestratorReference> {
    let path = format!("{HOSTS}/{host}/orchestrator_refs");
    let Some(text) = tree.value(&path) else {
        return Vec::new();
    };
    read(text).unwrap_or_else(|cause| {
        conversion.fail(V2Key::OrchestratorReferences(host.to_owned()), path, cause);
        Vec::new()
    })
}

fn note_ignored_settings(tree: &Tree, hosts: &BTreeSet<&str>, conversion: &mut Conversion) {
    for host in tree.children(BGP_HOSTS) {
        if !hosts.contains(host) {
            conversion.notes.push(Note::NoNode {
                host: host.to_owned(),
            });
        }
    }
    for entry in tree.matching(&format!("{BGP_HOSTS}/*/*")) {
        if !BGP_VALUES.contains(&entry.parts[1]) {
            conversion.notes.push(Note::NotRead {
                path: entry.path.to_owned(),
                what: "v3's Node has no such setting",
            });
        }
    }
}

#[cfg(test)]
mod tests;
