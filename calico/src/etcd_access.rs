//! Reads the connection to etcd from calico-node's pod template.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::NODE_CONTAINER;

/// `SecretKey` is a key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKey {
    /// `secret` is the name of the Secret.
    pub secret: String,
    /// `key` is the key in the Secret.
    pub key: String,
}

/// `EtcdAccess` is the connection to an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdAccess {
    /// `endpoints` is the list of client URLs of etcd, as `http://HOST:PORT` or `https://HOST:PORT`. 1 to 20 items.
    #[schemars(length(min = 1, max = 20))]
    pub endpoints: Vec<String>,
    /// `secret` is the name of a Secret in the namespace of replumb with the keys `etcd-ca`, `etcd-cert` and `etcd-key`. Required
    /// for `https` endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// `Etcd` is the connection to an etcd cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Etcd {
    /// `endpoints` is the list of client URLs, as `http://HOST:PORT` or `https://HOST:PORT`. At least 1 item.
    pub endpoints: Vec<String>,
    /// `namespace` is the namespace of the Secrets. Empty for the namespace of replumb.
    pub namespace: String,
    /// `authority` is the Secret key with the CA certificates. Unset without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<SecretKey>,
    /// `certificate` is the Secret key with the client certificate. Unset without a client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<SecretKey>,
    /// `key` is the Secret key with the private key of the client certificate. Unset without a client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SecretKey>,
}

/// Reason why the stores cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreProblem {
    /// The attempt, the store and the failure.
    pub message: String,
    /// The fix for the user.
    pub hint: String,
}

impl StoreProblem {
    /// The cluster is a snapshot, which has no etcd.
    pub fn of_no_server() -> Self {
        Self {
            message: "etcd is not asked: the cluster is a snapshot".to_owned(),
            hint: "judge the migration in the cluster".to_owned(),
        }
    }
}

/// Text for messages.
impl fmt::Display for StoreProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}. {}", self.message, self.hint)
    }
}

/// Reason why the settings of calico-node give no connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoConnection {
    /// calico-node uses a user name and a password; the setting that has the name.
    #[error("{0}: this kind supports only client certificates")]
    UserName(&'static str),
    /// A setting is missing or has another form: the value found and the value needed.
    #[error("{0}")]
    Settings(String),
}

impl From<String> for NoConnection {
    fn from(problem: String) -> Self {
        Self::Settings(problem)
    }
}

/// Data of the `ConfigMap`s of one namespace, by name.
pub type ConfigMaps = BTreeMap<String, BTreeMap<String, String>>;

/// The value of a variable of calico-node in this pod template, from the template or from a `ConfigMap`; `None` when the variable
/// is not set. An error names the value found and the value needed.
///
/// # Errors
///
/// The template has no container calico-node, or the value comes from another source than an existing `ConfigMap`.
pub fn variable_of(template: &Value, name: &str, config_maps: &ConfigMaps) -> Result<Option<String>, String> {
    variable(container(template)?, name, config_maps)
}

fn container(template: &Value) -> Result<&Value, String> {
    let containers = template["spec"]["containers"].as_array();
    let mut containers = containers.into_iter().flatten();
    containers
        .find(|container| container["name"] == NODE_CONTAINER)
        .ok_or_else(|| format!("no container {NODE_CONTAINER}"))
}

/// Reads the connection from a pod template. An error names the value found and the value needed.
///
/// # Errors
///
/// The datastore is the Kubernetes API, no endpoint is set, a user name is set, or a certificate is not from a Secret.
pub fn of_template(
    template: &Value,
    namespace: &str,
    config_maps: &ConfigMaps,
) -> Result<Etcd, NoConnection> {
    let container = container(template)?;
    let variable = |name: &str| variable(container, name, config_maps);
    let datastore = variable("DATASTORE_TYPE")?.unwrap_or_default();
    if datastore == "kubernetes" {
        let problem = "DATASTORE_TYPE is kubernetes: Calico's data is in the Kubernetes API; there is nothing to convert";
        return Err(problem.to_owned().into());
    }
    let endpoints = variable("ETCD_ENDPOINTS")?.unwrap_or_default();
    let endpoints: Vec<String> = endpoints
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    if endpoints.is_empty() {
        return Err("container calico-node has no ETCD_ENDPOINTS".to_owned().into());
    }
    // The message omits the value: an endpoint with a user name also has a password.
    if endpoints.iter().any(|endpoint| endpoint.contains('@')) {
        return Err(NoConnection::UserName("ETCD_ENDPOINTS contains a user name"));
    }
    if variable("ETCD_USERNAME").is_ok_and(|name| name.is_some_and(|name| !name.is_empty())) {
        return Err(NoConnection::UserName("ETCD_USERNAME is set"));
    }
    let file = |name: &str| match variable(name)?.filter(|path| !path.is_empty()) {
        Some(path) => secret_of(template, container, name, &path).map(Some),
        None => Ok(None),
    };
    Ok(Etcd {
        endpoints,
        namespace: namespace.to_owned(),
        authority: file("ETCD_CA_CERT_FILE")?,
        certificate: file("ETCD_CERT_FILE")?,
        key: file("ETCD_KEY_FILE")?,
    })
}

/// The value of a variable: its own, or the one from a `ConfigMap`.
fn variable(container: &Value, name: &str, config_maps: &ConfigMaps) -> Result<Option<String>, String> {
    let all = container["env"].as_array();
    let Some(found) = all.into_iter().flatten().find(|found| found["name"] == name) else {
        return Ok(None);
    };
    if let Some(value) = found["value"].as_str() {
        return Ok(Some(value.to_owned()));
    }
    let source = &found["valueFrom"]["configMapKeyRef"];
    let (Some(map), Some(key)) = (source["name"].as_str(), source["key"].as_str()) else {
        return if found["valueFrom"].is_null() {
            Ok(Some(String::new()))
        } else {
            Err(format!("{name} is neither a value nor a key of a ConfigMap"))
        };
    };
    let Some(texts) = config_maps.get(map) else {
        return Err(format!("{name} is from ConfigMap {map}, which does not exist"));
    };
    match texts.get(key) {
        Some(value) => Ok(Some(value.clone())),
        None if source["optional"] == true => Ok(None),
        None => Err(format!(
            "{name} is from key {key} of ConfigMap {map}, which does not exist"
        )),
    }
}

/// The key of the Secret that is mounted as this file.
fn secret_of(template: &Value, container: &Value, name: &str, path: &str) -> Result<SecretKey, String> {
    let mounts = container["volumeMounts"].as_array();
    let mut mounts: Vec<(&str, &str)> = mounts
        .into_iter()
        .flatten()
        .filter_map(|mount| {
            Some((
                mount["mountPath"].as_str()?.trim_end_matches('/'),
                mount["name"].as_str()?,
            ))
        })
        .collect();
    // The deepest mount hides the others.
    mounts.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.len()));
    let found = mounts.into_iter().find_map(|(folder, volume)| {
        let file = path.strip_prefix(folder)?.strip_prefix('/')?;
        Some((file, volume))
    });
    let needed = "name its Secret in the Migration's spec";
    let Some((file, volume)) = found else {
        return Err(format!("{name} is {path}, which is not in a volume: {needed}"));
    };
    let volumes = template["spec"]["volumes"].as_array();
    let volume = volumes
        .into_iter()
        .flatten()
        .find(|found| found["name"] == volume);
    let source = volume.map_or(&Value::Null, |volume| &volume["secret"]);
    let Some(secret) = source["secretName"].as_str() else {
        return Err(format!("{name} is {path}, which is not from a Secret: {needed}"));
    };
    let items = source["items"].as_array();
    let key = match items {
        Some(items) => items
            .iter()
            .find(|item| item["path"] == file)
            .and_then(|item| item["key"].as_str())
            .ok_or_else(|| format!("{name} is {path}, which is not in Secret {secret}"))?,
        None => file,
    };
    Ok(SecretKey {
        secret: secret.to_owned(),
        key: key.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(environment: &Value, volumes: &Value) -> Value {
        json!({ "spec": {
            "containers": [
                { "name": "install-cni", "env": [{ "name": "ETCD_ENDPOINTS", "value": "http://other:1" }] },
                { "name": "calico-node", "env": environment, "volumeMounts": [
                    { "name": "run", "mountPath": "/var/run/calico" },
                    { "name": "etcd-certs", "mountPath": "/calico-secrets" },
                ] },
            ],
            "volumes": volumes,
        } })
    }

    fn from(name: &str, key: &str) -> Value {
        json!({ "name": name, "valueFrom": { "configMapKeyRef": { "name": "calico-config", "key": key } } })
    }

    fn maps(texts: &[(&str, &str)]) -> ConfigMaps {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        ConfigMaps::from([("calico-config".to_owned(), texts.iter().map(owned).collect())])
    }

    #[test]
    fn the_connection_is_read_from_calicos_own_manifests() {
        let environment = json!([
            from("ETCD_ENDPOINTS", "etcd_endpoints"),
            from("ETCD_CA_CERT_FILE", "etcd_ca"),
            from("ETCD_KEY_FILE", "etcd_key"),
            from("ETCD_CERT_FILE", "etcd_cert"),
        ]);
        let volumes = json!([{ "name": "etcd-certs", "secret": { "secretName": "calico-etcd-secrets", "defaultMode": 400 } }]);
        let template = template(&environment, &volumes);
        let plain = maps(&[
            ("etcd_endpoints", "http://10.0.0.1:2379, http://10.0.0.2:2379"),
            ("etcd_ca", ""),
            ("etcd_cert", ""),
            ("etcd_key", ""),
        ]);
        let found = of_template(&template, "kube-system", &plain).unwrap();
        assert_eq!(found.endpoints, ["http://10.0.0.1:2379", "http://10.0.0.2:2379"]);
        assert_eq!((&found.authority, &found.key), (&None, &None));
        let secured = maps(&[
            ("etcd_endpoints", "https://10.0.0.1:2379"),
            ("etcd_ca", "/calico-secrets/etcd-ca"),
            ("etcd_cert", "/calico-secrets/etcd-cert"),
            ("etcd_key", "/calico-secrets/etcd-key"),
        ]);
        let found = of_template(&template, "kube-system", &secured).unwrap();
        let key = found.key.unwrap();
        assert_eq!(
            (key.secret.as_str(), key.key.as_str()),
            ("calico-etcd-secrets", "etcd-key")
        );
        assert_eq!(found.namespace, "kube-system");
    }

    #[test]
    fn an_unreadable_connection_is_refused_with_its_cause() {
        let endpoints = json!({ "name": "ETCD_ENDPOINTS", "value": "https://a:1" });
        let certificate = json!({ "name": "ETCD_CA_CERT_FILE", "value": "/calico-secrets/ca.pem" });
        let on_host = json!([{ "name": "etcd-certs", "hostPath": { "path": "/srv/kubernetes/calico" } }]);
        for (environment, volumes, words) in [
            (json!([]), json!([]), "no ETCD_ENDPOINTS"),
            (
                json!([{ "name": "DATASTORE_TYPE", "value": "kubernetes" }]),
                json!([]),
                "Kubernetes API",
            ),
            (
                json!([from("ETCD_ENDPOINTS", "missing")]),
                json!([]),
                "key missing of ConfigMap calico-config, which does not exist",
            ),
            (json!([endpoints, certificate]), on_host, "not from a Secret"),
        ] {
            let refused = of_template(&template(&environment, &volumes), "kube-system", &maps(&[]))
                .unwrap_err()
                .to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let items = json!([{ "name": "etcd-certs", "secret": { "secretName": "s", "items": [{ "key": "tls.ca", "path": "ca.pem" }] } }]);
        let found = of_template(
            &template(&json!([endpoints, certificate]), &items),
            "n",
            &maps(&[]),
        )
        .unwrap();
        assert_eq!(found.authority.unwrap().key, "tls.ca");
    }

    #[test]
    fn a_user_name_is_refused_without_the_command_of_one_kind() {
        let endpoints = |value: &str| json!({ "name": "ETCD_ENDPOINTS", "value": value });
        let user = json!({ "name": "ETCD_USERNAME", "value": "root" });
        for (environment, words) in [
            (
                json!([endpoints("http://a:1"), user]),
                "ETCD_USERNAME is set: this kind supports only client certificates",
            ),
            (
                json!([endpoints("http://root:secret@a:1")]),
                "ETCD_ENDPOINTS contains a user name: this kind supports only client certificates",
            ),
        ] {
            let refused = of_template(&template(&environment, &json!([])), "n", &maps(&[])).unwrap_err();
            assert!(matches!(refused, NoConnection::UserName(_)), "{refused}");
            assert_eq!(refused.to_string(), words);
        }
    }
}
