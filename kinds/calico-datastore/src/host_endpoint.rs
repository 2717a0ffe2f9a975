//! Converts host endpoints: interfaces of hosts that policies apply to.

use std::collections::BTreeMap;

use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::endpoint_port::EndpointPort;
use super::escape::unescaped;
use super::finding::Findings;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::network::Address;
use super::note::Note;
use super::report::Cause;
use super::resource::Resource;
use super::selector::OLD_NAMESPACE;
use super::spec::host_endpoint::Spec;
use super::v2::Tree;
use super::validate::{endpoint, metadata};

/// An endpoint in v2.
#[derive(Debug, Default)]
struct Endpoint {
    interface: String,
    ipv4: Vec<Address>,
    ipv6: Vec<Address>,
    labels: BTreeMap<String, String>,
    profiles: Vec<String>,
    ports: Vec<EndpointPort>,
}

impl Decode for Endpoint {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            interface: fields.get("name")?,
            ipv4: fields.get("expected_ipv4_addrs")?,
            ipv6: fields.get("expected_ipv6_addrs")?,
            labels: fields.get("labels")?,
            profiles: fields.get("profile_ids")?,
            ports: fields.get("ports")?,
        })
    }
}

/// Converts all host endpoints.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let mut batch = conversion.batch();
    for entry in tree.matching("/calico/v1/host/*/endpoint/*") {
        let (host, name) = (entry.parts[0], unescaped(entry.parts[1]));
        let key = V2Key::HostEndpoint(host.to_owned(), name.clone());
        let converted =
            read(entry.value).and_then(|endpoint: Endpoint| converted(&key, host, &name, endpoint));
        batch.add(key, entry.path, converted);
    }
}

fn converted(key: &V2Key, host: &str, name: &str, endpoint: Endpoint) -> Result<Resource, Cause> {
    let node = names::node(host);
    let name = names::name(&format!("{node}.{name}"));
    let spec = Spec {
        node,
        interface_name: endpoint.interface,
        expected_ips: endpoint
            .ipv4
            .iter()
            .chain(&endpoint.ipv6)
            .map(ToString::to_string)
            .collect(),
        profiles: endpoint
            .profiles
            .iter()
            .map(|profile| names::profile(profile))
            .collect(),
        ports: endpoint.ports.iter().map(EndpointPort::in_v3).collect(),
    };
    let mut findings = Findings::default();
    metadata::name(&name, &mut findings);
    metadata::labels("metadata.labels", &endpoint.labels, &mut findings);
    endpoint::host(&spec, &mut findings);
    let mut resource = Resource::new(ObjectKind::HostEndpoint, name, &spec)?;
    resource.findings = findings.0;
    if endpoint.labels.contains_key(OLD_NAMESPACE) {
        resource.notes.push(Note::NamespaceLabel { key: key.clone() });
    }
    resource
        .notes
        .extend(endpoint.ports.iter().filter_map(|port| port.note(key)));
    resource.labels = endpoint.labels;
    Ok(resource)
}

#[cfg(test)]
mod tests;
