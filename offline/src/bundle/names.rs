//! Replaces names in a bundle: of nodes, of tenants' namespaces and objects, of their labels, images and domains. The same name has the
//! same replacement everywhere in the bundle, and another one in the next bundle.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::keep;
use crate::snapshot::Document;

/// Namespaces of the cluster, whose names every cluster has; a name with this start is one.
const SYSTEM: [&str; 5] = ["default", "kube-", "calico-", "tigera-operator", "replumb-"];
/// Domains of labels and annotations that are of Kubernetes, beside those whose values are kept.
const DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// Labels of one word that checks read.
const KEYS: [&str; 5] = [
    "k8s-app",
    "k8s-addon",
    "tier",
    "pod-template-hash",
    "controller-revision-hash",
];
/// Fields that say what an object is.
const TYPES: [&str; 2] = ["apiVersion", "kind"];
/// Kinds of objects without a namespace whose names their owners choose.
const NAMED: [&str; 8] = [
    "Node",
    "Namespace",
    "GlobalNetworkPolicy",
    "GlobalNetworkSet",
    "HostEndpoint",
    "BGPPeer",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
];
/// Words that checks look for: a name that is one of them stays.
const WORDS: [&str; 16] = [
    "all", "bird", "calico", "cni0", "default", "false", "flannel", "host-gw", "linux", "node", "none",
    "system", "true", "vxlan", "windows", "",
];

/// Parts of a text that may be a name.
static NAMES: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("[A-Za-z0-9_.-]+").ok());
/// Values in a selector of Calico.
static QUOTED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("'([^']*)'|\"([^\"]*)\"").ok());

/// Replaces names. `salt` makes the replacements of this bundle: random bytes that are not kept.
pub fn hide_names(document: &mut Document, salt: &[u8]) {
    let mut names = Names {
        salt: salt.to_vec(),
        nodes: BTreeSet::new(),
        everywhere: BTreeSet::new(),
        in_labels: BTreeSet::new(),
    };
    for object in &document.objects {
        names.collect(object);
    }
    names.everywhere.retain(|name| !WORDS.contains(&name.as_str()));
    names.in_labels.retain(|value| !WORDS.contains(&value.as_str()));
    for object in &mut document.objects {
        if is_of_tenant(object) {
            hide_images(object, &names);
        }
        names.hide(object, "");
    }
    let hosts = std::mem::take(&mut document.hosts);
    for (host, mut report) in hosts {
        names.hide(&mut report, "");
        document.hosts.insert(names.hidden(&host), report);
    }
    if let Some(coordinator) = &mut document.coordinator {
        coordinator.node = names.hidden(&coordinator.node);
    }
}

struct Names {
    salt: Vec<u8>,
    /// Names of nodes: objects are named after them, at their beginning or their end.
    nodes: BTreeSet<String>,
    /// Names that are replaced in every text.
    everywhere: BTreeSet<String>,
    /// Values of labels, which are replaced in labels and selectors only: many are common words.
    in_labels: BTreeSet<String>,
}

impl Names {
    fn collect(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = object["kind"].as_str().unwrap_or_default();
        let is_hidden = match metadata["namespace"].as_str() {
            Some(namespace) => {
                if !is_system(namespace) {
                    self.everywhere.insert(namespace.to_owned());
                }
                !is_system(namespace)
            }
            None => NAMED.contains(&kind) && !(kind == "Namespace" && is_system(&text(&metadata["name"]))),
        };
        if is_hidden {
            let name = text(&metadata["name"]);
            let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
            let owners: Vec<String> = owners.map(|owner| text(&owner["name"])).collect();
            // A controller names its pods after itself: the beginning is replaced, and the end, which a label may have too, stays.
            let is_named_after = |owner: &String| name.starts_with(&format!("{owner}-"));
            if !owners.iter().any(is_named_after) {
                self.everywhere.insert(name);
                self.everywhere.extend(owners);
            }
        }
        if kind == "Node" {
            self.nodes.insert(text(&metadata["name"]));
            self.everywhere
                .insert(text(&metadata["labels"]["kubernetes.io/hostname"]));
            let addresses = object["status"]["addresses"].as_array().into_iter().flatten();
            let names = addresses
                .filter(|address| address["type"] != "InternalIP" && address["type"] != "ExternalIP");
            self.everywhere
                .extend(names.map(|address| text(&address["address"])));
        }
        self.collect_labels(object, is_hidden);
    }

    /// Values of labels, and domains in the keys of labels and annotations.
    fn collect_labels(&mut self, value: &Value, is_hidden: bool) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    let is_map = matches!(
                        name.as_str(),
                        "labels" | "matchLabels" | "nodeSelector" | "annotations"
                    );
                    if let Some(entries) = field.as_object().filter(|_| is_map) {
                        for (key, value) in entries {
                            let domain = key.split_once('/').map(|(domain, _)| domain);
                            if let Some(domain) = domain.filter(|domain| !is_known(domain)) {
                                self.everywhere.insert(domain.to_owned());
                            }
                            let is_known_key = domain.is_some_and(is_known) || KEYS.contains(&key.as_str());
                            if is_hidden && !is_known_key && name != "annotations" {
                                self.in_labels.extend(value.as_str().map(str::to_owned));
                            }
                        }
                    }
                    self.collect_labels(field, is_hidden);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect_labels(item, is_hidden)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Replaces names in a value that is below a field of this name.
    fn hide(&self, value: &mut Value, field: &str) {
        if TYPES.contains(&field) {
            return;
        }
        match value {
            Value::String(text) => {
                let mut kept = self.hidden(text);
                if field.to_lowercase().ends_with("selector") {
                    kept = self.hidden_values(&kept);
                }
                *text = kept;
            }
            Value::Array(items) => {
                let is_expressions = matches!(field, "matchExpressions");
                for item in items {
                    if is_expressions {
                        for value in item["values"].as_array_mut().into_iter().flatten() {
                            self.hide_label(value);
                        }
                    }
                    self.hide(item, field);
                }
            }
            Value::Object(fields) => {
                let is_labels = matches!(field, "labels" | "matchLabels" | "nodeSelector" | "selector");
                let former = std::mem::take(fields);
                for (name, mut value) in former {
                    if is_labels && value.is_string() {
                        self.hide_label(&mut value);
                    }
                    self.hide(&mut value, &name);
                    // Only keys of maps have names: those of labels, annotations and of Calico's allocations.
                    let is_known_key = name.split_once('/').is_some_and(|(domain, _)| is_known(domain));
                    let name = if name.contains(['/', '.', '-']) && !is_known_key {
                        self.hidden(&name)
                    } else {
                        name
                    };
                    fields.insert(name, value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn hide_label(&self, value: &mut Value) {
        if let Value::String(text) = value
            && self.in_labels.contains(text.as_str())
            // Node affinity compares numbers.
            && text.parse::<f64>().is_err()
        {
            *text = self.replacement(text);
        }
    }

    /// A selector of Calico with its quoted values replaced.
    fn hidden_values(&self, selector: &str) -> String {
        let Some(quoted) = &*QUOTED else {
            return super::texts::REMOVED.to_owned();
        };
        let replaced = quoted.replace_all(selector, |found: &Captures<'_>| {
            let whole = &found[0];
            let value = &whole[1..whole.len() - 1];
            if self.in_labels.contains(value) {
                let quote = &whole[..1];
                format!("{quote}{}{quote}", self.replacement(value))
            } else {
                whole.to_owned()
            }
        });
        replaced.into_owned()
    }

    /// A text with its names replaced.
    fn hidden(&self, text: &str) -> String {
        let Some(names) = &*NAMES else {
            return super::texts::REMOVED.to_owned();
        };
        let replaced = names.replace_all(text, |found: &Captures<'_>| self.hidden_word(&found[0]));
        replaced.into_owned()
    }

    /// A word that is a name, or has one at its beginning or its end, as `worker-1-10-244-1-0-24`.
    fn hidden_word(&self, word: &str) -> String {
        // Also the name of a node may be its address, and the checks are about addresses.
        if is_known(word) || word.parse::<std::net::IpAddr>().is_ok() {
            return word.to_owned();
        }
        if self.everywhere.contains(word) {
            return self.replacement(word);
        }
        if is_system(word) {
            return word.to_owned();
        }
        let borders = || word.match_indices(['-', '.']).map(|(at, _)| at);
        // The longest name wins.
        if let Some(at) = borders().rev().find(|at| self.everywhere.contains(&word[..*at])) {
            return format!("{}{}", self.replacement(&word[..at]), &word[at..]);
        }
        match borders().find(|at| self.nodes.contains(&word[at + 1..])) {
            Some(at) => format!("{}{}", &word[..=at], self.replacement(&word[at + 1..])),
            None => word.to_owned(),
        }
    }

    fn replacement(&self, name: &str) -> String {
        let digest = Sha256::new()
            .chain_update(&self.salt)
            .chain_update(name)
            .finalize();
        let hex = data_encoding::HEXLOWER.encode(&digest);
        format!("n{}", &hex[..10])
    }
}

fn is_system(namespace: &str) -> bool {
    SYSTEM.iter().any(|system| match system.strip_suffix('-') {
        Some(_) => namespace.starts_with(system),
        None => namespace == *system,
    })
}

fn is_known(domain: &str) -> bool {
    let mut known = DOMAINS.iter().chain(&keep::DOMAINS);
    known.any(|known| domain == *known || domain.ends_with(&format!(".{known}")))
}

fn is_of_tenant(object: &Value) -> bool {
    let namespace = object["metadata"]["namespace"].as_str();
    namespace.is_some_and(|namespace| !is_system(namespace))
}

/// Replaces the names of images.
fn hide_images(value: &mut Value, names: &Names) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(image) if name == "image" => *field = json!(names.replacement(image)),
                    _ => hide_images(field, names),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| hide_images(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(objects: Vec<Value>) -> Document {
        let mut document = Document {
            objects,
            ..Document::default()
        };
        hide_names(&mut document, b"salt");
        document
    }

    fn shop() -> Vec<Value> {
        vec![
            json!({
                "kind": "Node",
                "metadata": { "name": "rack7.acme.example", "labels": { "kubernetes.io/hostname": "rack7", "acme.example/room": "blue", "kubernetes.io/os": "linux" } },
            }),
            json!({
                "kind": "Pod",
                "metadata": {
                    "namespace": "shop", "name": "till-7d9c-x1", "generateName": "till-7d9c-", "labels": { "app": "till", "tier": "node", "pod-template-hash": "7d9c" },
                    "ownerReferences": [{ "kind": "ReplicaSet", "name": "till-7d9c" }],
                },
                "spec": { "nodeName": "rack7.acme.example", "containers": [{ "image": "registry.acme.example/till:1" }] },
            }),
            json!({ "kind": "Deployment", "metadata": { "namespace": "shop", "name": "till" } }),
            json!({
                "kind": "ReplicaSet",
                "metadata": {
                    "namespace": "shop", "name": "till-7d9c", "ownerReferences": [{ "kind": "Deployment", "name": "till" }],
                },
            }),
            json!({
                "kind": "NetworkPolicy",
                "metadata": { "namespace": "shop", "name": "default.allow-till" },
                "spec": { "selector": "app == 'till' && has(acme.example/room)", "order": 1 },
            }),
            json!({
                "kind": "BlockAffinity", "metadata": { "name": "rack7.acme.example-10-244-1-0-26" },
                "spec": { "node": "rack7.acme.example", "cidr": "10.244.1.0/26" },
            }),
            json!({ "kind": "DaemonSet", "metadata": { "namespace": "kube-flannel", "name": "kube-flannel-ds" } }),
        ]
    }

    #[test]
    fn names_of_tenants_and_nodes_are_replaced_the_same_everywhere() {
        let document = hidden(shop());
        let text = json!(document.objects).to_string();
        for name in ["acme", "rack7", "till", "shop", "blue"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        let [node, pod, deployment, replica_set, policy, block, set] = document.objects.as_slice() else {
            panic!("{text}")
        };
        let name = node["metadata"]["name"].as_str().unwrap();
        assert_eq!(pod["spec"]["nodeName"], name);
        let workload = deployment["metadata"]["name"].as_str().unwrap();
        assert_eq!(replica_set["metadata"]["name"], format!("{workload}-7d9c"));
        assert_eq!(pod["metadata"]["name"], format!("{workload}-7d9c-x1"));
        assert_eq!(pod["metadata"]["labels"]["pod-template-hash"], "7d9c");
        assert_eq!(block["metadata"]["name"], format!("{name}-10-244-1-0-26"));
        assert_eq!(block["spec"]["cidr"], "10.244.1.0/26");
        let app = pod["metadata"]["labels"]["app"].as_str().unwrap();
        assert!(
            policy["spec"]["selector"]
                .as_str()
                .unwrap()
                .contains(&format!("app == '{app}'")),
            "{policy}"
        );
        assert_eq!(set["metadata"]["name"], "kube-flannel-ds");
        assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    }

    #[test]
    fn another_bundle_has_other_names() {
        let mut other = Document {
            objects: shop(),
            ..Document::default()
        };
        hide_names(&mut other, b"pepper");
        assert_ne!(hidden(shop()).objects[0], other.objects[0]);
    }

    /// Names that are common words: of a namespace, a workload, and a node.
    #[test]
    fn types_known_domains_programs_and_addresses_stay() {
        let objects = vec![
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "apps" } }),
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "dev" } }),
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "namespace": "dev", "name": "proxy" } }),
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": { "name": "10.0.0.5", "labels": { "node-role.kubernetes.io/master": "", "acme.example/rack": "7" } },
                "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.5" }] },
            }),
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "master" } }),
            json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "namespace": "kube-system", "name": "kube-proxy" },
                "spec": { "tolerations": [{ "key": "node-role.kubernetes.io/master" }] },
            }),
            json!({ "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": "m" } }),
        ];
        let document = hidden(objects);
        let [_, _, deployment, node, _, set, migration] = document.objects.as_slice() else {
            panic!("{document:?}")
        };
        assert_eq!(deployment["apiVersion"], "apps/v1");
        assert_eq!(node["status"]["addresses"][0]["address"], "10.0.0.5");
        assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/master"], "");
        assert!(node.to_string().contains("\"7\""), "{node}");
        assert_eq!(set["metadata"]["name"], "kube-proxy");
        assert_eq!(migration["apiVersion"], "replumb.dev/v1alpha1");
    }
}
