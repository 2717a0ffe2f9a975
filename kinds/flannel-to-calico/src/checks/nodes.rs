//! Checks of Node objects: labels, operating system, flannel's annotations, subnets, schedulable nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{CheckName, CheckPolicy};
use crate::detect::{NETWORK_LABEL, flannel_nodes, linux_nodes, network_label};
use crate::facts::ClusterFacts;
use crate::flannel::{NodeAnnotations, annotation_key};
use crate::node::NetworkLabel;
use crate::objects;
use crate::settings::{PodNetwork, Settings};
use engine::check::{Check, Finding, Report, names};
use engine::cluster::Node;

/// Label with which Calico's own controller marks the node that it migrates.
const IN_PROGRESS_LABEL: &str = "projectcalico.org/node-flannel-migration-in-progress";
/// Label of the pods of Calico's own controller.
const CONTROLLER: (&str, &str) = ("k8s-app", "flannel-migration-controller");
/// The permission that the coordinator needs to write labels.
const LABEL_PERMISSION: &str = "patch nodes";

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    [
        labels(facts),
        migration_controller(facts),
        operating_system(settings, facts),
        annotations(settings, facts),
        pod_cidr(settings, facts),
    ]
    .concat()
}

fn labels(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NodeLabels);
    let permission = "whether the coordinator may patch Nodes";
    match facts.permissions.get(LABEL_PERMISSION) {
        Some(true) => {}
        Some(false) => {
            let fix =
                "apply the coordinator's ClusterRole again: node labels select the network of each node";
            report.fail(
                "",
                permission,
                Finding::new("", "denied by the API server", "allowed", fix),
            );
        }
        None => report.unknown(
            "",
            permission,
            Finding::new(
                "",
                "not known",
                "an answer from the API server",
                "check the log of the coordinator",
            ),
        ),
    }
    for node in linux_nodes(facts) {
        let part = format!("label {NETWORK_LABEL}");
        match network_label(node) {
            NetworkLabel::Missing | NetworkLabel::Flannel => {}
            NetworkLabel::Other(value) => {
                let fix = format!(
                    "remove the label, which is not from this migration: `kubectl label node <name> {NETWORK_LABEL}-`"
                );
                report.fail(
                    "Node",
                    &node.name,
                    Finding::new(&part, value, "flannel, none or calico", fix),
                );
            }
            taken_over @ (NetworkLabel::Neither | NetworkLabel::Calico) => {
                let value = if taken_over == NetworkLabel::Calico {
                    "calico"
                } else {
                    "none"
                };
                let fix =
                    "none: an incomplete run of Calico's own controller, which this migration continues";
                report.warn(
                    "Node",
                    &node.name,
                    Finding::new(&part, value, "flannel or no label", fix),
                );
            }
        }
        if let Some(value) = node.labels.get(IN_PROGRESS_LABEL) {
            report.warn(
                "Node",
                &node.name,
                Finding::new(
                    &format!("label {IN_PROGRESS_LABEL}"),
                    value,
                    "no such label",
                    "make sure that Calico's own controller, which sets this label, does not run, then remove the label",
                ),
            );
        }
    }
    report.finish(
        format!("label {NETWORK_LABEL}"),
        "can be written, and is not in use on any Node",
    )
}

fn migration_controller(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::MigrationController);
    let (key, value) = CONTROLLER;
    for pod in facts
        .pods
        .iter()
        .filter(|pod| pod.labels.get(key).is_some_and(|found| found == value))
    {
        report.fail(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                "Calico's own migration controller runs",
                "only one tool that migrates",
                "delete its Job: `kubectl delete job -n kube-system flannel-migration`; finished nodes stay on Calico",
            ),
        );
    }
    report.finish("Calico's own migration controller", "does not run")
}

fn operating_system(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::OperatingSystem);
    let backend =
        annotation_key(&settings.flannel_annotation_prefix.value, "backend-type").unwrap_or_default();
    let mut linux = 0;
    for node in facts.nodes.values() {
        let part = "status.nodeInfo.operatingSystem";
        match node.operating_system.as_str() {
            "linux" => linux += 1,
            "" => {
                let fix = "check why the kubelet of the node reports no operating system";
                report.unknown("Node", &node.name, Finding::new(part, "nothing", "linux", fix));
            }
            // The end of the migration deletes flannel from all nodes.
            other if node.annotations.contains_key(&backend) => {
                let fix = "remove the node from the cluster or from flannel first: replumb migrates only Linux nodes, and \
                           the migration deletes flannel";
                report.fail("Node", &node.name, Finding::new(part, other, "linux", fix));
            }
            other => {
                let fix = "none: flannel does not run on the node, and the migration does not change it";
                report.warn("Node", &node.name, Finding::new(part, other, "linux", fix));
            }
        }
    }
    report.finish("every Node", format!("linux on all Nodes ({linux})"))
}

fn annotations(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NodeAnnotations);
    let prefix = &settings.flannel_annotation_prefix.value;
    let part = format!("annotations {prefix}");
    let mut understood = 0;
    for node in flannel_nodes(facts) {
        let mut fail = |found: String, needed: String, fix: &str| {
            report.fail("Node", &node.name, Finding::new(&part, found, needed, fix));
        };
        match NodeAnnotations::read(&node.annotations, prefix) {
            Err(error) => fail(
                error.to_string(),
                "annotations as flanneld writes them".to_owned(),
                "restart flannel's pod on the node: flanneld writes the annotations again",
            ),
            Ok(None) => fail(
                "none".to_owned(),
                "flannel's annotations".to_owned(),
                "make sure that flannel's pod runs on the node, and that flannelAnnotationPrefix equals its \
                 --kube-annotation-prefix",
            ),
            Ok(Some(found)) => {
                understood += 1;
                if !found.backend.eq_ignore_ascii_case("vxlan") {
                    fail(
                        format!("backend-type {}", found.backend),
                        "vxlan".to_owned(),
                        "see check FlannelBackend; if the value is from an earlier configuration, restart flannel's pod \
                         on the node",
                    );
                }
                if settings.ipv6.is_some() && found.ipv6.is_none() {
                    fail(
                        "public-ipv6 is missing".to_owned(),
                        "the node's IPv6 address".to_owned(),
                        "give the interface of the default route an IPv6 address, and restart flannel's pod on the node",
                    );
                }
                if !found.kube_subnet_manager {
                    fail(
                        "kube-subnet-manager is not true".to_owned(),
                        "kube-subnet-manager true".to_owned(),
                        "see check FlannelSubnetManager",
                    );
                }
                let needed = settings.flannel_vni.value;
                if let Some(vni) = found.vni.filter(|vni| *vni != needed) {
                    fail(
                        format!("backend-data with VNI {vni}"),
                        format!("VNI {needed}, {}", settings.flannel_vni.source),
                        "restart flannel's pod on the node, or correct flannelVni",
                    );
                }
            }
        }
    }
    report.finish(part, format!("valid on all Nodes ({understood})"))
}

fn pod_cidr(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::PodCidr);
    let mut counted = Vec::new();
    for network in settings.pod_networks() {
        let subnets = subnets_of(settings, &network, facts, &mut report);
        counted.push(format!("subnets of {}: {subnets}", network.range));
    }
    report.finish("spec.podCIDR of every Node", counted.join(", "))
}

/// Checks the subnets of the Nodes in one network. Returns the number of subnets.
fn subnets_of(settings: &Settings, network: &PodNetwork, facts: &ClusterFacts, report: &mut Report) -> usize {
    let family = objects::family::of(&network.range).name;
    let (network_source, length_source) = match (&network.range, &settings.ipv6) {
        (IpNet::V6(_), Some(ipv6)) => (&ipv6.flannel_network.source, &ipv6.flannel_subnet_length.source),
        _ => (
            &settings.flannel_network.source,
            &settings.flannel_subnet_length.source,
        ),
    };
    let (range_of_all, length) = (network.range, network.subnet_length);
    let mut by_range: BTreeMap<IpAddr, (IpNet, &str)> = BTreeMap::new();
    for node in linux_nodes(facts) {
        let mut fail = |found: String, needed: String, fix: &str| {
            report.fail(
                "Node",
                &node.name,
                Finding::new("spec.podCIDR", found, needed, fix),
            );
        };
        let Some(range) = node.range_of(&range_of_all).map(|range| range.trunc()) else {
            fail(
                if node.pod_cidrs.is_empty() {
                    "none".to_owned()
                } else {
                    node.pod_cidrs.join(", ")
                },
                format!("an {family} subnet"),
                "check --allocate-node-cidrs and --cluster-cidr of kube-controller-manager, which assigns podCIDRs",
            );
            continue;
        };
        if !range_of_all.contains(&range) {
            fail(
                range.to_string(),
                format!("a subnet of {range_of_all}, flannel's network ({network_source})"),
                "make flannel's network and --cluster-cidr of kube-controller-manager agree",
            );
        }
        if range.prefix_len() != length {
            fail(
                range.to_string(),
                format!("/{length} ({length_source})"),
                "use the same length for the podCIDRs of all Nodes and for flannel's subnets",
            );
        }
        let before = by_range.range(..=range.broadcast()).next_back();
        if let Some((other, name)) = before
            .map(|(_, found)| *found)
            .filter(|(other, _)| overlap(*other, range))
        {
            fail(
                format!("{range} overlaps {other} of Node {name}"),
                "a subnet that overlaps no other".to_owned(),
                "delete one of the two Nodes and let it register again: both nodes answer for the same addresses",
            );
        }
        by_range.insert(range.network(), (range, &node.name));
    }
    by_range.len()
}

fn overlap(left: IpNet, right: IpNet) -> bool {
    left.contains(&right) || right.contains(&left)
}

pub(super) fn schedulable(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::SchedulableNodes);
    let (usable, others): (Vec<&Node>, Vec<&Node>) = linux_nodes(facts).partition(|node| node.schedulable());
    let reasons: Vec<String> = others
        .iter()
        .map(|node| format!("{} ({})", node.name, why_not_schedulable(node)))
        .collect();
    let found = if reasons.is_empty() {
        format!("{} schedulable", usable.len())
    } else {
        format!("{} schedulable; not: {}", usable.len(), names(&reasons))
    };
    match usable.len() {
        0 => report.fail(
            "",
            "Nodes",
            Finding::new(
                "",
                &found,
                "at least 2",
                "uncordon nodes, or add nodes without taints",
            ),
        ),
        1 if policy.allow_single_node => report.warn(
            "",
            "Nodes",
            Finding::new(
                "",
                &found,
                "at least 2, so that evicted pods have another node",
                "allowed by spec.flannelToCalico.allowSingleNode: pods stay Pending while the node is being migrated",
            ),
        ),
        1 => report.fail(
            "",
            "Nodes",
            Finding::new(
                "",
                &found,
                "at least 2, so that evicted pods have another node",
                "uncordon or add a node, or accept Pending pods: spec.flannelToCalico.allowSingleNode, \
                 `--allow-single-node`",
            ),
        ),
        _ => {}
    }
    for node in others.iter().filter(|node| !node.ready) {
        report.warn(
            "Node",
            &node.name,
            Finding::new(
                "condition Ready",
                "not True",
                "True",
                "repair the node: it counts as unavailable for maxUnavailable, and is migrated when it is Ready",
            ),
        );
    }
    report.finish("Nodes", found)
}

fn why_not_schedulable(node: &Node) -> String {
    let mut reasons = Vec::new();
    if !node.ready {
        reasons.push("NotReady".to_owned());
    }
    if node.unschedulable {
        reasons.push("cordoned".to_owned());
    }
    reasons.extend(node.taints.iter().map(|taint| format!("taint {taint}")));
    reasons.join(", ")
}

#[cfg(test)]
mod tests;
