//! From the API's objects to the facts that `plan` decides on. Pure: what was read comes in, values go out.

pub mod calico;
pub mod daemon_sets;
pub mod nodes;
pub mod pods;
mod quantity;
pub mod webhooks;

use plan::cluster::Malformed;

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
