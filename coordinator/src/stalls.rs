//! Workloads whose moved pods do not become Ready: they are reported, and other workloads' pods do not wait for them.

use std::collections::BTreeMap;

use calico::NETWORK_NAMESPACES;
use engine::moves::{Health, Movers, Resident, View, Workload};
use engine::stalls;
use jiff::Timestamp;

use crate::memory::Memory;

/// Finds stalled workloads, and marks their health.
pub fn mark(
    memory: &mut Memory,
    migration: &str,
    residents: &[Resident<'_>],
    movers: Movers<'_>,
    health: &mut BTreeMap<Workload, Health>,
    goes_back: bool,
    now: Timestamp,
) {
    let view = View {
        residents,
        movers,
        budgets: &[],
        refusals: &memory.refusals,
        workloads: health,
        only: None,
    };
    let found = memory.stalls.observe(&view, &NETWORK_NAMESPACES, goes_back, now);
    stalls::mark(health, &found);
    let lines = found.iter().map(|(workload, (what, since))| {
        let line = format!(
            "{}: {what}, since {since:.0}; pods of other workloads do not wait for it",
            workload.key()
        );
        (format!("namespace {}", workload.namespace), line)
    });
    memory.warnings.of_stalls(migration, lines);
}
