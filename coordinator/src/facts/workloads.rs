//! Who makes pods again, and which pods stand behind Services.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use plan::drain;
use plan::moves::{Workload, WorkloadFacts};
use plan::pods::Pods;

use crate::limits::number_or_share;

/// The label that every distribution gives to its name servers.
pub const NAME_SERVERS: (&str, &str) = ("k8s-app", "kube-dns");

/// Workloads of every kind that makes pods again, as far as the API says how many.
pub fn workloads(
    deployments: &[Deployment],
    stateful_sets: &[StatefulSet],
    replica_sets: &[ReplicaSet],
    daemon_sets: &[impl AsRef<DaemonSet>],
) -> BTreeMap<Workload, WorkloadFacts> {
    let known = |kind: &str, metadata: &ObjectMeta, wanted: i32, on_delete: bool| {
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
    };
    let of_deployments = deployments.iter().map(|object| {
        let wanted = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        known("Deployment", &object.metadata, wanted, false)
    });
    let of_stateful_sets = stateful_sets.iter().map(|object| {
        let spec = object.spec.as_ref();
        let strategy = spec.and_then(|spec| spec.update_strategy.as_ref()?.type_.as_deref());
        let wanted = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        known(
            "StatefulSet",
            &object.metadata,
            wanted,
            strategy == Some("OnDelete"),
        )
    });
    let of_replica_sets = replica_sets
        .iter()
        // A Deployment's is counted with the Deployment.
        .filter(|object| object.owner_references().is_empty())
        .map(|object| {
            let wanted = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            known("ReplicaSet", &object.metadata, wanted, false)
        });
    let of_daemon_sets = daemon_sets.iter().map(AsRef::as_ref).map(|object| {
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
    });
    of_deployments
        .chain(of_stateful_sets)
        .chain(of_replica_sets)
        .chain(of_daemon_sets)
        .collect()
}

/// How many pods of a `DaemonSet` of so many may be away; what adds pods before it removes others says 0, which is 1 here.
fn at_once(most: &IntOrString, wanted: usize) -> usize {
    number_or_share(most).map_or(1, |most| most.resolve(wanted))
}

/// Whether this is the Service of the cluster's name servers.
pub fn is_name_service(service: &Service) -> bool {
    service.namespace().as_deref() == Some("kube-system")
        && service.labels().get(NAME_SERVERS.0).map(String::as_str) == Some(NAME_SERVERS.1)
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
    fn workloads_have_as_many_pods_as_their_spec_wants() {
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
        let none: [std::sync::Arc<DaemonSet>; 0] = [];
        let found = workloads(&[], &[stateful], &[of_deployment], &none);
        assert_eq!(found.len(), 1);
        let (workload, facts) = found.first_key_value().unwrap();
        assert_eq!(workload.key(), "StatefulSet shop/db");
        assert!(facts.wanted == 3 && facts.on_delete);
    }

    #[test]
    fn a_daemon_set_says_how_many_of_its_pods_may_be_away() {
        let at_once = |strategy: serde_json::Value| {
            let set: DaemonSet = serde_json::from_value(json!({
                "metadata": { "namespace": "shop", "name": "log" },
                "spec": { "selector": {}, "template": {}, "updateStrategy": strategy },
                "status": {
                    "currentNumberScheduled": 25, "desiredNumberScheduled": 25, "numberMisscheduled": 0, "numberReady": 25,
                },
            }))
            .unwrap();
            let found = workloads(&[], &[], &[], &[std::sync::Arc::new(set)]);
            found.first_key_value().unwrap().1.at_once
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
