//! Endpoints of a Service and of a helper: whether they are the same, and copies for a Service that nobody selects pods for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::objects::SERVICE_LABEL;

/// Label on an `EndpointSlice`: name of its Service.
pub const OF_SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Label on an `EndpointSlice`: who writes it. What Kubernetes' own controllers do not write they leave alone.
const WRITER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of [`WRITER_LABEL`] on copies.
const WRITER: &str = "replumb.dev";

/// One endpoint at one port: what kube-proxy makes a rule of.
type Endpoint = (String, String, String);

/// Every endpoint of these slices, of these families (`IPv4`, `IPv6`).
fn endpoints(slices: &[Value], families: &[&str]) -> BTreeSet<Endpoint> {
    let mut found = BTreeSet::new();
    for slice in slices {
        let family = slice["addressType"].as_str().unwrap_or_default();
        if !families.contains(&family) {
            continue;
        }
        // A slice without ports is of a Service without any.
        let ports = slice["ports"].as_array().map_or(&[][..], Vec::as_slice);
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let how = ["conditions", "hints", "nodeName", "zone"].map(|field| endpoint[field].to_string());
            for address in endpoint["addresses"].as_array().into_iter().flatten() {
                for port in ports {
                    found.insert((address.to_string(), said(port), how.join(" ")));
                }
            }
        }
    }
    found
}

/// A port with its fields in one order; what is not said is what Kubernetes takes it for.
fn said(port: &Value) -> String {
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

/// How many endpoints of the Service the helper has not, and how many it has that the Service has not; `None` when they have the
/// same.
pub fn difference(service: &[Value], helper: &[Value], families: &[&str]) -> Option<(usize, usize)> {
    let (service, helper) = (endpoints(service, families), endpoints(helper, families));
    let missing = service.difference(&helper).count();
    let other = helper.difference(&service).count();
    (missing + other > 0).then_some((missing, other))
}

/// Whether kube-proxy leads anybody to one of them.
pub fn serve(slices: &[Value]) -> bool {
    let mut endpoints = slices
        .iter()
        .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    endpoints.any(|endpoint| {
        let is = |condition: &str| endpoint["conditions"][condition].as_bool();
        // What is not said is taken for yes. One that is being stopped serves where no other does.
        is("ready").unwrap_or(true) || is("serving").unwrap_or(false)
    })
}

/// A change of one copy.
#[derive(Clone, Debug, PartialEq)]
pub enum Copy {
    /// This slice is written: made, or replaced as a whole.
    Write(Value),
    /// The copy of this name goes: what it was made of is gone.
    Delete(String),
}

/// What has to be written so that a helper has copies of these slices. `helper` is the helper's Service, `copies` are its slices.
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
    // A tenant may make thousands of slices for one Service.
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
    // Whatever else somebody made for a helper is theirs.
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

    #[test]
    fn slices_may_be_cut_otherwise_and_say_the_same() {
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
    fn an_endpoint_that_is_not_ready_is_another_one() {
        let ready = [slice("a", "IPv4", &["10.0.0.1"])];
        let mut other = ready.clone();
        other[0]["endpoints"][0]["conditions"]["ready"] = json!(false);
        assert_eq!(difference(&ready, &other, &["IPv4"]), Some((1, 1)));
        let mut port = ready.clone();
        port[0]["ports"][0]["port"] = json!(443);
        assert_eq!(difference(&ready, &port, &["IPv4"]), Some((1, 1)));
    }

    #[test]
    fn who_is_ready_or_serves_until_it_is_gone_is_led_to() {
        let with = |conditions: Value| {
            let mut slices = [slice("a", "IPv4", &["10.0.0.1"])];
            slices[0]["endpoints"][0]["conditions"] = conditions;
            serve(&slices)
        };
        assert!(with(json!({})) && with(json!({"ready": true})));
        assert!(with(
            json!({"ready": false, "serving": true, "terminating": true})
        ));
        assert!(!with(json!({"ready": false, "serving": false})));
        assert!(!serve(&[]) && !serve(&[slice("a", "IPv4", &[])]));
    }

    #[test]
    fn copies_follow_what_they_are_made_of() {
        let helper = json!({"metadata": {
            "name": "kubernetes-replumb-old", "uid": "h-1", "labels": {SERVICE_LABEL: "kubernetes"},
        }});
        let slices = [slice("kubernetes", "IPv4", &["10.0.0.1"])];
        let [Copy::Write(copy)] = <[Copy; 1]>::try_from(copies(&slices, &helper, &[])).unwrap() else {
            panic!("one copy is made");
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
        // What it was made of is gone, and what somebody else made stays.
        let foreign = slice("by-hand", "IPv4", &["10.9.9.9"]);
        assert_eq!(
            copies(&[], &helper, &[copy, foreign]),
            [Copy::Delete("kubernetes-kubernetes-replumb-old".to_owned())]
        );
    }
}
