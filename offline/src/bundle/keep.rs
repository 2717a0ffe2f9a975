//! What a bundle keeps of an object: what checks read. Values that may be secret are removed, and their names are kept.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::container;
use super::texts::{self, REMOVED};

/// Fields of a pod.
const POD: [&str; 22] = [
    "affinity",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "ephemeralContainers",
    "hostNetwork",
    "hostPID",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resources",
    "restartPolicy",
    "schedulingGates",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];
/// Fields of the status of a pod.
const POD_STATUS: [&str; 6] = ["conditions", "hostIP", "phase", "podIP", "podIPs", "startTime"];
/// Sources of volumes whose fields are kept.
const VOLUMES: [&str; 6] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "hostPath",
    "persistentVolumeClaim",
    "projected",
];
/// Fields of the status of a Node.
const NODE_STATUS: [&str; 5] = ["addresses", "allocatable", "capacity", "conditions", "nodeInfo"];

/// Domains of labels and annotations that are no names: of Kubernetes' networks, of owners of objects, and of replumb.
pub const DOMAINS: [&str; 12] = [
    "projectcalico.org",
    "replumb.dev",
    "argoproj.io",
    "helm.sh",
    "fluxcd.io",
    "cattle.io",
    "kops.k8s.io",
    "config.k8s.io",
    "configmanagement.gke.io",
    "k14s.io",
    "cncf.io",
    "coreos.com",
];
/// Names of flannel's annotations, behind any prefix.
const FLANNEL: [&str; 8] = [
    "backend-data",
    "backend-type",
    "backend-v6-data",
    "kube-subnet-manager",
    "public-ip",
    "public-ip-overwrite",
    "public-ipv6",
    "public-ipv6-overwrite",
];

/// Keys of `ConfigMap`s whose texts are kept: of flannel, Calico, kubeadm and name servers.
const KEYS: [&str; 16] = [
    "net-conf.json",
    "cni-conf.json",
    "ClusterConfiguration",
    "Corefile",
    "calico_backend",
    "cni_network_config",
    "etcd_endpoints",
    "etcd_ca",
    "etcd_cert",
    "etcd_key",
    "veth_mtu",
    "typha_service_name",
    "stubDomains",
    "upstreamNameservers",
    "NodeLocal",
    "nodelocaldns",
];
/// Those of them that name files, or hold what is in the file.
const FILES: [&str; 3] = ["etcd_ca", "etcd_cert", "etcd_key"];
/// The kind of the configuration of kube-proxy, which may be under any key.
const KUBE_PROXY: &str = "KubeProxyConfiguration";

/// Keys of `ConfigMap`s that variables or files of containers have: namespace, name, key.
#[derive(Default)]
pub struct References(BTreeSet<(String, String, String)>);

impl References {
    /// The references of these objects.
    pub fn of(objects: &[Value]) -> Self {
        let mut references = Self::default();
        for object in objects {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            for spec in [&object["spec"], &object["spec"]["template"]["spec"]] {
                references.add(namespace, spec);
            }
        }
        references
    }

    fn add(&mut self, namespace: &str, spec: &Value) {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut insert = |map: &Value, key: &Value| {
            self.0.insert((namespace.to_owned(), text(map), text(key)));
        };
        for container in list(&spec["containers"])
            .iter()
            .chain(&list(&spec["initContainers"]))
        {
            for variable in list(&container["env"]) {
                let source = &variable["valueFrom"]["configMapKeyRef"];
                if container::is_kept_variable(&text(&variable["name"])) {
                    insert(&source["name"], &source["key"]);
                }
            }
        }
        for volume in list(&spec["volumes"]) {
            for item in list(&volume["configMap"]["items"]) {
                if KEYS.contains(&text(&item["path"]).as_str()) {
                    insert(&volume["configMap"]["name"], &item["key"]);
                }
            }
        }
    }

    fn has(&self, namespace: &Value, name: &Value, key: &str) -> bool {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.0.contains(&(text(namespace), text(name), key.to_owned()))
    }
}

/// The object without what is not kept; none for one that is a secret.
pub fn object(mut object: Value, references: &References) -> Option<Value> {
    if object["kind"] == "Secret" {
        return None;
    }
    metadata(&mut object["metadata"]);
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    match kind.as_str() {
        "Pod" => {
            pod(&mut object["spec"]);
            retain(&mut object["status"], &POD_STATUS);
            conditions(&mut object["status"]);
        }
        "Node" => {
            retain(&mut object["status"], &NODE_STATUS);
            conditions(&mut object["status"]);
        }
        "ConfigMap" => config_map(&mut object, references),
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
                remove(&mut webhook["clientConfig"], "caBundle");
            }
        }
        _ => {
            if object["spec"]["template"].is_object() {
                metadata(&mut object["spec"]["template"]["metadata"]);
                pod(&mut object["spec"]["template"]["spec"]);
            }
            // Templates of volumes have metadata of their own, and no check reads them.
            remove(&mut object["spec"], "volumeClaimTemplates");
            conditions(&mut object["status"]);
        }
    }
    texts::clean(&mut object);
    drop_empty(&mut object);
    Some(object)
}

/// Keeps the names of annotations, and of managed fields the managers.
fn metadata(metadata: &mut Value) {
    let Value::Object(fields) = metadata else { return };
    for name in ["selfLink", "resourceVersion"] {
        fields.remove(name);
    }
    if let Some(Value::Object(annotations)) = fields.get_mut("annotations") {
        for (key, value) in annotations {
            if !is_kept_annotation(key) {
                *value = json!(REMOVED);
            }
        }
    }
    if let Some(Value::Array(managers)) = fields.get_mut("managedFields") {
        for manager in managers {
            retain(manager, &["manager", "operation", "subresource"]);
        }
    }
}

/// Annotations of tools hold whole manifests: only the names of a release are read.
const RELEASE: [&str; 2] = ["meta.helm.sh/release-name", "meta.helm.sh/release-namespace"];
/// The annotation in which Calico keeps the metadata of an object, with all its annotations.
const CALICO_METADATA: &str = "projectcalico.org/metadata";

fn is_kept_annotation(key: &str) -> bool {
    let (domain, name) = key.split_once('/').unwrap_or(("", key));
    let is_of = |known: &str| domain == known || domain.ends_with(&format!(".{known}"));
    if key == CALICO_METADATA {
        return false;
    }
    FLANNEL.contains(&name)
        || FLANNEL.iter().any(|known| name.ends_with(&format!("-{known}")))
        || RELEASE.contains(&key)
        || is_of("projectcalico.org")
        || is_of("replumb.dev")
}

fn pod(spec: &mut Value) {
    retain(spec, &POD);
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        let containers = spec[kind].as_array_mut().into_iter().flatten();
        containers.for_each(container::keep);
    }
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        let Value::Object(fields) = volume else { continue };
        for (name, source) in fields {
            if name == "secret" {
                retain(source, &["secretName", "optional"]);
            } else if name != "name" && !VOLUMES.contains(&name.as_str()) {
                *source = json!({});
            }
        }
    }
}

/// Keeps types, states and times of conditions.
fn conditions(status: &mut Value) {
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        retain(condition, &["type", "status", "reason", "lastTransitionTime"]);
    }
}

fn config_map(object: &mut Value, references: &References) {
    remove(object, "binaryData");
    let metadata = object["metadata"].clone();
    let Some(data) = object["data"].as_object_mut() else {
        return;
    };
    for (key, text) in data {
        let is_kept = KEYS.contains(&key.as_str())
            || container::is_kept_variable(key)
            || references.has(&metadata["namespace"], &metadata["name"], key)
            || text.as_str().is_some_and(|text| text.contains(KUBE_PROXY));
        let is_file =
            !FILES.contains(&key.as_str()) || text.as_str().is_some_and(|text| text.starts_with('/'));
        if !is_kept || !is_file {
            *text = json!(REMOVED);
        } else if key == "Corefile" {
            *text = json!(texts::cleaned_corefile(text.as_str().unwrap_or_default()));
        }
    }
}

fn retain(value: &mut Value, names: &[&str]) {
    if let Value::Object(fields) = value {
        fields.retain(|name, _| names.contains(&name.as_str()));
    }
}

/// Removes a field.
pub fn remove(value: &mut Value, name: &str) {
    if let Value::Object(fields) = value {
        fields.remove(name);
    }
}

/// Indexing a value by a name adds the name: such fields are null.
fn drop_empty(object: &mut Value) {
    let drop = |fields: &mut Map<String, Value>| fields.retain(|_, field| !field.is_null());
    if let Value::Object(fields) = object {
        drop(fields);
        for name in ["spec", "status"] {
            if let Some(Value::Object(fields)) = fields.get_mut(name) {
                drop(fields);
            }
        }
    }
}
