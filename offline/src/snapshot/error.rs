//! Why a document is not a snapshot.

use thiserror::Error;

/// Why a document is not a snapshot.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// The text is not YAML, or has other fields than a snapshot.
    #[error("not such a document: {0}")]
    Form(String),
    /// The kind or the version is another one.
    #[error("found kind {kind:?} of apiVersion {version:?}, needed {needed}")]
    Kind {
        /// The kind that was found.
        kind: String,
        /// The version that was found.
        version: String,
        /// The kind and the version that are known.
        needed: String,
    },
    /// The base does not exist.
    #[error("base: found {name:?}, needed one of {}", existing.join(", "))]
    NoSuchBase {
        /// The name that was found.
        name: String,
        /// The names that exist.
        existing: Vec<&'static str>,
    },
    /// A patch or an absence is for an object that does not exist.
    #[error("{field}: no object matches {target}")]
    NoSuchObject {
        /// The field of the document.
        field: &'static str,
        /// What the object has to match.
        target: String,
    },
    /// A patch changes what tells an object from others, or its form.
    #[error("patches: the patch of {target} changes its kind, namespace or name, or is no object")]
    Patch {
        /// What the object has to match.
        target: String,
    },
    /// An object has no identity.
    #[error("objects: {problem} in {object}")]
    Object {
        /// What is missing.
        problem: &'static str,
        /// The object, shortened.
        object: String,
    },
    /// A snapshot has no place for such an object.
    #[error("objects: {object} must not be in a snapshot: omit it")]
    Confidential {
        /// The object.
        object: String,
    },
    /// The report of a host is not one.
    #[error("hosts: report of node {node}: {problem}")]
    Host {
        /// The node.
        node: String,
        /// What is wrong.
        problem: String,
    },
}
