//! The control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real. kwok plays the kubelets.

use std::fs;

use anyhow::{Context, Result};
use serde_json::json;

use super::coordinator;
use super::hollow;
use super::size::{POD_NETWORK, Size};
use crate::apilab::{OwnApiLab, Settings};
use crate::cluster::{Images, IpFamilies, PacketFilter, PodNetwork, ProxyMode, Tunnel, Values};

/// Those that a migration needs; the others would only take the processor.
const CONTROLLERS: &str = "daemonset-controller,disruption-controller,endpointslice-controller,garbage-collector-controller,\
                           node-lifecycle-controller,replicaset-controller,service-cidr-controller,serviceaccount-controller";
/// Requests a second that a controller may make; with its own limit of 20 a cluster of this size would never be made.
const QPS: u32 = 1_000;
const KWOK: &str = include_str!("../../manifests/kwok.yaml");
/// How many nodes' pods of a `DaemonSet` are replaced at a time: one at a time would take hours in a large cluster.
const ROLLED_AT_ONCE: &str =
    r#"{"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}}}"#;

/// Starts store and API server, and applies replumb, flannel and Calico. No controller runs yet.
pub fn start(size: &Size) -> Result<OwnApiLab> {
    let lab = OwnApiLab::start(
        size.programs.clone(),
        Settings {
            // A cluster of 5 000 nodes with every version of the last minutes needs some gigabytes.
            etcd: "--quota-backend-bytes=8589934592 --auto-compaction-mode=periodic --auto-compaction-retention=2m".to_owned(),
            audit: Some(audit_policy()),
            server: "--max-requests-inflight=800 --max-mutating-requests-inflight=400".to_owned(),
            controllers: None,
        },
    )?;
    let values = Values::new(
        &Images::default(),
        std::net::Ipv4Addr::LOCALHOST,
        ProxyMode::default(),
        PacketFilter::default(),
        IpFamilies::default(),
        PodNetwork::Flannel,
        Tunnel::default(),
    )
    .with_pod_network(POD_NETWORK);
    for (name, manifest) in [
        ("calico-crds", values.calico_definitions()?),
        ("flannel", values.flannel()?),
        ("calico", values.calico()?),
    ] {
        let file = lab.folder().join(format!("{name}.yaml"));
        fs::write(&file, manifest).with_context(|| format!("write {}", file.display()))?;
        lab.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()])?;
    }
    for (namespace, set) in [
        ("kube-flannel", "kube-flannel-ds"),
        ("kube-system", "calico-node"),
    ] {
        lab.kubectl(&["patch", "daemonset", "-n", namespace, set, "-p", ROLLED_AT_ONCE])?;
    }
    Ok(lab)
}

/// Starts what makes pods of workloads, binds them to nodes and runs them.
pub fn start_controllers(lab: &OwnApiLab) -> Result<()> {
    let kubeconfig = lab.kubeconfig();
    let kubeconfig = kubeconfig.display();
    lab.run(
        "kube-controller-manager",
        &format!(
            "--kubeconfig={kubeconfig} --leader-elect=false --secure-port=0 --controllers={CONTROLLERS} \
             --node-monitor-grace-period=10m --kube-api-qps={QPS} --kube-api-burst={QPS} --concurrent-gc-syncs=8"
        ),
    )?;
    let scheduler = lab.folder().join("scheduler.json");
    let configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": lab.kubeconfig(), "qps": QPS, "burst": QPS},
        "leaderElection": {"leaderElect": false},
        "enableProfiling": false,
    });
    fs::write(&scheduler, configuration.to_string())
        .with_context(|| format!("write {}", scheduler.display()))?;
    lab.run(
        "kube-scheduler",
        &format!("--config={} --secure-port=0", scheduler.display()),
    )?;
    let kwok = lab.folder().join("kwok.yaml");
    fs::write(&kwok, KWOK).with_context(|| format!("write {}", kwok.display()))?;
    lab.run(
        "kwok",
        &format!(
            "--config={} --kubeconfig={kubeconfig} --manage-all-nodes=true --node-port=0",
            kwok.display()
        ),
    )
}

/// What the coordinator asks is written down, and what the agents write with its contents: which of it is a new phase.
fn audit_policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "users": [coordinator::USER]},
            {"level": "Request", "users": [hollow::USER], "verbs": ["patch"]},
            {"level": "None"},
        ],
    })
    .to_string()
}
