//! Nodes that flannel's `DaemonSet` does not select. The migration leaves them alone, like nodes that run Windows.

use super::super::facts::ClusterFacts;
use super::super::settings::Options;
use super::{NETWORK_LABEL, daemon_set};
use engine::node_selection::NodeSelection;

impl ClusterFacts {
    /// Moves the Linux nodes that flannel's `DaemonSet` does not select from `nodes` to `outside`, with the facts about their hosts.
    /// Without the `DaemonSet`, or if it selects no node at all, every node stays: other checks say why flannel is not found.
    pub fn leave_out(&mut self, options: &Options) {
        let selection = selection(options, self);
        let is_outside =
            |node: &engine::cluster::Node| !node.is_windows() && !selection.selects(&node.name, &node.labels);
        let (outside, nodes) = std::mem::take(&mut self.nodes)
            .into_iter()
            .partition(|(_, node)| is_outside(node));
        self.nodes = nodes;
        self.outside = outside;
        let is_of_outside = |name: &String| self.outside.contains_key(name);
        let hosts = std::mem::take(&mut self.hosts).into_iter();
        (self.outside_hosts, self.hosts) = hosts.partition(|(name, _)| is_of_outside(name));
        self.host_checks
            .retain(|name, _| !self.outside.contains_key(name));
        self.selection = selection;
    }
}

/// The selection of flannel's `DaemonSet`, without the label that the migration itself adds.
fn selection(options: &Options, facts: &ClusterFacts) -> NodeSelection {
    let Ok((name, namespace)) = daemon_set::choose(options, facts) else {
        return NodeSelection::default();
    };
    let Some(flannel) = facts.daemon_sets.get(&(namespace.value, name.value)) else {
        return NodeSelection::default();
    };
    let selection = flannel.selection.clone().without_label(NETWORK_LABEL);
    let mut nodes = super::linux_nodes(facts);
    if nodes.any(|node| selection.selects(&node.name, &node.labels)) {
        selection
    } else {
        NodeSelection::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::checks::fixture;
    use super::*;

    fn keys<Value>(map: &std::collections::BTreeMap<String, Value>) -> Vec<&str> {
        map.keys().map(String::as_str).collect()
    }

    fn cluster(labels: [&[(&str, &str)]; 3], selector: &[(&str, &str)]) -> ClusterFacts {
        let mut facts = fixture::cluster();
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        for (node, labels) in facts.nodes.values_mut().zip(labels) {
            node.labels.extend(labels.iter().map(text));
        }
        for set in facts
            .daemon_sets
            .values_mut()
            .filter(|set| set.name == "kube-flannel-ds")
        {
            set.selection.labels.extend(selector.iter().map(text));
        }
        facts.leave_out(&Options::default());
        facts
    }

    #[test]
    fn a_node_that_is_not_selected_is_outside_with_its_reports() {
        let linux = ("kubernetes.io/os", "linux");
        let facts = cluster(
            [
                &[linux, ("flannel", "yes")],
                &[linux],
                &[linux, ("flannel", "yes")],
            ],
            &[linux, ("flannel", "yes")],
        );
        assert_eq!(
            (keys(&facts.nodes), keys(&facts.outside)),
            (vec!["a", "c"], vec!["b"])
        );
        assert_eq!(
            (keys(&facts.hosts), keys(&facts.host_checks)),
            (vec!["a", "c"], vec!["a", "c"])
        );
        assert!(!facts.selection.labels.is_empty());
    }

    #[test]
    fn the_label_of_the_migration_itself_leaves_no_node_out() {
        let facts = cluster(
            [&[(NETWORK_LABEL, "flannel")], &[], &[(NETWORK_LABEL, "calico")]],
            &[(NETWORK_LABEL, "flannel")],
        );
        assert_eq!(keys(&facts.nodes), ["a", "b", "c"]);
    }

    #[test]
    fn a_selector_that_fits_no_node_leaves_no_node_out() {
        let facts = cluster([&[], &[], &[]], &[("flannel", "yes")]);
        assert_eq!(keys(&facts.nodes), ["a", "b", "c"]);
        assert_eq!(facts.selection, NodeSelection::default());
    }

    #[test]
    fn a_windows_node_is_not_among_them() {
        let mut facts = fixture::cluster();
        facts.nodes.get_mut("c").unwrap().operating_system = "windows".to_owned();
        for node in ["a", "b"] {
            let labels = &mut facts.nodes.get_mut(node).unwrap().labels;
            labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        }
        for set in facts.daemon_sets.values_mut() {
            set.selection
                .labels
                .insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        }
        facts.leave_out(&Options::default());
        assert_eq!(
            (keys(&facts.nodes), keys(&facts.outside)),
            (vec!["a", "b", "c"], vec![])
        );
    }
}
