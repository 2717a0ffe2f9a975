//! A `NodeMigration` with any content of its status: a part that cannot be parsed affects its own node only. In a watch of strict
//! types, one such object would block all others: its list never completes, and its events are not delivered.

use std::borrow::Cow;
use std::sync::Arc;

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::store::{Store, Stored, same_metadata};

/// A `NodeMigration` as read.
#[derive(Clone, Debug)]
pub struct ReadableParts {
    metadata: ObjectMeta,
    /// The object, without a status that cannot be parsed; `None` if the spec cannot be parsed.
    object: Option<Arc<NodeMigration>>,
    /// The part that cannot be parsed, and why.
    unclear: Option<String>,
}

impl<'de> Deserialize<'de> for ReadableParts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            #[serde(default)]
            metadata: ObjectMeta,
            #[serde(default)]
            spec: Value,
            #[serde(default)]
            status: Value,
        }
        let Parts {
            metadata,
            spec,
            status,
        } = Parts::deserialize(deserializer)?;
        let (status, unclear) = understood(status, "status");
        Ok(match understood::<NodeMigrationSpec>(spec, "spec") {
            (Some(spec), _) => Self {
                metadata: metadata.clone(),
                object: Some(Arc::new(NodeMigration {
                    metadata,
                    spec,
                    status: status.flatten(),
                })),
                unclear,
            },
            (None, unclear) => Self {
                metadata,
                object: None,
                unclear,
            },
        })
    }
}

/// The value of a field, or why it cannot be parsed.
fn understood<T: DeserializeOwned>(value: Value, field: &str) -> (Option<T>, Option<String>) {
    match serde_json::from_value(value) {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(format!("{field}: {error}"))),
    }
}

impl Resource for ReadableParts {
    type DynamicType = ();
    type Scope = <NodeMigration as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        NodeMigration::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        NodeMigration::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        NodeMigration::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        NodeMigration::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Stored for ReadableParts {
    fn prune(&mut self) {
        self.metadata.managed_fields = None;
        if let Some(object) = &mut self.object {
            Arc::make_mut(object).metadata.managed_fields = None;
        }
    }

    fn has_same_content(&self, other: &Self) -> bool {
        let parts = |guarded: &Self| {
            let object = guarded.object.clone();
            object.map(|object| (object.spec.clone(), object.status.clone()))
        };
        same_metadata(&self.metadata, &other.metadata)
            && self.unclear == other.unclear
            && parts(self) == parts(other)
    }
}

/// Every `NodeMigration`. Clones share the store.
#[derive(Clone, Default)]
pub struct NodeMigrations(Store<ReadableParts>);

impl NodeMigrations {
    /// The objects of this store.
    pub fn in_store(store: Store<ReadableParts>) -> Self {
        Self(store)
    }

    /// Objects with a readable spec, in the order of their names. An unreadable status is left out, like that of an agent without
    /// a report.
    pub fn state(&self) -> Vec<Arc<NodeMigration>> {
        let objects = self.0.state().into_iter();
        objects.filter_map(|guarded| guarded.object.clone()).collect()
    }

    /// Objects with a part that cannot be parsed: name and error.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        let objects = self.0.state().into_iter();
        objects
            .filter_map(|guarded| {
                Some(Unreadable {
                    name: guarded.name_any(),
                    words: guarded.unclear.clone()?,
                    is_unusable: guarded.object.is_none(),
                })
            })
            .collect()
    }

    /// Waits until the first list is complete.
    pub async fn filled(&self) {
        self.0.filled().await;
    }
}

/// A `NodeMigration` with a part that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// Its name, which is the name of its node.
    pub name: String,
    /// The part that cannot be parsed, and why.
    pub words: String,
    /// Whether that part is the spec, so that no part of the object is usable.
    pub is_unusable: bool,
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectList;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn object(name: &str, spec: &Value, status: &Value) -> Value {
        json!({ "metadata": { "name": name, "uid": name, "resourceVersion": "1" }, "spec": spec, "status": status })
    }

    fn spec(name: &str) -> Value {
        json!({ "nodeName": name, "migration": "demo" })
    }

    /// As in a list of the API server, and as in an event of a watch.
    #[test]
    fn an_unreadable_object_does_not_affect_others() {
        let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [
            object("a", &spec("a"), &json!({ "message": "well" })),
            object("b", &spec("b"), &json!({ "podCidr": { "source": "nonsense" } })),
            object("c", &json!({ "nodeName": 7 }), &Value::Null),
            object("d", &spec("d"), &Value::Null),
        ] });
        let list: ObjectList<ReadableParts> = serde_json::from_value(list).unwrap();
        let objects = NodeMigrations::in_store(Store::of(list.items));
        let state = objects.state();
        let names: Vec<String> = state.iter().map(|object| object.name_any()).collect();
        assert_eq!(names, ["a", "b", "d"]);
        assert!(state[0].status.is_some());
        assert_eq!((&state[1].status, &state[2].status), (&None, &None));
        let unclear = objects.unreadable();
        let told: Vec<(&str, bool)> = unclear
            .iter()
            .map(|unclear| (unclear.name.as_str(), unclear.is_unusable))
            .collect();
        assert_eq!(told, [("b", false), ("c", true)]);
        assert!(
            unclear[0]
                .words
                .starts_with("status: invalid type: string \"nonsense\""),
            "{unclear:?}"
        );
    }

    #[test]
    fn a_corrected_object_is_readable_again() {
        let read = |status: &Value| {
            serde_json::from_value::<ReadableParts>(object("a", &spec("a"), status)).unwrap()
        };
        let store = Store::of([read(&json!("nonsense"))]);
        let objects = NodeMigrations::in_store(store.clone());
        assert_eq!(objects.unreadable().len(), 1);
        assert!(
            !store.apply(Event::Apply(read(&json!("nonsense")))),
            "the content is the same"
        );
        assert!(store.apply(Event::Apply(read(&json!({ "message": "well" })))));
        assert_eq!((objects.unreadable().len(), objects.state().len()), (0, 1));
    }
}
