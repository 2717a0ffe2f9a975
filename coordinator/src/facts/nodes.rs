//! Nodes.

use engine::cluster::{self, Needed};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity;

/// Labels of a control plane node: today's, the one before v1.24, and Rancher's.
const CONTROL_PLANE_LABELS: [&str; 3] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/controlplane",
];

/// A Node as the checks and the plan see it. Fields that cannot be parsed are kept by name.
pub fn node(node: &Node) -> cluster::Node {
    let mut not_understood = Vec::new();
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let allocatable = status.allocatable.unwrap_or_default();
    let mut amount = |resource: &str, read: fn(&Quantity) -> Option<u64>| {
        let Some(quantity) = allocatable.get(resource) else {
            return 0;
        };
        read(quantity).unwrap_or_else(|| {
            let field = format!("status.allocatable.{resource}");
            not_understood.push(super::not_understood(field, &quantity.0, Needed::Quantity));
            0
        })
    };
    let cpu = amount("cpu", quantity::thousandths);
    let memory = amount("memory", quantity::units);
    let pods = amount("pods", quantity::units);
    let mut internal_addresses = Vec::new();
    for address in status.addresses.unwrap_or_default() {
        if address.type_ == "InternalIP" {
            match address.address.parse() {
                Ok(parsed) => internal_addresses.push(parsed),
                Err(_) => not_understood.push(super::not_understood(
                    "status.addresses",
                    &address.address,
                    Needed::Address,
                )),
            }
        }
    }
    let system = status.node_info;
    cluster::Node {
        control_plane: is_control_plane(node),
        annotations: node.metadata.annotations.clone().unwrap_or_default(),
        pod_cidrs: spec
            .pod_cidrs
            .unwrap_or_else(|| spec.pod_cidr.into_iter().collect()),
        unschedulable: spec.unschedulable.unwrap_or(false),
        ready: is_ready(node),
        taints: spec.taints.unwrap_or_default().iter().filter_map(taint).collect(),
        internal_addresses,
        allocatable_cpu_millis: cpu,
        allocatable_memory_bytes: memory,
        allocatable_pods: pods,
        operating_system: system
            .as_ref()
            .map(|info| info.operating_system.clone())
            .unwrap_or_default(),
        kernel_version: system
            .as_ref()
            .map(|info| info.kernel_version.clone())
            .unwrap_or_default(),
        container_runtime: system
            .map(|info| info.container_runtime_version)
            .unwrap_or_default(),
        labels,
        name: node.metadata.name.clone().unwrap_or_default(),
        not_understood,
    }
}

/// Whether the Node accepts new pods: Ready, and neither cordoned nor tainted.
pub fn takes_pods(found: &Node) -> bool {
    node(found).schedulable()
}

/// Whether a Node runs Linux, or does not report its operating system: networks of other systems are not changed.
pub fn is_linux(node: &Node) -> bool {
    let system = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    system.is_none_or(|info| info.operating_system.is_empty() || info.operating_system == "linux")
}

/// Whether a Node reports Ready.
pub fn is_ready(node: &Node) -> bool {
    ready_condition(node).is_some_and(|condition| condition.status == "True")
}

/// Time of the last change of the Ready condition; `None` if it was never reported.
pub fn ready_changed(node: &Node) -> Option<Timestamp> {
    Some(ready_condition(node)?.last_transition_time.as_ref()?.0)
}

fn ready_condition(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

/// Whether a Node has one of the labels of a control plane node.
pub fn is_control_plane(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    CONTROL_PLANE_LABELS
        .iter()
        .any(|label| labels.is_some_and(|labels| labels.contains_key(*label)))
}

/// `key=value:effect`, for a taint that repels pods and is not Kubernetes' own for a cordon or a condition.
fn taint(taint: &Taint) -> Option<String> {
    let repels = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    if !repels || taint.key.starts_with("node.kubernetes.io/") {
        return None;
    }
    let value = taint.value.as_deref().unwrap_or_default();
    Some(format!("{}={value}:{}", taint.key, taint.effect))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn from(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_field() {
        let found = node(&from(serde_json::json!({
            "metadata": {
                "name": "a",
                "labels": {"node-role.kubernetes.io/control-plane": ""},
                "annotations": {"flannel.alpha.coreos.com/public-ip": "192.168.0.11"},
            },
            "spec": {
                "podCIDR": "10.244.1.0/24",
                "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"],
                "unschedulable": true,
                "taints": [
                    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                    {"key": "soft", "value": "x", "effect": "PreferNoSchedule"},
                    {"key": "gpu", "value": "yes", "effect": "NoExecute"},
                ],
            },
            "status": {
                "allocatable": {"cpu": "1900m", "memory": "4Gi", "pods": "110"},
                "addresses": [
                    {"type": "Hostname", "address": "a"},
                    {"type": "InternalIP", "address": "192.168.0.11"},
                ],
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "cri-o://1.34.0", "kernelVersion": "6.1.0",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux",
                    "osImage": "", "systemUUID": "",
                },
            },
        })));
        assert_eq!(found.name, "a");
        assert!(found.control_plane && found.unschedulable && found.ready);
        assert_eq!(found.pod_cidrs, ["10.244.1.0/24", "fd00:1::/64"]);
        assert_eq!(
            found.taints,
            [
                "node-role.kubernetes.io/control-plane=:NoSchedule",
                "gpu=yes:NoExecute"
            ]
        );
        assert_eq!(
            found.internal_addresses,
            ["192.168.0.11".parse::<std::net::IpAddr>().unwrap()]
        );
        assert_eq!(found.allocatable_cpu_millis, 1900);
        assert_eq!(found.allocatable_memory_bytes, 4 << 30);
        assert_eq!(found.allocatable_pods, 110);
        assert_eq!(
            (
                &*found.operating_system,
                &*found.kernel_version,
                &*found.container_runtime
            ),
            ("linux", "6.1.0", "cri-o://1.34.0")
        );
        assert_eq!(
            found.annotations["flannel.alpha.coreos.com/public-ip"],
            "192.168.0.11"
        );
    }

    #[test]
    fn an_empty_node_is_not_ready_and_has_no_resources() {
        let found = node(&from(serde_json::json!({"metadata": {"name": "a"}})));
        assert!(!found.ready && !found.control_plane && found.pod_cidrs.is_empty());
        assert_eq!(found.allocatable_pods, 0);
    }

    #[test]
    fn the_older_pod_cidr_field_is_read() {
        let found = node(&from(
            serde_json::json!({"metadata": {"name": "a"}, "spec": {"podCIDR": "10.1.0.0/24"}}),
        ));
        assert_eq!(found.pod_cidrs, ["10.1.0.0/24"]);
    }

    #[rstest]
    #[case::quantity(json!({"allocatable": {"cpu": "many", "pods": "110"}}), "status.allocatable.cpu", "\"many\"", Needed::Quantity)]
    #[case::negative(json!({"allocatable": {"memory": "-1", "pods": "110"}}), "status.allocatable.memory", "\"-1\"", Needed::Quantity)]
    #[case::address(
        json!({"allocatable": {"pods": "110"}, "addresses": [
            {"type": "InternalIP", "address": "here"}, {"type": "InternalIP", "address": "192.168.0.11"}]}),
        "status.addresses", "\"here\"", Needed::Address
    )]
    fn an_unreadable_field_is_named_and_others_are_kept(
        #[case] status: serde_json::Value,
        #[case] field: &str,
        #[case] value: &str,
        #[case] needed: Needed,
    ) {
        let found = node(&from(json!({"metadata": {"name": "a"}, "status": status})));
        let [not_understood] = found.not_understood.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(
            (
                not_understood.field.as_str(),
                not_understood.found.as_str(),
                not_understood.needed
            ),
            (field, value, needed)
        );
        assert_eq!((found.name.as_str(), found.allocatable_pods), ("a", 110));
        assert_eq!(
            found.internal_addresses.len(),
            usize::from(needed == Needed::Address)
        );
    }

    #[test]
    fn amounts_above_the_maximum_saturate() {
        let found = node(&from(json!({
            "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "20P", "memory": "1e99", "pods": "16Ei"}},
        })));
        assert_eq!(found.not_understood, []);
        assert_eq!(
            (
                found.allocatable_cpu_millis,
                found.allocatable_memory_bytes,
                found.allocatable_pods
            ),
            (u64::MAX, u64::MAX, u64::MAX)
        );
    }
}
