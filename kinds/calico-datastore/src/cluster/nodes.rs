//! calico-node on every node: whose turn it is.

use super::calico::Calico;
use engine::check::names;
use engine::decision::{Wait, WaitReason};
use engine::evict::PodName;

/// A pod of calico-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalicoPod {
    /// Which pod.
    pub name: PodName,
    /// Which Calico it runs; `None` when its image is neither's.
    pub runs: Option<Calico>,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is about to go.
    pub terminating: bool,
}

/// A node with its pods of calico-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node.
    pub name: String,
    /// Whether the Node is Ready.
    pub ready: bool,
    /// Its pods, those that terminate included.
    pub pods: Vec<CalicoPod>,
}

impl NodeView {
    /// Whether it runs this Calico, and nothing else.
    pub fn is_done(&self, calico: Calico) -> bool {
        matches!(self.pods.as_slice(), [pod] if pod.runs == Some(calico) && pod.ready && !pod.terminating)
    }

    /// The pod that has to be made again for this Calico.
    fn is_to_restart(&self, calico: Calico) -> Option<&CalicoPod> {
        match self.pods.as_slice() {
            [pod] if pod.runs != Some(calico) && !pod.terminating => Some(pod),
            _ => None,
        }
    }

    /// Why it is not done though its pod is being made again.
    fn lacks(&self, calico: Calico) -> String {
        match self.pods.as_slice() {
            [] => format!("node {} has no pod of calico-node", self.name),
            [pod] if pod.terminating => {
                format!("pod {} on node {} is ending", pod.name.name, self.name)
            }
            [pod] => format!(
                "pod {} on node {}, of Calico {}, is not Ready",
                pod.name.name,
                self.name,
                calico.as_str()
            ),
            pods => format!("node {} has {} pods of calico-node", self.name, pods.len()),
        }
    }
}

/// Whether a calico-node of v3 may run somewhere.
pub fn may_run_v3(nodes: &[NodeView]) -> bool {
    is_to_change(nodes, Calico::V2)
}

/// Whether a pod has to be made again so that every node runs this Calico.
pub fn is_to_change(nodes: &[NodeView], calico: Calico) -> bool {
    nodes
        .iter()
        .flat_map(|node| &node.pods)
        .any(|pod| pod.runs != Some(calico))
}

/// What is next on the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Every node runs this Calico.
    Done,
    /// These pods are made again.
    Restart(Vec<PodName>),
    /// A pod that was made again is waited for.
    Wait(Wait),
    /// Every node that is there runs it, and these are NotReady.
    Away(Wait),
}

/// What is next, so that every node runs this Calico. `at_once` nodes may be without a Ready calico-node at the same time.
pub fn next(nodes: &[NodeView], calico: Calico, at_once: usize) -> Next {
    let left = nodes.iter().filter(|node| !node.is_done(calico));
    // Of a node that is away nobody knows when its pod comes: others go meanwhile.
    let (left, away): (Vec<&NodeView>, Vec<&NodeView>) = left.partition(|node| node.ready);
    // Whose pod of the other Calico is not Ready is no reason to leave it.
    let (turn, work): (Vec<&NodeView>, Vec<&NodeView>) = left
        .into_iter()
        .partition(|node| node.is_to_restart(calico).is_some());
    let seats = at_once.max(1).saturating_sub(work.len());
    let chosen: Vec<PodName> = turn
        .iter()
        .take(seats)
        .filter_map(|node| node.is_to_restart(calico))
        .map(|pod| pod.name.clone())
        .collect();
    if !chosen.is_empty() {
        return Next::Restart(chosen);
    }
    if let Some(first) = work.first() {
        return Next::Wait(waits(WaitReason::CalicoNodeNotReady, first.lacks(calico)));
    }
    if away.is_empty() {
        return Next::Done;
    }
    let names_of: Vec<&str> = away.iter().map(|node| node.name.as_str()).collect();
    Next::Away(waits(
        WaitReason::NodeNotReady,
        format!(
            "NotReady, and without a Ready calico-node of {}: {}. Bring them back, or delete the Node",
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

    /// Its pod.
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

    fn waits_for(nodes: &[NodeView]) -> Wait {
        match next(nodes, Calico::V3, 1) {
            Next::Wait(wait) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_after_the_other() {
        let mut nodes = vec![node("a", Calico::V2), node("b", Calico::V2)];
        assert_eq!(chosen(&nodes, 1), ["calico-node-a-v2"]);
        assert_eq!(chosen(&nodes, 2).len(), 2);
        nodes[0].pods[0].terminating = true;
        assert_eq!(waits_for(&nodes).reason, WaitReason::CalicoNodeNotReady);
        nodes[0].pods.clear();
        assert!(waits_for(&nodes).message.contains("node a has no pod"));
        nodes[0] = node("a", Calico::V3);
        nodes[0].pods[0].ready = false;
        assert!(waits_for(&nodes).message.contains("is not Ready"));
        nodes[0].pods[0].ready = true;
        assert_eq!(chosen(&nodes, 1), ["calico-node-b-v2"]);
        nodes[1] = node("b", Calico::V3);
        assert_eq!(next(&nodes, Calico::V3, 1), Next::Done);
        assert!(may_run_v3(&nodes));
    }

    #[test]
    fn a_node_that_is_away_keeps_nobody_and_is_not_forgotten() {
        let mut nodes = vec![node("a", Calico::V2), node("b", Calico::V2)];
        nodes[0].ready = false;
        assert_eq!(chosen(&nodes, 1), ["calico-node-b-v2"]);
        nodes[1] = node("b", Calico::V3);
        let Next::Away(wait) = next(&nodes, Calico::V3, 1) else {
            panic!()
        };
        assert_eq!(wait.reason, WaitReason::NodeNotReady);
        assert!(wait.message.contains("v3: a."), "{}", wait.message);
    }

    #[test]
    fn a_pod_of_neither_is_made_again() {
        let mut nodes = vec![node("a", Calico::V3)];
        nodes[0].pods[0].runs = None;
        assert_eq!(chosen(&nodes, 1).len(), 1);
        assert!(may_run_v3(&nodes));
    }
}
