//! Answers of the server.

use http::StatusCode;
use serde_json::{Value, json};

/// Status and body of an answer.
pub type Answer = (StatusCode, Value);

/// A refusal whose message is its reason.
pub fn failure(status: StatusCode, reason: &str) -> Answer {
    failure_of(status, reason, reason)
}

/// A refusal, as the API server words it: a `Status` object.
pub fn failure_of(status: StatusCode, reason: &str, message: &str) -> Answer {
    (
        status,
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
            "reason": reason, "message": message, "code": status.as_u16(),
        }),
    )
}
