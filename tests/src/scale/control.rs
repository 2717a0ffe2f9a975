//! The control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real. kwok plays the kubelets.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use api::names;
use serde_json::json;

use super::size::{Kind, POD_NETWORK, Size};
use super::{calico, coordinator, hollow, shape};
use crate::apilab::{OwnApiLab, Settings};
use crate::cluster::control_plane::{self, DNS_SERVICE};
use crate::cluster::{Images, IpFamilies, PacketFilter, PodNetwork, ProxyMode, Tunnel, Values};

/// The controllers that a migration needs; the others would only use processor time.
const CONTROLLERS: &str = "daemonset-controller,deployment-controller,disruption-controller,endpointslice-controller,garbage-collector-controller,\
                           node-lifecycle-controller,replicaset-controller,service-cidr-controller,serviceaccount-controller";
/// Requests a second for a controller; with its default limit of 20, creating a cluster of this size would take hours.
const QPS: u32 = 1_000;
/// Namespace and name of the networks' `DaemonSet`s.
const FLANNEL: (&str, &str) = ("kube-flannel", "kube-flannel-ds");
const CALICO: (&str, &str) = ("kube-system", "calico-node");
const KWOK: &str = include_str!("../../manifests/kwok.yaml");
/// Number of nodes whose pods of a `DaemonSet` are replaced at a time: one at a time would take hours in a large cluster.
const ROLLED_AT_ONCE: &str =
    r#"{"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}}}"#;

/// Starts etcd and the API server, and applies replumb and the networks of the migration. No controller runs yet.
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
        match size.migration {
            Kind::FlannelToCalico | Kind::ServiceCidr => PodNetwork::Flannel,
            Kind::PodCidr => PodNetwork::Calico,
        },
        Tunnel::default(),
    )
    .with_pod_network(POD_NETWORK);
    for (name, manifest) in manifests(size.migration, &values, lab.port())? {
        lab.apply(name, &manifest)?;
    }
    for (namespace, set) in daemon_sets(size.migration) {
        lab.kubectl(&["patch", "daemonset", "-n", namespace, set, "-p", ROLLED_AT_ONCE])?;
    }
    // The coordinator runs as a process, not as a pod.
    let deployment = format!("deployment/{}", names::COORDINATOR);
    lab.kubectl(&["scale", "-n", names::NAMESPACE, &deployment, "--replicas=0"])?;
    Ok(lab)
}

/// The manifests for this migration, each with a file name.
fn manifests(kind: Kind, values: &Values, port: u16) -> Result<Vec<(&'static str, String)>> {
    Ok(match kind {
        Kind::FlannelToCalico => vec![
            ("calico-crds", values.calico_definitions()?),
            ("flannel", values.flannel()?),
            ("calico", values.calico()?),
        ],
        Kind::PodCidr => vec![
            ("calico-crds", values.calico_definitions()?),
            // The lab's own range is in calico-node's environment.
            (
                "calico",
                values.calico()?.replace(control_plane::POD_NETWORK, POD_NETWORK),
            ),
            ("pool", calico::pool(POD_NETWORK).to_string()),
            ("core-dns", values.core_dns()?),
        ],
        Kind::ServiceCidr => vec![
            ("flannel", values.flannel()?),
            ("core-dns", values.core_dns()?),
            ("api-server", shape::api_server(port).to_string()),
            ("kubelets", shape::kubelet_configuration(DNS_SERVICE).to_string()),
        ],
    })
}

/// Namespace and name of the networks' `DaemonSet`s.
fn daemon_sets(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::FlannelToCalico => &[FLANNEL, CALICO],
        Kind::PodCidr => &[CALICO],
        Kind::ServiceCidr => &[FLANNEL],
    }
}

/// Starts the programs that create the pods of workloads, bind them to nodes and run them.
pub fn start_controllers(lab: &OwnApiLab, kind: Kind) -> Result<()> {
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
    fs::write(&kwok, stages(kind)?).with_context(|| format!("write {}", kwok.display()))?;
    lab.run(
        "kwok",
        &format!(
            "--config={} --kubeconfig={kubeconfig} --manage-all-nodes=true --node-port=0",
            kwok.display()
        ),
    )
}

/// The stages of kwok. If addresses of pods are simulated, a pod runs once its status has an address.
fn stages(kind: Kind) -> Result<String> {
    match kind {
        Kind::FlannelToCalico | Kind::ServiceCidr => Ok(KWOK.to_owned()),
        Kind::PodCidr => {
            let has_address = "      - key: '.metadata.deletionTimestamp'\n        operator: DoesNotExist\n      - key: '.status.podIP'\n        operator: Exists\n";
            let begins = "      - key: '.metadata.deletionTimestamp'\n        operator: DoesNotExist\n";
            let parts = (
                KWOK.find("      {{ with PodIPsWith "),
                KWOK.find("      phase: Running\n"),
            );
            let (Some(from), Some(to)) = parts else {
                bail!("kwok.yaml has no addresses of pods");
            };
            ensure!(
                KWOK.contains(begins),
                "kwok.yaml has no stage in which a pod begins"
            );
            let without = [&KWOK[..from], &KWOK[to..]].concat();
            Ok(without.replace(begins, has_address))
        }
    }
}

/// The audit log has the coordinator's requests, and the agents' writes with their contents, to find new phases in them.
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
