//! Drift while nodes are on two networks: cluster-wide values of the migration are restored when another writer changes them,
//! because live traffic depends on them; and the rollout stops until the user has found the writer.
//!
//! Three steps make a crash safe: a difference is observed, announced in the Migration's status, and restored in
//! the next pass.

mod label;
mod restore;

use std::sync::Arc;

use ::flannel_to_calico::api::LabelRecord;
use api::{MigrationStatus, names};
use engine::words;
use flannel_to_calico::objects;
use flannel_to_calico::settings::Settings;
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::api::DynamicObject;
use serde_json::{Value, json};

pub use label::record;
pub use restore::restore;

use super::observe::daemon_set;
use super::pass::Pass;
use super::{node_objects, saved};
use crate::calico;
use crate::calico::Kind;
use crate::clock;
use crate::context::Context;
use crate::drift::is_resumed;
use crate::facts;
use crate::memory::Memory;
use crate::read_error::ReadError;
use crate::snapshot::Snapshot;

/// Interval of reads of Calico's objects, which are not watched.
const INTERVAL: SignedDuration = SignedDuration::from_secs(1);
/// A change by another writer.
pub struct Found {
    /// The object, the value found and the value needed.
    pub what: String,
    fix: Fix,
}

/// How the value is restored.
enum Fix {
    /// Sets the Node's network label to this value, if it is still the one that the migration wrote.
    Label {
        node: Arc<Node>,
        record: LabelRecord,
        needed: String,
    },
    /// Sets this node selector in the `DaemonSet`.
    Selector {
        set: Arc<DaemonSet>,
        network: &'static str,
    },
    /// Creates the object.
    Create { kind: Kind, object: Value },
    /// Writes these fields of its spec.
    Patch {
        kind: Kind,
        found: Box<DynamicObject>,
        change: Value,
    },
    /// The owner must restore it, since the change may have a reason.
    ByItsOwner,
}

/// Observes differences from what was written: labels, node selectors and, if their read is due, Calico's objects.
pub(super) async fn observe(
    pass: &Pass<'_>,
    memory: &mut Memory,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<Vec<Found>, ReadError> {
    let mut found = label::observe(snapshot);
    found.extend(observe_daemon_sets(pass, snapshot));
    found.extend(observe_calico_objects(pass, memory, status).await?);
    if found.is_empty() && is_resumed(pass.migration, status) {
        status.drift = None;
    }
    Ok(found)
}

/// Node selectors keep each network's pods off the other network's nodes.
fn observe_daemon_sets(pass: &Pass<'_>, snapshot: &Snapshot) -> Vec<Found> {
    let settings = pass.settings;
    let label = names::NODE_NETWORK_LABEL;
    let networks = [
        (
            &settings.flannel_daemon_set_namespace.value,
            &settings.flannel_daemon_set_name.value,
            names::NETWORK_FLANNEL,
            // Not needed once every node is on Calico.
            snapshot
                .node_migrations
                .values()
                .any(|object| object.spec.finished_at.is_none()),
        ),
        (
            &settings.calico_daemon_set_namespace.value,
            &settings.calico_daemon_set_name.value,
            names::NETWORK_CALICO,
            true,
        ),
    ];
    let mut found = Vec::new();
    for (namespace, name, network, is_needed) in networks {
        let Some(set) = daemon_set(pass.cache, namespace, name) else {
            if is_needed {
                found.push(Found {
                    what: format!(
                        "DaemonSet {namespace}/{name} was deleted; apply its manifest again, with the node selector \
                         {label}={network}"
                    ),
                    fix: Fix::ByItsOwner,
                });
            }
            continue;
        };
        let read = facts::daemon_sets::daemon_set(&set);
        let found_value = read.selection.labels.get(label);
        if found_value.is_some_and(|found_value| found_value == network) {
            continue;
        }
        let found_value =
            found_value.map_or_else(|| "missing".to_owned(), |found_value| format!("{found_value:?}"));
        found.push(Found {
            what: format!(
                "DaemonSet {namespace}/{name}: node selector {label} is {found_value}, needed {network:?}"
            ),
            fix: Fix::Selector { set, network },
        });
    }
    found
}

/// Observes the pools of live pods, and the settings of both networks' tunnels and IPAM. Returns nothing if the last read is
/// recent, unless the user has just resumed the rollout.
pub(super) async fn observe_calico_objects(
    pass: &Pass<'_>,
    memory: &mut Memory,
    status: &MigrationStatus,
) -> Result<Vec<Found>, ReadError> {
    let Pass {
        context,
        migration,
        settings,
        ..
    } = *pass;
    let now = clock::now();
    let is_due = memory
        .drift_read_at
        .is_none_or(|at| now.duration_since(at).abs() >= INTERVAL);
    if !is_due && !is_resumed(migration, status) {
        return Ok(Vec::new());
    }
    memory.drift_read_at = Some(now);
    let mut found = Vec::new();
    let ipam = objects::ipam_config();
    found.extend(observe_one(context, calico::IPAM_CONFIG, ipam, objects::ipam_config_change).await?);
    found.extend(observe_pools(context, settings, status).await?);
    let felix = objects::felix_configuration(settings);
    let change = |spec: &Value| objects::felix_configuration_change(settings, spec);
    found.extend(observe_one(context, calico::FELIX_CONFIGURATION, felix, change).await?);
    Ok(found)
}

async fn observe_one(
    context: &Context,
    kind: Kind,
    object: Value,
    change: impl Fn(&Value) -> Option<Value>,
) -> Result<Option<Found>, ReadError> {
    let name = objects::DEFAULT;
    let Some(read) = kind.get(&context.client, name).await? else {
        return Ok(Some(Found {
            what: format!("{} {name} was deleted", kind.0),
            fix: Fix::Create { kind, object },
        }));
    };
    let spec = read.data.get("spec").cloned().unwrap_or_default();
    Ok(change(&spec).map(|change| {
        let fields: Vec<String> = change
            .as_object()
            .into_iter()
            .flatten()
            .map(|(field, needed)| {
                let found_value = spec.get(field).unwrap_or(&Value::Null);
                match needed {
                    Value::Null => format!("{field} is {found_value}, needed none"),
                    needed => format!("{field} is {found_value}, needed {needed}"),
                }
            })
            .collect();
        Found {
            what: format!("{} {name}: {}", kind.0, words::names(&fields)),
            fix: Fix::Patch {
                kind,
                found: Box::new(read),
                change,
            },
        }
    }))
}

async fn observe_pools(
    context: &Context,
    settings: &Settings,
    status: &MigrationStatus,
) -> Result<Vec<Found>, ReadError> {
    let by_its_owner = |what: String| {
        vec![Found {
            what,
            fix: Fix::ByItsOwner,
        }]
    };
    let existing = match node_objects::pools(context, settings).await? {
        Ok(existing) => existing,
        Err(malformed) => return Ok(by_its_owner(malformed)),
    };
    // The spec of pools besides the range is not saved.
    let known = saved::known_names(&status.saved_state, saved::IP_POOLS).unwrap_or_default();
    let missing: Vec<&str> = known
        .iter()
        .filter(|name| !existing.contains_key(*name))
        .map(String::as_str)
        .collect();
    match objects::pools(settings, &existing) {
        Ok(pools) => Ok(pools
            .into_iter()
            .filter_map(|pool| {
                let object = pool.create?;
                let (what, fix) = if missing.is_empty() {
                    let kind = calico::IP_POOL;
                    (
                        format!("IPPool {} was deleted", pool.name),
                        Fix::Create { kind, object },
                    )
                } else {
                    (
                        format!(
                            "the IPPool of {} is missing (one of {}); create it again with its previous spec",
                            pool.range,
                            words::names(&missing)
                        ),
                        Fix::ByItsOwner,
                    )
                };
                Some(Found { what, fix })
            })
            .collect()),
        Err(conflict) => Ok(by_its_owner(format!("{conflict}; restore it"))),
    }
}

/// The patch of a node selector.
fn selector(network: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "nodeSelector": { names::NODE_NETWORK_LABEL: network } } } } })
}
