//! Converts BGP peers: of all nodes, or of one node.

use serde::Serialize;

use super::as_number::as_number;
use super::conversion::{Batch, Conversion};
use super::decode::{Decode, Fields, keep_over_null, read};
use super::finding::Findings;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::network::{Address, address};
use super::note::Note;
use super::report::Cause;
use super::resource::Resource;
use super::v2::{Entry, Tree};
use super::validate::metadata;
use super::validate::text::is_subdomain;

#[derive(Debug, Default)]
struct Peer {
    address: Address,
    as_number: AsNumber,
}

impl Decode for Peer {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            address: fields.get("ip")?,
            as_number: fields.get("as_num")?,
        })
    }
}

/// An AS number in one or two pairs of quotes. Calico's own tool reads dotted numbers here only in two pairs of quotes; the forms
/// that it reads elsewhere are accepted here as well, with a note.
#[derive(Debug, Default)]
struct AsNumber {
    number: u32,
    other_form: Option<String>,
}

impl Decode for AsNumber {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let mismatch = || Mismatch::new(json, "an AS number like \"64512\" or \"1.10\"");
        let text = match json {
            Json::Null => return Ok(Self::default()),
            // The quoted text is JSON again.
            Json::Text(text) => match Json::parse(text) {
                Ok(Json::Null) => return Ok(Self::default()),
                Ok(Json::Text(inner)) => {
                    let number = as_number(&inner).ok_or_else(mismatch)?;
                    return Ok(Self {
                        number,
                        other_form: None,
                    });
                }
                Ok(_) | Err(_) => text.trim_matches([' ', '\t', '\n', '\r']).to_owned(),
            },
            Json::Integer(number) => number.to_string(),
            _ => return Err(mismatch()),
        };
        let number = as_number(&text).ok_or_else(mismatch)?;
        let is_plain = matches!(json, Json::Text(_)) && number.to_string() == text;
        Ok(Self {
            number,
            other_form: (!is_plain).then(|| json.to_string()),
        })
    }

    fn decode_over(self, json: &Json) -> Result<Self, Mismatch> {
        keep_over_null(self, json)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(skip_serializing_if = "String::is_empty")]
    node: String,
    #[serde(rename = "peerIP")]
    peer_ip: String,
    as_number: u32,
}

/// Converts the peers of all nodes.
pub fn of_all(tree: &Tree, conversion: &mut Conversion) {
    let mut batch = conversion.batch();
    for entry in tree.matching("/calico/bgp/v1/global/peer_v?/*") {
        add(&mut batch, &entry, None);
    }
}

/// Converts the peers of single nodes.
pub fn of_nodes(tree: &Tree, conversion: &mut Conversion) {
    let mut batch = conversion.batch();
    for entry in tree.matching("/calico/bgp/v1/host/*/peer_v?/*") {
        add(&mut batch, &entry, Some(entry.parts[0]));
    }
}

fn add(batch: &mut Batch<'_>, entry: &Entry<'_>, host: Option<&str>) {
    let Some(own) = entry.parts.last().and_then(|part| address(part)) else {
        let key = V2Key::Unreadable(entry.path.to_owned());
        let needed = "address";
        return batch.add(key, entry.path, Err(Cause::Key { needed }));
    };
    let key = match host {
        Some(host) => V2Key::NodePeer(host.to_owned(), own.to_string()),
        None => V2Key::GlobalPeer(own.to_string()),
    };
    let converted = read(entry.value).and_then(|peer: Peer| {
        let mut resource = peer_of(host, &peer)?;
        if peer.address.0.is_some_and(|address| address != own) {
            resource.notes.push(Note::OtherAddress {
                key: key.clone(),
                found: peer.address.to_string(),
            });
        }
        if let Some(found) = peer.as_number.other_form {
            resource.notes.push(Note::PeerAsNumber {
                key: key.clone(),
                found,
                number: peer.as_number.number,
            });
        }
        Ok(resource)
    });
    batch.add(key, entry.path, converted);
}

fn peer_of(host: Option<&str>, peer: &Peer) -> Result<Resource, Cause> {
    let node = host.map(names::node);
    let address = names::address(peer.address.0);
    let name = match &node {
        Some(node) => format!("{node}.{address}"),
        None => address,
    };
    let spec = Spec {
        node: node.unwrap_or_default(),
        peer_ip: peer.address.to_string(),
        as_number: peer.as_number.number,
    };
    let mut findings = Findings::default();
    metadata::name(&name, &mut findings);
    findings.text(
        peer.address.0.is_some(),
        "spec.peerIP",
        &spec.peer_ip,
        "an address",
    );
    let is_name = spec.node.is_empty() || is_subdomain(&spec.node);
    findings.text(is_name, "spec.node", &spec.node, metadata::NAME);
    let mut resource = Resource::new(ObjectKind::BgpPeer, name, &spec)?;
    resource.findings = findings.0;
    Ok(resource)
}

#[cfg(test)]
mod tests;
