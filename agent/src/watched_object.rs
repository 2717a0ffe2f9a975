//! The `NodeMigration` of this node, as its watch shows it.

use std::sync::Arc;

use api::NodeMigration;

/// State of the watched object.
#[derive(Clone, Debug, Default)]
pub enum WatchedObject {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    /// No `NodeMigration` exists for this node.
    Absent,
    /// The object.
    Present(Arc<NodeMigration>),
}
