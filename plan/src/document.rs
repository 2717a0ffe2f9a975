//! The plan as a document: every action on every object, in order, and a hash of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// One action on one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// Verb: create, patch, label, cordon, evict, delete, wait, probe, uncordon.
    pub verb: String,
    /// Object, with kind, namespace and name.
    pub object: String,
    /// What changes, in words and values.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Whether the detail is only as of now (pods come and go) and stays out of the hash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_of_now: bool,
}

impl Action {
    /// An action that is part of the hash.
    pub fn new(verb: &str, object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            verb: verb.to_owned(),
            object: object.into(),
            detail: detail.into(),
            as_of_now: false,
        }
    }

    /// An action whose detail is only as of now.
    pub fn as_of_now(verb: &str, object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            as_of_now: true,
            ..Self::new(verb, object, detail)
        }
    }
}

/// What will be done, cluster-wide and node by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Cluster-wide actions before the first node, in order.
    pub prepare: Vec<Action>,
    /// Nodes in order, with their actions.
    pub nodes: Vec<(String, Vec<Action>)>,
    /// Cluster-wide actions after the last node, in order.
    pub finish: Vec<Action>,
}

impl Document {
    /// SHA-256 of everything but what is only as of now, hexadecimal.
    ///
    /// Which pods stand on a node changes by the minute and does not change what the migration does, so the
    /// names of pods are shown and not hashed; nodes, order, objects and values are hashed.
    pub fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        let mut feed = |part: &str| {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        };
        let mut feed_actions = |heading: &str, actions: &[Action]| {
            feed(heading);
            for action in actions {
                feed(&action.verb);
                feed(&action.object);
                if !action.as_of_now {
                    feed(&action.detail);
                }
            }
        };
        feed_actions("prepare", &self.prepare);
        for (node, actions) in &self.nodes {
            feed_actions(node, actions);
        }
        feed_actions("finish", &self.finish);
        hasher.finalize().iter().fold(String::new(), |mut text, byte| {
            use std::fmt::Write;
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(pods: &str, object: &str) -> Document {
        Document {
            prepare: vec![Action::new("create", object, "cidr 10.244.0.0/16")],
            nodes: vec![(
                "a".to_owned(),
                vec![Action::as_of_now("evict", "pods of a", pods)],
            )],
            finish: Vec::new(),
        }
    }

    #[test]
    fn pods_are_not_hashed_and_objects_are() {
        let hash = document("web-1", "IPPool x").hash();
        assert_eq!(hash.len(), 64);
        assert_eq!(hash, document("web-2", "IPPool x").hash());
        assert_ne!(hash, document("web-1", "IPPool y").hash());
    }
}
