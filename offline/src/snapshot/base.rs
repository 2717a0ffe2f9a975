//! The known clusters.

use super::document::Document;
use super::error::SnapshotError;

/// Names and texts of the known clusters.
const BASES: [(&str, &str); 2] = [
    (
        "good-flannel-cluster",
        include_str!("../../bases/good-flannel-cluster.yaml"),
    ),
    (
        "good-calico-cluster",
        include_str!("../../bases/good-calico-cluster.yaml"),
    ),
];

/// The document of a known cluster.
///
/// # Errors
///
/// No known cluster has this name, or its text is not a snapshot.
pub fn base(name: &str) -> Result<Document, SnapshotError> {
    let found = BASES.iter().find(|(known, _)| *known == name);
    let (_, text) = found.ok_or_else(|| SnapshotError::NoSuchBase {
        name: name.to_owned(),
        existing: BASES.map(|(name, _)| name).to_vec(),
    })?;
    Document::parse(text)
}
