//! Conditions and changes of a transaction, and their JSON for the gateway.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::message::after;

/// One change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write a key.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The lease whose end deletes the key.
        lease: Option<i64>,
    },
    /// Delete a key.
    Delete {
        /// The key.
        key: String,
    },
    /// Delete every key with this prefix.
    DeletePrefix {
        /// The prefix.
        prefix: String,
    },
}

/// Condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key was created at this revision; 0: the key does not exist.
    Created {
        /// The key.
        key: String,
        /// The revision.
        at: i64,
    },
    /// The last write of the key was at this revision; 0: the key does not exist.
    Modified {
        /// The key.
        key: String,
        /// The revision.
        at: i64,
    },
}

pub(super) fn condition(condition: &Condition) -> Value {
    match condition {
        Condition::Created { key, at } => json!({
            "key": STANDARD.encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": at.to_string(),
        }),
        Condition::Modified { key, at } => json!({
            "key": STANDARD.encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": at.to_string(),
        }),
    }
}

pub(super) fn change(change: &Change) -> Value {
    match change {
        Change::Put { key, value, lease } => {
            let mut put = json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) });
            if let Some(lease) = lease {
                put["lease"] = json!(lease.to_string());
            }
            json!({ "request_put": put })
        }
        Change::Delete { key } => json!({ "request_delete_range": { "key": STANDARD.encode(key) } }),
        Change::DeletePrefix { prefix } => json!({ "request_delete_range": {
            "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(after(prefix)),
        } }),
    }
}
