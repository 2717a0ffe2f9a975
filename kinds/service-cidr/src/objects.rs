//! A Service and its helpers as API objects: their states, and the body of each write of an exchange.

mod bridge;
mod family;
mod helper_name;
mod merge;
mod state;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use strum::IntoStaticStr;

pub use bridge::bridges;
pub use family::family;
pub use helper_name::{SERVICE_LABEL, helper_name, is_about_helper, is_helper, is_helper_of};
pub use state::{basis, basis_with_helpers, before, differences, own};

use super::class::addresses;
use super::exchange::{Part, Parts, ROLE_LABEL, Role, Write};
use super::side::{Side, Sides};
use family::of_families;
use merge::{merge, with_node_ports, without_nulls};
use state::{is_a_name, list};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
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
        self.into()
    }
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

fn unmarked() -> Value {
    json!({ "metadata": { "annotations": { BEFORE_ANNOTATION: null } } })
}

#[cfg(test)]
mod tests;
