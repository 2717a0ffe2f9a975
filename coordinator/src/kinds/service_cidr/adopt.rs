//! One `NodeMigration` for each Node, with the settings of its agent.

use std::collections::BTreeMap;

use api::node_migration::NodeMigrationSpec;
use api::{Migration, NodeMigration};
use ipnet::IpNet;
use service_cidr::host::{HostSettings, SourceAddresses};
use service_cidr::ranges::afterwards;
use service_cidr::settings::Settings;
use service_cidr::side::Side;

use crate::cache::Cache;
use crate::context::Context;
use crate::node_migrations::{self, belongs_to};
use crate::write::WriteError;

/// Settings of agents before the migration's settings are known: by the present default range and the user's spec.
pub fn settings_before_detection(from: &[IpNet], to: &[IpNet]) -> HostSettings {
    let after = afterwards(from, to);
    HostSettings {
        source: SourceAddresses {
            ranges: from
                .iter()
                .filter(|range| !after.contains(range))
                .copied()
                .collect(),
            excluded: Vec::new(),
        },
        target: to.to_vec(),
        report_users: false,
        expected_ports: None,
    }
}

/// Settings of agents while Services exchange their addresses.
pub fn settings_of_agents(settings: &Settings, goal: Side) -> HostSettings {
    let changed = settings.changed();
    HostSettings {
        source: SourceAddresses {
            ranges: changed.of(goal.other()).clone(),
            excluded: Vec::new(),
        },
        target: changed.of(goal).clone(),
        report_users: false,
        expected_ports: None,
    }
}

/// Creates and deletes `NodeMigration`s with the Nodes, and updates the settings of every agent. The question about kube-proxy
/// stays as long as the ranges do.
pub async fn adopt(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    look: &HostSettings,
) -> Result<(), WriteError> {
    // From the start: without this field, the agent observes the remains of flannel.
    let ask = |spec: &mut NodeMigrationSpec| spec.service_cidr = Some(look.clone());
    node_migrations::adopt(context, cache, migration, ask).await?;
    let is_same =
        |asked: &HostSettings| asked.source.ranges == look.source.ranges && asked.target == look.target;
    for object in cache.node_migrations.state() {
        let asked = object.spec.service_cidr.as_ref();
        if belongs_to(&object, migration) && !asked.is_some_and(is_same) {
            write(context, &object, look.clone()).await?;
        }
    }
    Ok(())
}

/// Gives every agent these settings, with the question about kube-proxy.
pub async fn ask(
    context: &Context,
    node_migrations: &BTreeMap<String, std::sync::Arc<NodeMigration>>,
    look: &HostSettings,
) -> Result<(), WriteError> {
    for object in node_migrations.values() {
        if object.spec.service_cidr.as_ref() != Some(look) {
            write(context, object, look.clone()).await?;
        }
    }
    Ok(())
}

async fn write(context: &Context, object: &NodeMigration, look: HostSettings) -> Result<(), WriteError> {
    let spec = NodeMigrationSpec {
        service_cidr: Some(look),
        ..object.spec.clone()
    };
    node_migrations::update_spec(context, object, &spec).await
}
