//! The pods with their workloads and roles, as the moves need them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::cluster::Webhook;
use crate::drain::Pod;
use crate::moves::{Health, Resident, Role, Workload, WorkloadFacts};
use crate::pods::Pods;

/// The label that identifies the `ReplicaSet` of a Deployment and its pods: a hash of the template.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// A pod that was created up to this time after the pool was closed may have requested its address before. Also, two clocks are
/// compared.
pub const START_GRACE: SignedDuration = SignedDuration::from_secs(120);

/// The workload that recreates this pod, as users know it; `None` for a pod without a controller.
pub fn workload_of(pod: &Pod) -> Option<Workload> {
    let (kind, name) = pod.controller.as_ref().filter(|_| !pod.mirror)?;
    let of_deployment = pod
        .labels
        .get(TEMPLATE_HASH)
        .filter(|_| kind == "ReplicaSet")
        .and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'));
    let (kind, name) = match of_deployment {
        Some(deployment) => ("Deployment", deployment),
        None => (kind.as_str(), name.as_str()),
    };
    Some(Workload {
        kind: kind.to_owned(),
        namespace: pod.namespace.clone(),
        name: name.to_owned(),
    })
}

/// The pods that other pods need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Namespace and label `app.kubernetes.io/component` of the coordinator's own pods.
    pub coordinator: (String, String),
    /// Namespace and name of name servers.
    pub name_servers: BTreeSet<(String, String)>,
    /// Namespace and name of pods behind admission webhooks that fail closed.
    pub admission: BTreeSet<(String, String)>,
}

impl Needed {
    /// Pods behind webhooks without which no pod is admitted.
    pub fn admission_of(webhooks: &[Webhook]) -> BTreeSet<(String, String)> {
        webhooks
            .iter()
            .filter(|webhook| webhook.covers_pods_or_nodes)
            .flat_map(|webhook| &webhook.backends)
            .map(|(namespace, name, _, _)| (namespace.clone(), name.clone()))
            .collect()
    }

    fn role(&self, pod: &Pod) -> Role {
        let key = (pod.namespace.clone(), pod.name.clone());
        let component = pod.labels.get("app.kubernetes.io/component");
        if pod.namespace == self.coordinator.0 && component == Some(self.coordinator.1.as_str()) {
            Role::Coordinator
        } else if self.name_servers.contains(&key) {
            Role::NameServer
        } else if self.admission.contains(&key) {
            Role::Admission
        } else {
            Role::Any
        }
    }
}

/// The workload of each pod, in the order of the pods.
pub fn workloads_of(pods: &Pods) -> Vec<Option<Workload>> {
    pods.iter().map(workload_of).collect()
}

/// The pods with their workloads and roles. `workloads` is the result of [`workloads_of`] for the same pods, `closed_at` is when
/// the source pool was closed.
pub fn residents<'facts>(
    pods: &'facts Pods,
    workloads: &'facts [Option<Workload>],
    needed: &Needed,
    closed_at: Option<Timestamp>,
) -> Vec<Resident<'facts>> {
    pods.iter()
        .zip(workloads)
        .map(|(pod, workload)| Resident {
            pod,
            workload: workload.as_ref(),
            role: needed.role(pod),
            created_after_close: closed_at
                .zip(pod.made_at)
                .is_some_and(|(closed, made)| made > closed + START_GRACE),
        })
        .collect()
}

/// The number of pods that name servers and admission webhooks have at least while others move.
pub const AT_LEAST: usize = 2;

/// Deployments of name servers and admission webhooks with one pod, which get a second pod during the migration. With one place
/// for pods, two pods are no safer than one.
pub fn deployments_to_scale_up(
    residents: &[Resident<'_>],
    workloads: &BTreeMap<Workload, WorkloadFacts>,
    places: usize,
) -> BTreeSet<Workload> {
    residents
        .iter()
        .filter(|_| places >= AT_LEAST)
        .filter(|resident| match resident.role {
            Role::NameServer | Role::Admission => true,
            Role::Coordinator | Role::Any => false,
        })
        .filter_map(|resident| resident.workload)
        .filter(|workload| workload.kind == "Deployment")
        .filter(|workload| workloads.get(workload).is_some_and(|facts| facts.wanted == 1))
        .cloned()
        .collect()
}

/// The number of unready pods of each workload that has any. Pods that were unready before the first pod moved may stay unready.
pub fn count_unready(pods: &Pods, workloads: &[Option<Workload>]) -> BTreeMap<Workload, usize> {
    let mut unready: BTreeMap<Workload, usize> = BTreeMap::new();
    for (pod, workload) in pods.iter().zip(workloads) {
        if let Some(workload) = workload
            && pod.uses_pod_network()
            && pod.deleted_at.is_none()
            && !pod.ready
        {
            *unready.entry(workload.clone()).or_default() += 1;
        }
    }
    unready
}

/// Workloads that existed when the migration started: no pod waits for a workload that was created later.
pub fn health(
    workloads: &BTreeMap<Workload, WorkloadFacts>,
    unready: &BTreeMap<Workload, usize>,
    started_at: Timestamp,
) -> BTreeMap<Workload, Health> {
    workloads
        .iter()
        .filter(|(_, facts)| facts.made_at.is_none_or(|made| made <= started_at))
        .map(|(workload, facts)| {
            let health = Health {
                wanted: facts.wanted,
                unready_before_start: unready.get(workload).copied().unwrap_or_default(),
                at_once: facts.at_once,
                stalled: false,
            };
            (workload.clone(), health)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn pod(kind: &str, owner: &str, hash: Option<&str>) -> Pod {
        Pod {
            namespace: "shop".to_owned(),
            name: "web-1".to_owned(),
            controller: Some((kind.to_owned(), owner.to_owned())),
            labels: hash
                .map(|hash| (TEMPLATE_HASH.to_owned(), hash.to_owned()))
                .into_iter()
                .collect(),
            ..Pod::default()
        }
    }

    #[rstest]
    #[case::deployment(pod("ReplicaSet", "web-5d8f", Some("5d8f")), Some("Deployment shop/web"))]
    #[case::replica_set(pod("ReplicaSet", "web", None), Some("ReplicaSet shop/web"))]
    #[case::another_hash(pod("ReplicaSet", "web-5d8f", Some("77")), Some("ReplicaSet shop/web-5d8f"))]
    #[case::daemon_set(pod("DaemonSet", "log", Some("log")), Some("DaemonSet shop/log"))]
    #[case::bare(Pod { controller: None, ..pod("", "", None) }, None)]
    #[case::mirror(Pod { mirror: true, ..pod("Node", "a", None) }, None)]
    fn the_workload_of_a_pod_is_its_controller_or_deployment(
        #[case] pod: Pod,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(
            workload_of(&pod).map(|workload| workload.key()).as_deref(),
            expected
        );
    }

    #[test]
    fn a_name_server_outranks_an_admission_webhook() {
        let key = ("shop".to_owned(), "web-1".to_owned());
        let web = pod("ReplicaSet", "web", None);
        let mut needed = Needed::default();
        assert_eq!(needed.role(&web), Role::Any);
        needed.admission.insert(key.clone());
        assert_eq!(needed.role(&web), Role::Admission);
        needed.name_servers.insert(key);
        assert_eq!(needed.role(&web), Role::NameServer);
    }

    #[test]
    fn a_needed_deployment_with_one_pod_gets_a_second_if_there_is_a_second_place() {
        let web = pod("ReplicaSet", "web-5d8f", Some("5d8f"));
        let key = (web.namespace.clone(), web.name.clone());
        let pods = [web].into();
        let workloads = workloads_of(&pods);
        let web = workloads[0].clone().unwrap();
        let raised = |needed: &Needed, wanted, places| {
            let facts = WorkloadFacts {
                wanted,
                ..WorkloadFacts::default()
            };
            let known = BTreeMap::from([(web.clone(), facts)]);
            let residents = residents(&pods, &workloads, needed, None);
            deployments_to_scale_up(&residents, &known, places).len()
        };
        let needed = Needed {
            admission: BTreeSet::from([key]),
            ..Needed::default()
        };
        assert_eq!(raised(&needed, 1, 2), 1);
        assert_eq!(raised(&Needed::default(), 1, 2), 0);
        assert_eq!(raised(&needed, 1, 1), 0);
        assert_eq!(raised(&needed, 2, 2), 0);
        assert_eq!(raised(&needed, 0, 2), 0);
    }

    /// The pods of a `StatefulSet` are not interchangeable.
    #[test]
    fn only_deployments_get_a_second_pod() {
        let pods = Pods::from([pod("StatefulSet", "db", None)]);
        let workloads = workloads_of(&pods);
        let needed = Needed {
            name_servers: BTreeSet::from([(pods[0].namespace.clone(), pods[0].name.clone())]),
            ..Needed::default()
        };
        let facts = WorkloadFacts {
            wanted: 1,
            ..WorkloadFacts::default()
        };
        let known = BTreeMap::from([(workloads[0].clone().unwrap(), facts)]);
        let residents = residents(&pods, &workloads, &needed, None);
        assert_eq!(deployments_to_scale_up(&residents, &known, 2), BTreeSet::new());
    }

    #[test]
    fn made_since_allows_time_for_pods_that_were_starting() {
        let closed = Timestamp::from_second(1_700_000_000).unwrap();
        let at = |seconds| Pod {
            made_at: Some(closed + SignedDuration::from_secs(seconds)),
            ..pod("ReplicaSet", "web", None)
        };
        let pods = [at(-5), at(60), at(121)].into();
        let workloads = workloads_of(&pods);
        let since = |closed_at| -> Vec<bool> {
            residents(&pods, &workloads, &Needed::default(), closed_at)
                .iter()
                .map(|resident| resident.created_after_close)
                .collect()
        };
        assert_eq!(since(Some(closed)), [false, false, true]);
        assert_eq!(since(None), [false, false, false]);
    }

    #[test]
    fn unready_pods_are_counted_and_newer_workloads_are_ignored() {
        let started = Timestamp::from_second(1_700_000_000).unwrap();
        let pods = [
            pod("StatefulSet", "db", None),
            Pod {
                ready: true,
                ..pod("StatefulSet", "db", None)
            },
        ]
        .into();
        let workloads = workloads_of(&pods);
        let unready = count_unready(&pods, &workloads);
        let db = workloads[0].clone().unwrap();
        let new = Workload {
            name: "new".to_owned(),
            ..db.clone()
        };
        let facts = |made: i64| WorkloadFacts {
            wanted: 2,
            made_at: Some(started + SignedDuration::from_secs(made)),
            ..WorkloadFacts::default()
        };
        let known = BTreeMap::from([(db.clone(), facts(-1)), (new, facts(1))]);
        let health = health(&known, &unready, started);
        assert_eq!(
            health,
            BTreeMap::from([(
                db,
                Health {
                    stalled: false,
                    wanted: 2,
                    unready_before_start: 1,
                    at_once: 0
                }
            )])
        );
    }
}
