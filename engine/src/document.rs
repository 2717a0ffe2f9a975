//! The plan as a document: every action on every object, in order, and a hash of it.

use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::words::cut;

/// The object of an action is cut to this many bytes.
const OBJECT_BYTES: usize = 1024;
/// The detail of an action is cut to this many bytes.
const DETAIL_BYTES: usize = 8192;

/// `Action` is one planned action on one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// `verb` is what is done, such as `create`, `patch`, `label`, `cordon`, `evict`, `delete`, `wait` or `probe`.
    pub verb: String,
    /// `object` is the object, with kind, namespace and name. At most 1024 bytes: a longer text is cut, and ends with its length
    /// and SHA-256.
    pub object: String,
    /// `detail` is a human-readable description of what changes. At most 8192 bytes: a longer text is cut, and ends with its
    /// length and SHA-256.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// `asOfNow` is whether `detail` describes only the time of the plan, such as the names of pods. Then the hash of the plan
    /// does not cover `detail`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_of_now: bool,
}

impl Action {
    /// An action whose detail is part of the hash.
    pub fn new(verb: &str, object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            verb: verb.to_owned(),
            object: small(object.into(), OBJECT_BYTES),
            detail: small(detail.into(), DETAIL_BYTES),
            as_of_now: false,
        }
    }

    /// An action whose detail describes only the time of the plan and is not part of the hash.
    pub fn as_of_now(verb: &str, object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            as_of_now: true,
            ..Self::new(verb, object, detail)
        }
    }
}

/// The text, cut to at most `bytes` bytes. A cut text ends with the hash of the whole: plans that differ only there have
/// different hashes.
fn small(text: String, bytes: usize) -> String {
    if text.len() <= bytes {
        return text;
    }
    let whole = HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    let end = format!(" ({} bytes, SHA-256 {whole})", text.len());
    format!("{}{end}", cut(&text, bytes.saturating_sub(end.len())))
}

/// The actions for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeActions {
    /// Name of the node.
    pub node: String,
    /// Actions for the node before the first node changes, in order.
    pub prepare: Vec<Action>,
    /// Actions when the node changes, in order.
    pub actions: Vec<Action>,
}

/// All actions of a migration, cluster-wide and node by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Cluster-wide actions before the first node, in order. The `prepare` actions of each node follow, in the order of the
    /// nodes.
    pub prepare: Vec<Action>,
    /// Nodes in order, with their actions.
    pub nodes: Vec<NodeActions>,
    /// Cluster-wide actions after the last node, in order.
    pub finish: Vec<Action>,
}

impl Document {
    /// All actions before the first node changes, in order.
    pub fn before_first_node(&self) -> impl Iterator<Item = &Action> {
        let of_nodes = self.nodes.iter().flat_map(|node| &node.prepare);
        self.prepare.iter().chain(of_nodes)
    }

    /// SHA-256 of the plan, without details that are only as of now, hexadecimal.
    ///
    /// The pods of a node change all the time without an effect on the actions of the migration, so names of pods are shown and
    /// not hashed; nodes, order, objects and values are hashed.
    ///
    /// # Examples
    ///
    /// ```
    /// use engine::document::{Action, Document};
    ///
    /// let plan = |pods| Document {
    ///     prepare: vec![
    ///         Action::new("create", "IPPool new", "cidr 10.245.0.0/16"),
    ///         Action::as_of_now("evict", "pods of node a", pods),
    ///     ],
    ///     ..Document::default()
    /// };
    /// assert_eq!(plan("web-0").hash(), plan("web-1").hash());
    /// assert_ne!(plan("web-0").hash(), Document::default().hash());
    /// ```
    pub fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        let mut feed = |part: &str| {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        };
        let mut feed_actions = |heading: &str, actions: &mut dyn Iterator<Item = &Action>| {
            feed(heading);
            for action in actions {
                feed(&action.verb);
                feed(&action.object);
                if !action.as_of_now {
                    feed(&action.detail);
                }
            }
        };
        feed_actions("prepare", &mut self.before_first_node());
        for node in &self.nodes {
            feed_actions(&node.node, &mut node.actions.iter());
        }
        feed_actions("finish", &mut self.finish.iter());
        HEXLOWER.encode(&hasher.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(pods: &str, object: &str) -> Document {
        Document {
            prepare: vec![Action::new("create", object, "cidr 10.244.0.0/16")],
            nodes: vec![NodeActions {
                node: "a".to_owned(),
                prepare: vec![Action::new("create", format!("{object} of a"), "")],
                actions: vec![Action::as_of_now("evict", "pods of a", pods)],
            }],
            finish: Vec::new(),
        }
    }

    #[test]
    fn prepare_actions_of_a_node_are_hashed() {
        let document = document("web-1", "IPPool x");
        let mut other = document.clone();
        other.nodes[0].prepare.clear();
        assert_ne!(document.hash(), other.hash());
        // The list that holds an action changes neither the action nor its order.
        other.prepare = document.before_first_node().cloned().collect();
        assert_eq!(document.hash(), other.hash());
    }

    #[test]
    fn a_long_action_is_cut_and_its_whole_text_is_hashed() {
        let long = |end: &str| Action::new("wait", "x".repeat(5000), format!("{}{end}", "ä".repeat(1 << 20)));
        assert!(long("").detail.len() <= DETAIL_BYTES && long("").object.len() <= OBJECT_BYTES);
        assert_ne!(long("a").detail, long("b").detail);
    }

    #[test]
    fn objects_are_hashed_and_pods_are_not() {
        let hash = document("web-1", "IPPool x").hash();
        assert_eq!(hash.len(), 64);
        assert_eq!(hash, document("web-2", "IPPool x").hash());
        assert_ne!(hash, document("web-1", "IPPool y").hash());
    }
}
