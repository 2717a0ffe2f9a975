//! Policies that kube-controllers derive from Kubernetes' `NetworkPolicy` objects. The stand-in does not enforce
//! policies, so it writes only those that allow all ingress.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::store::Store;
use super::{keys, resource};
use crate::version::Generation;

/// Prefix of the names of all of them.
const PREFIX: &str = "knp.default.";
/// Order among all policies, the lowest first.
const ORDER: u32 = 1000;

/// Policies by their keys.
type Wanted = BTreeMap<String, Value>;

/// Adjusts the policies to those of the cluster: writes missing ones, deletes others.
pub async fn reconcile(store: &Store, policies: &[NetworkPolicy]) -> Result<()> {
    let wanted = wanted(store.generation, policies)?;
    let there = store.list(&directory(store.generation)).await?;
    let mut keys = BTreeSet::new();
    for entry in &there {
        let name = entry.key.rsplit('/').next().unwrap_or_default();
        if !name.starts_with(PREFIX) {
            continue;
        }
        if wanted.contains_key(&entry.key) {
            keys.insert(entry.key.as_str());
        } else {
            // A conflict means that another writer has written it: the next pass reads it.
            store.delete(entry).await?;
            info!("deleted policy {name}");
        }
    }
    for (key, value) in wanted.iter().filter(|(key, _)| !keys.contains(key.as_str())) {
        if store.create(key, &value.to_string()).await? {
            info!("wrote {key}");
        }
    }
    Ok(())
}

fn wanted(generation: Generation, policies: &[NetworkPolicy]) -> Result<Wanted> {
    let mut wanted = Wanted::new();
    for policy in policies {
        let (namespace, name) = (policy.namespace().unwrap_or_default(), policy.name_any());
        if !allows_all_ingress(policy.spec.as_ref()) {
            warn!("NetworkPolicy {namespace}/{name} is not written: the stand-in does not enforce policies");
            continue;
        }
        let (key, value) = match generation {
            Generation::V2 => (
                format!("{}/{PREFIX}{namespace}.{name}", directory(generation)),
                json!({
                    "order": ORDER,
                    "inbound_rules": [{ "action": "allow" }],
                    "outbound_rules": [],
                    "selector": format!("calico/k8s_ns == '{namespace}'"),
                    "types": ["ingress"],
                }),
            ),
            Generation::V3 => {
                let calico = format!("{PREFIX}{name}");
                let rule = json!({ "action": "Allow", "source": {}, "destination": {} });
                let spec = json!({
                    "order": ORDER,
                    "ingress": [rule],
                    "selector": "projectcalico.org/orchestrator == 'k8s'",
                    "types": ["Ingress"],
                });
                let metadata = json!({ "name": calico, "namespace": namespace });
                (
                    format!("{}/{namespace}/{calico}", directory(generation)),
                    resource::object("NetworkPolicy", metadata, &spec)?,
                )
            }
        };
        wanted.insert(key, value);
    }
    Ok(wanted)
}

fn directory(generation: Generation) -> String {
    match generation {
        Generation::V2 => keys::POLICIES.to_owned(),
        Generation::V3 => keys::resources("networkpolicies"),
    }
}

/// Whether the policy allows all ingress to every pod of the namespace, and has no other rule.
fn allows_all_ingress(spec: Option<&NetworkPolicySpec>) -> bool {
    let Some(spec) = spec else { return false };
    let only_ingress = spec
        .policy_types
        .as_ref()
        .is_none_or(|types| types.as_slice() == ["Ingress"]);
    spec.pod_selector
        .as_ref()
        .is_none_or(|selector| *selector == LabelSelector::default())
        && spec.egress.is_none()
        && only_ingress
        && spec.ingress.as_deref() == Some(&[NetworkPolicyIngressRule::default()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, ingress: &Value) -> NetworkPolicy {
        let object = json!({
            "metadata": { "name": name, "namespace": "team" },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress },
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test]
    async fn policies_that_allow_all_ingress_are_written_and_deleted_with_the_network_policies() {
        for (generation, key) in [
            (
                Generation::V2,
                "/calico/v1/policy/tier/default/policy/knp.default.team.web.example",
            ),
            (
                Generation::V3,
                "/calico/resources/v3/projectcalico.org/networkpolicies/team/knp.default.web.example",
            ),
        ] {
            let store = Store::in_memory(generation);
            let keys = async || -> Vec<String> {
                let all = store.list("/calico").await.unwrap();
                all.into_iter().map(|entry| entry.key).collect()
            };
            let all = [
                policy("web.example", &json!([{}])),
                policy("no-ingress", &json!([])),
            ];
            reconcile(&store, &all).await.unwrap();
            assert_eq!(keys().await, [key]);
            let before = store.list("/calico").await.unwrap();
            reconcile(&store, &all).await.unwrap();
            assert_eq!(store.list("/calico").await.unwrap(), before, "written once");
            reconcile(&store, &[]).await.unwrap();
            assert_eq!(keys().await, Vec::<String>::new());
        }
    }
}
