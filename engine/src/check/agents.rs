//! Check that an agent on every node reports.

use super::{Check, Finding, Report};
use crate::cluster::Node;

/// Nodes whose agents have not reported. `nodes` are the nodes that need an agent, `reports` returns whether the agent of a node
/// has reported.
pub fn missing<'facts>(
    name: impl Into<&'static str>,
    nodes: impl Iterator<Item = &'facts Node>,
    reports: impl Fn(&str) -> bool,
) -> Vec<Check> {
    let mut report = Report::new(name);
    let (mut reporting, mut all) = (0, 0);
    for node in nodes {
        all += 1;
        if reports(&node.name) {
            reporting += 1;
            continue;
        }
        report.fail(
            "Node",
            &node.name,
            Finding::new(
                "",
                if node.ready { "no report of an agent" } else { "no report of an agent; the Node is NotReady" },
                "an agent that reports",
                "find out why the agent's pod does not run on the node: `kubectl get pods -n replumb-system -o wide`, and the \
                 tolerations and node selector of the DaemonSet",
            ),
        );
    }
    if all == 0 {
        report.unknown(
            "the list of",
            "Nodes",
            Finding::new(
                "",
                "no Node",
                "at least one",
                "check whether the coordinator may list Nodes",
            ),
        );
    }
    report.finish("every Node", format!("agents that report: {reporting}"))
}
