//! Objects of an API server in memory, in their types.

use anyhow::Context as _;
use memory_api::Objects;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;

use crate::lenient::Lenient;

/// The objects one part below a path; `*` matches one part.
///
/// # Errors
///
/// An object is not of its kind.
pub(crate) fn read<K: DeserializeOwned>(objects: &Objects, path: &str) -> anyhow::Result<Vec<K>> {
    let parse = |object: &serde_json::Value| {
        let read = Lenient::<K>::deserialize(object);
        read.map(|read| read.object)
            .with_context(|| format!("reading {} {}", object["kind"], object["metadata"]["name"]))
    };
    objects.below(path).map(parse).collect()
}
