//! Ends of tunnels, node by node.
//!
//! When a pool is closed, every calico-node takes another address for the end of its tunnel at the same moment, Felix starts anew
//! on all of them, and for about a second no node reaches another (docs/limits.md). So Nodes are taken off the pool that is left
//! one after the other, and it is closed once no end of a tunnel is in it.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::decide::{Missing, Step, Which};
use super::pools::{self, Openness};
use crate::decision::{Wait, WaitReason};

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about one node"
)]
pub struct NodeEnd<'facts> {
    /// Name of the Node.
    pub name: &'facts str,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it was taken off the pool that is left.
    pub off: bool,
    /// Whether the end of a tunnel of it is in the range that is left.
    pub in_left: bool,
    /// Whether its calico-node is Ready.
    pub calico_ready: bool,
}

/// What is missing until no end of a tunnel is in the range that is left; `None` when none is, but those of nodes that are away.
///
/// `spec` is the pool that is left, `base` what it selects when it is open to everybody, `at_once` how many nodes may be on their
/// way at the same time.
pub fn missing(
    nodes: &[NodeEnd<'_>],
    which: Which,
    spec: &Value,
    base: &str,
    at_once: usize,
) -> Option<Missing> {
    // A node that is away takes another address when it is back: the pool is closed by then.
    let is_to_go = |node: &&NodeEnd<'_>| node.ready && node.in_left && !node.off;
    let mut to_go = nodes.iter().filter(is_to_go).peekable();
    let on_their_way: Vec<&NodeEnd<'_>> = nodes
        .iter()
        .filter(|node| node.off && node.ready && (node.in_left || !node.calico_ready))
        .collect();
    if to_go.peek().is_none() && on_their_way.is_empty() {
        return None;
    }
    let round = round(nodes);
    let is_narrowed = Openness::of(spec) == Openness::Narrowed;
    if !is_narrowed || pools::narrowing(spec, base, which.mark(), round).is_some() {
        return Some(Missing::Step(Step::Narrow(which, round)));
    }
    let seats = at_once.max(1).saturating_sub(on_their_way.len());
    let next: Vec<String> = to_go.take(seats).map(|node| node.name.to_owned()).collect();
    if next.is_empty() {
        let first = on_their_way.first()?;
        let what = if first.in_left {
            "takes another address for the end of its tunnel"
        } else {
            "is not Ready again after it has taken another address for the end of its tunnel"
        };
        return Some(Missing::Answer(Wait {
            reason: WaitReason::CalicoNodeNotReady,
            message: format!("calico-node on node {} {what}", first.name),
            until: None,
        }));
    }
    Some(Missing::Step(Step::TakeOff(which, next)))
}

/// A number for the set of Nodes that were taken off: another one for another set.
fn round(nodes: &[NodeEnd<'_>]) -> u32 {
    let mut names: Vec<&str> = nodes
        .iter()
        .filter(|node| node.off)
        .map(|node| node.name)
        .collect();
    names.sort_unstable();
    let digest = Sha256::digest(names.join(" ").as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &'static str) -> NodeEnd<'static> {
        NodeEnd {
            name,
            ready: true,
            off: false,
            in_left: true,
            calico_ready: true,
        }
    }

    fn next(nodes: &[NodeEnd<'_>], spec: &Value) -> Option<Missing> {
        missing(nodes, Which::Old, spec, "all()", 1)
    }

    /// Nodes as they are made to be, one after the other: never two at once, and each after the one before is well again.
    #[test]
    fn one_after_the_other_until_none_is_left() {
        let mut nodes = [node("a"), node("b"), node("c")];
        let mut spec = json!({ "nodeSelector": "all()" });
        let mut story = Vec::new();
        for _ in 0..40 {
            match next(&nodes, &spec) {
                None => break,
                Some(Missing::Step(Step::Narrow(Which::Old, round))) => {
                    story.push("round".to_owned());
                    let change = pools::narrowing(&spec, "all()", "old", round).unwrap();
                    spec["nodeSelector"] = change["nodeSelector"].clone();
                }
                Some(Missing::Step(Step::TakeOff(Which::Old, names))) => {
                    assert!(
                        nodes
                            .iter()
                            .all(|node| !node.off || (!node.in_left && node.calico_ready))
                    );
                    assert_eq!(names.len(), 1);
                    story.push(names[0].clone());
                    nodes.iter_mut().find(|node| node.name == names[0]).unwrap().off = true;
                }
                Some(Missing::Answer(_)) => {
                    // Calico looks once the pool has changed; its Felix starts anew, and is Ready a moment later.
                    let node = nodes
                        .iter_mut()
                        .find(|node| node.off && (node.in_left || !node.calico_ready));
                    let node = node.unwrap();
                    (node.in_left, node.calico_ready) = (false, !node.in_left);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(story, ["round", "a", "round", "b", "round", "c", "round"]);
        assert_eq!(next(&nodes, &spec), None);
    }

    #[test]
    fn a_cluster_without_tunnels_has_none_to_move() {
        let nodes = [NodeEnd {
            in_left: false,
            ..node("a")
        }];
        assert_eq!(next(&nodes, &json!({})), None);
    }

    #[test]
    fn a_node_that_is_away_keeps_nobody_waiting() {
        let away = NodeEnd {
            ready: false,
            ..node("b")
        };
        let done = NodeEnd {
            off: true,
            in_left: false,
            ..node("a")
        };
        assert_eq!(next(&[done, away], &json!({})), None);
    }
}
