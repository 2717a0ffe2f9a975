//! Workloads that recreate pods, and pods behind Services.

use std::collections::BTreeSet;

use engine::drain;
use engine::moves::{Workload, WorkloadFacts};
use engine::pods::Pods;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::limits::number_or_share;

/// The label of name servers in every distribution.
pub const NAME_SERVERS: (&str, &str) = ("k8s-app", "kube-dns");

/// A workload that recreates pods, and its facts.
pub type Known = (Workload, WorkloadFacts);

fn known(kind: &str, metadata: &ObjectMeta, wanted: i32, on_delete: bool) -> Known {
    let workload = Workload {
        kind: kind.to_owned(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    };
    let facts = WorkloadFacts {
        wanted: usize::try_from(wanted).unwrap_or_default(),
        made_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
        on_delete,
        at_once: 1,
    };
    (workload, facts)
}

/// The facts of a Deployment.
pub fn deployment(object: &Deployment) -> Known {
    let wanted = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    known("Deployment", &object.metadata, wanted, false)
}

/// The facts of a `StatefulSet`.
pub fn stateful_set(object: &StatefulSet) -> Known {
    let spec = object.spec.as_ref();
    let strategy = spec.and_then(|spec| spec.update_strategy.as_ref()?.type_.as_deref());
    let wanted = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    known(
        "StatefulSet",
        &object.metadata,
        wanted,
        strategy == Some("OnDelete"),
    )
}

/// The facts of a `ReplicaSet`; `None` if a Deployment owns it and is counted instead.
pub fn replica_set(object: &ReplicaSet) -> (Workload, Option<WorkloadFacts>) {
    let wanted = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let is_its_own = object.owner_references().is_empty();
    let (workload, facts) = known("ReplicaSet", &object.metadata, wanted, false);
    (workload, is_its_own.then_some(facts))
}

/// The facts of a `DaemonSet`.
pub fn daemon_set(object: &DaemonSet) -> Known {
    let wanted = object
        .status
        .as_ref()
        .map_or(0, |status| status.desired_number_scheduled);
    let strategy = object
        .spec
        .as_ref()
        .and_then(|spec| spec.update_strategy.as_ref());
    let on_delete = strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete"));
    let (workload, facts) = known("DaemonSet", &object.metadata, wanted, on_delete);
    let most = strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.max_unavailable.as_ref());
    let at_once = most
        .filter(|_| !on_delete)
        .map_or(1, |most| at_once(most, facts.wanted));
    (workload, WorkloadFacts { at_once, ..facts })
}

/// How many of the `DaemonSet`'s `wanted` pods may be unavailable; with `maxSurge` the value is 0, which counts as 1 here.
pub fn at_once(most: &IntOrString, wanted: usize) -> usize {
    number_or_share(most).map_or(1, |most| most.resolve(wanted))
}

/// Namespace and name of the pods behind these Services.
pub fn backends(services: &[Service], pods: &Pods) -> BTreeSet<(String, String)> {
    let selectors: Vec<(String, drain::Selector)> = services
        .iter()
        .filter_map(|service| {
            let selector = service
                .spec
                .as_ref()?
                .selector
                .clone()
                .filter(|labels| !labels.is_empty())?;
            let selector = drain::Selector {
                match_labels: selector,
                match_expressions: Vec::new(),
            };
            Some((service.namespace()?, selector))
        })
        .collect();
    pods.iter()
        .filter(|pod| {
            selectors
                .iter()
                .any(|(namespace, selector)| pod.namespace == *namespace && selector.matches(&pod.labels))
        })
        .map(|pod| (pod.namespace.clone(), pod.name.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn workloads_want_the_replicas_of_their_spec() {
        let stateful: StatefulSet = serde_json::from_value(json!({
            "metadata": { "namespace": "shop", "name": "db" },
            "spec": { "replicas": 3, "serviceName": "db", "selector": {}, "template": {}, "updateStrategy": { "type": "OnDelete" } },
        }))
        .unwrap();
        let of_deployment: ReplicaSet = serde_json::from_value(json!({
            "metadata": { "namespace": "shop", "name": "web-1", "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u" }] },
        }))
        .unwrap();
        assert_eq!(replica_set(&of_deployment).1, None);
        let (workload, facts) = stateful_set(&stateful);
        assert_eq!(workload.key(), "StatefulSet shop/db");
        assert!(facts.wanted == 3 && facts.on_delete);
    }

    #[test]
    fn max_unavailable_of_a_daemon_set_is_resolved() {
        let at_once = |strategy: serde_json::Value| {
            let set: DaemonSet = serde_json::from_value(json!({
                "metadata": { "namespace": "shop", "name": "log" },
                "spec": { "selector": {}, "template": {}, "updateStrategy": strategy },
                "status": {
                    "currentNumberScheduled": 25, "desiredNumberScheduled": 25, "numberMisscheduled": 0, "numberReady": 25,
                },
            }))
            .unwrap();
            daemon_set(&set).1.at_once
        };
        let rolling = |most: serde_json::Value| json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": most } });
        assert_eq!(at_once(json!(null)), 1);
        assert_eq!(at_once(json!({ "type": "RollingUpdate" })), 1);
        for (most, expected) in [
            (json!(3), 3),
            (json!("10%"), 3),
            (json!("100%"), 25),
            (json!(0), 1),
            (json!(-3), 1),
            (json!("some"), 1),
        ] {
            assert_eq!(at_once(rolling(most.clone())), expected, "{most}");
        }
        let mut on_delete = rolling(json!(5));
        on_delete["type"] = json!("OnDelete");
        assert_eq!(at_once(on_delete), 1);
    }
}
