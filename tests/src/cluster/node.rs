//! The parts that make a machine a Kubernetes node: containerd, kubelet, their configuration, the basic CNI plugins, the images.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::authority::{Authority, write};
use super::control_plane::{DNS_SERVICE, server, service};
use super::directory::Directory;
use super::families::IpFamilies;
use super::kube_proxy::STATIC_PODS;
use crate::machine::Service;

/// Path of the lab's image archives on a node.
pub const IMAGES: &str = "/opt/lab/images";
/// The socket of a node's containerd.
pub const CONTAINERD: &str = "/run/containerd/containerd.sock";
/// CNI plugins of every node, independent of the pod network.
const BASE_PLUGINS: [&str; 5] = ["bandwidth", "bridge", "host-local", "loopback", "portmap"];

/// The values that differ between nodes.
#[derive(Debug)]
pub struct NodeConfig<'a> {
    /// The name.
    pub name: &'a str,
    /// The address.
    pub address: Ipv4Addr,
    /// The API server's address.
    pub api_server: Ipv4Addr,
    /// The folder of the basic CNI plugins.
    pub plugins: &'a Path,
    /// The image that holds a pod's namespaces.
    pub pause_image: &'a str,
}

/// Writes the node's files into its root.
pub fn prepare(directory: &Directory, authority: &Authority, node: &NodeConfig) -> Result<()> {
    let root = directory.machine(node.name).join("root");
    let kubernetes = root.join("etc/kubernetes");
    let pki = kubernetes.join("pki");
    write(&pki.join("ca.crt"), authority.certificate())?;
    authority
        .server(node.name, &[node.name], &[IpAddr::V4(node.address)])?
        .write(&pki, "kubelet")?;
    let user = format!("system:node:{}", node.name);
    let identity = authority.client(&user, Some("system:nodes"))?;
    let kubeconfig = authority.kubeconfig(&server(node.api_server), &user, &identity)?;
    write(&kubernetes.join("kubelet.conf"), &kubeconfig)?;
    let configuration = kubelet_configuration(&directory.machine_cgroup(node.name));
    write(
        &kubernetes.join("kubelet.json"),
        &serde_json::to_string_pretty(&configuration)?,
    )?;
    write(
        &root.join("etc/containerd/config.toml"),
        &containerd_configuration(node.pause_image),
    )?;
    install_base_plugins(node.plugins, &root.join("opt/cni/bin"))
}

/// The container runtime.
pub fn containerd() -> Service {
    service(
        "containerd",
        "containerd --config=/etc/containerd/config.toml",
        &[],
    )
}

/// The kubelet.
pub fn kubelet(name: &str, address: Ipv4Addr, families: IpFamilies) -> Service {
    let addresses = families.node_addresses(address);
    let command = format!(
        "kubelet --config=/etc/kubernetes/kubelet.json --kubeconfig=/etc/kubernetes/kubelet.conf \
        --hostname-override={name} --node-ip={addresses} --v=2"
    );
    service("kubelet", &command, &[])
}

fn kubelet_configuration(cgroup: &str) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": "/etc/kubernetes/pki/kubelet.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/pki/kubelet.key",
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD}"),
        "clusterDNS": [DNS_SERVICE.to_string()],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        // The images of the lab cannot be pulled again, so they are never removed.
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
        "serializeImagePulls": false,
        "staticPodPath": STATIC_PODS,
        // A changed static pod restarts within this time; the default of 20 s would make tests longer.
        "fileCheckFrequency": "5s",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "maxPods": 110,
        // With the controller manager's grace period of 16 s, four heartbeats may be missed.
        "nodeLeaseDurationSeconds": 16,
        "nodeStatusUpdateFrequency": "5s",
    })
}

fn containerd_configuration(pause_image: &str) -> String {
    // A machine without CAP_SYS_RESOURCE may not lower an oom score: this restriction keeps sandboxes from failing.
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD}"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause_image}"

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/opt/cni/bin"]
conf_dir = "/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"#
    )
}

/// Copies, never links: files that pods later write into /opt/cni/bin must not reach the host's files.
fn install_base_plugins(plugins: &Path, target: &Path) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("create {}", target.display()))?;
    for name in BASE_PLUGINS {
        let (from, to) = (plugins.join(name), target.join(name));
        fs::copy(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("make {} executable", to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_image_is_pinned() {
        assert!(
            containerd_configuration("example.org/pause:1").contains("sandbox = \"example.org/pause:1\"")
        );
    }
}
