//! The agent's own object of a kind, as its watch shows it: it has the name of the node.

use std::sync::Arc;

use api::NodeMigration;
use kube::ResourceExt;

/// State of the watched object.
#[derive(Clone, Debug, Default)]
pub enum WatchedObject<Object = NodeMigration> {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    /// No such object exists for this node.
    Absent,
    /// The object.
    Present(Arc<Object>),
}

/// The newest known object: from the watch, or from the last write of the agent while the watch has not seen that write.
pub fn newest<Object: ResourceExt>(written: &mut Option<Arc<Object>>, watched: &Arc<Object>) -> Arc<Object> {
    let is_newer = |written: &Arc<Object>| {
        written.uid() == watched.uid() && version(written.as_ref()) > version(watched.as_ref())
    };
    *written = written.take().filter(is_newer);
    Arc::clone(written.as_ref().unwrap_or(watched))
}

/// The resource version as a number. A version that is not a number counts as the oldest.
fn version(object: &impl ResourceExt) -> u64 {
    let version = object.resource_version();
    version.and_then(|text| text.parse().ok()).unwrap_or_default()
}
