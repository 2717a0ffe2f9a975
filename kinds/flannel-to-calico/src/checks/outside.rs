//! Linux nodes that flannel's `DaemonSet` does not select: the migration does not change them, and Calico must not reach them.

use super::CheckName;
use crate::detect::NETWORK_LABEL;
use crate::facts::ClusterFacts;
use crate::flannel::annotation_key;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};
use engine::cluster::DaemonSet;
use engine::found::Found;
use engine::words::number;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, calico: Option<&DaemonSet>) -> Vec<Check> {
    let mut report = Report::new(CheckName::NodesWithoutFlannel);
    let flannel = format!(
        "DaemonSet {}/{}",
        settings.flannel_daemon_set_namespace.value, settings.flannel_daemon_set_name.value
    );
    let backend =
        annotation_key(&settings.flannel_annotation_prefix.value, "backend-type").unwrap_or_default();
    let calico = calico.map(|set| (set.key(), set.selection.clone().without_label(NETWORK_LABEL)));
    for (name, node) in &facts.outside {
        let goes_to = calico
            .as_ref()
            .filter(|(_, selection)| selection.selects(name, &node.labels));
        let mut of_flannel = rests(facts, settings, name);
        if node.annotations.contains_key(&backend) {
            of_flannel.push(format!("annotation {backend}"));
        }
        if !of_flannel.is_empty() {
            let finding = Finding::new(
                "",
                format!(
                    "not selected by {flannel}, and flannel has run here: {}",
                    of_flannel.join(", ")
                ),
                "a node with flannel, or without anything of it",
                format!(
                    "let the DaemonSet select the node again (labels of the node; node selector and affinity of the DaemonSet). Or, \
                     if flannel is to stay away, drain and reboot the node, then run `kubectl annotate node <name> {backend}-`"
                ),
            );
            report.fail("Node", name, finding);
        } else if let Some((calico, _)) = goes_to {
            let finding = Finding::new(
                "",
                format!("selected by DaemonSet {calico} (apart from {NETWORK_LABEL}), and not by {flannel}"),
                "a node that both select, or neither",
                "the migration does not change the node, and calico-node would start there at its end, when that label leaves the \
                 node selector: give Calico's DaemonSet the node selector and the required node affinity of flannel's",
            );
            report.fail("Node", name, finding);
        } else {
            let finding = Finding::new(
                "",
                format!("not selected by {flannel}"),
                "a node with flannel",
                "none: neither flannel nor Calico runs on the node, and the migration does not change it",
            );
            report.warn("Node", name, finding);
        }
    }
    let selected = number(facts.nodes.len(), "Node", "Nodes");
    report.finish("every Node", format!("selected by {flannel} ({selected})"))
}

/// What is there of flannel on the host of a node that it does not select, and its pods; empty without a process or a file of flannel: a
/// bridge `cni0`, and pods with addresses of the node's range, may be of another plugin.
fn rests(facts: &ClusterFacts, settings: &Settings, node: &str) -> Vec<String> {
    let Some(host) = facts.outside_hosts.get(node) else {
        return Vec::new();
    };
    let has_file = !matches!(host.subnet_environment, Found::Absent);
    if !host.flanneld_running && !has_file {
        return Vec::new();
    }
    let mut found = Vec::new();
    if host.flanneld_running {
        found.push("process flanneld".to_owned());
    }
    if let Found::Present(bridge) = &host.bridge {
        found.push(format!("link {}", bridge.name));
    }
    if has_file {
        found.push("file /run/flannel/subnet.env".to_owned());
    }
    let networks = settings.pod_networks();
    let is_in = |address: &std::net::IpAddr| networks.iter().any(|network| network.range.contains(address));
    let pods = facts
        .pods
        .iter()
        .filter(|pod| pod.node == node && !pod.host_network);
    let pods = pods.filter(|pod| pod.addresses.iter().any(is_in)).count();
    if pods > 0 {
        found.push(number(pods, "pod in its range", "pods in its range"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{self, verdicts};
    use super::*;
    use crate::settings::Options;
    use engine::check::Verdict::{Fail, Pass, Warn};
    use engine::node_selection::{NodeOperator, NodeRequirement, NodeSelection, NodeTerm};

    const EDGE: &str = "node-role.kubernetes.io/edge";

    fn no_edge() -> Vec<NodeTerm> {
        let requirement = NodeRequirement {
            key: EDGE.to_owned(),
            operator: NodeOperator::DoesNotExist,
            values: Vec::new(),
        };
        vec![NodeTerm {
            labels: vec![requirement],
            fields: Vec::new(),
        }]
    }

    /// Node c is an edge node; these `DaemonSet`s do not select it.
    fn cluster(without_edge: &[&str], change: impl FnOnce(&mut ClusterFacts)) -> ClusterFacts {
        let mut facts = fixture::cluster();
        let node = facts.nodes.get_mut("c").unwrap();
        node.labels.insert(EDGE.to_owned(), String::new());
        node.annotations.clear();
        facts.hosts.remove("c");
        for set in facts.daemon_sets.values_mut() {
            if without_edge.contains(&set.name.as_str()) {
                set.selection.terms = Some(no_edge());
            }
        }
        change(&mut facts);
        facts.leave_out(&Options::default());
        facts
    }

    fn judge(facts: &ClusterFacts) -> Vec<Check> {
        let set = facts.daemon_sets.values().find(|set| set.name == "calico-node");
        check(&fixture::settings(), facts, set)
    }

    #[test]
    fn a_node_that_neither_network_selects_is_a_warning_and_no_other_check_names_it() {
        let facts = cluster(&["kube-flannel-ds", "calico-node"], |facts| {
            facts.hosts.remove("c");
            facts.host_checks.remove("c");
            for set in facts.daemon_sets.values_mut().filter(|set| set.desired > 0) {
                (set.desired, set.ready) = (2, 2);
            }
        });
        let found = judge(&facts);
        assert_eq!(verdicts(&found), [("NodesWithoutFlannel", Warn)]);
        assert_eq!(found[0].object, "Node c");
        let all = super::super::check(&fixture::settings(), &facts, &fixture::policy());
        let refusals: Vec<&Check> = all.iter().filter(|check| !check.verdict.allows()).collect();
        assert!(refusals.is_empty(), "{refusals:?}");
        let named = all.iter().filter(|check| check.object.contains("Node c"));
        assert_eq!(named.count(), 1, "{all:?}");
    }

    #[test]
    fn a_node_with_flannel_on_its_host_is_refused_without_an_annotation_too() {
        let facts = cluster(&["kube-flannel-ds", "calico-node"], |facts| {
            let host = facts.hosts["a"].clone();
            facts.hosts.insert("c".to_owned(), host);
        });
        let found = judge(&facts);
        assert_eq!(verdicts(&found), [("NodesWithoutFlannel", Fail)]);
        assert!(
            found[0].found.contains("process flanneld, link cni0"),
            "{found:?}"
        );
    }

    /// The plugin `bridge` names its link `cni0`, too.
    #[test]
    fn a_bridge_without_a_trace_of_flannel_is_of_another_plugin() {
        let facts = cluster(&["kube-flannel-ds", "calico-node"], |facts| {
            let mut host = facts.hosts["a"].clone();
            (host.flanneld_running, host.subnet_environment) = (false, Found::Absent);
            facts.hosts.insert("c".to_owned(), host);
        });
        assert_eq!(verdicts(&judge(&facts)), [("NodesWithoutFlannel", Warn)]);
    }

    #[test]
    fn calico_must_not_come_to_such_a_node_at_the_end() {
        let found = judge(&cluster(&["kube-flannel-ds"], |_| {}));
        assert_eq!(verdicts(&found), [("NodesWithoutFlannel", Fail)]);
        assert!(
            found[0]
                .found
                .contains("selected by DaemonSet kube-system/calico-node"),
            "{found:?}"
        );
    }

    #[test]
    fn a_node_on_which_flannel_has_run_refuses() {
        let found = judge(&cluster(&["kube-flannel-ds", "calico-node"], |facts| {
            let node = facts.nodes.get_mut("c").unwrap();
            node.annotations.insert(
                "flannel.alpha.coreos.com/backend-type".to_owned(),
                "vxlan".to_owned(),
            );
        }));
        assert_eq!(verdicts(&found), [("NodesWithoutFlannel", Fail)]);
        assert!(
            found[0].fix.contains("flannel.alpha.coreos.com/backend-type-"),
            "{found:?}"
        );
    }

    #[test]
    fn without_a_calico_that_could_start_there_the_node_is_a_warning() {
        let facts = cluster(&["kube-flannel-ds"], |_| {});
        assert_eq!(
            verdicts(&check(&fixture::settings(), &facts, None)),
            [("NodesWithoutFlannel", Warn)]
        );
    }

    #[test]
    fn every_node_is_selected_by_default() {
        let facts = cluster(&[], |_| {});
        assert_eq!(facts.selection, NodeSelection::default());
        assert_eq!(verdicts(&judge(&facts)), [("NodesWithoutFlannel", Pass)]);
    }
}
