//! Pods as verdicts see them: those of the store, and those that have ended since the preview began, because connections are
//! judged with the pods of their time.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use engine::drain;
use jiff::{SignedDuration, Timestamp};
use policy::Pod;
use policy::pod::{Life, Lifetime};

use crate::pod_index::Index;

/// The most pods that are remembered after their end, about 3 MiB. Connections of older ones are unknown.
const REMEMBERED: usize = 10_000;
/// A pod counts from so long before its creation: the clocks of nodes and API server differ.
const CLOCKS: SignedDuration = SignedDuration::from_secs(10);

/// Pods that have ended.
#[derive(Default)]
pub struct EndedPods {
    /// The pods when this was last called.
    before: Option<Arc<Index>>,
    /// The oldest first.
    ended: VecDeque<Pod>,
}

impl EndedPods {
    /// Remembers the pods that have ended since the last call.
    pub fn observe(&mut self, index: &Arc<Index>, now: Timestamp) {
        let Some(before) = self.before.replace(Arc::clone(index)) else {
            return;
        };
        for (node, pods) in before.by_node() {
            let present = index.on(node);
            // The list of a node is shared while nothing changes on it.
            if std::ptr::eq(pods, present) {
                continue;
            }
            for pod in pods.iter().filter(|pod| is_kept(pod)) {
                let place = present.place(&pod.namespace, &pod.name);
                let lives =
                    place.is_ok_and(|place| present[place].uid == pod.uid && is_kept(&present[place]));
                if lives {
                    continue;
                }
                if self.ended.len() >= REMEMBERED {
                    self.ended.pop_front();
                }
                self.ended.push_back(read(pod, Some(now), &mut HashSet::new()));
            }
        }
    }

    /// These pods and those that have ended.
    pub fn with(&self, index: &Index) -> Vec<Pod> {
        let mut names = HashSet::new();
        let present = index.by_node().flat_map(|(_, pods)| pods.iter());
        let present = present.filter(|pod| is_kept(pod));
        let mut all: Vec<Pod> = present.map(|pod| read(pod, None, &mut names)).collect();
        all.extend(self.ended.iter().cloned());
        all
    }
}

/// Whether Calico would have an endpoint for the pod. Others own no address.
fn is_kept(pod: &drain::Pod) -> bool {
    pod.uses_pod_network() && !pod.node.is_empty()
}

fn read(pod: &drain::Pod, until: Option<Timestamp>, names: &mut HashSet<Arc<str>>) -> Pod {
    let mut shared = |name: &str| {
        if let Some(known) = names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = Arc::from(name);
        names.insert(Arc::clone(&name));
        name
    };
    Pod {
        namespace: shared(&pod.namespace),
        workload: shared(workload(pod)),
        node: shared(&pod.node),
        name: Arc::from(pod.name.as_str()),
        labels: pod.labels.clone(),
        ipv4: pod.addresses.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        }),
        ipv6: pod.addresses.iter().find_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        }),
        ports: Arc::clone(&pod.ports),
        life: if pod.deleted_at.is_some() {
            Life::Terminating
        } else {
            Life::Live
        },
        is_host_network: false,
        // The forecast: Calico will have every pod.
        is_enforced: true,
        lifetime: Lifetime {
            since: pod.made_at.and_then(|made_at| made_at.checked_sub(CLOCKS).ok()),
            until,
        },
    }
}

/// The name of the workload as a user knows it: of the Deployment, not of its `ReplicaSet`; of the `CronJob`, not of its Job.
fn workload(pod: &drain::Pod) -> &str {
    let Some((kind, name)) = &pod.controller else {
        return &pod.name;
    };
    let without_end = |is_end: &dyn Fn(&str) -> bool| {
        name.rsplit_once('-')
            .filter(|(start, end)| !start.is_empty() && is_end(end))
            .map_or(name.as_str(), |(start, _)| start)
    };
    match kind.as_str() {
        "ReplicaSet" => without_end(&|end| pod.labels.get("pod-template-hash") == Some(end)),
        // A CronJob names its Jobs by the minute.
        "Job" => without_end(&|end| end.len() >= 8 && end.bytes().all(|digit| digit.is_ascii_digit())),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::lenient::Lenient;
    use crate::pod_index::PodStore;

    fn pod(name: &str, uid: &str, phase: &str, host_network: bool) -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:01:00Z" },
            "spec": { "nodeName": "a", "hostNetwork": host_network, "containers": [] },
            "status": { "phase": phase, "podIP": "10.244.1.5", "podIPs": [{ "ip": "10.244.1.5" }, { "ip": "fd00::5" }] },
        })
    }

    fn index(pods: &[Value]) -> Arc<Index> {
        let pods = pods
            .iter()
            .map(|pod| serde_json::from_value::<Lenient<_>>(pod.clone()).unwrap());
        PodStore::of("replumb-system", pods).index()
    }

    #[test]
    fn pods_without_an_endpoint_are_left_out() {
        let running = pod("web", "1", "Running", false);
        let all = index(&[
            running,
            pod("done", "2", "Succeeded", false),
            pod("host", "3", "Running", true),
        ]);
        let found = EndedPods::default().with(&all);
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].name, &*found[0].node), ("web", "a"));
        assert_eq!(
            (found[0].ipv4, found[0].ipv6),
            ("10.244.1.5".parse().ok(), "fd00::5".parse().ok())
        );
        assert_eq!(
            found[0].lifetime.since,
            Some("2026-01-01T00:00:50Z".parse().unwrap())
        );
    }

    #[rstest]
    #[case::deleted(&[], 1)]
    #[case::finished(&[pod("web", "1", "Failed", false)], 1)]
    #[case::created_again(&[pod("web", "2", "Running", false)], 1)]
    #[case::running(&[pod("web", "1", "Running", false)], 0)]
    fn a_pod_that_ended_is_remembered(#[case] after: &[Value], #[case] ended: usize) {
        let mut pods = EndedPods::default();
        let now = Timestamp::UNIX_EPOCH;
        pods.observe(&index(&[pod("web", "1", "Running", false)]), now);
        let after = index(after);
        pods.observe(&after, now);
        let all = pods.with(&after);
        let found = all.iter().filter(|pod| pod.lifetime.until == Some(now)).count();
        assert_eq!(found, ended);
        // An end is remembered once.
        pods.observe(&after, now);
        assert_eq!(pods.with(&after).len(), all.len());
    }

    #[test]
    fn a_bounded_number_of_pods_is_remembered() {
        let mut pods = EndedPods::default();
        let many: Vec<Value> = (0..REMEMBERED + 5)
            .map(|number| pod(&format!("web-{number}"), &number.to_string(), "Running", false))
            .collect();
        pods.observe(&index(&many), Timestamp::UNIX_EPOCH);
        let none = index(&[]);
        pods.observe(&none, Timestamp::UNIX_EPOCH);
        assert_eq!(pods.with(&none).len(), REMEMBERED);
    }

    #[rstest]
    #[case("ReplicaSet", "web-5d8f7c9b6d", "web")]
    #[case("ReplicaSet", "web-other", "web-other")]
    #[case("Job", "backup-28391020", "backup")]
    #[case("Job", "import-7", "import-7")]
    #[case("StatefulSet", "db", "db")]
    fn workloads_have_the_names_of_their_owners(
        #[case] kind: &str,
        #[case] name: &str,
        #[case] expected: &str,
    ) {
        let pod = drain::Pod {
            controller: Some((kind.to_owned(), name.to_owned())),
            labels: [("pod-template-hash", "5d8f7c9b6d")].into(),
            ..drain::Pod::default()
        };
        assert_eq!(workload(&pod), expected);
    }
}
