//! Splits Calico's manifest for v3 into the objects that this migration writes, and those that have to exist before.

use std::collections::BTreeSet;

use serde_json::Value;

use calico::NODE_CONTAINER;
use calico::etcd_access::{self, ConfigMaps, Etcd};

/// Labels of objects that kops applies.
pub const KOPS: [&str; 2] = ["role.kubernetes.io/networking", "k8s-addon"];
/// The Deployment of Calico's controllers.
pub const CONTROLLERS: &str = "calico-kube-controllers";
/// Prefix of the names of objects of Calico's own upgrade, as kops ships it.
const OWN_UPGRADE: &str = "calico-upgrade";
/// Image of Calico's own upgrade.
const OWN_UPGRADE_IMAGE: &str = "calico/upgrade";

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// `apiVersion`.
    pub version: String,
    /// `kind`.
    pub kind: String,
    /// Namespace; empty for an object without one.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Name {
    /// The identity of this object.
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
    pub fn display(&self) -> String {
        if self.namespace.is_empty() {
            format!("{} {}", self.kind, self.name)
        } else {
            format!("{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// The parts of the manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The `DaemonSet` of calico-node.
    pub daemon_set: Value,
    /// The Deployment of calico-kube-controllers, if the manifest has one.
    pub controllers: Option<Value>,
    /// The `ConfigMap` with calico-node's environment, if the manifest has one.
    pub configuration: Option<Value>,
    /// Connection of calico-node to the store.
    pub etcd: Etcd,
    /// All other objects: they have to be in the cluster before, and Calico v2 ignores them.
    pub others: Vec<Value>,
    /// Omitted parts: Calico's own upgrade, which this migration replaces.
    pub omitted: Vec<String>,
}

/// Splits the documents of a manifest. An error lists all problems.
///
/// # Errors
///
/// The manifest does not have exactly one `DaemonSet` of calico-node with a namespace and a connection to etcd, has an object
/// without kind or name, runs Calico's own upgrade beside calico-node, or has a Secret with data.
pub fn read(documents: &[Value]) -> Result<Manifest, Vec<String>> {
    let mut errors = Vec::new();
    let Sorted {
        daemon_sets,
        controllers,
        config_maps,
        mut others,
        omitted: mut left_out,
    } = sort(documents, &mut errors);
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
                Name::of(object).display()
            ));
        }
        if has_own_upgrade(object) {
            errors.push(format!(
                "{} has containers of {OWN_UPGRADE_IMAGE} that are not init containers",
                Name::of(object).display()
            ));
        }
    }
    let namespace = Name::of(&daemon_set).namespace;
    if namespace.is_empty() {
        errors.push(format!(
            "{} has no metadata.namespace",
            Name::of(&daemon_set).display()
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
            "ConfigMap with the environment of calico-node",
            &mut errors,
        ),
    };
    let texts: ConfigMaps = configuration
        .iter()
        .map(|map| (Name::of(map).name, texts(map)))
        .collect();
    let etcd = etcd_access::of_template(&daemon_set["spec"]["template"], &namespace, &texts)
        .map_err(|problem| format!("{}: {problem}", Name::of(&daemon_set).display()));
    match etcd {
        Ok(etcd) if errors.is_empty() => Ok(Manifest {
            daemon_set,
            controllers,
            configuration,
            etcd,
            others,
            omitted: left_out,
        }),
        Ok(_) => Err(errors),
        Err(problem) => {
            errors.push(problem);
            Err(errors)
        }
    }
}

/// The documents of a manifest by their role.
#[derive(Default)]
struct Sorted {
    daemon_sets: Vec<Value>,
    controllers: Vec<Value>,
    config_maps: Vec<Value>,
    others: Vec<Value>,
    omitted: Vec<String>,
}

/// Sorts the documents of a manifest.
fn sort(documents: &[Value], errors: &mut Vec<String>) -> Sorted {
    let mut sorted = Sorted::default();
    for document in flat(documents) {
        let name = Name::of(document);
        if name.kind.is_empty() || name.name.is_empty() {
            errors.push(
                "a document has no kind or no metadata.name: use a manifest for kubectl apply".to_owned(),
            );
            continue;
        }
        if is_own_upgrade(document) {
            sorted.omitted.push(name.display());
            continue;
        }
        match name.kind.as_str() {
            "DaemonSet" if has_container(document, NODE_CONTAINER) => sorted.daemon_sets.push(document.clone()),
            "Deployment" if name.name == CONTROLLERS => sorted.controllers.push(document.clone()),
            "ConfigMap" => sorted.config_maps.push(document.clone()),
            "Secret" if has_data(document) => errors.push(format!(
                "{} has data, which all readers of Migrations could see: remove it from the manifest, and apply it separately",
                name.display()
            )),
            _ => sorted.others.push(document.clone()),
        }
    }
    sorted
}

impl Manifest {
    /// The image of calico-node.
    pub fn image(&self) -> String {
        image(&self.daemon_set["spec"]["template"])
    }

    /// Images that are needed while Calico is paused: those of calico-node and of the controllers.
    pub fn images(&self) -> BTreeSet<String> {
        let objects = std::iter::once(&self.daemon_set).chain(&self.controllers);
        let images = objects.map(|object| image(&object["spec"]["template"]));
        images.filter(|image| !image.is_empty()).collect()
    }
}

/// The image of the container calico-node in a pod template, or else of the first container.
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

/// The data of a `ConfigMap`.
pub fn texts(map: &Value) -> std::collections::BTreeMap<String, String> {
    let data = map["data"].as_object();
    data.into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The version in the tag of an image: `3.8` of `calico/node:v3.8.9`; `None` when the tag has none.
pub fn version_of(image: &str) -> Option<(u64, u64)> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    let mut numbers = tag.strip_prefix('v').unwrap_or(tag).split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some((major, minor))
}

/// The first difference between an object in the cluster and the manifest; `None` when there is none. Fields that the manifest
/// does not set are ignored.
pub fn difference(wanted: &Value, found: &Value) -> Option<String> {
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
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => wanted
            .iter()
            .zip(found)
            .enumerate()
            .find_map(|(place, (wanted, found))| differs(wanted, found, &format!("{path}[{place}]"))),
        // The API server omits empty values.
        (wanted, Value::Null) if is_empty(wanted) => None,
        (wanted, found) if wanted == found => None,
        (_, _) => Some(format!("{path} differs")),
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

/// Converts file modes to numbers. kubectl reads `0400` as an octal number, as YAML 1.1 does; newer YAML reads a string.
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

/// All objects, with the items of lists and without empty documents.
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
        errors.push(format!("{what}: {}, needed 1", found.len()));
    }
    found.pop()
}

/// Names of the `ConfigMap`s with calico-node's environment.
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

/// Whether a Secret has data.
pub fn has_data(secret: &Value) -> bool {
    ["data", "stringData"]
        .iter()
        .any(|field| secret[*field].as_object().is_some_and(|data| !data.is_empty()))
}

/// Whether the object is only for Calico's own upgrade.
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

/// Removes Calico's own upgrade from the init containers; returns the name of the removed one.
fn without_own_upgrade(object: &mut Value) -> Option<String> {
    let containers = object
        .pointer_mut("/spec/template/spec/initContainers")?
        .as_array_mut()?;
    let place = containers.iter().position(runs_own_upgrade)?;
    let removed = containers.remove(place);
    Some(removed["name"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
