//! Converts Calico's objects between their form in etcd v3 and their form in the Kubernetes API.
//!
//! Resources have the same form in both. Objects of the IPAM have keys of their own and no metadata, and the value does not
//! repeat the parts of the key. Unknown fields of a value are kept.

use data_encoding::HEXLOWER;
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::API_VERSION;
use super::names::{affinity_name, block_name, handle_name};

/// Parent key of all resources; the next part is the plural name.
const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";
/// API version of a stored resource.
const RESOURCE_VERSION: &str = "projectcalico.org/v3";
const BLOCKS: &str = "/calico/ipam/v2/assignment";
const AFFINITIES: &str = "/calico/ipam/v2/host";
const HANDLES: &str = "/calico/ipam/v2/handle";
const IPAM_CONFIG: &str = "/calico/ipam/v2/config";
/// Fields of the IPAM's configuration: the name in etcd and the name in the Kubernetes API.
const IPAM_CONFIG_FIELDS: [(&str, &str); 2] = [
    ("strict_affinity", "strictAffinity"),
    ("auto_allocate_blocks", "autoAllocateBlocks"),
];

/// Form in which objects of one kind are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Resources in their own form: kind and plural name.
    Resources(&'static str, &'static str),
    /// `IPAMBlock`s.
    Blocks,
    /// `BlockAffinity`s, whose host and range are in the key.
    Affinities,
    /// `IPAMHandle`s, whose identifier is in the key.
    Handles,
    /// `IPAMConfig`, a single object.
    IpamConfig,
}

/// Identity of an object within its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id {
    /// The object with this name.
    Named(String),
    /// The block of this range.
    Block(IpNet),
    /// The claim of this node on the block of this range.
    Affinity(String, IpNet),
    /// The handle, with upper and lower case as in the key.
    Handle(String),
}

impl Id {
    /// The name of the object in the Kubernetes API.
    pub fn name(&self) -> String {
        match self {
            Self::Named(name) => name.clone(),
            Self::Block(range) => block_name(*range),
            Self::Affinity(node, range) => affinity_name(node, *range),
            Self::Handle(handle) => handle_name(handle),
        }
    }
}

impl Layout {
    /// The kind in the Kubernetes API.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Resources(kind, _) => kind,
            Self::Blocks => "IPAMBlock",
            Self::Affinities => "BlockAffinity",
            Self::Handles => "IPAMHandle",
            Self::IpamConfig => "IPAMConfig",
        }
    }

    /// Prefix of all keys of the kind.
    pub fn prefix(self) -> String {
        match self {
            Self::Resources(_, plural) => format!("{RESOURCES}/{plural}/"),
            Self::Blocks => format!("{BLOCKS}/"),
            Self::Affinities => format!("{AFFINITIES}/"),
            Self::Handles => format!("{HANDLES}/"),
            Self::IpamConfig => IPAM_CONFIG.to_owned(),
        }
    }

    /// Key of the object.
    pub fn key(self, id: &Id) -> String {
        match (self, id) {
            (Self::IpamConfig, _) => IPAM_CONFIG.to_owned(),
            (_, Id::Block(range)) => format!("{BLOCKS}/{}", part(range)),
            (_, Id::Affinity(node, range)) => format!("{AFFINITIES}/{node}/{}", part(range)),
            (Self::Handles, Id::Handle(name) | Id::Named(name)) => format!("{HANDLES}/{name}"),
            (_, Id::Named(name) | Id::Handle(name)) => format!("{}{name}", self.prefix()),
        }
    }

    /// Identity of an object that was read.
    pub fn id(self, object: &Value) -> Id {
        let spec = &object["spec"];
        let text = |field: &str| spec[field].as_str();
        let range = || text("cidr")?.parse::<IpNet>().ok();
        let found = match self {
            Self::Resources(..) | Self::IpamConfig => None,
            Self::Blocks => range().map(Id::Block),
            Self::Affinities => text("node")
                .zip(range())
                .map(|(node, range)| Id::Affinity(node.to_owned(), range)),
            Self::Handles => text("handleID").map(|handle| Id::Handle(handle.to_owned())),
        };
        found.unwrap_or_else(|| Id::Named(object["metadata"]["name"].as_str().unwrap_or_default().to_owned()))
    }

    /// The object in the form of the Kubernetes API. A value that is not valid JSON gives a null spec, and the last part of the
    /// key as the name.
    pub fn object(self, key: &str, value: &[u8]) -> Value {
        let stored: Value = serde_json::from_slice(value).unwrap_or(Value::Null);
        if let Self::Resources(..) = self {
            return self.resource(key, stored);
        }
        let spec = match self {
            Self::Resources(..) | Self::Blocks => stored,
            Self::Affinities => affinity(key, &stored),
            Self::Handles => {
                let mut spec = stored;
                if spec.is_object() {
                    spec["handleID"] =
                        json!(key.strip_prefix(HANDLES).unwrap_or(key).trim_start_matches('/'));
                }
                spec
            }
            Self::IpamConfig => renamed(stored, IPAM_CONFIG_FIELDS),
        };
        let mut object = json!({
            "apiVersion": API_VERSION, "kind": self.kind(), "metadata": { "name": last(key) }, "spec": spec,
        });
        object["metadata"]["name"] = match self {
            Self::IpamConfig => json!("default"),
            _ => json!(self.id(&object).name()),
        };
        object
    }

    fn resource(self, key: &str, stored: Value) -> Value {
        let mut object = if stored.is_object() { stored } else { json!({}) };
        object["apiVersion"] = json!(API_VERSION);
        object["kind"] = json!(self.kind());
        if !object["metadata"]["name"].is_string() {
            object["metadata"] = json!({ "name": last(key) });
        }
        object
    }

    /// The stored value with another spec. `before` is the value that was read.
    pub fn with_spec(self, before: &Value, spec: &Value) -> Value {
        let mut value = if before.is_object() {
            before.clone()
        } else {
            json!({})
        };
        match self {
            Self::Resources(..) => value["spec"] = spec.clone(),
            Self::Blocks => value = spec.clone(),
            Self::Affinities => {
                value["state"] = spec["state"].clone();
                value["deleted"] = json!(spec["deleted"] == "true");
            }
            Self::Handles => {
                value = spec.clone();
                if let Some(fields) = value.as_object_mut() {
                    fields.remove("handleID");
                }
            }
            Self::IpamConfig => {
                value = renamed(spec.clone(), IPAM_CONFIG_FIELDS.map(|(etcd, api)| (api, etcd)));
            }
        }
        value
    }

    /// The stored value of a new object. `uid` and `now` are set where the kind has metadata.
    pub fn created(self, object: &Value, uid: &str, now: &str) -> Value {
        match self {
            Self::Resources(kind, _) => json!({
                "kind": kind,
                "apiVersion": RESOURCE_VERSION,
                "metadata": { "name": object["metadata"]["name"], "uid": uid, "creationTimestamp": now },
                "spec": object["spec"],
            }),
            Self::Blocks | Self::Affinities | Self::Handles | Self::IpamConfig => {
                self.with_spec(&json!({}), &object["spec"])
            }
        }
    }
}

/// A version 4 UUID derived from both arguments, so that a run that continues writes the same value.
pub fn uid(run: &str, key: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(run.as_bytes());
    hash.update([0]);
    hash.update(key.as_bytes());
    let mut digits = [0; 16];
    digits.copy_from_slice(&hash.finalize()[..16]);
    digits[6] = (digits[6] & 0x0f) | 0x40;
    digits[8] = (digits[8] & 0x3f) | 0x80;
    let text = HEXLOWER.encode(&digits);
    format!(
        "{}-{}-{}-{}-{}",
        &text[..8],
        &text[8..12],
        &text[12..16],
        &text[16..20],
        &text[20..]
    )
}

/// A range as part of a key, with its address family.
fn part(range: &IpNet) -> String {
    let family = match range {
        IpNet::V4(_) => "ipv4",
        IpNet::V6(_) => "ipv6",
    };
    format!("{family}/block/{}", range.to_string().replace('/', "-"))
}

fn last(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

/// Spec of a block affinity, with node and range from its key. An affinity without a state counts as confirmed: v2 wrote such.
fn affinity(key: &str, stored: &Value) -> Value {
    let parts: Vec<&str> = key
        .strip_prefix(AFFINITIES)
        .unwrap_or_default()
        .trim_start_matches('/')
        .split('/')
        .collect();
    let [node, "ipv4" | "ipv6", "block", range] = parts.as_slice() else {
        return Value::Null;
    };
    // Older affinities have no value at all.
    let (state, deleted) = match stored {
        Value::Object(stored) => (
            stored.get("state").cloned().unwrap_or_default(),
            stored.get("deleted").and_then(Value::as_bool).unwrap_or_default(),
        ),
        _ => (Value::Null, false),
    };
    let range = match range.rsplit_once('-') {
        Some((address, length)) => format!("{address}/{length}"),
        None => (*range).to_owned(),
    };
    json!({ "node": node, "cidr": range, "state": state, "deleted": deleted.to_string() })
}

fn renamed(value: Value, names: [(&str, &str); 2]) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let rename = |name: String| {
        let found = names.iter().find(|(from, _)| *from == name);
        found.map_or(name, |(_, to)| (*to).to_owned())
    };
    let renamed: Map<String, Value> = fields
        .into_iter()
        .map(|(name, value)| (rename(name), value))
        .collect();
    Value::Object(renamed)
}

/// `spec.datastoreReady` of `ClusterInformation` `default` in v3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadyV3 {
    /// The object does not exist.
    Missing,
    /// False: Calico does not use the v3 store.
    Paused,
    /// True: Calico uses the v3 store.
    Open,
}

#[cfg(test)]
mod tests;
