//! Parses the API's objects into the facts of this kind. Pure: objects come in, values go out.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use engine::cluster::Malformed;
use engine::command_line::{argument, runs, switch};
use engine::labels::Labels;
use engine::owner::KUBE_SYSTEM;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::ResourceExt;
use kube::core::DynamicObject;
use pod_cidr::facts::{ControllerManager, IpamConfiguration, PIN_ANNOTATIONS, Pin, Pool};
use pod_cidr::hardcoded_range::ranges_in;
use pod_cidr::ipam::{Allocation, Block, Claim, attribute};
use serde_json::Value;

use super::malformed::shown;
use crate::facts;
use crate::pod_index::Index;

/// The most bits of an address that differ within a block, by Calico's schema of a pool: /20 is its largest in IPv4, /116 in IPv6.
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

/// The attributes that replumb reads. A large cluster has hundreds of thousands of allocations: texts that the addresses of a block share
/// are in memory once. A tunnel's attributes are kept whole, because they are written again.
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

/// The ranges of an `IPReservation`, and its first malformed entry. Calico ignores such an entry (libcalico-go,
/// `ipam.getReservedIPs`), and the others hold.
pub fn reserved(object: &DynamicObject) -> (Vec<IpNet>, Option<Malformed>) {
    let found = &object.data["spec"]["reservedCIDRs"];
    let (ranges, odd): (Vec<IpNet>, Option<&Value>) = match found {
        Value::Null => (Vec::new(), None),
        Value::Array(list) => {
            let of = |entry: &Value| range_of(entry.as_str()?);
            let odd = list.iter().find(|entry| of(entry).is_none());
            (list.iter().filter_map(of).collect(), odd)
        }
        other => (Vec::new(), Some(other)),
    };
    let malformed = odd.map(|odd| Malformed {
        object: format!("IPReservation {}", object.name_any()),
        problem: format!(
            "spec.reservedCIDRs: found {}, needed a list of ranges",
            shown(odd)
        ),
    });
    (ranges, malformed)
}

/// A range, or an address as a range of one.
fn range_of(text: &str) -> Option<IpNet> {
    let of_address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(of_address)
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

#[cfg(test)]
mod tests {
    use api::names;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::pod_index::PodStore;

    fn object(spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "X", "metadata": { "name": "x" }, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn a_block_has_its_allocations_with_attributes() {
        let found = block(&object(&json!({
            "cidr": "10.244.1.0/30", "affinity": "host:a", "allocations": [null, 1, 0, null],
            "attributes": [
                { "handle_id": "k8s-pod-network.1", "secondary": { "pod": "web-1", "namespace": "shop", "node": "a" } },
                { "handle_id": "vxlan-tunnel-addr-a", "secondary": { "type": "vxlanTunnelAddress", "node": "a" } },
            ],
        })))
        .unwrap();
        let given: Vec<(String, Option<&str>)> = found
            .allocations
            .iter()
            .map(|allocation| {
                let kind = allocation
                    .attributes
                    .get("type")
                    .or(allocation.attributes.get("pod"));
                (allocation.address.to_string(), kind)
            })
            .collect();
        assert_eq!(
            given,
            [
                ("10.244.1.1".to_owned(), Some("vxlanTunnelAddress")),
                ("10.244.1.2".to_owned(), Some("web-1")),
            ]
        );
        assert_eq!(found.affinity.as_deref(), Some("host:a"));
    }

    #[test]
    fn only_read_attributes_of_a_pod_are_kept() {
        let long = "x".repeat(100_000);
        let found = block(&object(&json!({
            "cidr": "10.244.1.0/31", "allocations": [0, 1],
            "attributes": [
                { "handle_id": "1", "secondary": { "pod": "web-1", "namespace": "shop", "timestamp": long } },
                { "handle_id": "2", "secondary": { "type": "vxlanTunnelAddress", "node": "a", "timestamp": "now" } },
            ],
        })))
        .unwrap();
        let [pod, tunnel] = found.allocations.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(pod.attributes, [("namespace", "shop"), ("pod", "web-1")].into());
        // The attributes are written again when the tunnel gets the address back.
        assert_eq!(tunnel.attributes.get("timestamp"), Some("now"));
    }

    /// An allocation without attributes is an allocation all the same.
    #[test]
    fn an_allocation_without_attributes_counts() {
        let found = block(&object(
            &json!({ "cidr": "fd00::/126", "allocations": [7, null, null, null] }),
        ))
        .unwrap();
        assert_eq!(found.allocations.len(), 1);
        assert_eq!(found.allocations[0].address.to_string(), "fd00::");
        assert_eq!(found.allocations[0].handle, None);
    }

    #[test]
    fn reservations_are_parsed_and_malformed_entries_are_named() {
        let of = |ranges: Value| reserved(&object(&json!({ "reservedCIDRs": ranges })));
        let (found, odd) = of(json!(["10.200.0.0/24", "10.200.1.7", "fd00::1"]));
        assert_eq!(odd, None);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.200.0.0/24", "10.200.1.7/32", "fd00::1/128"]);
        assert_eq!(of(Value::Null), (Vec::new(), None));
        for broken in [json!("10.200.0.0/24"), json!(["ten"]), json!([7])] {
            let refused = of(broken).1.unwrap();
            assert_eq!(refused.object, "IPReservation x");
            assert!(refused.problem.contains("reservedCIDRs"), "{}", refused.problem);
        }
        // The other entries hold.
        let (found, odd) = of(json!(["10.200.0.0/24", "ten"]));
        assert_eq!((found.len(), odd.is_some()), (1, true));
    }

    #[test]
    fn a_malformed_block_is_named() {
        for spec in [
            json!({ "cidr": "10.244.1.0/31", "allocations": [null, null, 0] }),
            json!({ "cidr": "10.244.1.0/31", "allocations": "none" }),
            json!({ "cidr": 1 }),
            json!({ "cidr": "10.0.0.0/8" }),
        ] {
            assert_eq!(block(&object(&spec)).unwrap_err().object, "IPAMBlock x");
        }
    }

    fn pod(command: &[&str]) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "namespace": "kube-system", "name": "kube-controller-manager-a" },
            "spec": { "containers": [{ "name": "c", "command": command }] },
        }))
        .unwrap()
    }

    #[test]
    fn controller_managers_are_parsed_from_their_flags() {
        let pods = [
            pod(&[
                "kube-controller-manager",
                "--allocate-node-cidrs=true",
                "--cluster-cidr=10.244.0.0/16,fd00::/56",
            ]),
            pod(&["kube-controller-manager", "--cluster-cidr=ten"]),
            pod(&["kube-scheduler"]),
        ];
        let mut of_a_tenant = pods[0].clone();
        of_a_tenant.metadata.namespace = Some("shop".to_owned());
        let pods = pods.into_iter().chain([of_a_tenant]);
        let named = pods.enumerate().map(|(number, mut pod)| {
            pod.metadata.name = Some(number.to_string());
            pod
        });
        let pods = PodStore::of("replumb-system", named);
        let found = controller_managers(&pods.index());
        assert_eq!(found.len(), 2);
        assert!(found[0].allocates && found[0].ranges.as_ref().unwrap().len() == 2);
        assert!(!found[1].allocates && found[1].ranges.is_none());
    }

    #[test]
    fn pins_of_pods_and_namespaces_omit_replumbs_pods() {
        let annotated = |name: &str| {
            json!({ "namespace": "shop", "name": name, "annotations": {
                "cni.projectcalico.org/ipv4pools": "[\"old\"]", "note": "x" } })
        };
        let pod = |metadata: Value| serde_json::from_value::<Pod>(json!({ "metadata": metadata })).unwrap();
        let mut ours = annotated("ours");
        ours["namespace"] = json!("replumb-system");
        ours["labels"] = json!({ names::COMPONENT_LABEL: names::TRAFFIC_COMPONENT });
        let pods = PodStore::of("replumb-system", [pod(annotated("web")), pod(ours)]);
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": annotated("shop") })).unwrap();
        let found = pins(&pods.index(), vec![pins_of(&namespace)]);
        let objects: Vec<&str> = found.iter().map(|pin| pin.object.as_str()).collect();
        assert_eq!(objects, ["Pod shop/web", "Namespace shop"]);
    }
}
