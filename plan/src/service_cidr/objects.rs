//! A Service and its helpers as the API has them: which state they are in, and what each write of an exchange says.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::class::addresses;
use super::swap::{Own, ROLE_LABEL, Side, Write};

/// Label on a helper: name of the Service that it is for.
pub const SERVICE_LABEL: &str = "replumb.dev/service";
/// Annotation on a helper: the addresses that it is for, comma-separated.
pub const HOME_ANNOTATION: &str = "replumb.dev/addresses";
/// Annotation with the spec of the Service as it was: on a helper from its start, on the Service while it has no address.
pub const BEFORE_ANNOTATION: &str = "replumb.dev/service-before";

/// Labels and annotations that say who answers for a Service, and how: a helper without them would be another Service.
const WORDS_TO_PROXIES: [&str; 3] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/topology-mode",
    "service.kubernetes.io/topology-aware-hints",
];
/// Fields of the spec by which a helper answers as its Service does.
const ANSWERS: [&str; 7] = [
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "publishNotReadyAddresses",
    "internalTrafficPolicy",
    "trafficDistribution",
    "type",
];
/// Fields that the API takes from a Service that becomes an `ExternalName`.
const TAKEN: [&str; 6] = [
    "ipFamilies",
    "ipFamilyPolicy",
    "externalTrafficPolicy",
    "internalTrafficPolicy",
    "externalName",
    "type",
];
/// Longest name of a Service.
const LONGEST_NAME: usize = 63;

/// One Service with its two addresses, as somebody writes them.
#[derive(Clone, Debug)]
pub struct Objects<'objects> {
    /// The domain of the cluster: `cluster.local`.
    pub domain: &'objects str,
    /// The Service as it was read.
    pub service: &'objects Value,
    /// Its addresses that change, in its order, as they were before.
    pub old: &'objects [IpAddr],
    /// The same in the new range.
    pub new: &'objects [IpAddr],
}

/// Name of the helper of this Service for this address.
pub fn helper_name(service: &str, side: Side) -> String {
    let name = format!("{service}-replumb-{}", side.as_str());
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let mut short = String::new();
    for byte in Sha256::digest(service.as_bytes()).iter().take(5) {
        // Writing to a String cannot fail.
        let _ = write!(short, "{byte:02x}");
    }
    let end = format!("-{short}-replumb-{}", side.as_str());
    let kept: String = service.chars().take(LONGEST_NAME - end.len()).collect();
    format!("{}{end}", kept.trim_end_matches('-'))
}

/// Where the Service is.
pub fn own(service: &Value, old: &[IpAddr], new: &[IpAddr]) -> Own {
    let spec = &service["spec"];
    let kind = spec["type"].as_str().unwrap_or("ClusterIP");
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    if is_a_name(spec) {
        let leads_to = spec["externalName"].as_str().unwrap_or_default();
        let first = leads_to.split('.').next().unwrap_or_default();
        return if before(service).is_some() {
            Own::Away(
                [Side::Old, Side::New]
                    .into_iter()
                    .find(|side| helper_name(name, *side) == first),
            )
        } else {
            Own::Elsewhere(format!("is an ExternalName that leads to {leads_to}"))
        };
    }
    let said = addresses(spec);
    let is_at = |side: &[IpAddr]| side.iter().all(|address| said.contains(address));
    match (kind, is_at(new), is_at(old)) {
        ("ClusterIP" | "NodePort", true, _) => Own::At(Side::New),
        ("ClusterIP" | "NodePort", false, true) => Own::At(Side::Old),
        ("ClusterIP" | "NodePort", false, false) => Own::Elsewhere(match said.as_slice() {
            [] => "has no address".to_owned(),
            said => format!("has address {}", list(said)),
        }),
        (kind, _, _) => Own::Elsewhere(format!("is of type {kind}")),
    }
}

fn is_a_name(spec: &Value) -> bool {
    spec["type"] == "ExternalName"
}

/// What was saved on an object before it gave up its address; `None` where nothing was.
pub fn before(object: &Value) -> Option<Value> {
    let text = object["metadata"]["annotations"][BEFORE_ANNOTATION].as_str()?;
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// What is different between two specs of a Service besides its addresses, each a field and both values.
pub fn differences(before: &Value, now: &Value) -> Vec<String> {
    let empty = Map::new();
    let (before, now) = (
        before.as_object().unwrap_or(&empty),
        now.as_object().unwrap_or(&empty),
    );
    let mut fields: Vec<&String> = before.keys().chain(now.keys()).collect();
    fields.sort();
    fields.dedup();
    fields
        .into_iter()
        .filter(|field| !["clusterIP", "clusterIPs"].contains(&field.as_str()))
        .filter(|field| before.get(*field) != now.get(*field))
        .map(|field| {
            let value =
                |spec: &Map<String, Value>| spec.get(field).map_or("nothing".to_owned(), Value::to_string);
            format!("{field}: {} became {}", value(before), value(now))
        })
        .collect()
}

/// What is sent for one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// This object is created.
    Create(Value),
    /// The Service is patched.
    PatchService(Value),
    /// The helper of this address is patched.
    PatchHelper(Side, Value),
    /// Copies of the Service's endpoints are written for the helper of this address: [`super::endpoints::copies`].
    CopyEndpoints(Side),
    /// The helper of this address is deleted.
    DeleteHelper(Side),
}

impl Objects<'_> {
    /// What is sent for this write. `None` where what was saved of the Service is gone: nobody knows what to write then.
    pub fn request(&self, write: Write) -> Option<Request> {
        Some(match write {
            Write::ServiceAway(to) => Request::PatchService(self.away(to)),
            Write::ServiceAt(side) => Request::PatchService(self.at(side)?),
            Write::ServiceUnmarked => Request::PatchService(unmarked()),
            Write::CreateHome(side) => Request::Create(self.helper(side, Some(self.of(side)))),
            Write::CreateWarm(side) => Request::Create(self.helper(side, None)),
            Write::CopyEndpoints(side) => Request::CopyEndpoints(side),
            Write::HelperWarm(side) => Request::PatchHelper(side, self.with_address(None)),
            Write::HelperHome(side) => Request::PatchHelper(side, self.with_address(Some(self.of(side)))),
            Write::HelperParked(side) => {
                Request::PatchHelper(side, json!({ "spec": self.name_of(side.other()) }))
            }
            Write::Delete(side) => Request::DeleteHelper(side),
        })
    }

    fn of(&self, side: Side) -> &[IpAddr] {
        match side {
            Side::Old => self.old,
            Side::New => self.new,
        }
    }

    fn metadata(&self) -> &Value {
        &self.service["metadata"]
    }

    fn text(&self, field: &str) -> &str {
        self.metadata()[field].as_str().unwrap_or_default()
    }

    /// The spec of the Service with its addresses.
    fn spec(&self) -> Value {
        let now = &self.service["spec"];
        if is_a_name(now) {
            before(self.service).unwrap_or_else(|| now.clone())
        } else {
            now.clone()
        }
    }

    /// A spec without an address, whose name leads to this helper.
    fn name_of(&self, side: Side) -> Value {
        let helper = helper_name(self.text("name"), side);
        json!({
            "type": "ExternalName",
            "externalName": format!("{helper}.{}.svc.{}", self.text("namespace"), self.domain),
        })
    }

    fn away(&self, to: Side) -> Value {
        let mut patch = json!({ "spec": self.name_of(to) });
        // Without an address its spec says less than what has to come back.
        if !is_a_name(&self.service["spec"]) {
            patch["metadata"] =
                json!({ "annotations": { BEFORE_ANNOTATION: self.service["spec"].to_string() } });
        }
        patch
    }

    fn at(&self, side: Side) -> Option<Value> {
        let before = before(self.service)?;
        let mut patch = unmarked();
        for field in TAKEN {
            patch["spec"][field] = before.get(field).cloned().unwrap_or(Value::Null);
        }
        let other = self.of(side.other());
        let all: Vec<String> = addresses(&before)
            .into_iter()
            .map(|address| match other.iter().position(|found| *found == address) {
                Some(place) => self.of(side).get(place).copied().unwrap_or(address),
                None => address,
            })
            .map(|address| address.to_string())
            .collect();
        patch["spec"]["clusterIP"] = json!(all.first()?);
        patch["spec"]["clusterIPs"] = json!(all);
        patch["spec"]["ports"] = json!(with_node_ports(&self.service["spec"]["ports"], &before["ports"]));
        Some(patch)
    }

    /// A helper: with these addresses, or with any.
    fn helper(&self, side: Side, addresses: Option<&[IpAddr]>) -> Value {
        let spec = self.spec();
        let words = |from: &Value| -> Map<String, Value> {
            WORDS_TO_PROXIES
                .iter()
                .filter_map(|key| Some(((*key).to_owned(), from.get(*key)?.clone())))
                .collect()
        };
        let mut labels = words(&self.metadata()["labels"]);
        labels.extend([
            (ROLE_LABEL.to_owned(), json!(side.as_str())),
            (SERVICE_LABEL.to_owned(), json!(self.text("name"))),
            ("app.kubernetes.io/managed-by".to_owned(), json!("replumb")),
        ]);
        let mut annotations = words(&self.metadata()["annotations"]);
        annotations.extend([
            (HOME_ANNOTATION.to_owned(), json!(list(self.of(side)))),
            (BEFORE_ANNOTATION.to_owned(), json!(spec.to_string())),
        ]);
        let mut helper = self.with_address(addresses);
        for field in ANSWERS {
            if field != "type"
                && let Some(value) = spec.get(field)
            {
                helper["spec"][field] = value.clone();
            }
        }
        let ports = spec["ports"].as_array().into_iter().flatten().map(|port| {
            let mut port = port.clone();
            if let Some(port) = port.as_object_mut() {
                port.remove("nodePort");
            }
            port
        });
        helper["spec"]["ports"] = ports.collect();
        helper["apiVersion"] = json!("v1");
        helper["kind"] = json!("Service");
        helper["metadata"] = json!({
            "name": helper_name(self.text("name"), side),
            "namespace": self.text("namespace"),
            "labels": labels,
            "annotations": annotations,
            // It goes with its Service; who owns it need not wait for that.
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Service",
                "name": self.text("name"),
                "uid": self.text("uid"),
            }],
        });
        // A merge patch takes away what it calls null; an object that is made must not.
        if let Some(spec) = helper["spec"].as_object_mut() {
            spec.retain(|_, value| !value.is_null());
        }
        helper
    }

    /// A helper's spec with these addresses, or with any, of the families that change.
    fn with_address(&self, addresses: Option<&[IpAddr]>) -> Value {
        let families: Vec<&str> = self
            .old
            .iter()
            .map(|address| if address.is_ipv4() { "IPv4" } else { "IPv6" })
            .collect();
        let policy = if families.len() > 1 {
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        let mut patch = json!({
            "spec": {
                "type": "ClusterIP",
                "externalName": null,
                "ipFamilies": families,
                "ipFamilyPolicy": policy,
            }
        });
        // The API takes it from what has no address.
        if let Some(policy) = self.spec().get("internalTrafficPolicy") {
            patch["spec"]["internalTrafficPolicy"] = policy.clone();
        }
        if let Some([first, ..]) = addresses {
            patch["spec"]["clusterIP"] = json!(first);
            patch["spec"]["clusterIPs"] = json!(addresses);
        }
        patch
    }
}

fn unmarked() -> Value {
    json!({ "metadata": { "annotations": { BEFORE_ANNOTATION: null } } })
}

/// The ports as they are now, with the node ports that they had: whoever changed a port meanwhile meant that.
fn with_node_ports(now: &Value, before: &Value) -> Vec<Value> {
    let before = before.as_array().map_or(&[][..], Vec::as_slice);
    let is_same = |one: &Value, other: &Value| {
        ["name", "port", "protocol"]
            .iter()
            .all(|field| one.get(*field) == other.get(*field))
    };
    now.as_array()
        .into_iter()
        .flatten()
        .map(|port| {
            let mut port = port.clone();
            let had = before.iter().find(|had| is_same(had, &port));
            if let Some(node_port) = had.and_then(|had| had.get("nodePort"))
                && port.get("nodePort").is_none()
            {
                port["nodePort"] = node_port.clone();
            }
            port
        })
        .collect()
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
