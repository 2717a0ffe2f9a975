//! What a pass is about to write into the specs of `NodeMigration`s: what several of its parts have to say of one node goes into one
//! write.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;

use crate::context::Context;
use crate::node_migrations::bring_to;
use crate::write::WriteError;

/// Specs that differ from what is there, by node.
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

    /// Takes the draft of this object out, for a caller that writes it; without one, the spec that is there.
    pub fn take<'object>(&mut self, object: &'object NodeMigration) -> Cow<'object, NodeMigrationSpec> {
        match self.changed.remove(&object.spec.node_name) {
            Some((_, spec)) => Cow::Owned(spec),
            None => Cow::Borrowed(&object.spec),
        }
    }

    /// Whether the node's agent is about to be asked something else.
    pub fn has(&self, node: &str) -> bool {
        self.changed.contains_key(node)
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// When the API server is out of reach.
    pub async fn write(self, context: &Context) -> Result<(), WriteError> {
        for (object, spec) in self.changed.values() {
            bring_to(context, object, spec).await?;
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
    async fn what_two_parts_say_of_a_node_is_one_write() {
        let api = FakeApi::default();
        let path = "/apis/replumb.dev/v1alpha1/nodemigrations/a";
        api.put(
            path,
            json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" } }),
        );
        let object: Arc<NodeMigration> = Arc::new(serde_json::from_value(api.get(path).unwrap()).unwrap());
        let mut drafts = Drafts::default();
        drafts.change(&object, |spec| spec.position = 7);
        drafts.change(&object, |spec| spec.admitted = true);
        drafts.write(&api.context()).await.unwrap();
        let changes = api.take_changes();
        assert_eq!(changes.len(), 1, "{changes:?}");
        let spec = &api.get(path).unwrap()["spec"];
        assert_eq!((&spec["position"], &spec["admitted"]), (&json!(7), &json!(true)));
    }

    #[test]
    fn a_draft_that_is_taken_is_not_written_again() {
        let spec = json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" } });
        let object: Arc<NodeMigration> = Arc::new(serde_json::from_value(spec).unwrap());
        let mut drafts = Drafts::default();
        drafts.change(&object, |spec| spec.position = 7);
        assert_eq!(drafts.take(&object).position, 7);
        assert!(!drafts.has("a"));
        assert_eq!(*drafts.take(&object), object.spec);
    }
}
