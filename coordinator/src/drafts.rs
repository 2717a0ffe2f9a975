//! Specs of `NodeMigration`s that a pass is about to write: changes by several parts of the pass to one node become one
//! write.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;

use crate::context::Context;
use crate::node_migrations::update_spec;
use crate::write::WriteError;

/// Changed specs, by node.
#[derive(Debug, Default)]
pub struct Drafts {
    changed: BTreeMap<String, (Arc<NodeMigration>, NodeMigrationSpec)>,
}

impl Drafts {
    /// Changes the draft of this object.
    pub fn change(&mut self, object: &Arc<NodeMigration>, change: impl FnOnce(&mut NodeMigrationSpec)) {
        let (_, spec) = self
            .changed
            .entry(object.spec.node_name.clone())
            .or_insert_with(|| (Arc::clone(object), object.spec.clone()));
        change(spec);
    }

    /// Removes and returns the draft of this object for a caller that writes it; without a draft, returns the current spec.
    pub fn take<'object>(&mut self, object: &'object NodeMigration) -> Cow<'object, NodeMigrationSpec> {
        match self.changed.remove(&object.spec.node_name) {
            Some((_, spec)) => Cow::Owned(spec),
            None => Cow::Borrowed(&object.spec),
        }
    }

    /// Whether a change of the node's spec is pending.
    pub fn has(&self, node: &str) -> bool {
        self.changed.contains_key(node)
    }

    /// Writes the remaining drafts.
    ///
    /// # Errors
    /// When the API server is out of reach.
    pub async fn write(self, context: &Context) -> Result<(), WriteError> {
        for (object, spec) in self.changed.values() {
            update_spec(context, object, spec).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    #[tokio::test]
    async fn two_changes_to_one_node_become_one_write() {
        let api = FakeApi::default();
        let path = "/apis/replumb.dev/v1alpha1/nodemigrations/a";
        api.put(
            path,
            json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" } }),
        );
        let object: Arc<NodeMigration> = Arc::new(serde_json::from_value(api.get(path).unwrap()).unwrap());
        let mut drafts = Drafts::default();
        drafts.change(&object, |spec| spec.position = 7);
        drafts.change(&object, |spec| spec.started = true);
        drafts.write(&api.context()).await.unwrap();
        let changes = api.take_changes();
        assert_eq!(changes.len(), 1, "{changes:?}");
        let spec = &api.get(path).unwrap()["spec"];
        assert_eq!((&spec["position"], &spec["started"]), (&json!(7), &json!(true)));
    }

    #[test]
    fn a_taken_draft_is_not_written_again() {
        let spec = json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" } });
        let object: Arc<NodeMigration> = Arc::new(serde_json::from_value(spec).unwrap());
        let mut drafts = Drafts::default();
        drafts.change(&object, |spec| spec.position = 7);
        assert_eq!(drafts.take(&object).position, 7);
        assert!(!drafts.has("a"));
        assert_eq!(*drafts.take(&object), object.spec);
    }
}
