//! The images that a lab runs, by name, and the archives that they come in.

/// Names of images; every one of them must be in one of the archives.
#[derive(Clone, Debug)]
pub struct Images {
    /// Holds a pod's namespaces.
    pub pause: String,
    /// A shell with small tools; sample workloads run it.
    pub busybox: String,
    /// flanneld at `/opt/bin/flanneld`, with iptables, nft and `cp`.
    pub flannel: String,
    /// flannel's CNI plugin at `/flannel`, with `cp`.
    pub flannel_cni_plugin: String,
    /// kube-proxy at `/usr/local/bin/kube-proxy`, with iptables and nft.
    pub kube_proxy: String,
    /// `CoreDNS` as the entry point.
    pub coredns: String,
    /// calico-node at `/bin/calico-node`, the real one or the stand-in.
    pub calico_node: String,
    /// Calico's CNI plugin and its installer at `/opt/cni/bin/`, the real one or the stand-in.
    pub calico_cni: String,
    /// The traffic generator.
    pub traffic: String,
    /// replumb's agent.
    pub agent: String,
    /// replumb's coordinator.
    pub coordinator: String,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            pause: "registry.k8s.io/pause:3.10".into(),
            busybox: "docker.io/library/busybox:1.35".into(),
            flannel: "ghcr.io/flannel-io/flannel:v0.28.4".into(),
            flannel_cni_plugin: "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1".into(),
            kube_proxy: "registry.k8s.io/kube-proxy:v1.36.3".into(),
            coredns: "registry.k8s.io/coredns/coredns:v1.15.0".into(),
            calico_node: "docker.io/calico/node:v3.31.7".into(),
            calico_cni: "docker.io/calico/cni:v3.31.7".into(),
            traffic: "replumb.dev/lab/traffic:0.1.0".into(),
            agent: "ghcr.io/replumb/agent:0.1.0".into(),
            coordinator: "ghcr.io/replumb/coordinator:0.1.0".into(),
        }
    }
}
