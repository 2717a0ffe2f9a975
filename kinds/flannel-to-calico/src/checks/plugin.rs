//! How flannel's CNI plugin attaches pods, by the conflist of each host and by the pods that run there.

use super::CheckName;
use super::network::hosts;
use crate::cni;
use crate::facts::{ClusterFacts, LegacyPod};
use engine::check::{Check, Finding, Report};
use engine::words::number;

pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::FlannelPlugin);
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        let Some(winner) = host.cni.winner().filter(|file| cni::is_flannel(file)) else {
            // The check ConflistMalformed says so.
            continue;
        };
        match &host.plugin {
            Some(plugin) => {
                for (field, found, needed) in plugin.deviations() {
                    let part = format!("{}: {field}", plugin.file);
                    let fix = format!(
                        "replumb finds, keeps and removes pods by {needed}, so it would take pods with {found} for ended ones: \
                         set {field} back in cni-conf.json of flannel's ConfigMap, restart flannel's pods, then each pod of the node"
                    );
                    report.fail("Node", &node.name, Finding::new(&part, found, needed, fix));
                }
            }
            None => report.unknown(
                "Node",
                &node.name,
                Finding::new(
                    &winner.name,
                    "the agent has not reported what the file sets for flannel's plugin",
                    "the options of flannel's plugin",
                    "update the agent: an agent of an earlier version does not report it",
                ),
            ),
        }
        for (pod, link) in host.legacy_pods.iter().filter_map(elsewhere) {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "pods of flannel",
                    format!("pod {}/{}: {link}", pod.namespace, pod.name),
                    "each pod on bridge cni0",
                    "the pod may be running, and replumb would take it for an ended one: delete the pod, so that it is created \
                     on cni0; if the runtime's conflist names another bridge, correct that first",
                ),
            );
        }
    }
    report.finish(
        format!("flannel's CNI plugin of {}", number(hosts.len(), "host", "hosts")),
        "bridge cni0, host-local, the usual folders",
    )
}

/// A pod whose link exists, and is not on `cni0`, before the migration has moved any.
fn elsewhere(pod: &LegacyPod) -> Option<(&LegacyPod, &str)> {
    pod.other_link.as_deref().map(|link| (pod, link))
}
