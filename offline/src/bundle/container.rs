//! What a bundle keeps of a container: variables and options that checks read, and names.

use engine::command_line;
use serde_json::{Value, json};

use super::texts::{self, REMOVED};

/// Fields of a container.
const FIELDS: [&str; 11] = [
    "name",
    "image",
    "command",
    "args",
    "env",
    "envFrom",
    "ports",
    "resources",
    "restartPolicy",
    "securityContext",
    "volumeMounts",
];

/// Starts of the names of variables that are settings of flannel, of Calico, and of what they read.
const VARIABLES: [&str; 14] = [
    "FELIX_",
    "FLANNELD_",
    "FLANNEL_",
    "CALICO_",
    "CNI_CONF_",
    "CNI_MTU",
    "CNI_NET",
    "IP_AUTODETECTION_METHOD",
    "IP6_AUTODETECTION_METHOD",
    "DATASTORE_TYPE",
    "ETCD_ENDPOINTS",
    "ETCD_CA_CERT_FILE",
    "ETCD_CERT_FILE",
    "ETCD_KEY_FILE",
];
/// Names of such variables that are shorter than a start would be.
const WHOLE_VARIABLES: [&str; 12] = [
    "IP",
    "IP6",
    "CLUSTER_TYPE",
    "NO_DEFAULT_POOLS",
    "USE_POD_CIDR",
    "NODENAME",
    "NODE_NAME",
    "POD_NAME",
    "POD_NAMESPACE",
    "EVENT_QUEUE_DEPTH",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
];

/// Options whose values are kept.
const OPTIONS: [&str; 32] = [
    "allocate-node-cidrs",
    "allow-privileged",
    "annotation-prefix",
    "bind-address",
    "cluster-cidr",
    "cluster-name",
    "config",
    "detect-local-mode",
    "etcd-endpoints",
    "etcd-prefix",
    "feature-gates",
    "hostname-override",
    "iface",
    "iface-can-reach",
    "iface-regex",
    "ip-masq",
    "iptables-forward-rules",
    "kube-annotation-prefix",
    "kube-subnet-mgr",
    "net-config-path",
    "node-cidr-mask-size",
    "node-cidr-mask-size-ipv4",
    "node-cidr-mask-size-ipv6",
    "pod-interface-name-prefix",
    "proxy-mode",
    "public-ip",
    "run-firewall",
    "run-router",
    "runtime-config",
    "secure-port",
    "service-cluster-ip-range",
    "subnet-file",
];
/// Words without an option that checks look for: programs.
const PROGRAMS: [&str; 10] = [
    "flanneld",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-router",
    "calico-node",
    "install-cni",
    "cp",
    "node-cache",
    "coredns",
];

/// Words in the names of variables that are secret in any case.
const SECRET: [&str; 9] = [
    "PASS",
    "SECRET",
    "TOKEN",
    "CREDENTIAL",
    "PRIVATE",
    "KEY",
    "JWT",
    "PSK",
    "LICENSE",
];

/// Parts of the names of images that run such a program without naming it.
const IMAGES: [&str; 6] = [
    "flannel",
    "calico",
    "kube-proxy",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-router",
];

/// Whether the value of a variable is kept.
pub fn is_kept_variable(name: &str) -> bool {
    if SECRET.iter().any(|word| name.contains(word)) && !name.ends_with("_KEY_FILE") {
        return false;
    }
    VARIABLES.iter().any(|start| name.starts_with(start)) || WHOLE_VARIABLES.contains(&name)
}

/// Removes what is not kept.
pub fn keep(container: &mut Value) {
    let Value::Object(fields) = container else { return };
    fields.retain(|name, _| FIELDS.contains(&name.as_str()));
    let keeps_values = runs_a_program(fields);
    for name in ["command", "args"] {
        if let Some(Value::Array(words)) = fields.get_mut(name) {
            keep_arguments(words, keeps_values);
        }
    }
    if let Some(Value::Array(variables)) = fields.get_mut("env") {
        for variable in variables {
            let is_kept = variable["name"].as_str().is_some_and(is_kept_variable);
            if !is_kept && !variable["value"].is_null() {
                variable["value"] = json!(REMOVED);
            }
        }
    }
}

/// Whether the container runs a program whose options checks read, by its arguments or its image.
fn runs_a_program(fields: &serde_json::Map<String, Value>) -> bool {
    let words = ["command", "args"]
        .into_iter()
        .filter_map(|name| fields.get(name)?.as_array());
    let mut words = words
        .flatten()
        .filter_map(Value::as_str)
        .flat_map(str::split_whitespace);
    let image = fields.get("image").and_then(Value::as_str).unwrap_or_default();
    words.any(|word| {
        let bare = word.trim_matches(command_line::QUOTES);
        PROGRAMS.contains(&bare.rsplit('/').next().unwrap_or_default())
    }) || IMAGES.iter().any(|known| image.contains(known))
}

/// Removes the values of options that are not kept. Each argument may be a line for a shell.
fn keep_arguments(arguments: &mut [Value], keeps_values: bool) {
    let mut takes_value = false;
    for argument in arguments {
        let Value::String(line) = argument else { continue };
        let mut kept: Vec<String> = Vec::new();
        for word in line.split_whitespace() {
            kept.push(kept_word(word, takes_value, keeps_values));
            takes_value = keeps_values && is_kept_option(word) && !word.contains('=');
        }
        *line = texts::cleaned(&kept.join(" "));
    }
}

/// `is_value` says that the word before is a kept option.
fn kept_word(word: &str, is_value: bool, keeps_values: bool) -> String {
    let bare = word.trim_matches(command_line::QUOTES);
    if let Some((option, _)) = bare.split_once('=').filter(|_| bare.starts_with('-')) {
        return if keeps_values && is_kept_option(bare) {
            word.to_owned()
        } else {
            format!("{option}={REMOVED}")
        };
    }
    let program = bare.rsplit('/').next().unwrap_or_default();
    if is_value || is_bare_option(bare) || PROGRAMS.contains(&program) {
        word.to_owned()
    } else if bare.starts_with('-') {
        format!("-{REMOVED}")
    } else {
        REMOVED.to_owned()
    }
}

/// Whether the word is the name of an option, and no value is attached to it, as in `-phunter2`.
fn is_bare_option(word: &str) -> bool {
    let is_name = |name: &str| {
        let mut letters = name.chars();
        !name.is_empty()
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_')
    };
    let is_long = word.strip_prefix("--").is_some_and(is_name);
    is_long || (word.len() == 2 && word.starts_with('-')) || is_kept_option(word)
}

fn is_kept_option(word: &str) -> bool {
    let option = word.trim_matches(command_line::QUOTES);
    let Some(option) = option.strip_prefix('-') else {
        return false;
    };
    let name = option.strip_prefix('-').unwrap_or(option);
    let name = name.split('=').next().unwrap_or_default();
    OPTIONS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_unknown_variables_and_options_are_removed() {
        let mut container = json!({
            "name": "kube-flannel", "image": "flannel:v0.28.4",
            "command": ["/opt/bin/flanneld", "hunter2"],
            "args": ["--ip-masq", "--iface", "eth1", "--password=hunter2", "-p", "hunter2", "-phunter2", "sh -c \"kube-proxy --cluster-cidr=10.0.0.0/8 --x=hunter2\""],
            "env": [
                { "name": "FELIX_BPFENABLED", "value": "true" }, { "name": "DATABASE", "value": "hunter2" },
                { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
            ],
            "livenessProbe": { "httpGet": { "httpHeaders": [{ "name": "Authorization", "value": "hunter2" }] } },
        });
        keep(&mut container);
        assert!(!container.to_string().contains("hunter2"), "{container}");
        assert_eq!(
            container["args"],
            json!([
                "--ip-masq",
                "--iface",
                "eth1",
                "--password=(removed)",
                "-p",
                "(removed)",
                "-(removed)",
                "(removed) -c \"kube-proxy --cluster-cidr=10.0.0.0/8 --x=(removed)"
            ])
        );
        assert_eq!(container["env"][0]["value"], "true");
        assert_eq!(container["env"][2]["valueFrom"]["secretKeyRef"]["name"], "s");
    }
}
