//! Endpoints of a Service and of a helper: comparison, and copies for a Service without a selector.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::objects::SERVICE_LABEL;

/// Label on an `EndpointSlice`: name of its Service.
pub const OF_SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Label on an `EndpointSlice`: its manager. The controllers of Kubernetes do not change slices of other managers.
const WRITER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of [`WRITER_LABEL`] on copies.
const WRITER: &str = "replumb.dev";

/// A digest of the endpoints of a slice: two slices with the same digest give the same rules of kube-proxy. 16 bytes per
/// endpoint, whatever the number of ports and the length of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// `IPv4` or `IPv6`.
    family: String,
    /// A digest of each address with all ports, conditions and hints. Sorted, without duplicates.
    endpoints: Vec<[u8; 16]>,
}

impl Digest {
    /// The digest of this slice. Every slice that kube-controller-manager manages has all ports of its endpoints.
    pub fn of(slice: &Value) -> Self {
        let family = slice["addressType"].as_str().unwrap_or_default().to_owned();
        // A slice without ports belongs to a Service without ports.
        let mut ports: Vec<String> = slice["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .map(normalized)
            .collect();
        if ports.is_empty() {
            return Self {
                family,
                endpoints: Vec::new(),
            };
        }
        ports.sort();
        ports.dedup();
        let ports = Sha256::digest(ports.join("\n"));
        let mut endpoints = Vec::new();
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let how = ["conditions", "hints", "nodeName", "zone"].map(|field| endpoint[field].to_string());
            let how = how.join(" ");
            for address in endpoint["addresses"].as_array().into_iter().flatten() {
                let mut hasher = Sha256::new();
                hasher.update(ports);
                hasher.update(format!("{address} {how}"));
                let mut digest = [0; 16];
                digest.copy_from_slice(&hasher.finalize()[..16]);
                endpoints.push(digest);
            }
        }
        endpoints.sort_unstable();
        endpoints.dedup();
        Self { family, endpoints }
    }
}

/// Every endpoint of these slices, of these families (`IPv4`, `IPv6`).
fn endpoints<'slices>(
    slices: impl IntoIterator<Item = &'slices Digest>,
    families: &[&str],
) -> BTreeSet<&'slices [u8; 16]> {
    let slices = slices.into_iter();
    slices
        .filter(|slice| families.contains(&slice.family.as_str()))
        .flat_map(|slice| &slice.endpoints)
        .collect()
}

/// A port with its fields in a fixed order and with the defaults of Kubernetes.
fn normalized(port: &Value) -> String {
    let text = |field: &str, default: &str| match &port[field] {
        Value::Null => default.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    [
        text("name", ""),
        text("protocol", "TCP"),
        text("port", "0"),
        text("appProtocol", ""),
    ]
    .join("/")
}

/// The number of endpoints that the helper lacks, and the number that only the helper has; `None` if both have the same.
pub fn difference<'slices>(
    service: impl IntoIterator<Item = &'slices Digest>,
    helper: impl IntoIterator<Item = &'slices Digest>,
    families: &[&str],
) -> Option<(usize, usize)> {
    let (service, helper) = (endpoints(service, families), endpoints(helper, families));
    let missing = service.difference(&helper).count();
    let other = helper.difference(&service).count();
    (missing + other > 0).then_some((missing, other))
}

/// Whether kube-proxy forwards connections to an endpoint of this slice.
pub fn serves(slice: &Value) -> bool {
    let mut endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints.any(|endpoint| {
        let is = |condition: &str| endpoint["conditions"][condition].as_bool();
        // Unset means true. A terminating endpoint serves if no other one does.
        is("ready").unwrap_or(true) || is("serving").unwrap_or(false)
    })
}

/// A change of one copy.
#[derive(Clone, Debug, PartialEq)]
pub enum Copy {
    /// This slice is created, or replaced as a whole.
    Write(Value),
    /// The copy of this name is deleted, because its original is deleted.
    Delete(String),
}

/// The changes after which a helper has copies of these slices. `helper` is the helper's Service, `copies` are its slices.
pub fn copies(slices: &[Value], helper: &Value, copies: &[Value]) -> Vec<Copy> {
    let name = helper["metadata"]["name"].as_str().unwrap_or_default();
    let wanted: Vec<Value> = slices
        .iter()
        .map(|slice| {
            let of = slice["metadata"]["name"].as_str().unwrap_or_default();
            let mut copy = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{of}-{name}"),
                    "namespace": slice["metadata"]["namespace"],
                    "labels": {
                        OF_SERVICE_LABEL: name,
                        WRITER_LABEL: WRITER,
                        SERVICE_LABEL: helper["metadata"]["labels"][SERVICE_LABEL],
                    },
                    "ownerReferences": [{
                        "apiVersion": "v1",
                        "kind": "Service",
                        "name": name,
                        "uid": helper["metadata"]["uid"],
                    }],
                },
            });
            for field in ["addressType", "endpoints", "ports"] {
                if !slice[field].is_null() {
                    copy[field] = slice[field].clone();
                }
            }
            copy
        })
        .collect();
    // A tenant may create thousands of slices for one Service.
    let known: BTreeMap<&str, &Value> = copies.iter().map(|copy| (name_of(copy), copy)).collect();
    let kept: BTreeSet<&str> = wanted.iter().map(name_of).collect();
    let says = |copy: &Value, other: &Value| {
        ["addressType", "endpoints", "ports"]
            .iter()
            .all(|field| copy[field] == other[field])
    };
    let mut changes: Vec<Copy> = wanted
        .iter()
        .filter(|wanted| {
            let copy = known.get(name_of(wanted));
            !copy.is_some_and(|copy| says(copy, wanted))
        })
        .cloned()
        .map(Copy::Write)
        .collect();
    // Slices of other managers are not changed.
    let ours = copies
        .iter()
        .filter(|copy| copy["metadata"]["labels"][WRITER_LABEL] == WRITER);
    changes.extend(
        ours.map(name_of)
            .filter(|name| !kept.contains(name))
            .map(|name| Copy::Delete(name.to_owned())),
    );
    changes
}

fn name_of(slice: &Value) -> &str {
    slice["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, family: &str, addresses: &[&str]) -> Value {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": "a"}))
            .collect();
        json!({
            "metadata": {"name": name, "namespace": "default", "labels": {OF_SERVICE_LABEL: "kubernetes"}},
            "addressType": family,
            "endpoints": endpoints,
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
        })
    }

    /// [`super::difference`] of whole slices.
    fn difference(service: &[Value], helper: &[Value], families: &[&str]) -> Option<(usize, usize)> {
        let digests = |slices: &[Value]| -> Vec<Digest> { slices.iter().map(Digest::of).collect() };
        super::difference(&digests(service), &digests(helper), families)
    }

    #[test]
    fn slices_with_another_partition_are_equal() {
        let one = [slice("a", "IPv4", &["10.0.0.1", "10.0.0.2"])];
        let two = [
            slice("b", "IPv4", &["10.0.0.2"]),
            slice("c", "IPv4", &["10.0.0.1"]),
            slice("d", "IPv6", &["fd00::1"]),
        ];
        assert_eq!(difference(&one, &two, &["IPv4"]), None);
        assert_eq!(difference(&one, &two, &["IPv4", "IPv6"]), Some((0, 1)));
        assert_eq!(difference(&one, &two[1..], &["IPv4"]), Some((1, 0)));
        assert_eq!(difference(&[], &[], &["IPv4"]), None);
    }

    #[test]
    fn an_endpoint_with_another_condition_or_port_is_a_difference() {
        let ready = [slice("a", "IPv4", &["10.0.0.1"])];
        let mut other = ready.clone();
        other[0]["endpoints"][0]["conditions"]["ready"] = json!(false);
        assert_eq!(difference(&ready, &other, &["IPv4"]), Some((1, 1)));
        let mut port = ready.clone();
        port[0]["ports"][0]["port"] = json!(443);
        assert_eq!(difference(&ready, &port, &["IPv4"]), Some((1, 1)));
        // In two slices for a moment, while kube-controller-manager redistributes endpoints; and with another order of ports.
        let twice = [ready[0].clone(), slice("b", "IPv4", &["10.0.0.1"])];
        assert_eq!(difference(&ready, &twice, &["IPv4"]), None);
        let two_ports = |ports: [u16; 2]| {
            let mut slice = ready[0].clone();
            slice["ports"] = ports
                .map(|port| json!({"name": port.to_string(), "port": port}))
                .into();
            [slice]
        };
        assert_eq!(
            difference(&two_ports([80, 443]), &two_ports([443, 80]), &["IPv4"]),
            None
        );
    }

    /// A tenant may write 1 000 endpoints and thousands of ports into one slice.
    #[test]
    fn the_size_of_a_digest_does_not_depend_on_ports() {
        let mut large = slice("a", "IPv4", &[]);
        let ports: Vec<Value> = (1..=20_000)
            .map(|port| json!({"name": format!("p{port}"), "port": port}))
            .collect();
        let endpoints: Vec<Value> = (0..1000)
            .map(|host| json!({"addresses": [format!("10.0.{}.{}", host / 250, host % 250)]}))
            .collect();
        large["ports"] = ports.into();
        large["endpoints"] = endpoints.into();
        let digest = Digest::of(&large);
        assert_eq!(digest.endpoints.len(), 1000);
        large["ports"][19_999]["port"] = json!(1);
        assert_eq!(
            super::difference([&digest], [&Digest::of(&large)], &["IPv4"]),
            Some((1000, 1000))
        );
    }

    #[test]
    fn a_ready_or_serving_endpoint_serves() {
        let with = |conditions: Value| {
            let mut slices = [slice("a", "IPv4", &["10.0.0.1"])];
            slices[0]["endpoints"][0]["conditions"] = conditions;
            serves(&slices[0])
        };
        assert!(with(json!({})) && with(json!({"ready": true})));
        assert!(with(
            json!({"ready": false, "serving": true, "terminating": true})
        ));
        assert!(!with(json!({"ready": false, "serving": false})));
        assert!(!serves(&slice("a", "IPv4", &[])));
    }

    #[test]
    fn copies_follow_their_originals() {
        let helper = json!({"metadata": {
            "name": "kubernetes-replumb-old", "uid": "h-1", "labels": {SERVICE_LABEL: "kubernetes"},
        }});
        let slices = [slice("kubernetes", "IPv4", &["10.0.0.1"])];
        let [Copy::Write(copy)] = <[Copy; 1]>::try_from(copies(&slices, &helper, &[])).unwrap() else {
            panic!("no copy is created");
        };
        assert_eq!(copy["metadata"]["name"], "kubernetes-kubernetes-replumb-old");
        assert_eq!(
            copy["metadata"]["labels"][OF_SERVICE_LABEL],
            "kubernetes-replumb-old"
        );
        assert_eq!(copy["metadata"]["ownerReferences"][0]["uid"], "h-1");
        assert_eq!(difference(&slices, std::slice::from_ref(&copy), &["IPv4"]), None);
        assert_eq!(copies(&slices, &helper, std::slice::from_ref(&copy)), []);

        // Another API server.
        let more = [slice("kubernetes", "IPv4", &["10.0.0.1", "10.0.0.2"])];
        let changes = copies(&more, &helper, std::slice::from_ref(&copy));
        assert!(
            matches!(changes.as_slice(), [Copy::Write(changed)] if changed["endpoints"] == more[0]["endpoints"]),
            "{changes:?}"
        );
        // The original is deleted, and a slice of another manager stays.
        let foreign = slice("by-hand", "IPv4", &["10.9.9.9"]);
        assert_eq!(
            copies(&[], &helper, &[copy, foreign]),
            [Copy::Delete("kubernetes-kubernetes-replumb-old".to_owned())]
        );
    }
}
