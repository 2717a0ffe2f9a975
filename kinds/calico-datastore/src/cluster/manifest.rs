//! The manifest that Calico ships for v3, taken apart: what this migration writes, and what has to be there before.

use std::collections::BTreeSet;

use serde_json::Value;

use calico::NODE_CONTAINER;
use calico::etcd_access::{self, ConfigMaps, Etcd};

/// Labels by which kops marks what it applies.
pub const KOPS: [&str; 2] = ["role.kubernetes.io/networking", "k8s-addon"];
/// The Deployment of Calico's controllers.
pub const CONTROLLERS: &str = "calico-kube-controllers";
/// Start of the names of what runs Calico's own upgrade in a cluster, as kops ships it.
const OWN_UPGRADE: &str = "calico-upgrade";
/// The image of it.
const OWN_UPGRADE_IMAGE: &str = "calico/upgrade";

/// An object by what names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// `apiVersion`.
    pub version: String,
    /// `kind`.
    pub kind: String,
    /// Namespace; empty where it has none.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Name {
    /// Of this object.
    pub fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            version: text(&object["apiVersion"]),
            kind: text(&object["kind"]),
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]),
        }
    }

    /// `Kind namespace/name`.
    pub fn words(&self) -> String {
        if self.namespace.is_empty() {
            format!("{} {}", self.kind, self.name)
        } else {
            format!("{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// What is in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// calico-node.
    pub daemon_set: Value,
    /// calico-kube-controllers, if it is in it.
    pub controllers: Option<Value>,
    /// The `ConfigMap` that calico-node takes its environment from, if it is in it.
    pub configuration: Option<Value>,
    /// How calico-node reaches the store.
    pub etcd: Etcd,
    /// Everything else: it has to be in the cluster before, and does no harm there.
    pub others: Vec<Value>,
    /// What this migration does itself, and leaves out: Calico's own upgrade.
    pub left_out: Vec<String>,
}

/// Takes the documents of a manifest apart. An error is every thing that is wrong with it.
pub fn read(documents: &[Value]) -> Result<Manifest, Vec<String>> {
    let mut errors = Vec::new();
    let mut left_out = Vec::new();
    let mut daemon_sets = Vec::new();
    let mut controllers = Vec::new();
    let mut config_maps = Vec::new();
    let mut others = Vec::new();
    for document in flat(documents) {
        let name = Name::of(document);
        if name.kind.is_empty() || name.name.is_empty() {
            errors.push(
                "a document has no kind or no metadata.name: is this a manifest for kubectl apply?"
                    .to_owned(),
            );
            continue;
        }
        if is_own_upgrade(document) {
            left_out.push(name.words());
            continue;
        }
        match name.kind.as_str() {
            "DaemonSet" if has_container(document, NODE_CONTAINER) => daemon_sets.push(document.clone()),
            "Deployment" if name.name == CONTROLLERS => controllers.push(document.clone()),
            "ConfigMap" => config_maps.push(document.clone()),
            "Secret" if has_data(document) => errors.push(format!(
                "{} has data: everybody who may read Migrations could read them. Leave it out, and apply it by itself",
                name.words()
            )),
            _ => others.push(document.clone()),
        }
    }
    let daemon_set = one(daemon_sets, "DaemonSet with a container calico-node", &mut errors);
    let Some(mut daemon_set) = daemon_set else {
        return Err(errors);
    };
    let mut controllers = match controllers.len() {
        0 => None,
        _ => one(controllers, "Deployment calico-kube-controllers", &mut errors),
    };
    for object in std::iter::once(&mut daemon_set).chain(&mut controllers) {
        modes(object);
        if let Some(container) = without_own_upgrade(object) {
            left_out.push(format!(
                "{}, init container {container}",
                Name::of(object).words()
            ));
        }
        if has_own_upgrade(object) {
            errors.push(format!(
                "{} has containers of {OWN_UPGRADE_IMAGE} beside those that start first",
                Name::of(object).words()
            ));
        }
    }
    let namespace = Name::of(&daemon_set).namespace;
    if namespace.is_empty() {
        errors.push(format!(
            "{} has no metadata.namespace",
            Name::of(&daemon_set).words()
        ));
    }
    let used = configuration_of(&daemon_set);
    let (configurations, more): (Vec<Value>, Vec<Value>) = config_maps.into_iter().partition(|map| {
        let name = Name::of(map);
        name.namespace == namespace && used.contains(&name.name)
    });
    others.extend(more);
    let configuration = match configurations.len() {
        0 => None,
        _ => one(
            configurations,
            "ConfigMap that calico-node takes its environment from",
            &mut errors,
        ),
    };
    let texts: ConfigMaps = configuration
        .iter()
        .map(|map| (Name::of(map).name, texts(map)))
        .collect();
    let etcd = etcd_access::of_template(&daemon_set["spec"]["template"], &namespace, &texts)
        .map_err(|problem| format!("{}: {problem}", Name::of(&daemon_set).words()));
    match etcd {
        Ok(etcd) if errors.is_empty() => Ok(Manifest {
            daemon_set,
            controllers,
            configuration,
            etcd,
            others,
            left_out,
        }),
        Ok(_) => Err(errors),
        Err(problem) => {
            errors.push(problem);
            Err(errors)
        }
    }
}

impl Manifest {
    /// The image of calico-node.
    pub fn image(&self) -> String {
        image(&self.daemon_set["spec"]["template"])
    }

    /// Images that are needed while Calico is paused: of calico-node, and of the controllers.
    pub fn images(&self) -> BTreeSet<String> {
        let objects = std::iter::once(&self.daemon_set).chain(&self.controllers);
        let images = objects.map(|object| image(&object["spec"]["template"]));
        images.filter(|image| !image.is_empty()).collect()
    }
}

/// The image of calico-node in a pod template, or of its first container.
pub fn image(template: &Value) -> String {
    let containers = template["spec"]["containers"].as_array();
    let of_node = |container: &&Value| container["name"] == NODE_CONTAINER;
    let containers = || containers.into_iter().flatten();
    let found = containers().find(of_node).or_else(|| containers().next());
    found
        .and_then(|container| container["image"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// The texts of a `ConfigMap`.
pub fn texts(map: &Value) -> std::collections::BTreeMap<String, String> {
    let data = map["data"].as_object();
    data.into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The version in the tag of an image: `3.8` of `calico/node:v3.8.9`; `None` where the tag says none.
pub fn version_of(image: &str) -> Option<(u64, u64)> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    let mut numbers = tag.strip_prefix('v').unwrap_or(tag).split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some((major, minor))
}

/// What an object in the cluster says otherwise than the manifest; `None` when it says all of it. What the manifest does not say does not
/// matter.
pub fn otherwise(wanted: &Value, found: &Value) -> Option<String> {
    let fields = wanted.as_object()?;
    fields
        .iter()
        .filter(|(field, _)| !["apiVersion", "kind", "metadata", "status"].contains(&field.as_str()))
        .find_map(|(field, wanted)| differs(wanted, &found[field], field))
}

fn differs(wanted: &Value, found: &Value, path: &str) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(_)) => wanted
            .iter()
            .find_map(|(field, wanted)| differs(wanted, &found[field], &format!("{path}.{field}"))),
        (Value::Array(wanted), Value::Array(there)) if wanted.len() == there.len() => wanted
            .iter()
            .zip(there)
            .enumerate()
            .find_map(|(place, (wanted, found))| differs(wanted, found, &format!("{path}[{place}]"))),
        // What is empty is left out by who stores it.
        (wanted, Value::Null) if is_empty(wanted) => None,
        (wanted, found) if wanted == found => None,
        (_, _) => Some(format!("{path} is otherwise")),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Files' modes as numbers. kubectl reads `0400` as YAML once did, as an octal number; YAML of today reads a text.
fn modes(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let octal = value
                    .as_str()
                    .filter(|_| ["defaultMode", "mode"].contains(&name.as_str()));
                match octal.and_then(|text| u32::from_str_radix(text, 8).ok()) {
                    Some(mode) => *value = Value::from(mode),
                    None => modes(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(modes),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Objects, those of lists too; empty documents are none.
fn flat(documents: &[Value]) -> Vec<&Value> {
    let mut all = Vec::new();
    for document in documents {
        match document["items"].as_array() {
            Some(items) if document["kind"] == "List" => all.extend(items),
            Some(_) | None if document.is_null() => {}
            Some(_) | None => all.push(document),
        }
    }
    all
}

fn one(mut found: Vec<Value>, what: &str, errors: &mut Vec<String>) -> Option<Value> {
    if found.len() != 1 {
        errors.push(format!("found {} of: {what}; needed one", found.len()));
    }
    found.pop()
}

/// `ConfigMap`s that calico-node takes its environment from.
fn configuration_of(daemon_set: &Value) -> BTreeSet<String> {
    let spec = &daemon_set["spec"]["template"]["spec"];
    let containers = ["initContainers", "containers"]
        .into_iter()
        .filter_map(|field| spec[field].as_array())
        .flatten();
    let variables = containers
        .filter_map(|container| container["env"].as_array())
        .flatten();
    variables
        .filter_map(|variable| variable["valueFrom"]["configMapKeyRef"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}

fn has_container(object: &Value, name: &str) -> bool {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array();
    containers
        .into_iter()
        .flatten()
        .any(|container| container["name"] == name)
}

/// Whether a Secret has something in it.
pub fn has_data(secret: &Value) -> bool {
    ["data", "stringData"]
        .iter()
        .any(|field| secret[*field].as_object().is_some_and(|data| !data.is_empty()))
}

/// Whether it is there for Calico's own upgrade alone.
fn is_own_upgrade(object: &Value) -> bool {
    let name = Name::of(object).name;
    name.starts_with(OWN_UPGRADE) || (object["kind"] == "Job" && has_own_upgrade(object))
}

fn has_own_upgrade(object: &Value) -> bool {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array();
    containers.into_iter().flatten().any(runs_own_upgrade)
}

fn runs_own_upgrade(container: &Value) -> bool {
    container["image"]
        .as_str()
        .is_some_and(|image| image.contains(OWN_UPGRADE_IMAGE))
}

/// Takes Calico's own upgrade out of the containers that start first; returns its name.
fn without_own_upgrade(object: &mut Value) -> Option<String> {
    let containers = object
        .pointer_mut("/spec/template/spec/initContainers")?
        .as_array_mut()?;
    let place = containers.iter().position(runs_own_upgrade)?;
    let removed = containers.remove(place);
    Some(removed["name"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
pub(super) mod fixture {
    use serde_json::{Value, json};

    /// calico-node of a version, with its environment.
    pub fn daemon_set(version: &str) -> Value {
        let of_map = |name: &str, key: &str| json!({ "name": name, "valueFrom": { "configMapKeyRef": { "name": "calico-config", "key": key } } });
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "namespace": "kube-system", "name": "calico-node" },
            "spec": {
                "selector": { "matchLabels": { "k8s-app": "calico-node" } },
                "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
                "template": {
                    "metadata": { "labels": { "k8s-app": "calico-node" } },
                    "spec": {
                        "initContainers": [
                            { "name": "migrate", "image": "calico/upgrade:v1.0.5" },
                            { "name": "install-cni", "image": format!("calico/cni:{version}") },
                        ],
                        "containers": [{ "name": "calico-node", "image": format!("calico/node:{version}"),
                            "env": [of_map("ETCD_ENDPOINTS", "etcd_endpoints")] }],
                    },
                },
            },
        })
    }

    /// A manifest as kops ships it.
    pub fn documents() -> Vec<Value> {
        vec![
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "kube-system", "name": "calico-config" },
                "data": { "etcd_endpoints": "http://10.0.0.1:2379" } }),
            Value::Null,
            daemon_set("v3.8.9"),
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "namespace": "kube-system", "name": "calico-kube-controllers" },
                "spec": { "replicas": 1, "template": { "spec": { "hostNetwork": true,
                    "initContainers": [{ "name": "migrate", "image": "quay.io/calico/upgrade:v1.0.5" }],
                    "containers": [{ "name": "calico-kube-controllers", "image": "calico/kube-controllers:v3.8.9" }] } } } }),
            json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "namespace": "kube-system", "name": "calico-complete-upgrade-v331" },
                "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "calico/upgrade:v1.0.5" }] } } } }),
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "namespace": "kube-system", "name": "calico-upgrade-job" } }),
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "namespace": "kube-system", "name": "calico-node" } }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::fixture::documents;
    use super::*;

    #[test]
    fn the_manifest_of_kops_comes_apart() {
        let manifest = read(&documents()).unwrap();
        assert_eq!(manifest.image(), "calico/node:v3.8.9");
        assert_eq!(manifest.etcd.endpoints, ["http://10.0.0.1:2379"]);
        assert!(manifest.controllers.is_some() && manifest.configuration.is_some());
        let others: Vec<String> = manifest
            .others
            .iter()
            .map(|object| Name::of(object).words())
            .collect();
        assert_eq!(others, ["ServiceAccount kube-system/calico-node"]);
        assert_eq!(
            manifest.left_out,
            [
                "Job kube-system/calico-complete-upgrade-v331",
                "ServiceAccount kube-system/calico-upgrade-job",
                "DaemonSet kube-system/calico-node, init container migrate",
                "Deployment kube-system/calico-kube-controllers, init container migrate",
            ]
        );
        let first = manifest.daemon_set["spec"]["template"]["spec"]["initContainers"]
            .as_array()
            .unwrap();
        assert_eq!(first.len(), 1, "install-cni stays");
    }

    #[test]
    fn what_is_wrong_is_said_by_name() {
        let with = |change: &dyn Fn(&mut Vec<Value>)| {
            let mut all = documents();
            change(&mut all);
            read(&all).unwrap_err().join("; ")
        };
        assert!(read(&[]).unwrap_err()[0].contains("found 0 of: DaemonSet"));
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "kube-system", "name": "calico-etcd-secrets" }, "data": { "etcd-key": "eA==" } });
        assert!(
            with(&|all| all.push(secret.clone())).contains("Secret kube-system/calico-etcd-secrets has data")
        );
        assert!(with(&|all| all[0]["data"] = json!({})).contains("etcd_endpoints"));
        assert!(with(&|all| all.push(all[2].clone())).contains("found 2"));
        assert!(with(&|all| all.push(json!({ "spec": {} }))).contains("no kind"));
    }

    #[test]
    fn modes_of_files_are_octal_as_kubectl_reads_them() {
        let mut all = documents();
        all[2]["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "etcd-certs", "secret": { "secretName": "s", "defaultMode": "0400",
            "items": [{ "key": "k", "path": "p", "mode": "0644" }] } }, { "name": "b", "configMap": { "name": "c", "defaultMode": 256 } }]);
        let manifest = read(&all).unwrap();
        let volumes = &manifest.daemon_set["spec"]["template"]["spec"]["volumes"];
        assert_eq!(volumes[0]["secret"]["defaultMode"], 256);
        assert_eq!(volumes[0]["secret"]["items"][0]["mode"], 0o644);
        assert_eq!(volumes[1]["configMap"]["defaultMode"], 256);
    }

    #[test]
    fn an_object_says_what_the_manifest_says_or_where_it_does_not() {
        let role = |rules: Value| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules });
        let wanted = role(json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }]));
        let mut there = wanted.clone();
        there["apiVersion"] = json!("rbac.authorization.k8s.io/v1beta1");
        there["metadata"] = json!({ "uid": "x" });
        assert_eq!(otherwise(&wanted, &there), None);
        there["rules"][0]["verbs"] = json!(["list"]);
        assert_eq!(
            otherwise(&wanted, &there).as_deref(),
            Some("rules[0].verbs[0] is otherwise")
        );
        let empty = json!({ "kind": "Secret", "data": {} });
        assert_eq!(
            otherwise(&empty, &json!({ "kind": "Secret", "type": "Opaque" })),
            None
        );
    }

    #[test]
    fn versions_are_read_off_tags() {
        for (image, version) in [
            ("calico/node:v3.8.9", Some((3, 8))),
            ("registry:5000/calico/node:v2.6.12", Some((2, 6))),
            ("quay.io/calico/node:v3.31.7@sha256:ab", Some((3, 31))),
            ("registry:5000/calico/node", None),
            ("calico/node:latest", None),
        ] {
            assert_eq!(version_of(image), version, "{image}");
        }
    }
}
