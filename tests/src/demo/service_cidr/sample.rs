//! Services of every class, and the probers of each Service at its old and its new address.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Namespace of the sample.
pub const NAMESPACE: &str = "services";
/// The label of a prober's pods.
pub const PROBER_LABEL: &str = "prober";
/// Prefix of the names of the workloads behind the Services.
const ANSWER: &str = "answer-";
/// The `DaemonSet` behind the Services with a `Local` traffic policy: on a node without a pod of it only a bridge would answer.
const EVERYWHERE: &str = "answer-everywhere";
/// The port of both protocols.
pub const PORT: u16 = 7000;
/// Seconds between a pod's last answer and its SIGKILL.
const GRACE: u32 = 10;

/// The smallest node port of the sample.
const FIRST_NODE_PORT: u16 = 31_000;
/// An address outside the cluster (RFC 5737), the external address of one Service.
const EXTERNAL_ADDRESS: &str = "192.0.2.70";

/// The number of Services. Every class of Services has at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// More than forty Services.
    Whole,
    /// Few Services, for a short migration.
    Small,
}

impl Size {
    /// Seconds for which a pod answers after its SIGTERM. Meanwhile every kube-proxy removes the pod from its rules: with the
    /// probes of more than forty Services on two processors one kube-proxy needed 17 s.
    pub fn drain_seconds(self) -> u32 {
        match self {
            Self::Whole => 25,
            Self::Small => 12,
        }
    }

    /// `terminationGracePeriodSeconds` of such a pod.
    pub fn grace(self) -> u32 {
        self.drain_seconds() + GRACE
    }

    /// Arguments of such a pod.
    pub fn serves(self) -> [String; 2] {
        [
            "serve".to_owned(),
            format!("--linger-ms={}", self.drain_seconds() * 1000),
        ]
    }

    /// Number of Deployments behind the Services, each behind some of them. If the same pods were behind all Services, each start
    /// of a pod would change the endpoints of all of them, and kube-controller-manager writes only 20 objects a second.
    fn answers(self) -> usize {
        match self {
            Self::Whole => 6,
            Self::Small => 2,
        }
    }

    /// Number of Services without special fields.
    fn plain(self) -> usize {
        match self {
            Self::Whole => 26,
            Self::Small => 2,
        }
    }

    /// Number of Services with node ports.
    fn node_ports(self) -> u16 {
        match self {
            Self::Whole => 5,
            Self::Small => 1,
        }
    }

    /// Number of Services of each other class.
    fn others(self) -> u16 {
        match self {
            Self::Whole => 2,
            Self::Small => 1,
        }
    }
}

/// The namespace, the pods that answer, and the Services; `api_server` is the endpoint of the Service without a selector.
pub fn objects(size: Size, image: &str, api_server: Ipv4Addr) -> Value {
    let mut items =
        vec![json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } })];
    items.extend(deployments(size).map(|name| deployment(size, &name, image)));
    items.push(daemon_set(size, EVERYWHERE, image));
    for (place, (name, mut spec)) in services(size).into_iter().enumerate() {
        if spec["selector"]["app"] == answer(0) {
            spec["selector"]["app"] = json!(answer(place % size.answers()));
        }
        items.push(object(&name, &spec));
    }
    // The Service has no selector: its owner writes its endpoints.
    items.push(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "by-hand-1", "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": "by-hand" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": [api_server] }],
        "ports": [{ "name": "https", "port": 6443, "protocol": "TCP" }],
    }));
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// The workloads that answer, as kubectl names them.
pub fn workloads(size: Size) -> impl Iterator<Item = String> {
    let of_deployments = deployments(size).map(|name| format!("deployment/{name}"));
    of_deployments.chain([format!("daemonset/{EVERYWHERE}")])
}

fn deployments(size: Size) -> impl Iterator<Item = String> {
    (0..size.answers()).map(answer)
}

fn answer(place: usize) -> String {
    format!("{ANSWER}{place}")
}

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": { "app.kubernetes.io/part-of": "shop" }, "annotations": { "example.org/owner": "team-a" },
        },
        "spec": spec,
    })
}

/// A Service of this name that selects the sample's pods; `more` are fields of its spec.
pub fn service(name: &str, more: &Value) -> Value {
    object(name, &to_sample(more))
}

/// The spec of a Service that selects the sample's pods.
fn to_sample(more: &Value) -> Value {
    let mut spec = json!({
        "selector": { "app": answer(0) },
        "ports": [
            { "name": "udp", "port": PORT, "protocol": "UDP" }, { "name": "tcp", "port": PORT, "protocol": "TCP" },
        ],
    });
    super::super::merge(&mut spec, more);
    spec
}

fn deployment(size: Size, name: &str, image: &str) -> Value {
    let mut template = template(size, name, image);
    template["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": { "app": name } },
    }]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": name } }, "template": template },
    })
}

fn daemon_set(size: Size, name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "selector": { "matchLabels": { "app": name } }, "template": template(size, name, image) },
    })
}

/// Pods that answer.
fn template(size: Size, name: &str, image: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": size.grace(),
            "containers": [{
                "name": name, "image": image, "imagePullPolicy": "Never", "args": size.serves(),
                "resources": { "requests": { "cpu": "50m" } },
                "securityContext": { "capabilities": { "add": ["NET_ADMIN"] } },
                "env": [{ "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                "readinessProbe": { "tcpSocket": { "port": PORT }, "periodSeconds": 1 },
            }],
        },
    })
}

/// Every Service, by name.
fn services(size: Size) -> Vec<(String, Value)> {
    let of = to_sample;
    let mut all: Vec<(String, Value)> = (0..size.plain())
        .map(|number| (format!("plain-{number}"), of(&json!({}))))
        .collect();
    let node_port = |number: u16, policy: &str| {
        let mut spec = of(&json!({ "type": "NodePort", "externalTrafficPolicy": policy }));
        // The same for both protocols: a prober has one port.
        for port in spec["ports"].as_array_mut().into_iter().flatten() {
            port["nodePort"] = json!(FIRST_NODE_PORT + number);
        }
        spec
    };
    let everywhere = json!({ "selector": { "app": EVERYWHERE } });
    let with = |spec: &Value, more: &Value| {
        let mut spec = spec.clone();
        super::super::merge(&mut spec, more);
        spec
    };
    for number in 0..size.node_ports() {
        all.push((format!("node-port-{number}"), node_port(number, "Cluster")));
    }
    all.push((
        "external".to_owned(),
        of(&json!({ "externalIPs": [EXTERNAL_ADDRESS] })),
    ));
    for number in 0..size.others() {
        all.push((
            format!("node-port-local-{number}"),
            with(&node_port(10 + number, "Local"), &everywhere),
        ));
        let spec = json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 600 } } });
        all.push((format!("sticky-{number}"), of(&spec)));
        all.push((
            format!("balanced-{number}"),
            of(&json!({ "type": "LoadBalancer" })),
        ));
        all.push((format!("headless-{number}"), of(&json!({ "clusterIP": "None" }))));
        let name = format!("plain-{number}.{NAMESPACE}.svc.cluster.local");
        all.push((
            format!("alias-{number}"),
            json!({ "type": "ExternalName", "externalName": name }),
        ));
    }
    all.push((
        "local".to_owned(),
        with(&of(&json!({ "internalTrafficPolicy": "Local" })), &everywhere),
    ));
    all.push((
        "unready".to_owned(),
        of(&json!({ "publishNotReadyAddresses": true })),
    ));
    all.push((
        "without-pods".to_owned(),
        of(&json!({ "selector": { "app": "no-pod" } })),
    ));
    all.push((
        "by-hand".to_owned(),
        json!({ "ports": [{ "name": "https", "port": 443, "targetPort": 6443 }] }),
    ));
    all
}

/// Whether this Service is probed and answers.
fn is_probed(service: &Value) -> bool {
    let spec = &service["spec"];
    let has_address = spec["clusterIP"]
        .as_str()
        .is_some_and(|address| address != "None");
    let app = spec["selector"]["app"].as_str().unwrap_or_default();
    has_address && app.starts_with(ANSWER) && spec["type"] != "LoadBalancer"
}

/// Every Service of the cluster, by `namespace/name`, as it is stored.
pub async fn all(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let text = cluster
        .api()
        .kubectl(&["get", "services", "-A", "-o", "json"])
        .await?;
    let list: Value = serde_json::from_str(&text).context("parse the Services")?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    Ok(items
        .into_iter()
        .map(|service| (service_cidr::assignment::key(&service), service))
        .collect())
}

/// Addresses that are probed, each with a name.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// The addresses of Services before the migration, and external addresses, which do not change.
    pub old: Vec<String>,
    /// The new addresses of the Services.
    pub new: Vec<String>,
    /// Node ports, each at a node's address.
    pub node_ports: Vec<String>,
}

/// The set of Services that a prober probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Services that answer while their pods restart one by one.
    Throughout,
    /// Services with endpoints on one node only, or with endpoints that are not Ready: these do not answer while a pod starts.
    /// Also node ports: flannel restarts too, and then writes the rules for connections from pods to a node's address again.
    UntilRestart,
}

impl Availability {
    fn of(service: &Value) -> Self {
        let spec = &service["spec"];
        if spec["internalTrafficPolicy"] == "Local" || spec["publishNotReadyAddresses"] == true {
            Self::UntilRestart
        } else {
            Self::Throughout
        }
    }
}

impl Targets {
    /// The addresses, from the Services and the target range: each Service gets the same offset in it. `nodes` are addresses of
    /// Nodes.
    pub fn of(
        services: &BTreeMap<String, Value>,
        range: Ipv4Addr,
        nodes: &[Ipv4Addr],
        availability: Availability,
    ) -> Self {
        let mut targets = Self::default();
        let mut nodes = nodes.iter().cycle();
        let of_sample = services
            .iter()
            .filter(|(name, _)| name.starts_with(&format!("{NAMESPACE}/")));
        for (name, service) in of_sample.filter(|(_, service)| is_probed(service)) {
            if availability == Availability::UntilRestart
                && let Some(port) = service["spec"]["ports"][0]["nodePort"].as_u64()
                && let Some(node) = nodes.next()
            {
                targets.node_ports.push(format!("{name}@node={node}:{port}"));
            }
            if Availability::of(service) != availability {
                continue;
            }
            let Some(address) = service["spec"]["clusterIP"]
                .as_str()
                .and_then(|text| text.parse::<Ipv4Addr>().ok())
            else {
                continue;
            };
            targets.old.push(format!("{name}={address}:{PORT}"));
            targets
                .new
                .push(format!("{name}={}:{PORT}", same_offset(address, range)));
            if let Some(address) = service["spec"]["externalIPs"][0].as_str() {
                targets.old.push(format!("{name}@external={address}:{PORT}"));
            }
        }
        targets
    }
}

/// The address at the same offset in another /16 range.
pub fn same_offset(address: Ipv4Addr, range: Ipv4Addr) -> Ipv4Addr {
    let [_, _, third, fourth] = address.octets();
    let [first, second, _, _] = range.octets();
    Ipv4Addr::new(first, second, third, fourth)
}

/// A prober and its targets.
#[derive(Clone, Copy, Debug)]
pub struct Prober<'texts> {
    /// Name of its Deployment.
    pub name: &'texts str,
    /// Whether it is on its node's network.
    pub on_host: bool,
    /// Its image.
    pub image: &'texts str,
    /// Addresses, each with a name: `NAME=ADDRESS:PORT`.
    pub targets: &'texts [String],
    /// A name that it resolves.
    pub resolved: &'texts str,
    /// The name server that it queries.
    pub name_server: Ipv4Addr,
    /// Milliseconds between two probes.
    pub interval: u64,
}

/// A prober that continuously probes these addresses and resolves a name. The addresses are in a file: in a pod template they
/// would be hard-coded addresses of Services, and the migration would wait until the user changes them.
pub fn prober(prober: &Prober<'_>) -> Value {
    let Prober {
        name,
        on_host,
        image,
        targets,
        resolved,
        name_server,
        interval,
    } = prober;
    // Some addresses do not exist yet: such a flow counts from its first answer on.
    let arguments = json!([
        "probe",
        if *on_host { "--from=host" } else { "--from=pod" },
        "--without-service",
        format!("--interval-ms={interval}"),
        "--settle-ms=86400000",
        format!("--resolve={resolved}"),
        "--also=/targets/also",
        "--resolver=/targets/resolv.conf",
    ]);
    let data = json!({ "also": targets.join("\n"), "resolv.conf": format!("nameserver {name_server}\n") });
    let metadata = json!({ "name": name, "namespace": "traffic" });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { PROBER_LABEL: name } },
            "template": {
                "metadata": { "labels": { PROBER_LABEL: name } },
                "spec": {
                    "serviceAccountName": "traffic", "terminationGracePeriodSeconds": 10, "hostNetwork": on_host,
                    "containers": [{
                        "name": "prober", "image": image, "imagePullPolicy": "Never", "args": arguments,
                        // A prober must not wait for a processor because of the pods that it probes.
                        "resources": { "requests": { "cpu": "100m" } },
                        "env": [
                            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                            { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
                        ],
                        "securityContext": { "capabilities": { "add": ["NET_ADMIN"] } },
                        "volumeMounts": [
                            { "name": "reports", "mountPath": "/var/log/traffic" },
                            { "name": "targets", "mountPath": "/targets" },
                        ],
                    }],
                    "volumes": [
                        { "name": "reports", "hostPath": { "path": "/var/log/traffic", "type": "DirectoryOrCreate" } },
                        { "name": "targets", "configMap": { "name": name } },
                    ],
                },
            },
        },
    });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    json!({ "apiVersion": "v1", "kind": "List", "items": [map, deployment] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_without_selector_has_an_endpoint_of_the_lab() {
        let objects = objects(Size::Small, "image", "172.30.7.2".parse().unwrap());
        let items = objects["items"].as_array().unwrap();
        let slice = items
            .iter()
            .find(|object| object["kind"] == "EndpointSlice")
            .unwrap();
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["172.30.7.2"]));
        assert!(!objects.to_string().contains("172.30.0."));
    }

    #[test]
    fn either_size_has_every_class_of_services() {
        assert!(services(Size::Whole).len() >= 44);
        for size in [Size::Whole, Size::Small] {
            let all = services(size);
            let kinds: Vec<&str> = all
                .iter()
                .map(|(_, spec)| spec["type"].as_str().unwrap_or("ClusterIP"))
                .collect();
            for kind in ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"] {
                assert!(kinds.contains(&kind), "{kind}");
            }
        }
    }
}
