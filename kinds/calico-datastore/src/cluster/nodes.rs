//! Chooses the nodes whose calico-node changes next.

use super::calico::Calico;
use engine::check::names;
use engine::decision::{Wait, WaitReason};
use engine::evict::PodName;
use engine::words::number;

/// A pod of calico-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalicoPod {
    /// Identity of the pod.
    pub name: PodName,
    /// The version that the pod runs; `None` when its image belongs to neither.
    pub runs: Option<Calico>,
    /// Whether the pod is Ready.
    pub ready: bool,
    /// Whether the pod is terminating.
    pub terminating: bool,
}

/// A node with its pods of calico-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node.
    pub name: String,
    /// Whether the Node is Ready.
    pub ready: bool,
    /// Pods of calico-node on the node, with terminating ones.
    pub pods: Vec<CalicoPod>,
}

impl NodeView {
    /// Whether the node runs one Ready pod of this version, and no other.
    pub fn is_done(&self, calico: Calico) -> bool {
        matches!(self.pods.as_slice(), [pod] if pod.runs == Some(calico) && pod.ready && !pod.terminating)
    }

    /// The pod that has to restart with this version.
    fn is_to_restart(&self, calico: Calico) -> Option<&CalicoPod> {
        match self.pods.as_slice() {
            [pod] if pod.runs != Some(calico) && !pod.terminating => Some(pod),
            _ => None,
        }
    }

    /// Reason why the node is not done, while its pod restarts.
    fn waits_for(&self, calico: Calico) -> String {
        match self.pods.as_slice() {
            [] => format!("node {} has no pod of calico-node", self.name),
            [pod] if pod.terminating => {
                format!("pod {} on node {} is terminating", pod.name.name, self.name)
            }
            [pod] => format!(
                "pod {} on node {}, of Calico {}, is not Ready",
                pod.name.name,
                self.name,
                calico.as_str()
            ),
            pods => format!(
                "node {} has {} of calico-node",
                self.name,
                number(pods.len(), "pod", "pods")
            ),
        }
    }
}

/// Whether a calico-node of v3 may run on some node.
pub fn may_run_v3(nodes: &[NodeView]) -> bool {
    is_to_change(nodes, Calico::V2)
}

/// Whether a pod has to restart before every node runs this version.
pub fn is_to_change(nodes: &[NodeView], calico: Calico) -> bool {
    nodes
        .iter()
        .flat_map(|node| &node.pods)
        .any(|pod| pod.runs != Some(calico))
}

/// The next step on the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Every node runs this version.
    Done,
    /// These pods restart.
    Restart(Vec<PodName>),
    /// A restarted pod is not Ready yet.
    Wait(Wait),
    /// Every Ready node runs this version, and other nodes are NotReady.
    NotReady(Wait),
}

/// The next step towards this version on every node. At most `at_once` nodes may be without a Ready calico-node at the same time.
pub fn next(nodes: &[NodeView], calico: Calico, at_once: usize) -> Next {
    let remaining = nodes.iter().filter(|node| !node.is_done(calico));
    // A NotReady node may stay so for any time, so the others do not wait for it.
    let (remaining, away): (Vec<&NodeView>, Vec<&NodeView>) = remaining.partition(|node| node.ready);
    // A pod of the other version restarts whether it is Ready or not.
    let (waiting, in_progress): (Vec<&NodeView>, Vec<&NodeView>) = remaining
        .into_iter()
        .partition(|node| node.is_to_restart(calico).is_some());
    let free = at_once.max(1).saturating_sub(in_progress.len());
    let chosen: Vec<PodName> = waiting
        .iter()
        .take(free)
        .filter_map(|node| node.is_to_restart(calico))
        .map(|pod| pod.name.clone())
        .collect();
    if !chosen.is_empty() {
        return Next::Restart(chosen);
    }
    if let Some(first) = in_progress.first() {
        return Next::Wait(waits(WaitReason::CalicoNodeNotReady, first.waits_for(calico)));
    }
    if away.is_empty() {
        return Next::Done;
    }
    let names_of: Vec<&str> = away.iter().map(|node| node.name.as_str()).collect();
    Next::NotReady(waits(
        WaitReason::NodeNotReady,
        format!(
            "NotReady nodes without a Ready calico-node of {}: {}. Repair the nodes, or delete them",
            calico.as_str(),
            names(&names_of)
        ),
    ))
}

fn waits(reason: WaitReason, message: String) -> Wait {
    Wait {
        reason,
        message,
        until: None,
    }
}

#[cfg(test)]
pub(super) mod fixture {
    use super::*;

    /// A node with one pod.
    pub fn node(name: &str, runs: Calico) -> NodeView {
        NodeView {
            name: name.to_owned(),
            ready: true,
            pods: vec![pod(name, runs)],
        }
    }

    /// The pod of a node.
    pub fn pod(node: &str, runs: Calico) -> CalicoPod {
        CalicoPod {
            name: PodName {
                namespace: "kube-system".to_owned(),
                name: format!("calico-node-{node}-{}", runs.as_str()),
                uid: format!("{node}-{}", runs.as_str()),
            },
            runs: Some(runs),
            ready: true,
            terminating: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::node;
    use super::*;

    fn chosen(nodes: &[NodeView], at_once: usize) -> Vec<String> {
        match next(nodes, Calico::V3, at_once) {
            Next::Restart(pods) => pods.into_iter().map(|pod| pod.name).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn wait_of(nodes: &[NodeView]) -> Wait {
        match next(nodes, Calico::V3, 1) {
            Next::Wait(wait) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nodes_change_one_after_the_other() {
        let mut nodes = vec![node("a", Calico::V2), node("b", Calico::V2)];
        assert_eq!(chosen(&nodes, 1), ["calico-node-a-v2"]);
        assert_eq!(chosen(&nodes, 2).len(), 2);
        nodes[0].pods[0].terminating = true;
        assert_eq!(wait_of(&nodes).reason, WaitReason::CalicoNodeNotReady);
        nodes[0].pods.clear();
        assert!(wait_of(&nodes).message.contains("node a has no pod"));
        nodes[0] = node("a", Calico::V3);
        nodes[0].pods[0].ready = false;
        assert!(wait_of(&nodes).message.contains("is not Ready"));
        nodes[0].pods[0].ready = true;
        assert_eq!(chosen(&nodes, 1), ["calico-node-b-v2"]);
        nodes[1] = node("b", Calico::V3);
        assert_eq!(next(&nodes, Calico::V3, 1), Next::Done);
        assert!(may_run_v3(&nodes));
    }

    #[test]
    fn a_not_ready_node_does_not_hold_the_others_and_is_reported() {
        let mut nodes = vec![node("a", Calico::V2), node("b", Calico::V2)];
        nodes[0].ready = false;
        assert_eq!(chosen(&nodes, 1), ["calico-node-b-v2"]);
        nodes[1] = node("b", Calico::V3);
        let Next::NotReady(wait) = next(&nodes, Calico::V3, 1) else {
            panic!()
        };
        assert_eq!(wait.reason, WaitReason::NodeNotReady);
        assert!(wait.message.contains("v3: a."), "{}", wait.message);
    }

    #[test]
    fn a_pod_of_neither_version_restarts() {
        let mut nodes = vec![node("a", Calico::V3)];
        nodes[0].pods[0].runs = None;
        assert_eq!(chosen(&nodes, 1).len(), 1);
        assert!(may_run_v3(&nodes));
    }
}
