//! Parses the API's objects into the facts of this kind. Pure: objects come in, values go out.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use calico::PIN_ANNOTATIONS;
use engine::cluster::Malformed;
use engine::command_line::{argument, runs, switch};
use engine::labels::Labels;
use engine::owner::KUBE_SYSTEM;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::ResourceExt;
use kube::core::DynamicObject;
use pod_cidr::facts::{ControllerManager, IpamConfiguration, Pin, Pool};
use pod_cidr::hardcoded_range::ranges_in;
use pod_cidr::ipam::{Allocation, Block, Claim, attribute};
use serde_json::Value;

use crate::facts;
use crate::pod_index::Index;

/// The most bits of an address that differ within a block, by Calico's schema of a pool: /20 is its largest in IPv4, /116 in
/// IPv6.
const LARGEST_BLOCK: u8 = 12;

/// An `IPPool`.
pub fn pool(object: &DynamicObject) -> Result<Pool, Malformed> {
    // Every field that matters is parsed, so that a malformed pool is named.
    let read = facts::calico::ip_pool(object)?;
    let metadata = &object.metadata;
    Ok(Pool {
        name: read.name,
        range: read.cidr.trunc(),
        spec: object.data["spec"].clone(),
        labels: metadata.labels.clone().unwrap_or_default(),
        annotations: metadata.annotations.clone().unwrap_or_default(),
        managers: facts::managers(metadata),
        owners: metadata
            .owner_references
            .iter()
            .flatten()
            .map(|owner| format!("{} {}", owner.kind, owner.name))
            .collect(),
        terminating: metadata.deletion_timestamp.is_some(),
    })
}

/// An `IPAMBlock` with all its allocated addresses.
pub fn block(object: &DynamicObject) -> Result<Block, Malformed> {
    let (range, affinity) = facts::calico::ipam_block(object)?;
    let range = range.trunc();
    let spec = &object.data["spec"];
    let malformed = |field: &str, needed: &str| Malformed {
        object: format!("IPAMBlock {}", object.name_any()),
        problem: format!("spec.{field}: found {}, needed {needed}", shown(&spec[field])),
    };
    if range.max_prefix_len() - range.prefix_len() > LARGEST_BLOCK {
        return Err(malformed("cidr", "the range of a block"));
    }
    let empty = Vec::new();
    let listed = |field: &str| match &spec[field] {
        Value::Null => Ok(&empty),
        Value::Array(list) => Ok(list),
        _ => Err(malformed(field, "a list")),
    };
    let attributes = listed("attributes")?;
    let mut allocations = Vec::new();
    let mut words = HashSet::new();
    for (ordinal, index) in listed("allocations")?.iter().enumerate() {
        let index = match index {
            Value::Null => continue,
            index => index.as_u64().and_then(|index| usize::try_from(index).ok()),
        };
        let attribute = index
            .and_then(|index| attributes.get(index))
            .unwrap_or(&Value::Null);
        allocations.push(Allocation {
            address: nth(&range, ordinal)
                .ok_or_else(|| malformed("allocations", "at most as many as the block has addresses"))?,
            handle: attribute["handle_id"].as_str().map(str::to_owned),
            attributes: kept(&attribute["secondary"], &mut words),
        });
    }
    Ok(Block {
        range,
        affinity,
        allocations,
    })
}

/// The attributes that replumb reads. A large cluster has hundreds of thousands of allocations: texts that the addresses of a
/// block share are in memory once. A tunnel's attributes are kept whole, because they are written again.
fn kept(attributes: &Value, words: &mut HashSet<Arc<str>>) -> Labels {
    let mut word = |text: &str| {
        if let Some(known) = words.get(text) {
            return Arc::clone(known);
        }
        let word: Arc<str> = text.into();
        words.insert(Arc::clone(&word));
        word
    };
    let is_whole = !attributes[attribute::TYPE].is_null();
    let all = attributes.as_object().into_iter().flatten();
    all.filter(|(key, _)| is_whole || attribute::READ.contains(&key.as_str()))
        .filter_map(|(key, value)| Some((word(key), word(value.as_str()?))))
        .collect()
}

/// The address of a block at this ordinal.
fn nth(range: &IpNet, ordinal: usize) -> Option<IpAddr> {
    let address = match range.addr() {
        IpAddr::V4(first) => IpAddr::from(
            u32::from(first)
                .checked_add(u32::try_from(ordinal).ok()?)?
                .to_be_bytes(),
        ),
        IpAddr::V6(first) => IpAddr::from(
            u128::from(first)
                .checked_add(u128::try_from(ordinal).ok()?)?
                .to_be_bytes(),
        ),
    };
    range.contains(&address).then_some(address)
}

/// A `BlockAffinity`.
pub fn claim(object: &DynamicObject) -> Result<Claim, Malformed> {
    let spec = &object.data["spec"];
    let said = &spec["cidr"];
    let range = said.as_str().and_then(|text| text.parse::<IpNet>().ok());
    let range = range.ok_or_else(|| Malformed {
        object: format!("BlockAffinity {}", object.name_any()),
        problem: format!("spec.cidr: found {}, needed a range", shown(said)),
    })?;
    Ok(Claim {
        name: object.name_any(),
        node: spec["node"].as_str().map(str::to_owned),
        range: range.trunc(),
    })
}

/// `IPAMConfig default`, if it exists.
pub fn ipam(object: Option<&DynamicObject>) -> IpamConfiguration {
    let Some(spec) = object.map(|object| &object.data["spec"]) else {
        return IpamConfiguration::default();
    };
    IpamConfiguration {
        strict_affinity: spec["strictAffinity"].as_bool().unwrap_or_default(),
        blocks_per_node: spec["maxBlocksPerHost"].as_u64().filter(|most| *most > 0),
    }
}

/// The annotations of a namespace that fix the pools or addresses of its pods.
pub fn pins_of(namespace: &Namespace) -> Vec<Pin> {
    let annotations = namespace.metadata.annotations.iter().flatten();
    annotations
        .filter(|(key, _)| PIN_ANNOTATIONS.contains(&key.as_str()))
        .map(|(key, value)| pin(format!("Namespace {}", namespace.name_any()), key, value))
        .collect()
}

fn pin(object: String, key: &str, value: &str) -> Pin {
    Pin {
        object,
        annotation: key.to_owned(),
        value: value.to_owned(),
    }
}

/// The annotations of living pods that fix their pools or addresses, and those of namespaces ([`pins_of`]).
pub fn pins(pods: &Index, of_namespaces: Vec<Vec<Pin>>) -> Vec<Pin> {
    let of_pods = pods.more().flat_map(|((namespace, name), more)| {
        more.pins
            .iter()
            .map(move |(key, value)| pin(format!("Pod {namespace}/{name}"), key, value))
    });
    of_pods.chain(of_namespaces.into_iter().flatten()).collect()
}

/// Ranges of a `ServiceCIDR`.
pub fn ranges_of(object: &ServiceCIDR) -> Vec<(String, IpNet)> {
    let name = format!("ServiceCIDR {}", object.name_any());
    let texts = object.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    texts
        .filter_map(|text| Some((name.clone(), text.parse().ok()?)))
        .collect()
}

/// Addresses of a Service.
pub fn given_to(service: &Service) -> Vec<(String, IpNet)> {
    let name = format!(
        "Service {}/{}",
        service.namespace().unwrap_or_default(),
        service.name_any()
    );
    let texts = service
        .spec
        .iter()
        .flat_map(|spec| spec.cluster_ips.iter().flatten());
    texts
        .filter_map(|text| Some((name.clone(), IpNet::from(text.parse::<IpAddr>().ok()?))))
        .collect()
}

/// Pods of kube-system that run a controller manager, with its flags.
pub fn controller_managers(pods: &Index) -> Vec<ControllerManager> {
    // A tenant may run the control plane of another cluster in its own namespace.
    pods.more()
        .filter(|((namespace, _), _)| *namespace == KUBE_SYSTEM)
        .filter_map(|((namespace, name), more)| {
            let mut containers = more.programs.iter();
            let container = containers.find(|container| runs(container, "kube-controller-manager"))?;
            let said = argument(container, "cluster-cidr").unwrap_or_default();
            let ranges: Vec<IpNet> = ranges_in(&said);
            let understood = said.split(',').filter(|part| !part.is_empty()).count() == ranges.len();
            Some(ControllerManager {
                pod: format!("{namespace}/{name}"),
                ranges: understood.then_some(ranges),
                // The flag is off by default.
                allocates: switch(container, "allocate-node-cidrs").unwrap_or_default(),
            })
        })
        .collect()
}

/// The value, cut to the space of a line.
fn shown(value: &Value) -> String {
    facts::shown(&value.to_string())
}

#[cfg(test)]
mod tests;
