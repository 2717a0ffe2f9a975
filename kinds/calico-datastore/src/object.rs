//! One value of the v3 store.

use serde_json::Value;

use super::key::ObjectKind;

/// One value of the v3 store.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Key in etcd.
    pub key: String,
    /// Value to write, without `metadata.uid` and `metadata.creationTimestamp`.
    pub value: Value,
    /// Kind of the object.
    pub kind: ObjectKind,
}
