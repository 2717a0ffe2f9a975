//! Places other than Calico's pool that contain the pods' range, as far as the API shows them. Pure: objects come in, mentions go
//! out.

use api::migration::PodCidr;
use calico::{ConfigMaps, calico_node, variable};
use engine::cluster::DaemonSet;
use engine::owner::Owner;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::core::DynamicObject;
use pod_cidr::facts::ControllerManager;
use pod_cidr::hardcoded_range::{Needs, RangeUse, ranges_in, relevant};
use serde_json::Value;

/// Variables from which calico-node creates its first pool.
const POOL_VARIABLES: [&str; 2] = ["CALICO_IPV4POOL_CIDR", "CALICO_IPV6POOL_CIDR"];

/// Variables of calico-node: it creates a pool from them when the family has none.
pub fn calico(set: &DaemonSet, config_maps: &ConfigMaps, system: &[&str]) -> Vec<RangeUse> {
    let Some(container) = calico_node(set) else {
        return Vec::new();
    };
    POOL_VARIABLES
        .iter()
        .filter_map(|name| {
            let value = variable(config_maps, set, container, name).known()?;
            Some(RangeUse {
                object: format!("DaemonSet {}: {name}", set.key()),
                owner: Owner::of(Some(&set.namespace), system),
                ranges: ranges_in(value),
                more: 0,
                needs: Needs::New,
                is_of_kube_proxy: false,
                fix: format!(
                    // Without the container's name the command would set the variable in the init containers, too.
                    "change it in the source of the installation (manifest, chart, kops, kubespray) and in the cluster: `kubectl \
                     set env daemonset/{} -n {} --containers={} {name}={{ranges}}`. calico-node restarts; pods keep their \
                     network",
                    set.name, set.namespace, container.name
                ),
            })
        })
        .collect()
}

/// kubeadm's own record: an upgrade writes it into the control plane.
pub fn kubeadm(map: &ConfigMap) -> Option<RangeUse> {
    let text = map.data.as_ref()?.get("ClusterConfiguration")?;
    let configuration: Value = yaml_serde::from_str(text).unwrap_or_default();
    let said = [
        configuration["networking"]["podSubnet"].as_str(),
        extra_argument(&configuration, "cluster-cidr"),
    ];
    let ranges = said.into_iter().flatten().flat_map(ranges_in).collect();
    Some(RangeUse {
        object: "ConfigMap kube-system/kubeadm-config: networking.podSubnet".to_owned(),
        owner: Owner::Cluster,
        ranges,
        more: 0,
        needs: Needs::New,
        is_of_kube_proxy: false,
        fix: "run `kubectl edit configmap kubeadm-config -n kube-system`: set podSubnet to {ranges}, and in \
              controllerManager.extraArgs first allocate-node-cidrs to \"false\", then cluster-cidr"
            .to_owned(),
    })
}

/// An argument of the controller manager: a map before v1beta4, a list of names and values from then on.
fn extra_argument<'text>(configuration: &'text Value, name: &str) -> Option<&'text str> {
    match &configuration["controllerManager"]["extraArgs"] {
        Value::Array(arguments) => {
            let mut found = arguments.iter().filter(|argument| argument["name"] == name);
            found.next_back()?["value"].as_str()
        }
        arguments => arguments[name].as_str(),
    }
}

/// A `NetworkPolicy` of Kubernetes.
pub fn network_policy(policy: &NetworkPolicy, system: &[&str], kind: &PodCidr) -> Option<RangeUse> {
    // The whole spec may contain a range: `ipBlock` in either direction.
    let text = serde_json::to_string(policy.spec.as_ref()?).ok()?;
    policy_of("NetworkPolicy", policy, &text, system, kind)
}

/// A policy or a network set of Calico.
pub fn calico_policy(
    what: &str,
    object: &DynamicObject,
    system: &[&str],
    kind: &PodCidr,
) -> Option<RangeUse> {
    policy_of(what, object, &object.data["spec"].to_string(), system, kind)
}

fn policy_of(
    what: &str,
    policy: &impl ResourceExt,
    text: &str,
    system: &[&str],
    kind: &PodCidr,
) -> Option<RangeUse> {
    let (ranges, more) = relevant(ranges_in(text), &kind.from, &kind.to);
    let (namespace, name) = (policy.namespace(), policy.name_any());
    (!ranges.is_empty()).then(|| RangeUse {
        object: match &namespace {
            Some(namespace) => format!("{what} {namespace}/{name}"),
            None => format!("{what} {name}"),
        },
        owner: Owner::of(namespace.as_deref(), system),
        ranges,
        more,
        needs: Needs::Both,
        is_of_kube_proxy: false,
        fix: "add the missing range (needed: {ranges}); remove the source range after the migration"
            .to_owned(),
    })
}

/// A controller manager that gives every Node a podCIDR of the range.
pub fn controller_manager(manager: &ControllerManager) -> Option<RangeUse> {
    let ranges = manager.ranges.clone().filter(|_| manager.allocates)?;
    Some(RangeUse {
        object: format!("Pod {}: --cluster-cidr", manager.pod),
        owner: Owner::Cluster,
        ranges,
        more: 0,
        needs: Needs::New,
        is_of_kube_proxy: false,
        fix: "in its manifest, set --allocate-node-cidrs=false first, and --cluster-cidr={ranges} with it or after it, one \
              control plane node at a time. In the other order it exits at each start, because every Node keeps its podCIDR"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind() -> PodCidr {
        serde_json::from_value(json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16" })).unwrap()
    }

    fn map(key: &str, text: &str) -> ConfigMap {
        serde_json::from_value(json!({ "metadata": { "name": "x" }, "data": { key: text } })).unwrap()
    }

    fn said(mention: Option<RangeUse>) -> Vec<String> {
        let ranges = mention.map(|mention| mention.ranges).unwrap_or_default();
        ranges.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn kubeadm_has_two_ranges() {
        let text = "controllerManager:\n  extraArgs:\n    cluster-cidr: 10.244.0.0/16\nnetworking:\n  podSubnet: 10.244.0.0/16\n";
        assert_eq!(
            said(kubeadm(&map("ClusterConfiguration", text))),
            ["10.244.0.0/16"; 2]
        );
        // kubernetes/website#47668: a list from v1beta4 on.
        let text = "controllerManager:\n  extraArgs:\n  - name: cluster-cidr\n    value: 10.244.0.0/16\nnetworking: {podSubnet: 10.200.0.0/16}\n";
        assert_eq!(
            said(kubeadm(&map("ClusterConfiguration", text))),
            ["10.200.0.0/16", "10.244.0.0/16"]
        );
        assert_eq!(kubeadm(&map("other", "")), None);
    }

    #[test]
    fn policies_are_named_with_their_ranges() {
        let policy: NetworkPolicy = serde_json::from_value(json!({
            "metadata": { "namespace": "shop", "name": "web" },
            "spec": { "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.244.0.0/16", "except": ["10.244.9.0/24"] } }] }] },
        }))
        .unwrap();
        let found = network_policy(&policy, &[], &kind());
        assert_eq!(found.as_ref().unwrap().object, "NetworkPolicy shop/web");
        assert_eq!(found.as_ref().unwrap().owner, Owner::Tenant("shop".to_owned()));
        assert_eq!(said(found), ["10.244.0.0/16", "10.244.9.0/24"]);
        let set: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet", "metadata": { "name": "pods" },
            "spec": { "nets": ["10.244.0.0/16"] },
        }))
        .unwrap();
        let found = calico_policy("GlobalNetworkSet", &set, &[], &kind());
        assert_eq!(found.as_ref().unwrap().object, "GlobalNetworkSet pods");
        assert_eq!(found.as_ref().unwrap().owner, Owner::Cluster);
        assert_eq!(found.unwrap().needs, Needs::Both);
    }

    #[test]
    fn a_controller_manager_without_allocation_is_not_named() {
        let manager = |allocates| ControllerManager {
            pod: "kube-system/kcm".to_owned(),
            ranges: Some(vec!["10.244.0.0/16".parse().unwrap()]),
            allocates,
        };
        assert!(controller_manager(&manager(true)).is_some());
        assert!(controller_manager(&manager(false)).is_none());
    }
}
