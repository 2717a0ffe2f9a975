//! Converts IP pools.

use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::finding::Findings;
use super::go_values::lower;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::network::{Network, cidr};
use super::note::Note;
use super::report::Cause;
use super::resource::Resource;
use super::spec::ip_pool::Spec;
use super::v2::Tree;
use super::validate::{metadata, pool};

/// A pool in v2.
#[derive(Debug, Default)]
struct Pool {
    network: Network,
    tunnel: String,
    tunnel_mode: String,
    masquerade: bool,
    /// Whether Calico allocates addresses from the pool; `None` when it is not set.
    allocates: Option<bool>,
    disabled: bool,
}

impl Decode for Pool {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        // Only its type is checked: no pool of v2 had VXLAN.
        fields.get::<String>("vxlan_mode")?;
        Ok(Self {
            network: fields.get("cidr")?,
            tunnel: fields.get("ipip")?,
            tunnel_mode: fields.get("ipip_mode")?,
            masquerade: fields.get("masquerade")?,
            allocates: fields.get("ipam")?,
            disabled: fields.get("disabled")?,
        })
    }
}

/// Converts all pools.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let mut batch = conversion.batch();
    for entry in tree.matching("/calico/v1/ipam/v?/pool/*") {
        let Some((_, own)) = cidr(&entry.parts[0].replacen('-', "/", 1)) else {
            let key = V2Key::Unreadable(entry.path.to_owned());
            let needed = "network with a dash in place of the slash";
            batch.add(key, entry.path, Err(Cause::Key { needed }));
            continue;
        };
        let key = V2Key::IpPool(own.to_string());
        let converted = read(entry.value).and_then(|pool| converted(&key, &own, &pool));
        batch.add(key, entry.path, converted);
    }
}

fn converted(key: &V2Key, own: &Network, pool: &Pool) -> Result<Resource, Cause> {
    let is_v4 = pool.network.version() == 4;
    let spec = Spec {
        cidr: pool.network.to_string(),
        vxlan_mode: "Never",
        ipip_mode: match lower(&pool.tunnel_mode).as_str() {
            _ if pool.tunnel.is_empty() => "Never",
            "cross-subnet" => "CrossSubnet",
            _ => "Always",
        },
        nat_outgoing: pool.masquerade,
        disabled: pool.disabled,
        block_size: if is_v4 { 26 } else { 122 },
        node_selector: "all()",
    };
    let name = names::network(&pool.network);
    let mut findings = Findings::default();
    metadata::name(&name, &mut findings);
    pool::spec(&spec, &mut findings);
    let mut resource = Resource::new(ObjectKind::IpPool, name, &spec)?;
    resource.findings = findings.0;
    if pool.network.masked() != Some(*own) {
        resource.notes.push(Note::OtherAddress {
            key: key.clone(),
            found: spec.cidr,
        });
    }
    if pool.allocates == Some(false) && !pool.disabled {
        resource.notes.push(Note::PoolBecomesUsable { key: key.clone() });
    }
    Ok(resource)
}

#[cfg(test)]
mod tests;
