//! The inputs of a plugin: the configuration, and the pod in the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// Path of the node's name, written by calico-node at its start.
const NODE_NAME_FILE: &str = "/var/lib/calico/nodename";
/// Path of the host's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// Path of the MTU for pods, written by Felix.
pub const MTU_FILE: &str = "/var/lib/calico/mtu";

/// The part of the conflist for this plugin.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Name of the network.
    pub name: String,
    /// Name of the node.
    pub nodename: String,
    nodename_file: String,
    nodename_file_optional: bool,
    mtu: u32,
    log_file_path: String,
    /// The IPAM plugin and its settings.
    pub ipam: IpamConfig,
    /// The address of etcd, for a Calico with etcd.
    #[serde(flatten)]
    pub etcd: Etcd,
    kubernetes: Kubernetes,
    container_settings: ContainerSettings,
}

/// Settings of the IPAM plugin.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IpamConfig {
    /// `calico-ipam`, or another one.
    #[serde(rename = "type")]
    pub kind: String,
    /// Restricts the pools.
    pub ipv4_pools: Vec<String>,
    /// `"true"` if pods also get an IPv6 address.
    pub assign_ipv6: String,
    ipam_lock_file: String,
}

/// The address of etcd. An empty path means that there is no such file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Etcd {
    #[serde(rename = "etcd_endpoints")]
    endpoints: String,
    /// Authority of etcd's certificate.
    #[serde(rename = "etcd_ca_cert_file")]
    pub authority: String,
    /// The client certificate.
    #[serde(rename = "etcd_cert_file")]
    pub certificate: String,
    /// The key of the client certificate.
    #[serde(rename = "etcd_key_file")]
    pub key: String,
}

impl Etcd {
    /// The endpoints of the list.
    pub fn endpoints(&self) -> Vec<String> {
        let parts = self.endpoints.split(',').map(str::trim);
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Kubernetes {
    kubeconfig: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerSettings {
    allow_ip_forwarding: bool,
}

impl Config {
    /// Where to log.
    pub fn log_file(&self) -> PathBuf {
        if self.log_file_path.is_empty() {
            "/var/log/calico/cni/cni.log"
        } else {
            &self.log_file_path
        }
        .into()
    }

    /// The kubeconfig to use; without one, the service account.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        (!self.kubernetes.kubeconfig.is_empty()).then(|| self.kubernetes.kubeconfig.clone().into())
    }

    /// Lets only one plugin at a time on this node change blocks.
    pub fn lock_file(&self) -> PathBuf {
        let path = &self.ipam.ipam_lock_file;
        if path.is_empty() {
            "/var/run/calico/ipam.lock"
        } else {
            path
        }
        .into()
    }

    /// Whether a pod may forward packets.
    pub fn allow_forwarding(&self) -> bool {
        self.container_settings.allow_ip_forwarding
    }

    fn node_name_file(&self) -> &Path {
        Path::new(if self.nodename_file.is_empty() {
            NODE_NAME_FILE
        } else {
            &self.nodename_file
        })
    }

    /// Refuses to work before calico-node has started on this node.
    pub fn require_node_name_file(&self) -> Result<()> {
        let path = self.node_name_file();
        if !self.nodename_file_optional && !path.exists() {
            bail!(
                "stat {}: no such file or directory: check that the calico/node container is running and has \
                 mounted /var/lib/calico/",
                path.display()
            );
        }
        Ok(())
    }

    /// The node's name: from calico-node's file, otherwise from the configuration.
    pub fn node_name(&self) -> Result<String> {
        let path = self.node_name_file();
        let name = std::fs::read_to_string(path).unwrap_or_default();
        let name = if name.trim().is_empty() {
            self.nodename.clone()
        } else {
            name.trim().to_owned()
        };
        if !name.is_empty() && name != "__KUBERNETES_NODE_NAME__" {
            return Ok(name);
        }
        // The last resort, and the only source of v2.6.
        let host = std::fs::read_to_string(HOST_NAME).with_context(|| {
            format!(
                "find the node's name: neither {} nor nodename in the configuration has it, and {HOST_NAME} cannot be read",
                path.display()
            )
        })?;
        Ok(host.trim().to_lowercase())
    }

    /// Half of the requested addresses would look like all of them.
    pub fn refuse_ipv6(&self) -> Result<()> {
        if self.ipam.assign_ipv6 == "true" {
            bail!(
                "assign_ipv6 is \"true\", and the stand-in assigns IPv4 addresses only: use the real Calico (--calico-bin)"
            );
        }
        Ok(())
    }

    /// MTU of a pod's device.
    pub fn mtu(&self) -> Result<u32> {
        if self.mtu > 0 {
            return Ok(self.mtu);
        }
        match std::fs::read_to_string(MTU_FILE) {
            Ok(text) => text
                .trim()
                .parse()
                .with_context(|| format!("read the MTU from {MTU_FILE}: {text:?} is not a number")),
            Err(_) => Ok(1500),
        }
    }
}

/// One call of a plugin.
#[derive(Debug, Clone)]
pub struct Call {
    /// The configuration.
    pub config: Config,
    /// The unchanged configuration, for the IPAM plugin.
    pub input: Value,
    /// Identifier of the sandbox.
    pub container: String,
    /// Path of the sandbox's network namespace; empty if it was deleted.
    pub namespace_path: String,
    /// Path of the sandbox's network namespace; empty if it was deleted.
    pub device: String,
    /// Where plugins are.
    pub path: String,
    /// Search path of plugins.
    pub pod: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// The requested address.
    pub address: Option<String>,
}

impl Call {
    /// Reads the configuration and the environment.
    pub fn new(input: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let value: Value = serde_json::from_str(input).context("failed to load netconf")?;
        let config: Config = serde_json::from_value(value.clone()).context("failed to load netconf")?;
        let text = |name: &str| environment(name).unwrap_or_default();
        let arguments = text("CNI_ARGS");
        let arguments: BTreeMap<&str, &str> = arguments
            .split(';')
            .filter_map(|argument| argument.split_once('='))
            .collect();
        let argument = |name: &str| arguments.get(name).map(|value| (*value).to_owned());
        let call = Self {
            config,
            input: value,
            container: text("CNI_CONTAINERID"),
            namespace_path: text("CNI_NETNS"),
            device: text("CNI_IFNAME"),
            path: text("CNI_PATH"),
            pod: argument("K8S_POD_NAME").unwrap_or_default(),
            namespace: argument("K8S_POD_NAMESPACE").unwrap_or_default(),
            address: argument("IP").filter(|address| !address.is_empty()),
        };
        if call.container.is_empty() {
            bail!("CNI_CONTAINERID is not set");
        }
        if call.pod.is_empty() || call.namespace.is_empty() {
            bail!(
                "CNI_ARGS names no pod (K8S_POD_NAME and K8S_POD_NAMESPACE): the stand-in serves only Kubernetes"
            );
        }
        Ok(call)
    }

    /// The handle that releases the sandbox's address.
    pub fn handle(&self) -> String {
        crate::ipam::names::pod_handle(&self.config.name, &self.container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_calicos_conflist_is_parsed() {
        let input = r#"{"name": "k8s-pod-network", "cniVersion": "1.0.0", "type": "calico",
            "log_level": "info", "log_file_path": "/tmp/cni.log", "datastore_type": "kubernetes",
            "nodename": "n1", "nodename_file_optional": true, "mtu": 1450, "ipam": {"type": "calico-ipam"},
            "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"}}"#;
        let call = Call::new(input, |name| {
            Some(
                match name {
                    "CNI_CONTAINERID" => "abc",
                    "CNI_ARGS" => "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0",
                    "CNI_IFNAME" => "eth0",
                    _ => return None,
                }
                .to_owned(),
            )
        })
        .unwrap();
        assert_eq!((call.pod.as_str(), call.namespace.as_str()), ("web-0", "default"));
        assert_eq!(call.handle(), "k8s-pod-network.abc");
        assert_eq!(call.config.mtu().unwrap(), 1450);
        assert_eq!(call.config.ipam.kind, "calico-ipam");
        assert_eq!(
            call.config.kubeconfig(),
            Some("/etc/cni/net.d/calico-kubeconfig".into())
        );
        assert!(!call.config.allow_forwarding());
        call.config.require_node_name_file().unwrap();
    }

    #[test]
    fn without_calico_node_a_call_is_refused() {
        let config: Config =
            serde_json::from_value(serde_json::json!({"nodename_file": "/nowhere/nodename"})).unwrap();
        let error = config.require_node_name_file().unwrap_err().to_string();
        assert!(
            error.contains("check that the calico/node container is running"),
            "{error}"
        );
    }
}
