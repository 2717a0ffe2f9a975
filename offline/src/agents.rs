//! Reports for the hosts as their agents would: the facts of the snapshot, and what follows from them.

use std::collections::BTreeMap;

use api::node_migration::{NodeMigrationSpec, NodeMigrationStatus};
use engine::cni::CONFIGURATION_DIRECTORY;
use flannel_to_calico::api::OrEmpty as _;
use flannel_to_calico::host::{self, HostSettings};
use flannel_to_calico::host_checks::{self, Subject};
use memory_api::Objects;
use serde_json::{Value, json};

use crate::paths::NODE_MIGRATIONS;

/// Writes the report of each host into its `NodeMigration`, if that exists and the report is not for its current spec.
pub fn report(objects: &mut Objects, hosts: &BTreeMap<String, Value>) -> anyhow::Result<()> {
    for (node, found) in hosts {
        let path = format!("{NODE_MIGRATIONS}/{node}");
        let Some(object) = objects.get(&path) else {
            continue;
        };
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        if object["status"]["observedGeneration"].as_i64() == Some(generation) {
            continue;
        }
        let spec: NodeMigrationSpec = serde_json::from_value(object["spec"].clone())?;
        let status = NodeMigrationStatus {
            observed_generation: generation,
            ..of_host(node, &spec, serde_json::from_value(found.clone())?)
        };
        let mut object = object.clone();
        object["status"] = json!(status);
        objects.put(&path, object);
    }
    Ok(())
}

/// The report with the phase and the checks that follow from the facts, unless it has its own.
fn of_host(node: &str, spec: &NodeMigrationSpec, mut report: NodeMigrationStatus) -> NodeMigrationStatus {
    let Some(of_kind) = &mut report.flannel_to_calico else {
        return report;
    };
    let Some(facts) = &of_kind.facts else {
        return report;
    };
    let orders = spec.flannel_to_calico.or_empty();
    let settings = orders
        .host
        .clone()
        .unwrap_or_else(|| HostSettings::before_detection(CONFIGURATION_DIRECTORY));
    let phase = of_kind.phase.unwrap_or_else(|| host::phase(facts, &settings));
    if of_kind.checks.is_empty() {
        of_kind.checks = host_checks::checks(Subject {
            node,
            facts,
            settings: &settings,
            settings_are_known: orders.host.is_some(),
            phase,
            goal: orders.goal,
        });
    }
    of_kind.goal = Some(orders.goal);
    of_kind.leftovers = host::leftovers(facts, &settings);
    of_kind.phase = Some(phase);
    report
}
