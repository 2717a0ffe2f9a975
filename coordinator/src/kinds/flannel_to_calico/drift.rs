//! While nodes are on two networks, what the migration wrote for the cluster is written again when somebody else changed it, since
//! living traffic goes by it; and the rollout stops, until a person has looked at who it was.
//!
//! In three steps, so that a crash loses nothing: what differs is looked at, announced in the Migration's status, and written in
//! the next pass.

mod label;
mod restore;

use std::sync::Arc;

use api::node_migration::LabelRecord;
use api::{Migration, MigrationStatus, names};
use engine::words;
use flannel_to_calico::objects;
use flannel_to_calico::settings::Settings;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::api::DynamicObject;
use serde_json::{Value, json};

pub use label::record;
pub use restore::restore;

use super::prepare::daemon_set;
use super::{node_objects, saved};
use crate::cache::Cache;
use crate::calico;
use crate::calico::Kind;
use crate::context::Context;
use crate::drift::is_resumed;
use crate::facts;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::write::WriteError;

/// No watch brings Calico's objects: they are read again after so long.
const INTERVAL: SignedDuration = SignedDuration::from_secs(1);
/// Something that somebody else changed.
pub struct Found {
    /// The object, what it says and what it has to say.
    pub what: String,
    mend: Mend,
}

/// How it becomes what it has to be.
enum Mend {
    /// The Node's network label gets this value, if it is still what the migration wrote there.
    Label {
        node: Arc<Node>,
        record: LabelRecord,
        needed: String,
    },
    /// The `DaemonSet` gets this node selector.
    Selector {
        set: Arc<DaemonSet>,
        network: &'static str,
    },
    /// The object is made.
    Create { kind: Kind, object: Value },
    /// These fields of its spec are written.
    Patch {
        kind: Kind,
        found: Box<DynamicObject>,
        change: Value,
    },
    /// By its owner, who had a reason or not.
    ByItsOwner,
}

/// Looks for what differs from what was written: labels, node selectors and, when it is time, Calico's objects.
pub async fn look(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    settings: &Settings,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<Vec<Found>, WriteError> {
    let mut found = label::look(snapshot);
    found.extend(look_at_daemon_sets(cache, settings, snapshot));
    found.extend(look_at_calicos_objects(context, memory, migration, settings, status).await?);
    if found.is_empty() && is_resumed(migration, status) {
        status.drift = None;
    }
    Ok(found)
}

/// The node selectors keep each network's daemon off the other's nodes.
fn look_at_daemon_sets(cache: &Cache, settings: &Settings, snapshot: &Snapshot) -> Vec<Found> {
    let label = names::NODE_NETWORK_LABEL;
    let networks = [
        (
            &settings.flannel_daemon_set_namespace.value,
            &settings.flannel_daemon_set_name.value,
            names::NETWORK_FLANNEL,
            // Once every node is on Calico nobody needs it.
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
        let Some(set) = daemon_set(cache, namespace, name) else {
            if is_needed {
                found.push(Found {
                    what: format!(
                        "DaemonSet {namespace}/{name} was deleted; apply its manifest again, with the node selector \
                         {label}={network}"
                    ),
                    mend: Mend::ByItsOwner,
                });
            }
            continue;
        };
        let read = facts::daemon_sets::daemon_set(&set);
        let said = read.node_selector.get(label);
        if said.is_some_and(|said| said == network) {
            continue;
        }
        let said = said.map_or_else(|| "missing".to_owned(), |said| format!("{said:?}"));
        found.push(Found {
            what: format!(
                "DaemonSet {namespace}/{name}: node selector {label} is {said}, needed {network:?}"
            ),
            mend: Mend::Selector { set, network },
        });
    }
    found
}

/// The pools that living pods have their addresses from, and what both networks' tunnels and IPAM go by. Nothing when they were
/// looked at a moment ago, unless somebody has just said that the rollout goes on.
pub async fn look_at_calicos_objects(
    context: &Context,
    memory: &mut Memory,
    migration: &Migration,
    settings: &Settings,
    status: &MigrationStatus,
) -> Result<Vec<Found>, WriteError> {
    let now = Timestamp::now();
    let is_due = memory
        .drift_looked_at
        .is_none_or(|at| now.duration_since(at).abs() >= INTERVAL);
    if !is_due && !is_resumed(migration, status) {
        return Ok(Vec::new());
    }
    memory.drift_looked_at = Some(now);
    let mut found = Vec::new();
    let ipam = objects::ipam_config();
    found.extend(look_at_one(context, calico::IPAM_CONFIG, ipam, objects::ipam_config_change).await?);
    found.extend(look_at_pools(context, settings, status).await?);
    let felix = objects::felix_configuration(settings);
    let change = |spec: &Value| objects::felix_configuration_change(settings, spec);
    found.extend(look_at_one(context, calico::FELIX_CONFIGURATION, felix, change).await?);
    Ok(found)
}

async fn look_at_one(
    context: &Context,
    kind: Kind,
    object: Value,
    change: impl Fn(&Value) -> Option<Value>,
) -> Result<Option<Found>, WriteError> {
    let name = objects::DEFAULT;
    let Some(read) = kind.get(&context.client, name).await? else {
        return Ok(Some(Found {
            what: format!("{} {name} was deleted", kind.0),
            mend: Mend::Create { kind, object },
        }));
    };
    let spec = read.data.get("spec").cloned().unwrap_or_default();
    Ok(change(&spec).map(|change| {
        let fields: Vec<String> = change
            .as_object()
            .into_iter()
            .flatten()
            .map(|(field, needed)| {
                let said = spec.get(field).unwrap_or(&Value::Null);
                match needed {
                    Value::Null => format!("{field} is {said}, needed is none"),
                    needed => format!("{field} is {said}, needed {needed}"),
                }
            })
            .collect();
        Found {
            what: format!("{} {name}: {}", kind.0, words::names(&fields)),
            mend: Mend::Patch {
                kind,
                found: Box::new(read),
                change,
            },
        }
    }))
}

async fn look_at_pools(
    context: &Context,
    settings: &Settings,
    status: &MigrationStatus,
) -> Result<Vec<Found>, WriteError> {
    let by_its_owner = |what: String| {
        vec![Found {
            what,
            mend: Mend::ByItsOwner,
        }]
    };
    let there = match node_objects::pools(context, settings).await? {
        Ok(there) => there,
        Err(malformed) => return Ok(by_its_owner(malformed)),
    };
    // What it said besides its range nobody has written down.
    let known = saved::known_names(&status.before, saved::IP_POOLS).unwrap_or_default();
    let gone: Vec<&str> = known
        .iter()
        .filter(|name| !there.contains_key(*name))
        .map(String::as_str)
        .collect();
    match objects::pools(settings, &there) {
        Ok(pools) => Ok(pools
            .into_iter()
            .filter_map(|pool| {
                let object = pool.create?;
                let (what, mend) = if gone.is_empty() {
                    let kind = calico::IP_POOL;
                    (
                        format!("IPPool {} was deleted", pool.name),
                        Mend::Create { kind, object },
                    )
                } else {
                    (
                        format!(
                            "the IPPool of {} is gone (one of {}); make it again as it was",
                            pool.range,
                            words::names(&gone)
                        ),
                        Mend::ByItsOwner,
                    )
                };
                Some(Found { what, mend })
            })
            .collect()),
        Err(conflict) => Ok(by_its_owner(format!("{conflict}; set it back"))),
    }
}

/// The patch of a node selector.
fn selector(network: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "nodeSelector": { names::NODE_NETWORK_LABEL: network } } } } })
}
