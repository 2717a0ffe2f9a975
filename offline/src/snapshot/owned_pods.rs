//! Pods as a controller, the scheduler and the kubelet make them of a template.

use std::collections::BTreeMap;
use std::net::IpAddr;

use coordinator::facts::daemon_sets::node_selection;
use ipnet::IpNet;
use serde::de::{Deserialize as _, DeserializeOwned};
use serde_json::{Value, json};

use super::object::{name_of, ready};

/// The controller of pods.
#[derive(Clone, Debug)]
pub struct Owner {
    kind: String,
    name: String,
}

impl Owner {
    /// The controller that an object is.
    pub fn of(object: &Value) -> Self {
        Self {
            kind: object["kind"].as_str().unwrap_or_default().to_owned(),
            name: name_of(object),
        }
    }

    /// The entry in `metadata.ownerReferences`.
    pub fn reference(&self) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": self.kind, "name": self.name, "uid": format!("{}-{}", self.kind, self.name),
            "controller": true,
        })
    }
}

/// The next addresses of pods, by node.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    nodes: BTreeMap<String, NodeAddresses>,
}

#[derive(Clone, Debug, Default)]
struct NodeAddresses {
    host: Option<String>,
    ranges: Vec<IpNet>,
    taken: Vec<String>,
}

impl Addresses {
    /// The addresses of these nodes that none of these pods has.
    pub fn of(nodes: &[Value], pods: &[Value]) -> Self {
        let mut addresses = Self::default();
        for node in nodes {
            let ranges = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
            let ranges: Vec<IpNet> = ranges.filter_map(|range| range.as_str()?.parse().ok()).collect();
            addresses.nodes.insert(
                name_of(node),
                NodeAddresses {
                    host: internal_address(node),
                    ranges,
                    taken: Vec::new(),
                },
            );
        }
        for pod in pods {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            if let (Some(known), Some(address)) =
                (addresses.nodes.get_mut(node), pod["status"]["podIP"].as_str())
            {
                known.taken.push(address.to_owned());
            }
        }
        addresses
    }

    /// A pod has ended: its addresses are free.
    pub fn release(&mut self, pod: &Value) {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if let Some(known) = self.nodes.get_mut(node) {
            let ended = pod["status"]["podIPs"].as_array().into_iter().flatten();
            let ended: Vec<&str> = ended.filter_map(|address| address["ip"].as_str()).collect();
            known.taken.retain(|address| !ended.contains(&address.as_str()));
        }
    }

    /// The addresses of a new pod on this node, one of each family.
    pub fn next(&mut self, node: &str, host_network: bool) -> Vec<String> {
        let Some(known) = self.nodes.get_mut(node) else {
            return Vec::new();
        };
        if host_network {
            return known.host.iter().cloned().collect();
        }
        let NodeAddresses { ranges, taken, .. } = known;
        let mut found = Vec::new();
        for range in ranges.iter() {
            // The first address is the bridge's.
            let free = range.hosts().skip(1).map(|address: IpAddr| address.to_string());
            if let Some(address) = free.into_iter().find(|address| !taken.contains(address)) {
                taken.push(address.clone());
                found.push(address);
            }
        }
        found
    }
}

/// The IPv4 address of a node, or its first one.
pub fn internal_address(node: &Value) -> Option<String> {
    let all = node["status"]["addresses"].as_array()?;
    let internal = all.iter().filter(|address| address["type"] == "InternalIP");
    let mut texts = internal.filter_map(|address| address["address"].as_str());
    let first = texts.clone().next();
    texts
        .find(|text| !text.contains(':'))
        .or(first)
        .map(str::to_owned)
}

/// A pod of this owner on a node, which runs.
pub fn pod(owner: &Owner, workload: &Value, index: usize, node: &str, addresses: &mut Addresses) -> Value {
    let template = &workload["spec"]["template"];
    let name = match owner.kind.as_str() {
        "DaemonSet" => format!("{}-{node}", owner.name),
        _ => format!("{}-{index}", owner.name),
    };
    let mut spec = template["spec"].clone();
    spec["nodeName"] = json!(node);
    let mut status = ready();
    let own = addresses.next(node, spec["hostNetwork"] == true);
    status["podIP"] = json!(own.first());
    status["podIPs"] = own.iter().map(|address| json!({ "ip": address })).collect();
    let mut metadata = template["metadata"].clone();
    metadata["namespace"] = workload["metadata"]["namespace"].clone();
    metadata["name"] = json!(name);
    metadata["uid"] = json!(format!("pod-{name}"));
    metadata["ownerReferences"] = json!([owner.reference()]);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status })
}

/// Whether pods of a workload may run on a node, by `nodeSelector` and required node affinity.
pub fn selects(workload: &Value, node: &Value) -> bool {
    may_run_on(&workload["spec"]["template"]["spec"], node)
}

/// Whether a pod with this `spec` may run on a node, by `nodeSelector` and required node affinity, as the coordinator reads them.
pub fn may_run_on(spec: &Value, node: &Value) -> bool {
    let labels: Option<BTreeMap<String, String>> = part(&node["metadata"]["labels"]);
    let selection = node_selection(part(&spec["nodeSelector"]), part(&spec["affinity"]));
    selection.selects(&name_of(node), &labels.unwrap_or_default())
}

/// A part of an object in its type; none where it is unset, or malformed.
fn part<T: DeserializeOwned>(value: &Value) -> Option<T> {
    Option::deserialize(value).ok().flatten()
}
