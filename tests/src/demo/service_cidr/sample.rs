//! Services of every class, and who asks each of them at both of its addresses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Where the sample lives.
pub const NAMESPACE: &str = "services";
/// Start of the names of those who stand behind the Services.
const ANSWER: &str = "answer-";
/// Who stands behind those that lead to pods of one node alone: a `DaemonSet`. A node without any of their pods answers by a bridge alone.
const EVERYWHERE: &str = "answer-everywhere";
/// The port of both protocols.
pub const PORT: u16 = 7000;
/// After so many seconds more than it answers a pod is ended.
const GRACE: u32 = 10;

/// The smallest node port of the sample.
const FIRST_NODE_PORT: u16 = 31_000;
/// An address outside the cluster (RFC 5737), by which one Service is asked as well.
const EXTERNAL_ADDRESS: &str = "192.0.2.70";

/// How many Services there are. Of every class that a Service may be of there is one at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// More than forty.
    Whole,
    /// So few that the way is a short one.
    Small,
}

impl Size {
    /// So many seconds a pod answers after it was told to end: until then every kube-proxy has learned of it. With the probes of more
    /// than forty Services on two processors one learned after 17 s.
    pub fn lingers(self) -> u32 {
        match self {
            Self::Whole => 25,
            Self::Small => 12,
        }
    }

    /// `terminationGracePeriodSeconds` of such a pod.
    pub fn grace(self) -> u32 {
        self.lingers() + GRACE
    }

    /// Its arguments.
    pub fn serves(self) -> [String; 2] {
        [
            "serve".to_owned(),
            format!("--linger-ms={}", self.lingers() * 1000),
        ]
    }

    /// Deployments that stand behind the Services, each behind some of them. Were all behind the same pods, each start of a pod would
    /// change the endpoints of them all, and kube-controller-manager writes 20 objects a second.
    fn answers(self) -> usize {
        match self {
            Self::Whole => 6,
            Self::Small => 2,
        }
    }

    /// Services of which nothing is special.
    fn plain(self) -> usize {
        match self {
            Self::Whole => 26,
            Self::Small => 2,
        }
    }

    /// Those with node ports.
    fn node_ports(self) -> u16 {
        match self {
            Self::Whole => 5,
            Self::Small => 1,
        }
    }

    /// Those of every other class.
    fn others(self) -> u16 {
        match self {
            Self::Whole => 2,
            Self::Small => 1,
        }
    }
}

/// Namespace, pods that answer, and Services; `api_server` is the endpoint of the one whose endpoints are written by hand.
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
    // Nobody selects pods for it: its endpoints are somebody's own.
    items.push(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "by-hand-1", "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": "by-hand" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": [api_server] }],
        "ports": [{ "name": "https", "port": 6443, "protocol": "TCP" }],
    }));
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// Those who answer, as kubectl names them.
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

/// A Service of this name that leads to the sample's pods; `more` are fields of its spec.
pub fn service(name: &str, more: &Value) -> Value {
    object(name, &to_pods(more))
}

/// The spec of a Service that leads to the sample's pods.
fn to_pods(more: &Value) -> Value {
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
    let of = to_pods;
    let mut all: Vec<(String, Value)> = (0..size.plain())
        .map(|number| (format!("plain-{number}"), of(&json!({}))))
        .collect();
    let at_nodes = |number: u16, policy: &str| {
        let mut spec = of(&json!({ "type": "NodePort", "externalTrafficPolicy": policy }));
        // Of both protocols the same: whoever asks knows one.
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
        all.push((format!("node-port-{number}"), at_nodes(number, "Cluster")));
    }
    all.push((
        "external".to_owned(),
        of(&json!({ "externalIPs": [EXTERNAL_ADDRESS] })),
    ));
    for number in 0..size.others() {
        all.push((
            format!("node-port-local-{number}"),
            with(&at_nodes(10 + number, "Local"), &everywhere),
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
        of(&json!({ "selector": { "app": "nobody" } })),
    ));
    all.push((
        "by-hand".to_owned(),
        json!({ "ports": [{ "name": "https", "port": 443, "targetPort": 6443 }] }),
    ));
    all
}

/// Whether somebody asks this Service and gets an echo.
fn echoes(service: &Value) -> bool {
    let spec = &service["spec"];
    let has_address = spec["clusterIP"]
        .as_str()
        .is_some_and(|address| address != "None");
    let leads_to = spec["selector"]["app"].as_str().unwrap_or_default();
    has_address && leads_to.starts_with(ANSWER) && spec["type"] != "LoadBalancer"
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

/// Addresses that are asked, each with a name.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// As Services have them before, with external addresses, which stay.
    pub old: Vec<String>,
    /// As they will have them.
    pub new: Vec<String>,
    /// Node ports, each at a node's address.
    pub node_ports: Vec<String>,
}

/// Which Services are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Those that answer while their pods start again one by one.
    Throughout,
    /// Those that lead to pods of one node alone, or to some that are not Ready: they are not answered while a pod starts. And node ports:
    /// flannel, which starts again as well, makes the rules anew by which a pod reaches a node's address.
    UntilPodsStartAgain,
}

impl Lasting {
    fn of(service: &Value) -> Self {
        let spec = &service["spec"];
        if spec["internalTrafficPolicy"] == "Local" || spec["publishNotReadyAddresses"] == true {
            Self::UntilPodsStartAgain
        } else {
            Self::Throughout
        }
    }
}

impl Asked {
    /// By what Services have now, and the new range: each gets the same place in it. `nodes` are addresses of Nodes.
    pub fn of(
        services: &BTreeMap<String, Value>,
        range: Ipv4Addr,
        nodes: &[Ipv4Addr],
        lasting: Lasting,
    ) -> Self {
        let mut asked = Self::default();
        let mut nodes = nodes.iter().cycle();
        let of_sample = services
            .iter()
            .filter(|(name, _)| name.starts_with(&format!("{NAMESPACE}/")));
        for (name, service) in of_sample.filter(|(_, service)| echoes(service)) {
            if lasting == Lasting::UntilPodsStartAgain
                && let Some(port) = service["spec"]["ports"][0]["nodePort"].as_u64()
                && let Some(node) = nodes.next()
            {
                asked.node_ports.push(format!("{name}@node={node}:{port}"));
            }
            if Lasting::of(service) != lasting {
                continue;
            }
            let Some(address) = service["spec"]["clusterIP"]
                .as_str()
                .and_then(|text| text.parse::<Ipv4Addr>().ok())
            else {
                continue;
            };
            asked.old.push(format!("{name}={address}:{PORT}"));
            asked
                .new
                .push(format!("{name}={}:{PORT}", at_the_same_place(address, range)));
            if let Some(address) = service["spec"]["externalIPs"][0].as_str() {
                asked.old.push(format!("{name}@external={address}:{PORT}"));
            }
        }
        asked
    }
}

/// Where the address is in another range of 65 536.
pub fn at_the_same_place(address: Ipv4Addr, range: Ipv4Addr) -> Ipv4Addr {
    let [_, _, third, fourth] = address.octets();
    let [first, second, _, _] = range.octets();
    Ipv4Addr::new(first, second, third, fourth)
}

/// Who asks, and whom.
#[derive(Clone, Copy, Debug)]
pub struct Prober<'texts> {
    /// Name of its Deployment.
    pub name: &'texts str,
    /// Whether it is on its node's network.
    pub on_host: bool,
    /// Its image.
    pub image: &'texts str,
    /// Addresses, each with a name: `NAME=ADDRESS:PORT`.
    pub asked: &'texts [String],
    /// A name that is asked for, too.
    pub resolved: &'texts str,
    /// Whom.
    pub name_server: Ipv4Addr,
    /// Milliseconds between two questions.
    pub interval: u64,
}

/// A prober that asks these addresses, and this name server for a name, without pause. They stand in a file: a pod template that said
/// them would be a place that says addresses of Services, and the migration would wait for a person to change it.
pub fn prober(prober: &Prober<'_>) -> Value {
    let Prober {
        name,
        on_host,
        image,
        asked,
        resolved,
        name_server,
        interval,
    } = prober;
    // Some addresses are not there yet: such a flow counts from its first answer on.
    let arguments = json!([
        "probe",
        if *on_host { "--from=host" } else { "--from=pod" },
        "--without-service",
        format!("--interval-ms={interval}"),
        "--settle-ms=86400000",
        format!("--resolve={resolved}"),
        "--also=/asked/also",
        "--resolver=/asked/resolv.conf",
    ]);
    let data = json!({ "also": asked.join("\n"), "resolv.conf": format!("nameserver {name_server}\n") });
    let metadata = json!({ "name": name, "namespace": "traffic" });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "asks": name } },
            "template": {
                "metadata": { "labels": { "asks": name } },
                "spec": {
                    "serviceAccountName": "traffic", "terminationGracePeriodSeconds": 10, "hostNetwork": on_host,
                    "containers": [{
                        "name": "prober", "image": image, "imagePullPolicy": "Never", "args": arguments,
                        // Whoever measures is not to wait for those that are measured.
                        "resources": { "requests": { "cpu": "100m" } },
                        "env": [
                            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                            { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
                        ],
                        "securityContext": { "capabilities": { "add": ["NET_ADMIN"] } },
                        "volumeMounts": [
                            { "name": "reports", "mountPath": "/var/log/traffic" }, { "name": "asked", "mountPath": "/asked" },
                        ],
                    }],
                    "volumes": [
                        { "name": "reports", "hostPath": { "path": "/var/log/traffic", "type": "DirectoryOrCreate" } },
                        { "name": "asked", "configMap": { "name": name } },
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
    fn endpoints_by_hand_are_of_the_lab_that_they_are_in() {
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
    fn there_are_more_than_forty_and_each_class_is_there_in_either_size() {
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
