//! A Service and its helpers as API objects: their states, and the body of each write of an exchange.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::class::addresses;
use super::exchange::{Own, Part, Parts, ROLE_LABEL, Role, Write};
use super::side::{Side, Sides};
use engine::field_patch::{Basis, pointer};

/// Label on a helper: name of its Service.
pub const SERVICE_LABEL: &str = "replumb.dev/service";
/// Annotation on a helper: the addresses of its role, comma-separated.
pub const HOME_ANNOTATION: &str = "replumb.dev/addresses";
/// Annotation with the saved spec of the Service: on a helper from its creation, on the Service while it has no address.
pub const BEFORE_ANNOTATION: &str = "replumb.dev/service-before";

/// Labels and annotations that control how proxies serve a Service. A helper needs the same ones.
const PROXY_KEYS: [&str; 3] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/topology-mode",
    "service.kubernetes.io/topology-aware-hints",
];
/// Fields of the spec that a helper copies so that it answers as its Service does, and that the API keeps when a Service
/// becomes an `ExternalName`. Ports are copied too.
const COPIED: [&str; 5] = [
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "publishNotReadyAddresses",
    "trafficDistribution",
];
/// Another copied field, which the API removes when a Service becomes an `ExternalName`.
const TRAFFIC_POLICY: &str = "internalTrafficPolicy";
/// The field with the policy for external traffic.
const EXTERNAL_TRAFFIC_POLICY: &str = "externalTrafficPolicy";
/// Load balancer class of a bridge: without a controller, so that only replumb writes its status.
pub const BRIDGE_CLASS: &str = "replumb.dev/bridge";
/// Fields that the API removes or changes when a Service becomes an `ExternalName`.
const RESTORED: [&str; 6] = [
    "ipFamilies",
    "ipFamilyPolicy",
    EXTERNAL_TRAFFIC_POLICY,
    TRAFFIC_POLICY,
    "externalName",
    "type",
];
/// Fields of the spec that determine the state of a Service, and that are restored together with its address.
const PLACE: [&str; 8] = [
    "type",
    "clusterIP",
    "clusterIPs",
    "externalName",
    "ipFamilies",
    "ipFamilyPolicy",
    EXTERNAL_TRAFFIC_POLICY,
    TRAFFIC_POLICY,
];
/// Fields that identify a port of a Service.
const PORT: [&str; 3] = ["name", "port", "protocol"];
/// Longest name of a Service.
const LONGEST_NAME: usize = 63;

/// The inputs for writes of one Service and its helpers.
#[derive(Clone, Debug)]
pub struct Objects<'objects> {
    /// The domain of the cluster: `cluster.local`.
    pub domain: &'objects str,
    /// The Service as read.
    pub service: &'objects Value,
    /// Its changing addresses, in the order of its spec: the old and the new ones.
    pub addresses: &'objects Sides<Vec<IpAddr>>,
    /// Spare addresses for helpers.
    pub spare: &'objects Spare,
    /// Facts of the cluster for the bridge.
    pub ground: &'objects BridgeFacts,
}

/// Spare addresses: not in use and not assigned to any Service, one of each family that changes. If empty, the API server
/// chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spare {
    /// For the helper of an address that it does not have yet.
    pub helper: Vec<IpAddr>,
    /// For each part of a bridge.
    pub bridge: Parts<Vec<IpAddr>>,
}

/// Facts of the cluster on which a bridge depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeFacts {
    /// The `externalTrafficPolicy` of a bridge for addresses.
    pub policy: BridgePolicy,
    /// Every address of every Node, at which node ports answer.
    pub node_addresses: Vec<IpAddr>,
}

/// `BridgePolicy` is the `externalTrafficPolicy` of a bridge. Possible values: `Local`: kube-proxy on all nodes recognizes
/// connections of pods, and forwards them with their source address. `Cluster`: kube-proxy on a node does not, and connections
/// have the address of their node as source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BridgePolicy {
    /// kube-proxy on all nodes recognizes connections of pods, and forwards them with their source address.
    Local,
    /// kube-proxy on a node does not recognize connections of pods, and connections have the address of their node as source.
    #[default]
    Cluster,
}

impl BridgePolicy {
    /// The policy as written in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "Local",
            Self::Cluster => "Cluster",
        }
    }
}

/// Name of the helper of this Service for this role.
pub fn helper_name(service: &str, role: Role) -> String {
    let name = format!("{service}-replumb-{}", role.as_str());
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let mut short = String::new();
    for byte in Sha256::digest(service.as_bytes()).iter().take(5) {
        // Writing to a String cannot fail.
        let _ = write!(short, "{byte:02x}");
    }
    let end = format!("-{short}-replumb-{}", role.as_str());
    let kept: String = service.chars().take(LONGEST_NAME - end.len()).collect();
    format!("{}{end}", kept.trim_end_matches('-'))
}

/// Whether this Service is a helper of replumb, by its labels and its name: a label alone can be set on any Service.
pub fn is_helper(service: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = &service["metadata"]["labels"];
    let (role, of) = (text(&labels[ROLE_LABEL]), text(&labels[SERVICE_LABEL]));
    let name = text(&service["metadata"]["name"]);
    Role::ALL
        .into_iter()
        .any(|known| known.as_str() == role && helper_name(&of, known) == name)
}

/// Whether `helper` is the helper of `service` for this role, and not of an earlier Service with the same name.
pub fn is_helper_of(service: &Value, helper: &Value, role: Role) -> bool {
    let labels = &helper["metadata"]["labels"];
    let owners = helper["metadata"]["ownerReferences"].as_array();
    is_helper(helper)
        && labels[ROLE_LABEL] == role.as_str()
        && labels[SERVICE_LABEL] == service["metadata"]["name"]
        && owners
            .into_iter()
            .flatten()
            .any(|owner| owner["uid"] == service["metadata"]["uid"])
}

/// Whether an environment variable is about a helper (`WEB_REPLUMB_OLD_SERVICE_HOST`): the kubelet sets variables for every
/// Service of the namespace, and no program uses those of helpers.
pub fn is_about_helper(variable: &str) -> bool {
    Role::ALL.into_iter().any(|role| {
        let role = role.as_str().to_ascii_uppercase().replace('-', "_");
        variable.contains(&format!("_REPLUMB_{role}_"))
    })
}

/// The family of an address, as written in the API.
pub fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The state of the Service itself.
pub fn own(service: &Value, both: &Sides<Vec<IpAddr>>) -> Own {
    let spec = &service["spec"];
    let kind = spec["type"].as_str().unwrap_or("ClusterIP");
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    if is_a_name(spec) {
        let points_to = spec["externalName"].as_str().unwrap_or_default();
        let first = points_to.split('.').next().unwrap_or_default();
        return if before(service).is_some() {
            Own::Away(
                Side::ALL
                    .into_iter()
                    .find(|side| helper_name(name, Role::Address(*side)) == first),
            )
        } else {
            Own::Elsewhere(format!("is an ExternalName that points to {points_to}"))
        };
    }
    let said = addresses(spec);
    let is_at = |side: &[IpAddr]| side.iter().all(|address| said.contains(address));
    match (kind, is_at(&both.new), is_at(&both.old)) {
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

/// The saved spec of an object; `None` if it has none.
pub fn before(object: &Value) -> Option<Value> {
    let text = object["metadata"]["annotations"][BEFORE_ANNOTATION].as_str()?;
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// The differences between two specs of a Service, without its addresses: each a field and both values.
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

/// The fields on which every write of this Service or helper depends: its state, its saved spec, and its node ports.
pub fn basis(service: &Value) -> Basis {
    let mut fields: Vec<String> = PLACE.iter().map(|field| pointer(["spec", *field])).collect();
    fields.push(pointer(["metadata", "annotations", BEFORE_ANNOTATION]));
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    // The owner may have changed a node port, which would be lost.
    if ports.any(|port| !port["nodePort"].is_null()) {
        fields.push(pointer(["spec", "ports"]));
    }
    Basis {
        fields,
        members: &PORT,
    }
}

/// The fields on which the first write of an exchange depends: also all fields that helpers copy, so that helpers are updated
/// first.
pub fn basis_with_helpers(service: &Value) -> Basis {
    let mut basis = basis(service);
    let more = COPIED.iter().chain(&["ports", "externalIPs"]);
    basis.fields.extend(more.map(|field| pointer(["spec", *field])));
    for place in ["labels", "annotations"] {
        let words = PROXY_KEYS.map(|word| pointer(["metadata", place, word]));
        basis.fields.extend(words);
    }
    basis
}

/// The request for one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// This helper is created.
    Create(Role, Value),
    /// The Service is patched.
    PatchService(Value),
    /// The helper of this address is patched.
    PatchHelper(Side, Value),
    /// The status of this part of the bridge is written: [`Objects::answer`].
    Answer(Part),
    /// This helper is patched to the current spec of its Service: [`Objects::refresh`].
    RefreshHelper(Role),
    /// Copies of the Service's endpoints are written for this helper: [`super::endpoints::copies`].
    CopyEndpoints(Role),
    /// This helper is deleted.
    DeleteHelper(Role),
}

/// Parts of the bridge that a Service needs.
pub fn bridges(service: &Value) -> Vec<Part> {
    let objects = Objects {
        domain: "",
        service,
        addresses: &Sides::each(|_| Vec::new()),
        spare: &Spare::default(),
        ground: &BridgeFacts::default(),
    };
    let needed = |part: &Part| objects.needs(*part);
    Part::ALL.into_iter().filter(needed).collect()
}

impl Objects<'_> {
    /// The request for this write; `None` if the saved spec of the Service is missing, which is needed for the write.
    pub fn request(&self, write: Write) -> Option<Request> {
        Some(match write {
            Write::ServiceAway(to) => Request::PatchService(self.away(to)),
            Write::ServiceAt(side) => Request::PatchService(self.at(side)?),
            Write::ServiceUnmarked => Request::PatchService(unmarked()),
            Write::HelperLike(role) => Request::RefreshHelper(role),
            Write::CreateBridge(part) => Request::Create(Role::Bridge(part), self.bridge(part)),
            Write::BridgeAnswers(part) => Request::Answer(part),
            Write::CreateHome(side) => {
                Request::Create(Role::Address(side), self.of_address(side, self.of(side)))
            }
            Write::CreateWarm(side) => {
                Request::Create(Role::Address(side), self.of_address(side, &self.spare.helper))
            }
            Write::CopyEndpoints(role) => Request::CopyEndpoints(role),
            Write::HelperWarm(side) => Request::PatchHelper(side, self.with_address(&self.spare.helper)),
            Write::HelperHome(side) => Request::PatchHelper(side, self.with_address(self.of(side))),
            Write::HelperParked(side) => {
                Request::PatchHelper(side, json!({ "spec": self.name_of(side.other()) }))
            }
            Write::Delete(role) => Request::DeleteHelper(role),
        })
    }

    fn of(&self, side: Side) -> &[IpAddr] {
        self.addresses.of(side)
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

    /// The fields that a helper copies from its Service: of its spec, and labels and annotations for proxies.
    fn like(&self, role: Role) -> Value {
        let now = &self.service["spec"];
        let mut like = json!({ "spec": { "ports": self.ports(role) } });
        for field in COPIED {
            like["spec"][field] = now.get(field).cloned().unwrap_or(Value::Null);
        }
        for key in PROXY_KEYS {
            for place in ["labels", "annotations"] {
                let word = self.metadata()[place].get(key).cloned();
                like["metadata"][place][key] = word.unwrap_or(Value::Null);
            }
        }
        like
    }

    /// The ports of a helper. For a bridge of node ports, the node port is the port.
    fn ports(&self, role: Role) -> Vec<Value> {
        let with = with_node_ports(&self.service["spec"]["ports"], &self.spec()["ports"]);
        let ports = with.into_iter().filter_map(|mut port| {
            let node_port = port.as_object_mut()?.remove("nodePort");
            match role {
                Role::Address(_) | Role::Bridge(Part::Addresses | Part::ExternalAddresses) => {}
                Role::Bridge(Part::NodePorts) => port["port"] = node_port?,
            }
            Some(port)
        });
        ports.collect()
    }

    /// Whether this part of a bridge is needed.
    pub fn needs(&self, part: Part) -> bool {
        match part {
            Part::Addresses => true,
            Part::NodePorts => !self.ports(Role::Bridge(part)).is_empty(),
            Part::ExternalAddresses => !self.external_addresses().is_empty(),
        }
    }

    fn external_addresses(&self) -> Vec<IpAddr> {
        let said = self.service["spec"]["externalIPs"]
            .as_array()
            .into_iter()
            .flatten();
        said.filter_map(|address| address.as_str()?.parse().ok())
            .collect()
    }

    /// The patch of a helper that has not the current spec of its Service; `None` if it has.
    pub fn refresh(&self, role: Role, helper: &Value) -> Option<Value> {
        let mut like = self.like(role);
        match role {
            // A Service without an address has no such policy.
            Role::Address(_) if is_a_name(&helper["spec"]) => {}
            Role::Address(_) => {
                let policy = self.spec().get(TRAFFIC_POLICY).cloned();
                like["spec"][TRAFFIC_POLICY] = policy.unwrap_or(Value::Null);
            }
            Role::Bridge(part) => like["spec"][EXTERNAL_TRAFFIC_POLICY] = self.policy(part),
        }
        let differs = |now: &Value, wanted: &Value| {
            let mut fields = wanted.as_object().into_iter().flatten();
            fields.any(|(field, value)| now.get(field).unwrap_or(&Value::Null) != value)
        };
        let is_edited = differs(&helper["spec"], &like["spec"])
            || ["labels", "annotations"]
                .iter()
                .any(|place| differs(&helper["metadata"][place], &like["metadata"][place]));
        is_edited.then_some(like)
    }

    /// A spec without an address, whose name points to this helper.
    fn name_of(&self, side: Side) -> Value {
        let helper = helper_name(self.text("name"), Role::Address(side));
        json!({
            "type": "ExternalName",
            "externalName": format!("{helper}.{}.svc.{}", self.text("namespace"), self.domain),
            // The API server would keep the value without showing it.
            TRAFFIC_POLICY: null,
        })
    }

    fn away(&self, to: Side) -> Value {
        let mut patch = json!({ "spec": self.name_of(to) });
        // Without an address its spec lacks fields that have to be restored.
        if !is_a_name(&self.service["spec"]) {
            patch["metadata"] =
                json!({ "annotations": { BEFORE_ANNOTATION: self.service["spec"].to_string() } });
        }
        patch
    }

    fn at(&self, side: Side) -> Option<Value> {
        let before = before(self.service)?;
        let mut patch = unmarked();
        for field in RESTORED {
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

    /// The helper of a side, with these addresses.
    fn of_address(&self, side: Side, addresses: &[IpAddr]) -> Value {
        let mut helper = self.helper(Role::Address(side), &self.with_address(addresses));
        helper["metadata"]["annotations"][HOME_ANNOTATION] = json!(list(self.of(side)));
        helper
    }

    /// A part of the bridge, without node ports and with a class that has no controller.
    fn bridge(&self, part: Part) -> Value {
        let role = Role::Bridge(part);
        let mut spec = self.with_address(self.spare.bridge.of(part));
        merge(&mut spec["spec"], &of_families(&self.families(role)));
        spec["spec"]["type"] = json!("LoadBalancer");
        spec["spec"]["loadBalancerClass"] = json!(BRIDGE_CLASS);
        spec["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
        spec["spec"][EXTERNAL_TRAFFIC_POLICY] = self.policy(part);
        spec["spec"][TRAFFIC_POLICY] = json!("Cluster");
        self.helper(role, &spec)
    }

    /// The address families of a helper: those that change. A bridge has all families of its Service, those that change first.
    pub fn families(&self, role: Role) -> Vec<String> {
        let changed = self.addresses.old.iter().map(family).map(str::to_owned);
        let mut families: Vec<String> = changed.collect();
        if let Role::Bridge(_) = role {
            for address in addresses(&self.spec()) {
                let family = family(&address).to_owned();
                if !families.contains(&family) {
                    families.push(family);
                }
            }
        }
        families
    }

    fn policy(&self, part: Part) -> Value {
        match part {
            Part::Addresses => json!(self.ground.policy.as_str()),
            // External traffic keeps its policy.
            Part::NodePorts | Part::ExternalAddresses => match self.spec().get(EXTERNAL_TRAFFIC_POLICY) {
                Some(policy) => policy.clone(),
                None => json!("Cluster"),
            },
        }
    }

    /// The addresses at which this part of the bridge answers, including its own address, by which the rules of nodes are
    /// checked.
    fn answered(&self, part: Part, bridge: &Value) -> Vec<IpAddr> {
        let mut answered = addresses(&bridge["spec"]);
        match part {
            Part::Addresses => {
                let unchanged = addresses(&self.spec());
                for address in self
                    .of(Side::Old)
                    .iter()
                    .chain(self.of(Side::New))
                    .chain(&unchanged)
                {
                    if !answered.contains(address) {
                        answered.push(*address);
                    }
                }
            }
            Part::NodePorts => {
                let families = self.families(Role::Bridge(part));
                let of_nodes = self.ground.node_addresses.iter();
                answered.extend(of_nodes.filter(|address| families.iter().any(|one| one == family(address))));
            }
            Part::ExternalAddresses => answered.extend(self.external_addresses()),
        }
        answered
    }

    /// The status of this part of the bridge; `None` if it is complete already.
    pub fn answer(&self, part: Part, bridge: &Value) -> Option<Value> {
        let said: Vec<IpAddr> = bridge["status"]["loadBalancer"]["ingress"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|ingress| ingress["ip"].as_str()?.parse().ok())
            .collect();
        let wanted = self.answered(part, bridge);
        let known: BTreeSet<&IpAddr> = said.iter().collect();
        if wanted.iter().all(|address| known.contains(address)) {
            return None;
        }
        let ingress: Vec<Value> = wanted.iter().map(|address| json!({ "ip": address })).collect();
        Some(json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
    }

    /// A helper with this spec and the fields copied from its Service.
    fn helper(&self, role: Role, spec: &Value) -> Value {
        let like = self.like(role);
        let mut helper = spec.clone();
        merge(&mut helper, &like);
        let mut metadata = like["metadata"].clone();
        merge(
            &mut metadata,
            &json!({
                "labels": {
                    ROLE_LABEL: role.as_str(),
                    SERVICE_LABEL: self.text("name"),
                    "app.kubernetes.io/managed-by": "replumb",
                },
                "annotations": { BEFORE_ANNOTATION: self.spec().to_string() },
                "name": helper_name(self.text("name"), role),
                "namespace": self.text("namespace"),
                // A helper is deleted with its Service, without blocking that deletion.
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": self.text("name"),
                    "uid": self.text("uid"),
                }],
            }),
        );
        helper["metadata"] = metadata;
        helper["apiVersion"] = json!("v1");
        helper["kind"] = json!("Service");
        without_nulls(&mut helper);
        helper
    }

    /// A helper's spec with these addresses, of the families that change. Without addresses the API server chooses, perhaps an
    /// address that is assigned to another Service.
    fn with_address(&self, addresses: &[IpAddr]) -> Value {
        let families: Vec<&str> = self.addresses.old.iter().map(family).collect();
        let mut patch = json!({ "spec": of_families(&families) });
        patch["spec"]["type"] = json!("ClusterIP");
        patch["spec"]["externalName"] = Value::Null;
        // The API removes it from a Service without an address.
        if let Some(policy) = self.spec().get(TRAFFIC_POLICY) {
            patch["spec"][TRAFFIC_POLICY] = policy.clone();
        }
        if let [first, ..] = addresses {
            patch["spec"]["clusterIP"] = json!(first);
            patch["spec"]["clusterIPs"] = json!(addresses);
        }
        patch
    }
}

/// The fields of a spec with the address families.
fn of_families(families: &[impl AsRef<str>]) -> Value {
    let policy = if families.len() > 1 {
        "RequireDualStack"
    } else {
        "SingleStack"
    };
    let families: Vec<&str> = families.iter().map(AsRef::as_ref).collect();
    json!({ "ipFamilies": families, "ipFamilyPolicy": policy })
}

/// Merges `change` into `object` without removing fields.
fn merge(object: &mut Value, change: &Value) {
    match (object.as_object_mut(), change.as_object()) {
        (Some(fields), Some(change)) => {
            for (field, value) in change {
                merge(fields.entry(field.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *object = change.clone(),
    }
}

/// Removes nulls: they remove fields in a merge patch, and must not occur in a new object.
fn without_nulls(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(without_nulls);
    }
}

fn unmarked() -> Value {
    json!({ "metadata": { "annotations": { BEFORE_ANNOTATION: null } } })
}

/// The current ports with their saved node ports: changes of ports by the owner are kept.
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
