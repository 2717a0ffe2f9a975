//! libcni's record of one attachment, `/var/lib/cni/results/<network>-<sandbox>-<interface>`: the pod, its addresses, and its
//! links on the host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine as _;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

/// One attachment of a pod to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the network.
    pub network: String,
    /// ID of the pod's sandbox, as passed to the plugins by the runtime.
    pub sandbox: String,
    /// Name of the interface in the pod.
    pub interface: String,
    /// Namespace of the pod; empty when the runtime did not pass it.
    pub namespace: String,
    /// Name of the pod; empty when the runtime did not pass it.
    pub pod: String,
    /// Links of the host that the plugins created or used: the bridge and the host end of the veth pair.
    pub links: Vec<String>,
    /// MAC addresses of these links, in lower case with colons, by name. A link whose address was not recorded has no entry.
    pub link_macs: BTreeMap<String, String>,
    /// MAC address of the interface in the pod, in lower case with colons; empty when it was not recorded.
    pub mac: String,
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// The plugins that took part, by type. Without plugins that had nothing to do: their capability was not asked for.
    pub plugins: Vec<String>,
}

/// Why a record was not understood.
#[derive(Debug, Error)]
pub enum AttachmentError {
    /// The record is not libcni's JSON.
    #[error("not a record of libcni: {0}")]
    Json(#[from] serde_json::Error),
    /// The configuration in the record is not base64.
    #[error("the configuration in a record of libcni is not base64: {0}")]
    Base64(#[from] base64::DecodeError),
    /// The plugin type is not the name of a program.
    #[error("plugin type {found:?}, needed the name of a program")]
    Plugin {
        /// The type that was found.
        found: String,
    },
    /// The result has the form of a CNI version before 0.3.0, which names no links.
    #[error("the result of plugin version {version} names no links, needed cniVersion 0.3.0 or later")]
    OldResult {
        /// The version in the result.
        version: String,
    },
    /// The kind or version of the record is not known.
    #[error("kind {found:?}, needed \"cniCacheV1\"")]
    Kind {
        /// The kind that was found.
        found: String,
    },
}

/// One call of a CNI plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginCall {
    /// Name of the program in the folder of CNI plugins.
    pub plugin: String,
    /// Environment: `CNI_COMMAND` and its companions, without `CNI_PATH`.
    pub environment: Vec<(&'static str, String)>,
    /// Standard input.
    pub input: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    container_id: String,
    #[serde(default)]
    network_name: String,
    #[serde(default)]
    if_name: String,
    #[serde(default)]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default)]
    config: String,
    #[serde(default)]
    capability_args: Map<String, Value>,
    #[serde(default)]
    result: Value,
}

#[derive(Default, Deserialize)]
struct Outcome {
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Address>,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    #[serde(default)]
    mac: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Deserialize)]
struct Address {
    address: IpNet,
}

impl Attachment {
    /// Reads a record.
    ///
    /// # Errors
    ///
    /// The bytes are not the JSON of a record, or the record is not of kind `cniCacheV1`.
    pub fn parse(bytes: &[u8]) -> Result<Self, AttachmentError> {
        let record: Record = serde_json::from_slice(bytes)?;
        if record.kind != "cniCacheV1" {
            return Err(AttachmentError::Kind { found: record.kind });
        }
        let has = |field: &str| !record.result[field].is_null();
        if (has("ip4") || has("ip6")) && !has("interfaces") {
            return Err(AttachmentError::OldResult {
                version: record.result["cniVersion"].as_str().unwrap_or("0.2.0").to_owned(),
            });
        }
        let outcome: Outcome = match record.result {
            Value::Null => Outcome::default(),
            result => serde_json::from_value(result)?,
        };
        let on_host = || {
            let interfaces = outcome.interfaces.iter();
            interfaces.filter(|interface| interface.sandbox.is_empty())
        };
        let arguments = record.cni_args.unwrap_or_default();
        let argument = |name: &str| {
            arguments
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
                .unwrap_or_default()
        };
        Ok(Self {
            namespace: argument("K8S_POD_NAMESPACE"),
            pod: argument("K8S_POD_NAME"),
            network: record.network_name,
            sandbox: record.container_id,
            interface: record.if_name,
            plugins: plugins(&record.config, &record.capability_args),
            mac: outcome
                .interfaces
                .iter()
                .find(|interface| !interface.sandbox.is_empty())
                .map(|interface| interface.mac.to_lowercase())
                .unwrap_or_default(),
            link_macs: on_host()
                .filter(|interface| !interface.mac.is_empty())
                .map(|interface| (interface.name.clone(), interface.mac.to_lowercase()))
                .collect(),
            links: on_host().map(|interface| interface.name.clone()).collect(),
            addresses: outcome.ips.iter().map(|ip| ip.address.addr()).collect(),
        })
    }
}

/// The types of the plugins in a recorded configuration. A plugin whose only purpose is a capability that was not asked for did
/// nothing. A configuration that cannot be read has no plugins: the record is complete without it.
fn plugins(config: &str, capabilities: &Map<String, Value>) -> Vec<String> {
    let list: Value = base64::prelude::BASE64_STANDARD
        .decode(config)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let is_idle = |plugin: &str| plugin == "bandwidth" && !capabilities.contains_key("bandwidth");
    list["plugins"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|plugin| plugin["type"].as_str())
        .filter(|plugin| !is_idle(plugin))
        .map(str::to_owned)
        .collect()
}

/// The calls that undo an attachment, in order, as libcni makes them: DEL, from the last plugin to the first, with the
/// configuration of the ADD. The network namespace of the pod is gone, so none is passed.
///
/// # Errors
///
/// The record or its configuration is not JSON, or a plugin has no name or has a path as its name.
pub fn deletion(bytes: &[u8]) -> Result<Vec<PluginCall>, AttachmentError> {
    let record: Record = serde_json::from_slice(bytes)?;
    let list: Value = serde_json::from_slice(&base64::prelude::BASE64_STANDARD.decode(&record.config)?)?;
    let arguments: Vec<String> = record
        .cni_args
        .iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let environment = vec![
        ("CNI_COMMAND", "DEL".to_owned()),
        ("CNI_CONTAINERID", record.container_id.clone()),
        ("CNI_NETNS", String::new()),
        ("CNI_IFNAME", record.if_name.clone()),
        ("CNI_ARGS", arguments.join(";")),
    ];
    let plugins = list["plugins"].as_array().cloned().unwrap_or_default();
    plugins
        .into_iter()
        .rev()
        .map(|mut plugin| {
            let name = plugin["type"].as_str().unwrap_or_default().to_owned();
            // Only a program in the folder of plugins may run.
            if name.is_empty() || name.contains('/') {
                return Err(AttachmentError::Plugin { found: name });
            }
            let wanted: Map<String, Value> = plugin["capabilities"]
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, on)| **on == Value::Bool(true))
                .filter_map(|(capability, _)| {
                    let value = record.capability_args.get(capability)?;
                    Some((capability.clone(), value.clone()))
                })
                .collect();
            if let Some(plugin) = plugin.as_object_mut() {
                plugin.remove("capabilities");
                plugin.insert("name".to_owned(), list["name"].clone());
                plugin.insert("cniVersion".to_owned(), list["cniVersion"].clone());
                plugin.insert("prevResult".to_owned(), record.result.clone());
                if !wanted.is_empty() {
                    plugin.insert("runtimeConfig".to_owned(), Value::Object(wanted));
                }
            }
            Ok(PluginCall {
                plugin: name,
                environment: environment.clone(),
                input: plugin.to_string(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As containerd 2.4 with flannel's plugin writes it (shortened).
    const RECORD: &str = r#"{
        "kind": "cniCacheV1", "containerId": "16cc", "config": "e30=", "ifName": "eth0", "networkName": "cbr0",
        "netns": "/var/run/netns/cni-35e0",
        "cniArgs": [["K8S_POD_UID", "16bd"], ["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "sample"],
                    ["K8S_POD_NAME", "web-59fd879788-s7bfz"]],
        "capabilityArgs": {"dns": {"Servers": ["10.96.0.10"]}},
        "result": {"cniVersion": "0.3.1", "dns": {},
            "interfaces": [{"mac": "ce:e4", "name": "cni0"}, {"mac": "aa:a5", "name": "veth46b1d73b"},
                           {"mac": "9a:f5", "name": "eth0", "sandbox": "/var/run/netns/cni-35e0"}],
            "ips": [{"address": "10.244.1.2/24", "gateway": "10.244.1.1", "interface": 2, "version": "4"}]}}"#;

    /// Without `cniVersion` in the conflist.
    #[test]
    fn a_result_of_an_old_version_is_a_problem() {
        let old = br#"{"kind":"cniCacheV1","containerId":"16cc","networkName":"cbr0","ifName":"eth0",
            "result":{"cniVersion":"0.2.0","ip4":{"ip":"10.244.1.2/24"},"dns":{}}}"#;
        let error = Attachment::parse(old).unwrap_err().to_string();
        assert!(
            error.contains("0.2.0") && error.contains("names no links"),
            "{error}"
        );
    }

    #[test]
    fn a_record_of_containerd_is_read() {
        let attachment = Attachment::parse(RECORD.as_bytes()).unwrap();
        assert_eq!(attachment.network, "cbr0");
        assert_eq!(attachment.sandbox, "16cc");
        assert_eq!(
            (attachment.namespace.as_str(), attachment.pod.as_str()),
            ("sample", "web-59fd879788-s7bfz")
        );
        assert_eq!(attachment.links, ["cni0", "veth46b1d73b"]);
        assert_eq!(attachment.addresses, ["10.244.1.2".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn an_unknown_record_is_an_error_with_the_reason() {
        let half = Attachment::parse(&RECORD.as_bytes()[..80]).unwrap_err();
        assert!(half.to_string().starts_with("not a record of libcni"), "{half}");
        let other = Attachment::parse(br#"{"kind": "cniCacheV2"}"#).unwrap_err();
        assert_eq!(other.to_string(), "kind \"cniCacheV2\", needed \"cniCacheV1\"");
    }

    #[test]
    fn deletion_calls_the_plugins_from_last_to_first() {
        use base64::Engine as _;
        let list = r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true}},
            {"type":"portmap","capabilities":{"portMappings":true}}]}"#;
        let config = base64::prelude::BASE64_STANDARD.encode(list);
        let record = RECORD.replace("e30=", &config).replace(
            r#""capabilityArgs": {"#,
            r#""capabilityArgs": {"portMappings": [{"hostPort": 8080}], "#,
        );
        let calls = deletion(record.as_bytes()).unwrap();
        let names: Vec<&str> = calls.iter().map(|call| call.plugin.as_str()).collect();
        assert_eq!(names, ["portmap", "flannel"]);
        let input: Value = serde_json::from_str(&calls[0].input).unwrap();
        assert_eq!(input["name"], "cbr0");
        assert_eq!(
            input["runtimeConfig"],
            serde_json::json!({"portMappings": [{"hostPort": 8080}]})
        );
        assert_eq!(input["prevResult"]["ips"][0]["address"], "10.244.1.2/24");
        assert_eq!(input.get("capabilities"), None);
        assert!(
            calls[1]
                .environment
                .contains(&("CNI_CONTAINERID", "16cc".to_owned()))
        );
        assert!(
            calls[1]
                .environment
                .iter()
                .any(|(key, value)| *key == "CNI_ARGS" && value.contains("K8S_POD_NAME=web"))
        );
    }

    #[test]
    fn a_plugin_type_with_a_path_is_refused() {
        use base64::Engine as _;
        let config = base64::prelude::BASE64_STANDARD.encode(r#"{"plugins":[{"type":"../../bin/sh"}]}"#);
        let error = deletion(RECORD.replace("e30=", &config).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("../../bin/sh"), "{error}");
    }
}
