//! A small good cluster for tests: three workers with Calico, and a Deployment, a StatefulSet, a DaemonSet, name servers and an
//! admission webhook with pods of one pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::json;

use super::{CheckName, CheckPolicy, PERMISSIONS, check};
use crate::detect::detect;
use crate::facts::{ClusterFacts, ControllerManager, Pool};
use crate::hardcoded_range::{Needs, RangeUse};
use crate::host::{Conflist, HostFacts, SourceFacts, TargetFacts};
use crate::ipam::{Allocation, Block};
use crate::settings::{Options, Settings};
use engine::check::{Check, Verdict};
use engine::cluster::{Container, DaemonSet, Node, Webhook};
use engine::drain::{Budget, Pod, Selector};
use engine::environment::Environment;
use engine::found::Found;
use engine::kernel::Device;
use engine::moves::{Workload, WorkloadFacts};
use engine::owner::Owner;

/// Name of the old pool.
pub(crate) const OLD: &str = "default-ipv4-ippool";
/// The hash of the template of every Deployment's pods.
const HASH: &str = "5d8f";

/// Options of the user.
pub(crate) fn options() -> Options {
    Options {
        from: "10.244.0.0/16".parse().unwrap(),
        to: "10.200.0.0/16".parse().unwrap(),
        family: None,
        block_size: None,
    }
}

/// Settings detected from these facts.
pub(crate) fn settings(facts: &ClusterFacts) -> Settings {
    detect(&options(), facts).unwrap()
}

/// Every check of the good cluster after a change, with the default policy.
pub(crate) fn judge(change: impl FnOnce(&mut ClusterFacts)) -> Vec<Check> {
    judge_with(change, CheckPolicy::default())
}

/// Every check of the good cluster after a change.
pub(crate) fn judge_with(change: impl FnOnce(&mut ClusterFacts), policy: CheckPolicy) -> Vec<Check> {
    let mut facts = cluster();
    change(&mut facts);
    check(&settings(&facts), &facts, policy)
}

/// The lines of one check; every other check has to pass.
pub(crate) fn alone(checks: &[Check], name: CheckName) -> Vec<Check> {
    let (of_name, others): (Vec<Check>, Vec<Check>) = checks
        .iter()
        .cloned()
        .partition(|check| check.name == name.as_str());
    let wrong: Vec<String> = others
        .iter()
        .filter(|check| check.verdict != Verdict::Pass)
        .map(Check::line)
        .collect();
    assert_eq!(wrong, [""; 0], "of other checks than {name:?}");
    of_name
}

/// The only line of one check that does not pass.
pub(crate) fn only(checks: &[Check], name: CheckName) -> Check {
    let found = alone(checks, name);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_ne!(found[0].verdict, Verdict::Pass, "{found:#?}");
    assert!(
        !found[0].needed.is_empty() && !found[0].fix.is_empty(),
        "{found:#?}"
    );
    found[0].clone()
}

/// A pool with the defaults of Calico.
pub(crate) fn pool(name: &str, range: &str) -> Pool {
    let range = range.parse().unwrap();
    Pool {
        name: name.to_owned(),
        range,
        spec: json!({
            "cidr": range.to_string(), "blockSize": 26, "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true,
            "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"],
        }),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        managers: vec!["calico-node (Update)".to_owned()],
        owners: Vec::new(),
        terminating: false,
    }
}

/// A pod on the pod network. `owner` names its controller: `Deployment web`.
pub(crate) fn pod(name: &str, owner: &str, node: &str, address: &str) -> Pod {
    let (kind, owner) = owner.split_once(' ').unwrap_or(("", ""));
    let mut labels = BTreeMap::from([("app".to_owned(), owner.to_owned())]);
    let controller = match kind {
        "" => None,
        "Deployment" => {
            labels.insert("pod-template-hash".to_owned(), HASH.to_owned());
            Some(("ReplicaSet".to_owned(), format!("{owner}-{HASH}")))
        }
        kind => Some((kind.to_owned(), owner.to_owned())),
    };
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        node: node.to_owned(),
        labels: labels.into_iter().collect(),
        controller,
        ready: true,
        addresses: vec![address.parse().unwrap()],
        ..Pod::default()
    }
}

fn workload(kind: &str, name: &str, wanted: usize) -> (Workload, WorkloadFacts) {
    let workload = Workload {
        kind: kind.to_owned(),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    };
    let facts = WorkloadFacts {
        wanted,
        ..WorkloadFacts::default()
    };
    (workload, facts)
}

/// The workload of this key, `Deployment web`.
pub(crate) fn workload_mut<'facts>(facts: &'facts mut ClusterFacts, key: &str) -> &'facts mut WorkloadFacts {
    let (kind, name) = key.split_once(' ').unwrap();
    facts.workloads.entry(workload(kind, name, 0).0).or_default()
}

/// A budget of the Deployment web.
pub(crate) fn budget(name: &str, allowed: i32, healthy: i32, desired: i32, expected: i32) -> Budget {
    Budget {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        selector: Some(Selector {
            match_labels: [("app".to_owned(), "web".to_owned())].into(),
            ..Selector::default()
        }),
        disruptions_allowed: allowed,
        current_healthy: healthy,
        desired_healthy: desired,
        expected_pods: expected,
        always_allows_unhealthy: false,
    }
}

/// An allocation of Calico's IPAM.
pub(crate) fn allocation(address: &str, attributes: &[(&str, &str)]) -> Allocation {
    Allocation {
        address: address.parse().unwrap(),
        handle: Some(format!("k8s-pod-network.{address}")),
        attributes: attributes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

fn node(name: &str, index: u8) -> Node {
    Node {
        name: name.to_owned(),
        // As set by kubeadm; Calico's IPAM ignores it.
        pod_cidrs: vec![format!("10.244.{index}.0/24")],
        ready: true,
        internal_addresses: vec![format!("192.168.0.{index}").parse().unwrap()],
        operating_system: "linux".to_owned(),
        kernel_version: "6.18.0".to_owned(),
        ..Node::default()
    }
}

fn host(index: u8) -> HostFacts {
    HostFacts {
        conflist: Found::Present(Conflist {
            path: "/etc/cni/net.d/10-calico.conflist".to_owned(),
            network: Some("k8s-pod-network".to_owned()),
            plugin: "calico".to_owned(),
            ipam: Found::Present("calico-ipam".to_owned()),
            ipv4_pools: Found::Absent,
            ipv6_pools: Found::Absent,
        }),
        source: SourceFacts::default(),
        target: TargetFacts::default(),
        tunnels: vec![Device {
            name: "vxlan.calico".to_owned(),
            mtu: 1450,
            up: true,
            addresses: vec![format!("10.244.{index}.1/32").parse().unwrap()],
        }],
        uplink: None,
        local_traffic: Found::Absent,
    }
}

/// The CNI configuration of node b.
pub(crate) fn conflist_mut(facts: &mut ClusterFacts) -> &mut Conflist {
    let Found::Present(conflist) = &mut facts.hosts.get_mut("b").unwrap().conflist else {
        panic!("no CNI configuration");
    };
    conflist
}

/// Calico's `DaemonSet`.
fn calico() -> DaemonSet {
    DaemonSet {
        host_network: true,
        namespace: "kube-system".to_owned(),
        name: "calico-node".to_owned(),
        containers: vec![Container {
            name: "calico-node".to_owned(),
            image: "quay.io/calico/node:v3.31.7".to_owned(),
            environment: Environment::plain([("DATASTORE_TYPE", "kubernetes")]),
            ..Container::default()
        }],
        desired: 3,
        ready: 3,
        rolled_out: true,
        ..DaemonSet::default()
    }
}

/// Calico's `DaemonSet` of these facts.
pub(crate) fn calico_mut(facts: &mut ClusterFacts) -> &mut DaemonSet {
    facts.daemon_sets.values_mut().next().unwrap()
}

/// The old pool of these facts.
pub(crate) fn old_mut(facts: &mut ClusterFacts) -> &mut Pool {
    facts.pools.get_mut(OLD).unwrap()
}

fn pods() -> Vec<Pod> {
    let mut pods = vec![
        pod("web-1", "Deployment web", "a", "10.244.1.10"),
        pod("web-2", "Deployment web", "b", "10.244.2.10"),
        pod("db-0", "StatefulSet db", "a", "10.244.1.11"),
        pod("db-1", "StatefulSet db", "b", "10.244.2.11"),
        pod("log-a", "DaemonSet log", "a", "10.244.1.12"),
        pod("log-b", "DaemonSet log", "b", "10.244.2.12"),
        pod("log-c", "DaemonSet log", "c", "10.244.3.12"),
        pod("dns-1", "Deployment dns", "b", "10.244.2.13"),
        pod("dns-2", "Deployment dns", "c", "10.244.3.13"),
        pod("guard-1", "Deployment guard", "a", "10.244.1.14"),
        pod("guard-2", "Deployment guard", "c", "10.244.3.14"),
    ];
    // A pod with host network, and a finished one: neither has to move.
    pods.push(Pod {
        host_network: true,
        ..pod("proxy-a", "DaemonSet proxy", "a", "192.168.0.1")
    });
    pods.push(Pod {
        finished: true,
        ready: false,
        ..pod("report-1", "Job report", "a", "10.244.1.15")
    });
    pods
}

/// One block for each node, with its tunnel address and the addresses of its pods.
fn blocks(pods: &[Pod]) -> Vec<Block> {
    [("a", 1), ("b", 2), ("c", 3)]
        .into_iter()
        .map(|(node, index)| {
            let tunnel = allocation(
                &format!("10.244.{index}.1"),
                &[("type", "vxlanTunnelAddress"), ("node", node)],
            );
            let of_pods = pods
                .iter()
                .filter(|pod| pod.node == node && pod.uses_pod_network())
                .flat_map(|pod| pod.addresses.iter().map(move |address| (pod, address)))
                .map(|(pod, address)| {
                    let attributes = [
                        ("namespace", pod.namespace.as_str()),
                        ("pod", &pod.name),
                        ("node", node),
                    ];
                    allocation(&address.to_string(), &attributes)
                });
            Block {
                range: format!("10.244.{index}.0/26").parse().unwrap(),
                affinity: Some(format!("host:{node}")),
                allocations: of_pods.chain([tunnel]).collect(),
            }
        })
        .collect()
}

fn mention(object: &str, owner: Owner, said: &[&str], needs: Needs, fix: &str) -> RangeUse {
    RangeUse {
        object: object.to_owned(),
        owner,
        ranges: said.iter().map(|text| text.parse().unwrap()).collect(),
        more: 0,
        needs,
        fix: fix.to_owned(),
        is_of_kube_proxy: false,
    }
}

/// Adds an object of the cluster with these ranges.
pub(crate) fn say(facts: &mut ClusterFacts, said: &[&str], needs: Needs) {
    let place = mention(
        "ConfigMap kube-system/place: range",
        Owner::Cluster,
        said,
        needs,
        "write {ranges}",
    );
    facts.mentions.push(place);
}

/// Adds a policy of a tenant with these ranges.
pub(crate) fn let_a_tenant_say(facts: &mut ClusterFacts, said: &[&str]) {
    let policy = mention(
        "NetworkPolicy shop/narrow",
        Owner::Tenant("shop".to_owned()),
        said,
        Needs::Both,
        "write {ranges}",
    );
    facts.mentions.push(policy);
}

/// Nodes a, b and c, with which every check passes.
pub(crate) fn cluster() -> ClusterFacts {
    let names = [("a", 1), ("b", 2), ("c", 3)];
    let pods = pods();
    let key = |name: &str| ("shop".to_owned(), name.to_owned());
    ClusterFacts {
        nodes: names
            .map(|(name, index)| (name.to_owned(), node(name, index)))
            .into(),
        hosts: names.map(|(name, index)| (name.to_owned(), host(index))).into(),
        blocks: blocks(&pods),
        pods: pods.into(),
        workloads: BTreeMap::from([
            workload("Deployment", "web", 2),
            workload("StatefulSet", "db", 2),
            workload("DaemonSet", "log", 3),
            workload("Deployment", "dns", 2),
            workload("Deployment", "guard", 2),
        ]),
        budgets: vec![budget("web", 1, 2, 1, 2)],
        webhooks: vec![Webhook {
            object: "ValidatingWebhookConfiguration guard, webhook pods.example".to_owned(),
            service: key("guard"),
            covers_pods_or_nodes: true,
            backends: [("guard-1", "a"), ("guard-2", "c")]
                .map(|(name, node)| ("shop".to_owned(), name.to_owned(), node.to_owned(), true))
                .to_vec(),
        }],
        name_servers: BTreeSet::from([key("dns-1"), key("dns-2")]),
        pools: BTreeMap::from([(OLD.to_owned(), pool(OLD, "10.244.0.0/16"))]),
        services: vec![(
            "ServiceCIDR kubernetes".to_owned(),
            "10.96.0.0/16".parse().unwrap(),
        )],
        kube_proxy_is_known: true,
        mentions: vec![
            mention(
                "ConfigMap kube-system/kube-proxy: clusterCIDR",
                Owner::Cluster,
                &["10.192.0.0/10"],
                Needs::BothThenNew,
                "write {ranges}",
            ),
            mention(
                "NetworkPolicy shop/web",
                Owner::Tenant("shop".to_owned()),
                &["10.200.0.0/16", "10.244.0.0/16"],
                Needs::Both,
                "add the new range beside the old one ({ranges})",
            ),
        ],
        daemon_sets: [calico()]
            .map(|set| ((set.namespace.clone(), set.name.clone()), set))
            .into(),
        controller_managers: vec![ControllerManager {
            pod: "kube-system/kube-controller-manager-a".to_owned(),
            ranges: Some(vec!["10.244.0.0/16".parse().unwrap()]),
            allocates: true,
        }],
        calico_resources: ["blockaffinities", "ipamblocks", "ipamhandles", "ippools"]
            .map(str::to_owned)
            .into(),
        policies: engine::check::policies::all_bound(),
        permissions: PERMISSIONS
            .iter()
            .map(|permission| (permission.key(), true))
            .collect(),
        ..ClusterFacts::default()
    }
}

/// The same cluster with dual-stack pods.
pub(crate) fn dual_stack() -> ClusterFacts {
    let mut facts = cluster();
    let mut ipv6 = pool("default-ipv6-ippool", "fd00:10:244::/56");
    ipv6.spec["blockSize"] = json!(122);
    facts.pools.insert(ipv6.name.clone(), ipv6);
    for (index, node) in (1_u8..).zip(facts.nodes.values_mut()) {
        node.pod_cidrs.push(format!("fd00:10:244:{index}::/64"));
        node.internal_addresses
            .push(format!("fd00:192::{index}").parse().unwrap());
    }
    for (index, pod) in (0x10_u16..).zip(facts.pods.iter_mut().filter(|pod| !pod.host_network)) {
        let address: IpAddr = format!("fd00:10:244::{index:x}").parse().unwrap();
        pod.addresses.push(address);
    }
    let manager = facts.controller_managers[0].ranges.as_mut().unwrap();
    manager.push("fd00:10:244::/56".parse().unwrap());
    let services = facts.services[0].0.clone();
    facts
        .services
        .push((services, "fd00:10:96::/112".parse().unwrap()));
    facts
}

/// Options of the user for the IPv6 range.
pub(crate) fn ipv6_options() -> Options {
    Options {
        from: "fd00:10:244::/56".parse().unwrap(),
        to: "fd00:10:200::/56".parse().unwrap(),
        family: None,
        block_size: None,
    }
}
