//! etcd, API server, controller manager and scheduler, as services of one machine.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, Result};

use super::authority::{Authority, write};
use super::directory::Directory;
use super::families::IpFamilies;
use super::state::CONTROL_PLANE;
use crate::machine::Service;

/// The range of Services.
pub const SERVICE_NETWORK: &str = "10.96.0.0/16";
/// The address of Service `default/kubernetes`.
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The address of the cluster's name server.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The range of pods; every node gets a /24.
pub const POD_NETWORK: &str = "10.244.0.0/16";
/// The API server's port.
pub const PORT: u16 = 6443;
/// The service name of the API server.
pub const API_SERVER: &str = "kube-apiserver";
/// The service name of the controller manager.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// The API server's address for every machine of the lab and for the host.
pub fn server(address: Ipv4Addr) -> String {
    format!("https://{address}:{PORT}")
}

/// Writes keys, certificates and kubeconfigs into the machine's root, and the administrator's kubeconfig for the host.
pub fn prepare(directory: &Directory, authority: &Authority, address: Ipv4Addr) -> Result<()> {
    let root = directory.machine(CONTROL_PLANE).join("root");
    let kubernetes = root.join("etc/kubernetes");
    let pki = kubernetes.join("pki");
    for name in ["ca.crt", "ca.key", "service-account.key", "service-account.pub"] {
        let from = authority.folder().join(name);
        let text = std::fs::read_to_string(&from).with_context(|| format!("read {}", from.display()))?;
        write(&pki.join(name), &text)?;
    }
    certify(directory, authority, address, &[KUBERNETES_SERVICE])?;
    authority
        .client("kube-apiserver-kubelet-client", Some("system:masters"))?
        .write(&pki, "kubelet-client")?;
    let kubeconfig = |user: &str, group: Option<&str>, file: &Path| -> Result<()> {
        let identity = authority.client(user, group)?;
        write(file, &authority.kubeconfig(&server(address), user, &identity)?)
    };
    kubeconfig(
        "system:kube-controller-manager",
        None,
        &kubernetes.join("controller-manager.conf"),
    )?;
    kubeconfig("system:kube-scheduler", None, &kubernetes.join("scheduler.conf"))?;
    kubeconfig(
        "kubernetes-admin",
        Some("system:masters"),
        &directory.kubeconfig(),
    )
}

/// Writes a certificate of the API server for its own address, and for these addresses of Service `default/kubernetes`.
pub fn certify(
    directory: &Directory,
    authority: &Authority,
    address: Ipv4Addr,
    services: &[Ipv4Addr],
) -> Result<()> {
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    let own = [address, Ipv4Addr::LOCALHOST];
    let addresses: Vec<IpAddr> = own
        .iter()
        .chain(services)
        .map(|address| IpAddr::V4(*address))
        .collect();
    let pki = directory.machine(CONTROL_PLANE).join("root/etc/kubernetes/pki");
    authority
        .server(API_SERVER, &names, &addresses)?
        .write(&pki, "apiserver")
}

/// The port of etcd.
pub const STORE_PORT: u16 = 2379;

/// The services that hold the cluster's state, in the order of their start.
pub fn stores(address: Ipv4Addr, families: IpFamilies) -> [Service; 2] {
    [etcd(address), api_server(address, &families.service_networks())]
}

/// The controllers; each ends at once if there is no API server yet.
pub fn controllers(families: IpFamilies) -> [Service; 2] {
    [
        controller_manager(families, &NodeRanges::of(families), &families.service_networks()),
        scheduler(),
    ]
}

/// The controller manager's settings of the pods' ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRanges {
    /// `--allocate-node-cidrs`: whether each Node gets a part of the ranges.
    pub allocate: bool,
    /// `--cluster-cidr`.
    pub cluster: String,
}

impl NodeRanges {
    /// The settings in a new lab.
    pub fn of(families: IpFamilies) -> Self {
        Self {
            allocate: true,
            cluster: families.pod_networks(),
        }
    }
}

fn etcd(address: Ipv4Addr) -> Service {
    // The lab's data need not survive the machine under the lab: no fsync. The lab itself connects from outside the machine.
    let command = format!(
        "etcd --name=lab --data-dir=/var/lib/etcd --unsafe-no-fsync --log-level=warn \
        --listen-client-urls=http://127.0.0.1:{STORE_PORT},http://{address}:{STORE_PORT} \
        --advertise-client-urls=http://127.0.0.1:{STORE_PORT} \
        --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
        --initial-cluster=lab=http://127.0.0.1:2380"
    );
    service("etcd", &command, &[])
}

/// The API server, with these ranges of Services.
pub fn api_server(address: Ipv4Addr, services: &str) -> Service {
    let command = format!(
        "kube-apiserver --etcd-servers=http://127.0.0.1:{STORE_PORT} --bind-address=0.0.0.0 --secure-port={PORT} \
        --advertise-address={address} --service-cluster-ip-range={services} --allow-privileged=true \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --anonymous-auth=true \
        --client-ca-file=/etc/kubernetes/pki/ca.crt \
        --requestheader-client-ca-file=/etc/kubernetes/pki/ca.crt --requestheader-allowed-names=front-proxy-client \
        --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
        --requestheader-extra-headers-prefix=X-Remote-Extra- --cert-dir=/run/kubernetes \
        --tls-cert-file=/etc/kubernetes/pki/apiserver.crt --tls-private-key-file=/etc/kubernetes/pki/apiserver.key \
        --kubelet-certificate-authority=/etc/kubernetes/pki/ca.crt \
        --kubelet-client-certificate=/etc/kubernetes/pki/kubelet-client.crt \
        --kubelet-client-key=/etc/kubernetes/pki/kubelet-client.key \
        --kubelet-preferred-address-types=InternalIP \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file=/etc/kubernetes/pki/service-account.pub \
        --service-account-signing-key-file=/etc/kubernetes/pki/service-account.key \
        --profiling=false --shutdown-delay-duration=0s"
    );
    service(API_SERVER, &command, &[])
}

/// The controller manager.
pub fn controller_manager(families: IpFamilies, ranges: &NodeRanges, services: &str) -> Service {
    let NodeRanges { allocate, cluster } = ranges;
    let masks = if *allocate {
        families.node_mask_arguments()
    } else {
        ""
    };
    // A node that is cut off shows as NotReady after 16 s instead of 50 s, so that failure cases take no minutes. The
    // grace period must be longer than the time in which a dead connection is found out: hence the shorter health checks.
    let command = format!(
        "kube-controller-manager --kubeconfig=/etc/kubernetes/controller-manager.conf \
        --authentication-kubeconfig=/etc/kubernetes/controller-manager.conf \
        --authorization-kubeconfig=/etc/kubernetes/controller-manager.conf \
        --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials=true \
        --service-account-private-key-file=/etc/kubernetes/pki/service-account.key \
        --root-ca-file=/etc/kubernetes/pki/ca.crt \
        --cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt --cluster-signing-key-file=/etc/kubernetes/pki/ca.key \
        --allocate-node-cidrs={allocate} --cluster-cidr={cluster} {masks} \
        --service-cluster-ip-range={services} \
        --node-monitor-period=2s --node-monitor-grace-period=16s --profiling=false"
    );
    let health = [
        ("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "6"),
        ("HTTP2_PING_TIMEOUT_SECONDS", "4"),
    ];
    service(CONTROLLER_MANAGER, &command, &health)
}

fn scheduler() -> Service {
    let command = "kube-scheduler --kubeconfig=/etc/kubernetes/scheduler.conf \
        --authentication-kubeconfig=/etc/kubernetes/scheduler.conf \
        --authorization-kubeconfig=/etc/kubernetes/scheduler.conf \
        --bind-address=127.0.0.1 --leader-elect=false --profiling=false";
    service("kube-scheduler", command, &[])
}

/// A service from a command line.
pub fn service(name: &str, command: &str, environment: &[(&str, &str)]) -> Service {
    Service {
        name: name.to_owned(),
        command: command.split_whitespace().map(str::to_owned).collect(),
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}
