//! The inputs of one pass.

use api::Migration;
use api::migration::FlannelToCalico;
use flannel_to_calico::settings::Settings;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::cache::Cache;
use crate::context::Context;
use crate::snapshot::Snapshot;

/// The inputs of one pass.
pub(super) struct Pass<'pass> {
    pub(super) context: &'pass Context,
    pub(super) cache: &'pass Cache,
    pub(super) migration: &'pass Migration,
    pub(super) kind: &'pass FlannelToCalico,
    pub(super) settings: &'pass Settings,
    pub(super) now: Timestamp,
}

impl Pass<'_> {
    /// The objects of the migration as the watches have them now.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot::take(self.cache, &self.migration.name_any(), &self.context.namespace)
    }
}
