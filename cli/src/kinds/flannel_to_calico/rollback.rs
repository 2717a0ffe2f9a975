//! The effect of a rollback, node by node: pods that stay, pods that are evicted, and steps that agents undo on hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ::flannel_to_calico::api::OrEmpty as _;
use api::{NodeMigration, names};
use engine::drain::{self, Pod};
use engine::words::number;
use flannel_to_calico::facts::HostFacts;
use flannel_to_calico::phase::Phase;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;

use crate::age::age;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::table::{table, wrap};

/// Width of the text.
const WIDTH: usize = 110;
/// The largest number of nodes whose pods are listed: a node has up to hundreds of pods, and the API server returns them in full.
const MAX_NODES: usize = 50;
/// The number of concurrent requests.
const CONCURRENT_REQUESTS: usize = 8;

/// Pods of a node whose host is no longer on flannel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    /// Pods of the old network.
    stay: usize,
    /// Pods with an address of the new network.
    evicted: usize,
}

/// Describes the effect on these nodes. Pods change, so they are counted now. If that fails, the numbers of the agents' last
/// reports are shown with their age.
pub async fn describe(cluster: &Cluster, nodes: &[&NodeMigration], all: bool, now: Timestamp) -> String {
    text(nodes, &count(cluster, nodes).await, all, now)
}

/// The pods of each node that is no longer on flannel; the error is why they cannot be counted.
async fn count(cluster: &Cluster, nodes: &[&NodeMigration]) -> Result<BTreeMap<String, Counts>, String> {
    let counted_nodes: Vec<(&str, &HostFacts)> = nodes
        .iter()
        .filter_map(|object| Some((object.spec.node_name.as_str(), facts(object)?)))
        .collect();
    if counted_nodes.len() > MAX_NODES {
        let nodes = number(counted_nodes.len(), "node is", "nodes are");
        return Err(format!(
            "{nodes} no longer on flannel, and pods are counted on at most {MAX_NODES}"
        ));
    }
    futures::stream::iter(counted_nodes)
        .map(|(node, facts)| async move {
            let pods = cluster.pods_on(node).await?;
            Ok((node.to_owned(), counts(node, &pods, facts)))
        })
        .buffer_unordered(CONCURRENT_REQUESTS)
        .try_collect()
        .await
        .map_err(|error: CliError| {
            let way_out = if error.is_forbidden() {
                "; the ClusterRole view allows the request"
            } else {
                ""
            };
            format!("{error}{way_out}")
        })
}

/// The facts of a host that is no longer on flannel; `None` for a host on flannel, on which no pod is evicted, and without a
/// report.
fn facts(object: &NodeMigration) -> Option<&HostFacts> {
    let status = object.status.as_ref()?;
    status
        .flannel_to_calico
        .or_empty()
        .facts
        .as_ref()
        .filter(|_| status.flannel_to_calico.or_empty().phase != Some(Phase::Flannel))
}

/// Counts pods as the coordinator does: a pod is of flannel if the agent reports its address as such.
fn counts(node: &str, pods: &[Pod], facts: &HostFacts) -> Counts {
    let old: BTreeSet<IpAddr> = facts
        .legacy_pods
        .iter()
        .flat_map(|pod| pod.addresses.iter().copied())
        .collect();
    let residents = drain::residents(pods, node);
    let (stay, evicted): (Vec<&Pod>, Vec<&Pod>) = [residents.movable, residents.daemon_set]
        .concat()
        .into_iter()
        .filter(|pod| !pod.addresses.is_empty())
        .partition(|pod| pod.addresses.iter().any(|address| old.contains(address)));
    Counts {
        stay: stay.len(),
        evicted: evicted.len(),
    }
}

/// The time of the agent's last report.
fn reported_at(object: &NodeMigration) -> Option<Timestamp> {
    let entries = object.metadata.managed_fields.iter().flatten();
    entries
        .filter(|entry| {
            entry.manager.as_deref() == Some(names::AGENT_FIELD_MANAGER)
                && entry.subresource.as_deref() == Some("status")
        })
        .filter_map(|entry| Some(entry.time.as_ref()?.0))
        .max()
}

fn text(
    nodes: &[&NodeMigration],
    counted: &Result<BTreeMap<String, Counts>, String>,
    all: bool,
    now: Timestamp,
) -> String {
    let row = |object: &&NodeMigration| {
        let status = object.status.as_ref();
        let phase = status.and_then(|status| status.flannel_to_calico.or_empty().phase);
        let (stay, evicted) = match (phase, facts(object), counted) {
            (Some(Phase::Flannel), _, _) => ("all".to_owned(), "0".to_owned()),
            (_, Some(_), Ok(counted)) => numbers(counted.get(&object.spec.node_name).copied()),
            (_, Some(facts), Err(_)) => numbers(Some(Counts {
                stay: facts.legacy_pods.iter().filter(|pod| pod.attached).count(),
                evicted: facts.calico.pods.len(),
            })),
            (_, None, _) => numbers(None),
        };
        let reported = facts(object).and_then(|_| reported_at(object));
        let reported = reported.map_or_else(|| "-".to_owned(), |at| format!("{} ago", age(at, now)));
        let changes = status.map_or(0, |status| status.flannel_to_calico.or_empty().changes.len());
        let mut cells = vec![
            object.spec.node_name.clone(),
            phase.map_or("-", Phase::as_str).to_owned(),
            stay,
            evicted,
        ];
        cells.extend(counted.is_err().then_some(reported));
        cells.push(changes.to_string());
        cells
    };
    let mut header = vec!["NODE", "PHASE", "PODS STAY", "PODS EVICTED"];
    header.extend(counted.is_err().then_some("REPORTED"));
    header.push("STEPS ON HOST");
    let rows: Vec<Vec<String>> = nodes.iter().map(row).collect();
    let mut text = table(&header, &rows);
    text.push('\n');
    if let Err(why) = counted {
        let old = format!(
            "The numbers of pods are from the agents' last reports (REPORTED) and may be outdated: {why}"
        );
        text.extend(wrap(&old, WIDTH).into_iter().map(|line| line + "\n"));
    }
    text.push_str(
        "Pods of the old network keep running. Pods with an address of the new network are evicted within their \
         PodDisruptionBudgets.\n",
    );
    if all {
        text.push_str(
            "After the last node, all cluster-wide objects are restored, and the node selector is removed from the DaemonSet of \
             the old network (its pods restart).\n",
        );
    }
    text
}

fn numbers(counts: Option<Counts>) -> (String, String) {
    let unknown = || ("unknown".to_owned(), "unknown".to_owned());
    counts.map_or_else(unknown, |counts| {
        (counts.stay.to_string(), counts.evicted.to_string())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture;

    /// A node in this phase, whose agent reported two pods of flannel and one of Calico 9 minutes ago.
    fn node(name: &str, phase: Option<&str>) -> NodeMigration {
        let pod = |last: u8| {
            json!({
                "namespace": "shop", "name": format!("old-{last}"), "sandbox": format!("s{last}"), "link": format!("veth{last}"),
                "addresses": [format!("10.244.1.{last}"), format!("fd00::{last}")], "attached": true, "routed": true,
            })
        };
        let facts = json!({
            "cni": { "path": "/etc/cni/net.d", "files": [] },
            "vxlanDevices": [], "bridge": { "absent": true }, "legacyPods": [pod(10), pod(11)],
            "calico": { "pods": ["cali1"], "records": 1 },
            "directRoutes": [], "reversePathFilter": { "all": 1, "interfaces": {} },
            "subnetEnvironment": { "absent": true }, "flanneldRunning": false, "firewall": [], "leases": 2, "delegates": 0,
            "detectedAddress": null, "uplink": null, "bridgeNfCallIptables": true,
        });
        let entry = |manager: &str, subresource: &str, time: &str| {
            json!({
                "manager": manager, "operation": "Update", "apiVersion": "replumb.dev/v1alpha1", "subresource": subresource,
                "time": time, "fieldsType": "FieldsV1", "fieldsV1": {},
            })
        };
        serde_json::from_value(json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration",
            "metadata": { "name": name, "managedFields": [
                entry("replumb-agent", "status", "2026-03-01T09:56:00Z"),
                entry("replumb-coordinator", "", "2026-03-01T10:04:59Z"),
            ] },
            "spec": { "nodeName": name, "migration": "m" },
            "status": {
                "observedGeneration": 1, "agentVersion": "0.1.0", "message": "",
                "flannelToCalico": {
                    "phase": phase, "facts": phase.map(|_| facts), "changes": ["link vxlan.calico", "conflist"],
                },
            },
        }))
        .unwrap()
    }

    /// Pods of worker-1: two of flannel, 31 with addresses of Calico, and others that are not affected.
    fn pods() -> Value {
        let pod = |name: &str, change: Value| {
            let mut pod = json!({
                "metadata": { "namespace": "shop", "name": name, "uid": name },
                "spec": { "nodeName": "worker-1", "containers": [] },
                "status": { "phase": "Running" },
            });
            for (part, fields) in change.as_object().unwrap() {
                for (key, value) in fields.as_object().unwrap() {
                    pod[part][key] = value.clone();
                }
            }
            pod
        };
        let at = |address: &str| json!({ "podIP": address, "podIPs": [{ "ip": address }] });
        let mut items: Vec<Value> = (0..31)
            .map(|number| {
                pod(
                    &format!("new-{number}"),
                    json!({ "status": at(&format!("10.244.1.{}", 100 + number)) }),
                )
            })
            .collect();
        let traffic =
            json!({ "namespace": "replumb-system", "labels": { "app.kubernetes.io/component": "traffic" } });
        items.extend([
            pod("old-10", json!({ "status": at("10.244.1.10") })),
            pod("old-11", json!({ "status": at("fd00::11") })),
            pod("host", json!({ "spec": { "hostNetwork": true }, "status": at("192.0.2.1") })),
            pod("done", json!({ "status": { "phase": "Succeeded", "podIP": "10.244.1.200" } })),
            pod("waits", json!({ "status": { "phase": "Pending" } })),
            pod(
                "goes",
                json!({ "metadata": { "deletionTimestamp": "2026-03-01T10:04:00Z" }, "status": at("10.244.1.201") }),
            ),
            pod(
                "static",
                json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } }, "status": at("10.244.1.202") }),
            ),
            pod("replumb-traffic-1", json!({ "metadata": traffic, "status": at("10.244.1.203") })),
        ]);
        json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "1" }, "items": items })
    }

    /// A cluster that answers each request with `answer`, and the list of requests.
    fn cluster(code: u16, answer: &Value) -> (Cluster, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&asked);
        let text = answer.to_string();
        let service = tower::service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            let body = Body::from(text.clone().into_bytes());
            let answer = Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        (
            Cluster::of_snapshot(
                Client::new(service, "default"),
                "cluster.yaml",
                offline::snapshot::Snapshot::default(),
            ),
            asked,
        )
    }

    fn forbidden() -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": "pods is forbidden: User \"olga\" cannot list resource \"pods\"",
        })
    }

    /// The cells of a node's row.
    fn row<'text>(text: &'text str, node: &str) -> Vec<&'text str> {
        let line = text.lines().find(|line| line.starts_with(node)).unwrap();
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    }

    #[tokio::test]
    async fn current_pods_are_counted_instead_of_reported_ones() {
        let (cluster, asked) = cluster(200, &pods());
        let node = node("worker-1", Some("Mixed"));
        let text = describe(&cluster, &[&node], false, fixture::now()).await;
        assert_eq!(row(&text, "worker-1"), ["worker-1", "Mixed", "2", "31", "2"]);
        assert!(!text.contains("REPORTED"), "{text}");
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 1, "{asked:?}");
        // From the cache of the API server, by its index of nodes.
        for part in [
            "/api/v1/pods?",
            "fieldSelector=spec.nodeName%3Dworker-1",
            "resourceVersion=0",
        ] {
            assert!(asked[0].contains(part), "{asked:?}");
        }
    }

    #[tokio::test]
    async fn without_the_right_to_list_pods_reported_numbers_have_their_age() {
        let (cluster, _) = cluster(403, &forbidden());
        let node = node("worker-1", Some("Mixed"));
        let text = describe(&cluster, &[&node], false, fixture::now()).await;
        assert_eq!(row(&text, "NODE")[4], "REPORTED");
        assert_eq!(
            row(&text, "worker-1"),
            ["worker-1", "Mixed", "2", "1", "9m0s ago", "2"]
        );
        let words = text.replace('\n', " ");
        for part in [
            "may be outdated",
            "cannot list resource",
            "the ClusterRole view allows the request",
        ] {
            assert!(words.contains(part), "{text}");
        }
    }

    #[tokio::test]
    async fn pods_of_a_large_cluster_are_not_listed() {
        let (cluster, asked) = cluster(200, &pods());
        let names: Vec<String> = (0..=MAX_NODES)
            .map(|number| format!("worker-{number:03}"))
            .collect();
        let nodes: Vec<NodeMigration> = names.iter().map(|name| node(name, Some("Calico"))).collect();
        let nodes: Vec<&NodeMigration> = nodes.iter().collect();
        let text = describe(&cluster, &nodes, true, fixture::now()).await;
        assert_eq!(*asked.lock().unwrap(), [""; 0]);
        assert_eq!(
            row(&text, "worker-007"),
            ["worker-007", "Calico", "2", "1", "9m0s ago", "2"]
        );
        let words = text.replace('\n', " ");
        assert!(
            words.contains("51 nodes are no longer on flannel, and pods are counted on at most 50"),
            "{text}"
        );
        assert!(words.contains("After the last node"), "{text}");
    }

    /// Pods are not listed on nodes where nothing is evicted, however many there are.
    #[tokio::test]
    async fn on_flannel_no_pod_is_evicted_and_without_a_report_the_number_is_unknown() {
        let (cluster, asked) = cluster(403, &forbidden());
        let (flannel, silent) = (node("worker-1", Some("Flannel")), node("worker-2", None));
        let mut nodes = vec![&silent];
        nodes.resize(MAX_NODES + 9, &flannel);
        let text = describe(&cluster, &nodes, true, fixture::now()).await;
        assert_eq!(row(&text, "worker-1"), ["worker-1", "Flannel", "all", "0", "2"]);
        assert_eq!(
            row(&text, "worker-2"),
            ["worker-2", "-", "unknown", "unknown", "2"]
        );
        assert_eq!(*asked.lock().unwrap(), [""; 0]);
    }
}
