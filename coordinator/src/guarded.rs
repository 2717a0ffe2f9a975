//! A `NodeMigration` with whatever its agent has written into its status: what is not understood of one costs its node, and nothing of
//! the others. A watch of objects that have to parse would tell nothing at all from such a one on: neither its list comes to an end, nor
//! do events of it come through.

use std::borrow::Cow;
use std::sync::Arc;

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::store::{Kept, Store, same_metadata};

/// A `NodeMigration` as it was read.
#[derive(Clone, Debug)]
pub struct Guarded {
    metadata: ObjectMeta,
    /// The object, without a status where that is not understood; `None` where its spec is not.
    object: Option<Arc<NodeMigration>>,
    /// What is not understood, and why.
    unclear: Option<String>,
}

impl<'de> Deserialize<'de> for Guarded {
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

/// The value of a field, or why it is not understood.
fn understood<T: DeserializeOwned>(value: Value, field: &str) -> (Option<T>, Option<String>) {
    match serde_json::from_value(value) {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(format!("{field}: {error}"))),
    }
}

impl Resource for Guarded {
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

impl Kept for Guarded {
    fn prune(&mut self) {
        self.metadata.managed_fields = None;
        if let Some(object) = &mut self.object {
            Arc::make_mut(object).metadata.managed_fields = None;
        }
    }

    fn says_the_same(&self, other: &Self) -> bool {
        let parts = |guarded: &Self| {
            let object = guarded.object.clone();
            object.map(|object| (object.spec.clone(), object.status.clone()))
        };
        same_metadata(&self.metadata, &other.metadata)
            && self.unclear == other.unclear
            && parts(self) == parts(other)
    }
}

/// Every `NodeMigration`. Cloning shares them.
#[derive(Clone, Default)]
pub struct NodeMigrations(Store<Guarded>);

impl NodeMigrations {
    /// Those that this store has.
    pub fn in_store(store: Store<Guarded>) -> Self {
        Self(store)
    }

    /// Those whose spec is understood, in order of their names. One whose status is not has none: its agent has said nothing.
    pub fn state(&self) -> Vec<Arc<NodeMigration>> {
        let objects = self.0.state().into_iter();
        objects.filter_map(|guarded| guarded.object.clone()).collect()
    }

    /// What is not understood of which: its name and the words.
    pub fn unclear(&self) -> Vec<Unclear> {
        let objects = self.0.state().into_iter();
        objects
            .filter_map(|guarded| {
                Some(Unclear {
                    name: guarded.name_any(),
                    words: guarded.unclear.clone()?,
                    is_lost: guarded.object.is_none(),
                })
            })
            .collect()
    }

    /// Waits until the first list has come to its end.
    pub async fn filled(&self) {
        self.0.filled().await;
    }
}

/// A `NodeMigration` that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unclear {
    /// Its name, which is its node's.
    pub name: String,
    /// What is not understood, and why.
    pub words: String,
    /// Whether that is its spec: then nothing of it is known.
    pub is_lost: bool,
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

    /// As the API server answers a list, and as a watch is told of a change.
    #[test]
    fn one_that_is_not_understood_costs_no_other() {
        let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [
            object("a", &spec("a"), &json!({ "message": "well" })),
            object("b", &spec("b"), &json!({ "podCidr": { "inOld": "nonsense" } })),
            object("c", &json!({ "nodeName": 7 }), &Value::Null),
            object("d", &spec("d"), &Value::Null),
        ] });
        let list: ObjectList<Guarded> = serde_json::from_value(list).unwrap();
        let objects = NodeMigrations::in_store(Store::of(list.items));
        let state = objects.state();
        let names: Vec<String> = state.iter().map(|object| object.name_any()).collect();
        assert_eq!(names, ["a", "b", "d"]);
        assert!(state[0].status.is_some());
        assert_eq!((&state[1].status, &state[2].status), (&None, &None));
        let unclear = objects.unclear();
        let told: Vec<(&str, bool)> = unclear
            .iter()
            .map(|unclear| (unclear.name.as_str(), unclear.is_lost))
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
    fn what_is_corrected_is_understood_again() {
        let read =
            |status: &Value| serde_json::from_value::<Guarded>(object("a", &spec("a"), status)).unwrap();
        let store = Store::of([read(&json!("nonsense"))]);
        let objects = NodeMigrations::in_store(store.clone());
        assert_eq!(objects.unclear().len(), 1);
        assert!(
            !store.keep(Event::Apply(read(&json!("nonsense")))),
            "it says the same"
        );
        assert!(store.keep(Event::Apply(read(&json!({ "message": "well" })))));
        assert_eq!((objects.unclear().len(), objects.state().len()), (0, 1));
    }
}
