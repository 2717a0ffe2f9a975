//! Converts the data of the IPAM: settings, blocks, block affinities and handles. Keys stay the same, except for the names of
//! hosts.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::difference::Difference;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::network::{Network, cidr};
use super::note::Note;
use super::object::Object;
use super::report::Cause;
use super::v2::{Entry, Tree};
use super::verify::cross_check;

const CONFIG: &str = "/calico/ipam/v2/config";
/// Prefix of the affinity of a block that belongs to a host.
const HOST: &str = "host:";

/// Settings of the IPAM, the same in v2 and v3. False values are omitted.
#[derive(Debug, Default, Serialize)]
struct Config {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict_affinity: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    auto_allocate_blocks: bool,
}

impl Decode for Config {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            strict_affinity: fields.get("strict_affinity")?,
            auto_allocate_blocks: fields.get("auto_allocate_blocks")?,
        })
    }
}

/// A block, the same in v2 and v3. A missing list is written as `null`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    #[serde(rename = "cidr", serialize_with = "as_text")]
    network: Network,
    affinity: Option<String>,
    strict_affinity: bool,
    allocations: Option<Vec<Option<i64>>>,
    unallocated: Option<Vec<i64>>,
    attributes: Option<Vec<Attribute>>,
    deleted: bool,
    /// The affinity of versions before 1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_affinity: Option<String>,
}

impl Decode for Block {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            network: fields.get("cidr")?,
            affinity: fields.get("affinity")?,
            strict_affinity: fields.get("strictAffinity")?,
            allocations: fields.get("allocations")?,
            unallocated: fields.get("unallocated")?,
            attributes: fields.get("attributes")?,
            deleted: fields.get("deleted")?,
            host_affinity: fields.get("hostAffinity")?,
        })
    }
}

fn as_text<S: Serializer>(network: &Network, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(network)
}

/// The owner of an address.
#[derive(Debug, Default, Serialize)]
struct Attribute {
    handle_id: Option<String>,
    secondary: Option<BTreeMap<String, String>>,
}

impl Decode for Attribute {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            handle_id: fields.get("handle_id")?,
            secondary: fields.get("secondary")?,
        })
    }
}

/// Affinity of a block for a host, the same in v2 and v3. v3 takes an old one without a state for confirmed.
#[derive(Debug, Default, Serialize)]
struct Affinity {
    state: String,
    deleted: bool,
}

impl Decode for Affinity {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            state: fields.get("state")?,
            deleted: fields.get("deleted")?,
        })
    }
}

/// A handle: addresses that are released together, by block, the same in v2 and v3.
#[derive(Debug, Default, Serialize)]
struct Handle {
    block: Option<BTreeMap<String, i64>>,
    deleted: bool,
}

impl Decode for Handle {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            block: fields.get("block")?,
            deleted: fields.get("deleted")?,
        })
    }
}

/// Converts all data of the IPAM, and notes inconsistencies.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let mut writer = Writer {
        conversion,
        places: BTreeMap::new(),
    };
    if let Some(text) = tree.value(CONFIG) {
        let config = read(text).inspect(|config: &Config| {
            let strict_affinity = config.strict_affinity;
            writer.conversion.notes.push(Note::IpamConfig { strict_affinity });
        });
        let key = (V2Key::IpamConfig, CONFIG);
        writer.write(ObjectKind::IpamConfig, CONFIG.to_owned(), key, config);
    }
    for entry in tree.matching("/calico/ipam/v2/assignment/ipv?/block/*") {
        let Some(network) = writer.network(&entry) else {
            continue;
        };
        let new = format!("/calico/ipam/v2/assignment/{}", block_key(&network));
        let key = (V2Key::Block(network.to_string()), entry.path);
        let block = read(entry.value).and_then(with_host_of_v3);
        if let Ok(block) = &block
            && block.network.masked() != Some(network)
        {
            writer.conversion.notes.push(Note::OtherAddress {
                key: key.0.clone(),
                found: block.network.to_string(),
            });
        }
        writer.write(ObjectKind::IpamBlock, new, key, block);
    }
    for entry in tree.matching("/calico/ipam/v2/host/*/ipv?/block/*") {
        let Some(network) = writer.network(&entry) else {
            continue;
        };
        let host = entry.parts[0];
        let new = format!(
            "/calico/ipam/v2/host/{}/{}",
            names::node(host),
            block_key(&network)
        );
        let key = (V2Key::Affinity(network.to_string(), host.to_owned()), entry.path);
        let affinity = match entry.value {
            _ if names::node(host).is_empty() => Err(late(host, "a letter or a digit in the host's name")),
            "" => Ok(Affinity::default()),
            text => read(text),
        };
        writer.write(ObjectKind::BlockAffinity, new, key, affinity);
    }
    for entry in tree.matching("/calico/ipam/v2/handle/*") {
        let key = (V2Key::Handle(entry.parts[0].to_owned()), entry.path);
        let handle: Result<Handle, Cause> = read(entry.value);
        writer.write(ObjectKind::IpamHandle, entry.path.to_owned(), key, handle);
    }
    let problems = cross_check(&conversion.objects);
    conversion.notes.extend(problems.into_iter().map(Note::Ipam));
}

/// The error for a value that Calico's own tool fails to write, without an earlier report.
fn late(found: &str, needed: &'static str) -> Cause {
    Cause::Value {
        found: found.to_owned(),
        needed,
        difference: Some(Difference::LateFailure),
    }
}

/// The block with the name that its host has in v3.
fn with_host_of_v3(mut block: Block) -> Result<Block, Cause> {
    if block.network.address.is_none() {
        return Err(late("", "a network in \"cidr\""));
    }
    if block.affinity.is_none()
        && let Some(host) = block.host_affinity.take()
    {
        block.affinity = Some(format!("{HOST}{host}"));
    }
    let own = block
        .affinity
        .as_deref()
        .and_then(|affinity| affinity.strip_prefix(HOST));
    let host = own.or(block.host_affinity.as_deref());
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        block.affinity = Some(format!("{HOST}{}", names::node(host)));
    }
    Ok(block)
}

/// `ipv4/block/10.0.0.0-26`.
fn block_key(network: &Network) -> String {
    let name = network.to_string().replacen('/', "-", 1);
    format!("ipv{}/block/{name}", network.version())
}

struct Writer<'conversion> {
    conversion: &'conversion mut Conversion,
    /// For each key, the index of its object and the source.
    places: BTreeMap<String, (usize, V2Key)>,
}

impl Writer<'_> {
    /// The network at the end of the key; reports an error when it is invalid.
    fn network(&mut self, entry: &Entry<'_>) -> Option<Network> {
        let text = entry.parts.last()?.replacen('-', "/", 1);
        let network = cidr(&text).map(|(_, network)| network);
        if network.is_none() {
            let key = V2Key::Unreadable(entry.path.to_owned());
            let needed = "network with a dash in place of the slash";
            self.conversion.fail(key, entry.path, Cause::Key { needed });
        }
        network
    }

    fn write(
        &mut self,
        kind: ObjectKind,
        new: String,
        (key, path): (V2Key, &str),
        value: Result<impl Serialize, Cause>,
    ) {
        let value = value.and_then(|value| {
            serde_json::to_value(value).map_err(|error| Cause::Unwritable(error.to_string()))
        });
        let value = match value {
            Ok(value) => value,
            Err(cause) => return self.conversion.fail(key, path, cause),
        };
        let objects = &mut self.conversion.objects;
        if let Some((place, earlier)) = self.places.get(&new) {
            // The last value is used, as if it overwrote the earlier one.
            if let Some(object) = objects.get_mut(*place) {
                object.value = value;
            }
            self.conversion.notes.push(Note::Overwritten {
                key: new,
                earlier: earlier.clone(),
                later: key,
            });
        } else {
            self.places.insert(new.clone(), (objects.len(), key));
            objects.push(Object {
                key: new,
                value,
                kind,
            });
        }
    }
}

#[cfg(test)]
mod tests;
