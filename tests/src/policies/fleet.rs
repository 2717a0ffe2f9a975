//! The pods that are measured, in four namespaces on all nodes, and the Services in front of some of them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Images};

/// Time until every pod runs.
const LIMIT: Duration = Duration::from_mins(3);
/// The ports of every pod.
pub const TCP: [u16; 2] = [8080, 8081];
pub const UDP: u16 = 9000;
/// The port of Felix for VXLAN, at which pods answer, too.
pub const VXLAN: u16 = 4789;
/// Addresses of load balancers, with their Services: no machine has them.
const LOAD_BALANCERS: [(&str, &str, Ipv4Addr); 2] = [
    ("shop", "db-0", Ipv4Addr::new(203, 0, 113, 7)),
    ("crm", "web-0", Ipv4Addr::new(203, 0, 113, 8)),
];

type Labels = &'static [(&'static str, &'static str)];

/// Namespaces with their labels. `void` has none but its name.
pub const NAMESPACES: [(&str, Labels); 4] = [
    ("shop", &[("team", "a"), ("env", "prod")]),
    ("crm", &[("team", "b"), ("env", "prod")]),
    ("ops", &[("team", "a"), ("env", "test")]),
    ("void", &[]),
];

/// A port with a name: name, number, protocol.
type NamedPort = (&'static str, u16, &'static str);

const WEB: Labels = &[("app", "web"), ("tier", "front")];
const API: Labels = &[("app", "api"), ("tier", "back")];
const DB: Labels = &[("app", "db"), ("tier", "data")];
/// The same name is another number in another pod.
const HTTP: NamedPort = ("http", 8080, "TCP");
const HTTP_OF_API: NamedPort = ("http", 8081, "TCP");
const FEED: NamedPort = ("feed", UDP, "UDP");

/// A pod: namespace, name, place of its node, labels, ports with names.
struct Member(&'static str, &'static str, usize, Labels, &'static [NamedPort]);

const MEMBERS: [Member; 25] = [
    Member("shop", "web-0", 0, WEB, &[HTTP]),
    Member("shop", "web-1", 1, WEB, &[HTTP]),
    Member("shop", "web-2", 2, WEB, &[HTTP]),
    Member("shop", "api-0", 0, API, &[HTTP_OF_API, FEED]),
    Member("shop", "api-1", 1, API, &[HTTP_OF_API, FEED]),
    Member("shop", "db-0", 2, DB, &[("pg", 8080, "TCP")]),
    Member("shop", "db-1", 0, DB, &[("pg", 8080, "TCP")]),
    Member("crm", "web-0", 1, WEB, &[HTTP]),
    Member("crm", "cli-0", 2, &[("app", "cli")], &[]),
    Member("crm", "cli-1", 0, &[("app", "cli")], &[]),
    Member("crm", "api-0", 2, API, &[HTTP_OF_API]),
    Member(
        "crm",
        "cache-0",
        1,
        &[("app", "cache"), ("tier", "data")],
        &[FEED],
    ),
    Member(
        "ops",
        "monitor-0",
        0,
        &[("app", "monitor"), ("role", "prometheus")],
        &[],
    ),
    Member(
        "ops",
        "monitor-1",
        2,
        &[("app", "monitor"), ("role", "prometheus")],
        &[],
    ),
    Member("ops", "agent-0", 1, &[("app", "agent")], &[]),
    Member("ops", "bare-0", 1, &[], &[]),
    Member("ops", "bare-1", 2, &[], &[]),
    Member("void", "job-0", 0, &[("app", "job")], &[]),
    Member("void", "job-1", 1, &[("app", "job")], &[]),
    Member("void", "job-2", 2, &[("app", "job")], &[]),
    Member("void", "web-0", 2, WEB, &[]),
    Member("void", "db-0", 1, DB, &[("pg", 8081, "TCP")]),
    // In the network of their hosts, with labels and a port that policies name.
    Member("ops", "host-0", 0, WEB, &[HTTP]),
    Member("ops", "host-1", 1, WEB, &[HTTP]),
    Member("ops", "host-2", 2, WEB, &[HTTP]),
];

impl Member {
    fn is_on_host(&self) -> bool {
        self.1.starts_with("host-")
    }

    fn manifest(&self, node: &str, address: &str) -> Value {
        let Self(namespace, name, _, labels, ports) = self;
        let mut arguments = vec![
            "answer".to_owned(),
            format!("--address={address}"),
            format!("--name={namespace}/{name}"),
            format!("--udp={UDP}"),
        ];
        arguments.extend(TCP.map(|port| format!("--tcp={port}")));
        // The host has its own VXLAN there.
        if !self.is_on_host() {
            arguments.push(format!("--udp={VXLAN}"));
        }
        let image = Images::default().traffic;
        let container = |name: &str, ports: &[NamedPort]| {
            let ports = ports.iter().map(
                |(name, port, protocol)| json!({ "name": name, "containerPort": port, "protocol": protocol }),
            );
            json!({
                "name": name, "image": image, "imagePullPolicy": "Never", "ports": ports.collect::<Vec<_>>(),
                "resources": { "requests": { "cpu": "5m", "memory": "4Mi" } },
            })
        };
        let mut main = container("answer", ports);
        main["args"] = json!(arguments);
        let mut labels: Map = labels.iter().copied().collect();
        if services().iter().any(|service| {
            (
                text(&service["metadata"]["namespace"]),
                text(&service["metadata"]["name"]),
            ) == (*namespace, *name)
        }) {
            labels.insert(SERVED, name);
        }
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": {
                "nodeName": node, "hostNetwork": self.is_on_host(), "terminationGracePeriodSeconds": 1,
                "enableServiceLinks": false, "tolerations": [{ "operator": "Exists" }], "containers": [main],
            },
        });
        if (*namespace, *name) == SIDECAR {
            let mut sidecar = container("side", &[("side", 8080, "TCP")]);
            sidecar["restartPolicy"] = json!("Always");
            sidecar["args"] = json!(["pause"]);
            pod["spec"]["initContainers"] = json!([sidecar]);
        }
        pod
    }
}

type Map = std::collections::BTreeMap<&'static str, &'static str>;

/// The pod of which an init container declares port `side`.
const SIDECAR: (&str, &str) = ("void", "db-0");

/// The label that a Service selects: each has one pod, of its own name.
const SERVED: &str = "served";

/// The Services.
fn services() -> Vec<Value> {
    let service = |namespace: &str, pod: &str, spec: Value| {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": pod, "namespace": namespace },
            "spec": { "ipFamilyPolicy": "PreferDualStack", "selector": { SERVED: pod } },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            service["spec"][key] = value.clone();
        }
        service
    };
    let port = |port: u16, target: Value, protocol: &str| json!({ "name": format!("{}-{port}", protocol.to_lowercase()), "port": port, "targetPort": target, "protocol": protocol });
    vec![
        service(
            "shop",
            "web-0",
            json!({ "type": "NodePort", "ports": [port(80, "http".into(), "TCP")] }),
        ),
        service(
            "crm",
            "web-0",
            json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [port(80, 8080.into(), "TCP")] }),
        ),
        service(
            "shop",
            "db-0",
            json!({ "type": "LoadBalancer", "ports": [port(5432, "pg".into(), "TCP"), port(53, UDP.into(), "UDP")] }),
        ),
        service(
            "crm",
            "api-0",
            json!({ "ports": [port(80, "http".into(), "TCP")] }),
        ),
        service(
            "ops",
            "host-1",
            json!({ "ports": [port(80, 8080.into(), "TCP")] }),
        ),
    ]
}

/// A Service with its pod.
#[derive(Clone, Debug)]
pub struct OfPod {
    /// The Service.
    pub service: Service,
    /// `namespace/name` of the pod.
    pub pod: String,
}

/// Creates namespaces, pods and Services, and waits until every pod runs.
pub async fn create(cluster: &Cluster, address: &str) -> Result<()> {
    let nodes = cluster.node_names().await;
    ensure!(
        nodes.len() >= 3,
        "nodes: found {}, needed 3 or more: pods on the same and on other nodes are compared",
        nodes.len()
    );
    let mut items: Vec<Value> = NAMESPACES
        .iter()
        .map(|(name, labels)| {
            let labels: Map = labels.iter().copied().collect();
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
        })
        .collect();
    items.extend(services());
    apply(cluster, items).await?;
    for (name, _) in NAMESPACES {
        cluster.api().admits_pods(name, LIMIT).await?;
    }
    let pods = MEMBERS
        .iter()
        .map(|member| member.manifest(&nodes[member.2], address));
    apply(cluster, pods.collect()).await?;
    for (namespace, name, address) in LOAD_BALANCERS {
        let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": address }] } } }).to_string();
        let patch = ["--subresource=status", "--type=merge", "-p", &status];
        let service = ["-n", namespace, "patch", "service", name];
        cluster.api().kubectl(&[&service[..], &patch].concat()).await?;
    }
    let names = NAMESPACES.map(|(name, _)| name);
    cluster.api().pods_ready(&names, LIMIT).await
}

async fn apply(cluster: &Cluster, items: Vec<Value>) -> Result<()> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    cluster.api().apply(&list.to_string()).await
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The pods that are measured, as the API has them.
pub async fn pods(cluster: &Cluster) -> Result<Vec<Pod>> {
    let mut found = Vec::new();
    for (namespace, _) in NAMESPACES {
        let api: Api<Pod> = Api::namespaced(cluster.api().client(), namespace);
        let list = api.list(&ListParams::default()).await;
        found.extend(
            list.with_context(|| format!("list the pods of {namespace}"))?
                .items,
        );
    }
    ensure!(
        found.len() == MEMBERS.len(),
        "measured pods: found {}, needed {}",
        found.len(),
        MEMBERS.len()
    );
    Ok(found)
}

/// The Services, as the API has them.
pub async fn read_services(cluster: &Cluster) -> Result<Vec<OfPod>> {
    let mut found = Vec::new();
    for service in services() {
        let (namespace, name) = (
            text(&service["metadata"]["namespace"]),
            text(&service["metadata"]["name"]),
        );
        let api: Api<Service> = Api::namespaced(cluster.api().client(), namespace);
        let service = api
            .get(name)
            .await
            .with_context(|| format!("read Service {namespace}/{name}"))?;
        found.push(OfPod {
            pod: format!("{namespace}/{name}"),
            service,
        });
    }
    Ok(found)
}

/// `namespace/name`.
pub fn name_of(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// The addresses of a pod.
pub fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let ips = pod
        .status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten());
    ips.filter_map(|ip| ip.ip.parse().ok()).collect()
}

/// Whether this is the address of a load balancer.
pub fn is_of_load_balancer(address: IpAddr) -> bool {
    LOAD_BALANCERS.iter().any(|(.., known)| *known == address)
}

/// Whether the pod is in the network of its host.
pub fn is_on_host(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_enough_pods_for_400_pairs_on_every_node() {
        let on_pod_network = MEMBERS.iter().filter(|member| !member.is_on_host()).count();
        assert!(on_pod_network * (on_pod_network - 1) >= 400);
        let nodes: BTreeSet<usize> = MEMBERS.iter().map(|member| member.2).collect();
        assert_eq!(nodes, BTreeSet::from([0, 1, 2]));
        let names: BTreeSet<(&str, &str)> = MEMBERS.iter().map(|member| (member.0, member.1)).collect();
        assert_eq!(names.len(), MEMBERS.len());
        assert!(names.contains(&SIDECAR));
    }

    #[test]
    fn each_service_has_the_name_of_its_pod() {
        for service in services() {
            let (namespace, name) = (
                text(&service["metadata"]["namespace"]),
                text(&service["metadata"]["name"]),
            );
            assert!(
                MEMBERS
                    .iter()
                    .any(|member| (member.0, member.1) == (namespace, name)),
                "{service}"
            );
        }
    }
}
