//! Fail-closed admission webhooks that are served by a Service of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use engine::cluster::Webhook;
use engine::drain;
use engine::pods::Pods;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Service;

/// Fields that both kinds of configuration share.
struct Entry<'object> {
    object: String,
    client: &'object WebhookClientConfig,
    failure_policy: Option<&'object str>,
    rules: &'object [RuleWithOperations],
}

/// Namespaces and names of the Services behind fail-closed webhooks of both kinds.
pub fn services(
    validating: &[ValidatingWebhookConfiguration],
    mutating: &[MutatingWebhookConfiguration],
) -> BTreeSet<(String, String)> {
    fail_closed(validating, mutating)
        .filter_map(|entry| {
            let service = entry.client.service.as_ref()?;
            Some((service.namespace.clone(), service.name.clone()))
        })
        .collect()
}

fn fail_closed<'object>(
    validating: &'object [ValidatingWebhookConfiguration],
    mutating: &'object [MutatingWebhookConfiguration],
) -> impl Iterator<Item = Entry<'object>> {
    let validating = validating.iter().flat_map(|configuration| {
        configuration.webhooks.iter().flatten().map(|webhook| Entry {
            object: object(
                "ValidatingWebhookConfiguration",
                configuration.metadata.name.as_deref(),
                &webhook.name,
            ),
            client: &webhook.client_config,
            failure_policy: webhook.failure_policy.as_deref(),
            rules: webhook.rules.as_deref().unwrap_or_default(),
        })
    });
    let mutating = mutating.iter().flat_map(|configuration| {
        configuration.webhooks.iter().flatten().map(|webhook| Entry {
            object: object(
                "MutatingWebhookConfiguration",
                configuration.metadata.name.as_deref(),
                &webhook.name,
            ),
            client: &webhook.client_config,
            failure_policy: webhook.failure_policy.as_deref(),
            rules: webhook.rules.as_deref().unwrap_or_default(),
        })
    });
    // The API server's default is to fail closed.
    validating
        .chain(mutating)
        .filter(|entry| entry.failure_policy != Some("Ignore"))
}

/// The fail-closed webhooks of both kinds with the pods behind them. `services` contains at least their Services.
pub fn webhooks(
    validating: &[ValidatingWebhookConfiguration],
    mutating: &[MutatingWebhookConfiguration],
    services: &[Service],
    pods: &Pods,
) -> Vec<Webhook> {
    let selectors: BTreeMap<(&str, &str), &BTreeMap<String, String>> = services
        .iter()
        .filter_map(|service| {
            let key = (
                service.metadata.namespace.as_deref()?,
                service.metadata.name.as_deref()?,
            );
            Some((key, service.spec.as_ref()?.selector.as_ref()?))
        })
        .collect();
    let mut by_namespace: BTreeMap<&str, Vec<&drain::Pod>> = selectors
        .keys()
        .map(|(namespace, _)| (*namespace, Vec::new()))
        .collect();
    for pod in pods.iter().filter(|pod| !pod.finished) {
        if let Some(known) = by_namespace.get_mut(pod.namespace.as_str()) {
            known.push(pod);
        }
    }
    fail_closed(validating, mutating)
        .filter_map(|entry| {
            let service = entry.client.service.as_ref()?;
            let pods = by_namespace.get(service.namespace.as_str());
            let selector = selectors.get(&(service.namespace.as_str(), service.name.as_str()));
            Some(Webhook {
                object: entry.object,
                service: (service.namespace.clone(), service.name.clone()),
                covers_pods_or_nodes: entry.rules.iter().any(covers_pods_or_nodes),
                backends: selector
                    .zip(pods)
                    .map_or_else(Vec::new, |(selector, pods)| backends(selector, pods)),
            })
        })
        .collect()
}

fn object(kind: &str, configuration: Option<&str>, webhook: &str) -> String {
    format!("{kind} {}, webhook {webhook}", configuration.unwrap_or_default())
}

fn backends(
    selector: &BTreeMap<String, String>,
    pods: &[&drain::Pod],
) -> Vec<(String, String, String, bool)> {
    let selector = drain::Selector {
        match_labels: selector.clone(),
        match_expressions: Vec::new(),
    };
    pods.iter()
        .filter(|pod| selector.matches(&pod.labels))
        .map(|pod| {
            (
                pod.namespace.clone(),
                pod.name.clone(),
                pod.node.clone(),
                pod.uses_pod_network(),
            )
        })
        .collect()
}

/// Whether a rule covers objects that a migration writes, or that must start during it: pods and their eviction, nodes,
/// `DaemonSet`s.
fn covers_pods_or_nodes(rule: &RuleWithOperations) -> bool {
    let groups: Vec<&str> = rule.api_groups.iter().flatten().map(String::as_str).collect();
    rule.resources.iter().flatten().any(|resource| {
        let (group, kind) = match resource.split('/').next().unwrap_or_default() {
            "*" => return groups.iter().any(|group| ["*", "", "apps"].contains(group)),
            kind @ ("pods" | "nodes") => ("", kind),
            kind @ "daemonsets" => ("apps", kind),
            _ => return false,
        };
        !kind.is_empty() && groups.iter().any(|found| *found == "*" || *found == group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "every caller has a literal")]
    fn validating(
        failure_policy: Option<&str>,
        client: serde_json::Value,
        resources: &[&str],
    ) -> ValidatingWebhookConfiguration {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "policy"},
            "webhooks": [{
                "name": "pods.policy.example", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": client, "failurePolicy": failure_policy,
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": resources,
                }],
            }],
        }))
        .unwrap()
    }

    fn service() -> Service {
        serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "policy", "name": "webhook"},
            "spec": {"selector": {"app": "webhook"}},
        }))
        .unwrap()
    }

    fn backend() -> drain::Pod {
        drain::Pod {
            namespace: "policy".to_owned(),
            name: "webhook-1".to_owned(),
            node: "a".to_owned(),
            labels: [("app".to_owned(), "webhook".to_owned())].into(),
            ..drain::Pod::default()
        }
    }

    fn client() -> serde_json::Value {
        serde_json::json!({"service": {"namespace": "policy", "name": "webhook"}})
    }

    #[test]
    fn backends_match_the_selector_of_the_service() {
        let elsewhere = drain::Pod {
            namespace: "other".to_owned(),
            ..backend()
        };
        let pods = [backend(), elsewhere].into();
        let found = webhooks(&[validating(None, client(), &["pods"])], &[], &[service()], &pods);
        let [webhook] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(
            webhook.object,
            "ValidatingWebhookConfiguration policy, webhook pods.policy.example"
        );
        assert!(webhook.covers_pods_or_nodes);
        assert_eq!(
            webhook.backends,
            [("policy".to_owned(), "webhook-1".to_owned(), "a".to_owned(), true)]
        );
    }

    #[test]
    fn only_fail_closed_webhooks_of_a_service_count() {
        let open = validating(Some("Ignore"), client(), &["pods"]);
        let outside = validating(
            Some("Fail"),
            serde_json::json!({"url": "https://example.com"}),
            &["pods"],
        );
        assert_eq!(
            webhooks(&[open, outside], &[], &[service()], &[backend()].into()),
            []
        );
    }

    #[test]
    fn rules_for_pods_nodes_and_daemon_sets_are_covered() {
        for (resources, expected) in [
            (vec!["pods"], true),
            (vec!["pods/eviction"], true),
            (vec!["nodes/status"], true),
            (vec!["*"], true),
            (vec!["*/*"], true),
            (vec!["configmaps", "secrets"], false),
            (vec!["daemonsets"], false),
            (vec![], false),
        ] {
            let found = webhooks(
                &[validating(None, client(), &resources)],
                &[],
                &[service()],
                &Pods::new(),
            );
            assert_eq!(found[0].covers_pods_or_nodes, expected, "{resources:?}");
        }
    }

    #[test]
    fn mutating_webhooks_count_too() {
        let mutating = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "inject"},
            "webhooks": [{
                "name": "inject.example", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": client(),
                "rules": [{"apiGroups": ["apps"], "resources": ["daemonsets"], "operations": ["*"]}],
            }],
        }))
        .unwrap();
        let found = webhooks(&[], &[mutating], &[], &Pods::new());
        assert!(found[0].covers_pods_or_nodes && found[0].backends.is_empty());
    }
}
