//! Objects of ordinary clusters: a kubelet's status of its node, and pods of two containers with probes and fourteen
//! variables each.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::size::{Kind, Place, PodShape};
use crate::store::now;

/// Number of namespaces.
pub const NAMESPACES: u32 = 20;
/// Number of pods of a workload.
pub const REPLICAS: u32 = 15;
/// Number of images that a kubelet reports.
const IMAGES: u32 = 50;
/// Number of variables of a container.
const VARIABLES: u32 = 14;
/// The digest and the container ID in every status.
const IMAGE_ID: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
const CONTAINER_ID: &str = "containerd://486ea46224d1bb4fb680f34f7c9ad96a8f24ec88be73ea8e5a6c65260e9cb8a7";

/// A workload of one `ReplicaSet` by its number. The `ReplicaSet` belongs to no Deployment, and its pods have no template hash.
#[derive(Clone, Copy, Debug)]
pub struct Workload(pub u32);

impl Workload {
    /// The name.
    pub fn name(self) -> String {
        format!("service-{:05}-7d4b9c6f8d", self.0)
    }

    /// The namespace.
    pub fn namespace(self) -> String {
        namespace(self.0)
    }

    fn labels(self) -> Value {
        json!({
            "app.kubernetes.io/name": format!("service-{:05}", self.0),
            "app.kubernetes.io/instance": format!("service-{:05}-production", self.0),
            "app.kubernetes.io/version": "2026.11.3",
            "app.kubernetes.io/managed-by": "Helm",
            "team": format!("team-{:02}", self.0 % NAMESPACES),
        })
    }

    fn selector(self) -> Value {
        json!({ "app.kubernetes.io/instance": format!("service-{:05}-production", self.0) })
    }

    /// The `ReplicaSet`.
    pub fn replica_set(self, replicas: u32, shape: PodShape) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": self.name(), "namespace": self.namespace(), "labels": self.labels()},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": self.selector()},
                "template": {"metadata": {"labels": self.labels(), "annotations": annotations()}, "spec": self.pod_spec(shape)},
            },
        })
    }

    /// The name of one of its pods.
    pub fn pod_name(self, number: u32) -> String {
        format!("{}-{number:05}", self.name())
    }

    /// One of its pods, bound to a node already.
    pub fn pod(self, owner: &str, number: u32, node: &str, shape: PodShape) -> Value {
        let mut spec = self.pod_spec(shape);
        spec["nodeName"] = json!(node);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": self.pod_name(number), "namespace": self.namespace(),
                "labels": self.labels(), "annotations": annotations(),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.name(), "uid": owner,
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": spec,
        })
    }

    /// A budget that lets a third of the pods be evicted.
    pub fn budget(self) -> Value {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": self.name(), "namespace": self.namespace()},
            "spec": {"maxUnavailable": "34%", "selector": {"matchLabels": self.selector()}},
        })
    }

    fn pod_spec(self, shape: PodShape) -> Value {
        match shape {
            PodShape::Ordinary => self.ordinary_spec(),
            PodShape::Small => json!({
                "containers": [{"name": "server", "image": format!("registry.example.com/service-{:05}:1", self.0)}],
                "priority": 0,
                "automountServiceAccountToken": false,
            }),
        }
    }

    fn ordinary_spec(self) -> Value {
        json!({
            "containers": [self.container("server", 8080), self.container("sidecar", 15021)],
            "priority": 0,
            "terminationGracePeriodSeconds": 30,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 10_001, "fsGroup": 10_001},
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "services", "effect": "NoSchedule"}],
            "volumes": [
                {"name": "configuration", "configMap": {"name": format!("service-{:05}", self.0), "optional": true}},
                {"name": "certificates", "secret": {"secretName": format!("service-{:05}-tls", self.0), "optional": true}},
            ],
        })
    }

    fn container(self, name: &str, port: u16) -> Value {
        let variables: Vec<Value> = (0..VARIABLES)
            .map(|number| {
                json!({
                    "name": format!("{}_SETTING_{number:02}", name.to_uppercase()),
                    "value": format!("https://backend-{number:02}.svc.cluster.local:8443"),
                })
            })
            .collect();
        let probe = |path: &str| json!({"httpGet": {"path": path, "port": port}, "periodSeconds": 10, "failureThreshold": 3});
        json!({
            "name": name,
            "image": format!("registry.example.com/platform/service-{:05}/{name}:2026.11.3", self.0),
            "imagePullPolicy": "IfNotPresent",
            "args": ["--config=/etc/service/config.yaml", "--log-format=json", "--log-level=info"],
            "env": variables,
            "ports": [{"name": format!("http-{name}"), "containerPort": port}],
            "livenessProbe": probe("/healthz"), "readinessProbe": probe("/readyz"), "startupProbe": probe("/startupz"),
            "resources": {"requests": {"cpu": "25m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                {"name": "configuration", "mountPath": "/etc/service", "readOnly": true},
                {"name": "certificates", "mountPath": "/etc/tls", "readOnly": true},
            ],
        })
    }
}

fn annotations() -> Value {
    json!({
        "prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics",
        "checksum/config": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    })
}

/// A kubelet's status of a running pod, as in kwok's stage.
pub fn running(spec: &Value, place: Place, address: Ipv4Addr) -> Value {
    let now = now();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let containers = spec["containers"].as_array().into_iter().flatten();
    let containers: Vec<Value> = containers
        .map(|container| {
            let image = container["image"].as_str().unwrap_or_default();
            json!({
                "name": container["name"], "image": image, "imageID": format!("{image}@sha256:{IMAGE_ID}"),
                "containerID": CONTAINER_ID, "ready": true, "started": true, "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            })
        })
        .collect();
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    let conditions = conditions.map(condition);
    json!({
        "phase": "Running", "startTime": now, "conditions": conditions,
        "containerStatuses": containers,
        "hostIP": place.host(), "hostIPs": [{"ip": place.host()}],
        "podIP": address, "podIPs": [{"ip": address}],
    })
}

/// The namespace of the object with this number.
pub fn namespace(number: u32) -> String {
    format!("team-{:02}", number % NAMESPACES)
}

/// A Service by its number, for one of this number of workloads.
pub fn service(number: u32, workloads: u32) -> Value {
    let workload = Workload(number % workloads.max(1));
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("service-{number:05}"), "namespace": workload.namespace(), "labels": workload.labels()},
        "spec": {
            "selector": workload.selector(),
            "ports": [
                {"name": "http", "port": 80, "targetPort": "http-server"},
                {"name": "metrics", "port": 9090, "targetPort": "http-sidecar"},
            ],
        },
    })
}

/// Name of the `ConfigMap` with the kubelets' configuration.
pub const KUBELET_CONFIGURATION: &str = "kubelet-config";

/// A `ConfigMap` for kubelets that give new pods this name server. JSON is YAML.
pub fn kubelet_configuration(name_server: Ipv4Addr) -> Value {
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "clusterDNS": [name_server], "clusterDomain": "cluster.local",
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": KUBELET_CONFIGURATION, "namespace": "kube-system"},
        "data": {"kubelet": configuration.to_string()},
    })
}

/// The API server behind Service `default/kubernetes`. The API accepts no loopback address as an endpoint, but
/// accepts it as a name, which the coordinator parses as an address.
pub fn api_server(port: u16) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "FQDN",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}

/// A pod that ends soon: a run of this Job.
pub fn run_of(job: &str, owner: &str, number: u64) -> Value {
    let mut spec = Workload(0).pod_spec(PodShape::Ordinary);
    spec["restartPolicy"] = json!("Never");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("{job}-{number:08}"), "namespace": namespace(0),
            "labels": {"batch.kubernetes.io/job-name": job},
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": owner,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    })
}

/// The Job of those pods. No Job controller runs.
pub fn job(name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": namespace(0)},
        "spec": {
            "suspend": true,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "run", "image": "registry.example.com/run:1"}]}},
        },
    })
}

fn node_annotations(place: Place, kind: Kind) -> Value {
    let mut annotations = json!({
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    });
    let host = place.host();
    let networks = match kind {
        Kind::FlannelToCalico | Kind::ServiceCidr => json!({
            "flannel.alpha.coreos.com/backend-type": "vxlan",
            "flannel.alpha.coreos.com/backend-data": format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, place.mac()),
            "flannel.alpha.coreos.com/kube-subnet-manager": "true",
            "flannel.alpha.coreos.com/public-ip": host.to_string(),
        }),
        Kind::PodCidr => json!({
            "projectcalico.org/IPv4Address": format!("{host}/16"),
            "projectcalico.org/IPv4VXLANTunnelMACAddr": place.mac(),
        }),
    };
    for (key, value) in networks.as_object().into_iter().flatten() {
        annotations[key] = value.clone();
    }
    annotations
}

/// A Node as registered by its kubelet, with the annotations of its pod network.
pub fn node(place: Place, kind: Kind) -> Value {
    let name = place.name();
    let range = place.pods().to_string();
    let images: Vec<Value> = (0..IMAGES)
        .map(|number| {
            json!({
                "names": [
                    format!("registry.example.com/platform/service-{number:05}@sha256:{:064x}", number + 1),
                    format!("registry.example.com/platform/service-{number:05}:2026.11.3"),
                ],
                "sizeBytes": 48_000_000 + u64::from(number),
            })
        })
        .collect();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": format!("kubelet: {reason}"),
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "m6i.4xlarge",
                "topology.kubernetes.io/region": "eu-central-1",
                "topology.kubernetes.io/zone": format!("eu-central-1{}", ['a', 'b', 'c'][place.0 as usize % 3]),
            },
            "annotations": node_annotations(place, kind),
        },
        "spec": {"podCIDR": range, "podCIDRs": [range], "providerID": format!("aws:///eu-central-1a/i-{:017x}", place.0)},
        "status": {
            "phase": "Running",
            "addresses": [
                {"type": "InternalIP", "address": place.host().to_string()},
                {"type": "Hostname", "address": name},
            ],
            "allocatable": room, "capacity": room,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10_250}},
            "images": images,
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "Debian GNU/Linux 13",
                "kernelVersion": "6.12.0", "containerRuntimeVersion": "containerd://2.4.2",
                "kubeletVersion": "v1.36.3", "kubeProxyVersion": "", "bootID": "", "machineID": "", "systemUUID": "",
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_ordinary_size() {
        let pod = Workload(7).pod("1", 3, "node", PodShape::Ordinary);
        let containers = pod["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 2);
        for container in containers {
            assert_eq!(container["env"].as_array().unwrap().len(), 14);
            assert!(container["readinessProbe"].is_object() && container["livenessProbe"].is_object());
        }
        let bytes = pod.to_string().len();
        assert!(
            (5_000..8_000).contains(&bytes),
            "before status and managedFields: {bytes}"
        );
    }

    #[test]
    fn a_service_selects_the_pods_of_its_workload() {
        let service = service(23, 20);
        let pod = Workload(3).pod("1", 0, "node", PodShape::Ordinary);
        let (key, value) = service["spec"]["selector"]
            .as_object()
            .unwrap()
            .iter()
            .next()
            .unwrap();
        assert_eq!(&pod["metadata"]["labels"][key], value);
        assert_eq!(service["metadata"]["namespace"], pod["metadata"]["namespace"]);
    }
}
