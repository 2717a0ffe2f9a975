//! After the end of a migration, adopted pods run on. Once they have ended, the addresses that were imported for them are released
//! in Calico's IPAM.

use std::sync::Arc;

use ::flannel_to_calico::api::OrEmpty as _;
use api::{Migration, NodeMigration};
use flannel_to_calico::import::{self, ImportedAddress};
use flannel_to_calico::settings::Settings;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use tracing::warn;

use super::apply;
use super::blocks::Own;
use super::node_objects::Outcome;
use super::view::wanted_addresses;
use crate::cache::Cache;
use crate::context::Context;
use crate::node_migrations::{linux_nodes, write_spec};
use crate::pass_error::PassError;

/// Releases imported addresses that the agent of their node reports no longer. A node whose objects cannot be written does not hold
/// up the others.
pub(super) async fn release(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    settings: &Settings,
) -> Result<(), PassError> {
    let name = migration.name_any();
    let mut failed = None;
    let objects = cache.node_migrations.state();
    let imported = objects.iter().filter(|object| {
        let addresses = &object.spec.flannel_to_calico.or_empty().imported_addresses;
        object.spec.migration == name && !addresses.is_empty()
    });
    // Most migrations have none.
    let mut imported = imported.peekable();
    if imported.peek().is_none() {
        return Ok(());
    }
    let nodes = linux_nodes(cache);
    for object in imported {
        let Some(node) = nodes.get(&object.spec.node_name) else {
            continue;
        };
        let outdated = outdated(object, node, settings);
        if !outdated.is_empty() {
            let released = release_on(context, object, node, settings, &outdated).await;
            failed = failed.or(released.err());
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The imported addresses that the agent reports no longer. Without a report, there are none.
fn outdated(object: &NodeMigration, node: &Node, settings: &Settings) -> Vec<ImportedAddress> {
    let status = object.status.clone().unwrap_or_default();
    let Some(host) = &status.flannel_to_calico.or_empty().facts else {
        return Vec::new();
    };
    let wanted = wanted_addresses(&object.spec.node_name, node, host, settings);
    import::outdated(
        &wanted,
        &object.spec.flannel_to_calico.or_empty().imported_addresses,
    )
}

async fn release_on(
    context: &Context,
    object: &Arc<NodeMigration>,
    node: &Node,
    settings: &Settings,
    addresses: &[ImportedAddress],
) -> Result<(), PassError> {
    let mut spec = object.spec.clone();
    let saved = spec.flannel_to_calico.or_empty().saved_state.clone();
    let own = Own::of(&object.spec.node_name, node, settings, saved.as_ref());
    match apply::import::release(context, &own, addresses, &mut spec).await? {
        Outcome::Written => {}
        Outcome::Blocked(message) => {
            warn!(
                node = object.spec.node_name,
                message, "addresses are not released yet"
            );
        }
    }
    // Addresses of other blocks may be released.
    write_spec(context, object, &spec).await?;
    Ok(())
}
