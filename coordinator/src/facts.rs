//! Conversion of API objects to the facts that kinds decide on. Pure: objects in, values out.

pub mod calico;
pub mod daemon_sets;
pub mod environment;
pub mod name_servers;
pub mod nodes;
pub mod pods;
pub(crate) mod quantity;
pub mod webhooks;
pub mod workloads;

use std::collections::BTreeSet;

use engine::cluster::{Malformed, Needed, NotUnderstood};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Field managers of an object with their operation, each once: `argocd-controller (Apply)`.
pub fn managers(metadata: &ObjectMeta) -> Vec<String> {
    let managers: BTreeSet<String> = metadata
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .map(|entry| {
            format!(
                "{} ({})",
                entry.manager.as_deref().unwrap_or("unknown"),
                entry.operation.as_deref().unwrap_or("unknown")
            )
        })
        .collect();
    managers.into_iter().collect()
}

/// Most characters shown of a value that cannot be parsed.
const SHOWN: usize = 64;

/// The value, shortened to fit into a line.
pub fn shown(value: &str) -> String {
    let (start, rest) = abridged(value);
    format!("{start}{rest}")
}

/// The beginning of a value, and a note on the rest; empty if the value is complete.
fn abridged(value: &str) -> (String, String) {
    let start: String = value.chars().take(SHOWN).collect();
    let rest = if start.len() == value.len() {
        String::new()
    } else {
        format!("… ({} bytes in total)", value.len())
    };
    (start, rest)
}

/// A field that cannot be parsed, with its shortened value.
pub(crate) fn not_understood(field: impl Into<String>, found: &str, needed: Needed) -> NotUnderstood {
    let (start, rest) = abridged(found);
    NotUnderstood {
        field: field.into(),
        found: format!("{start:?}{rest}"),
        needed,
    }
}

/// Values that were parsed; the others are added to `malformed`, by name.
pub fn understood<T>(
    results: impl Iterator<Item = Result<T, Malformed>>,
    malformed: &mut Vec<Malformed>,
) -> Vec<T> {
    results
        .filter_map(|result| match result {
            Ok(value) => Some(value),
            Err(error) => {
                malformed.push(error);
                None
            }
        })
        .collect()
}
