//! From the API's objects to the facts that kinds decide on. Pure: what was read comes in, values go out.

pub mod calico;
pub mod daemon_sets;
pub mod name_servers;
pub mod nodes;
pub mod pods;
mod quantity;
pub mod quotas;
pub mod webhooks;
pub mod workloads;

use std::collections::BTreeSet;

use engine::cluster::{Malformed, Needed, NotUnderstood};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Field managers that own something of an object, with the operation, each once: `argocd-controller (Apply)`.
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

/// More characters of a value that was not understood are not told.
const TOLD: usize = 64;

/// As much of a value as a line has room for.
pub fn shown(value: &str) -> String {
    let (told, rest) = abridged(value);
    format!("{told}{rest}")
}

/// The beginning of a value, and words for the rest; none where that is all.
fn abridged(value: &str) -> (String, String) {
    let told: String = value.chars().take(TOLD).collect();
    let rest = if told.len() == value.len() {
        String::new()
    } else {
        format!(" and so on, {} bytes in all", value.len())
    };
    (told, rest)
}

/// A field that was not understood, with as much of its value as a line has room for.
fn not_understood(field: impl Into<String>, found: &str, needed: Needed) -> NotUnderstood {
    let (told, rest) = abridged(found);
    NotUnderstood {
        field: field.into(),
        found: format!("{told:?}{rest}"),
        needed,
    }
}

/// The values that were understood; what was not is added to `malformed`, by name.
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
