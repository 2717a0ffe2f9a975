//! The inputs of one pass.

use std::collections::{BTreeMap, BTreeSet};

use api::Migration;
use api::migration::{Direction, ServiceCidr};
use engine::moves::{Workload, WorkloadFacts};
use jiff::Timestamp;
use service_cidr::assignment::Assignment;
use service_cidr::ranges::ServiceCidr as Range;
use service_cidr::side::Side;

use super::service_index::Index;
use crate::cache::Cache;
use crate::context::Context;
use crate::snapshot::Snapshot;

/// The inputs of one pass.
pub(super) struct Pass<'pass> {
    pub(super) context: &'pass Context,
    pub(super) cache: &'pass Cache,
    pub(super) migration: &'pass Migration,
    pub(super) kind: &'pass ServiceCidr,
    /// Pods that were not Ready before the first change.
    pub(super) unready: &'pass BTreeMap<Workload, usize>,
    pub(super) snapshot: &'pass Snapshot,
    /// Every Service.
    pub(super) index: &'pass Index,
    /// Every workload that creates pods again.
    pub(super) workloads: &'pass BTreeMap<Workload, WorkloadFacts>,
    pub(super) ranges: &'pass [Range],
    /// Every Service that changes, with its recorded addresses.
    pub(super) assigned: &'pass Assignment,
    /// Recorded Services that nothing has been done for: no client knows their new addresses.
    pub(super) untouched: &'pass BTreeSet<String>,
    /// Version of the API that has `ServiceCIDR`s.
    pub(super) version: &'pass str,
    pub(super) goal: Side,
    /// Whether only the clean-up of what replumb created for the migration remains.
    pub(super) is_over: bool,
    pub(super) now: Timestamp,
}

/// The direction in which Services change their addresses.
pub(super) fn direction(goal: Side) -> Direction {
    match goal {
        Side::New => Direction::Forward,
        Side::Old => Direction::Rollback,
    }
}
