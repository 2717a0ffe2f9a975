//! While nodes are on two networks, what the migration wrote for the cluster is written again at once when somebody else
//! changed it, since living traffic goes by it; and the rollout stops, until a person has looked at who it was.

mod label;

use std::collections::BTreeMap;

use api::migration::{Desired, Drift, Strategy};
use api::{Migration, MigrationStatus, names};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use plan::decision::HaltReason;
use plan::flannel_to_calico::objects;
use plan::flannel_to_calico::settings::Settings;
use serde_json::{Value, json};

use super::node_objects::{Ensured, ensure};
use super::prepare::daemon_set;
use super::view::Snapshot;
use super::{Memory, calico, node_objects};
use crate::cache::Cache;
use crate::context::Context;
use crate::facts;
use crate::tell::Tone;
use crate::write::{self, WriteError};

/// No watch brings Calico's objects: they are read again after so long.
const INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// What somebody else changed: each the object, what it said, what it has to say.
#[derive(Debug, Default)]
pub struct Drifts {
    /// The labels, by node.
    pub nodes: BTreeMap<String, String>,
    /// Objects of the cluster.
    cluster: Vec<String>,
}

/// Writes again what somebody else changed.
pub async fn restore(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    settings: &Settings,
    strategy: Strategy,
    snapshot: &Snapshot,
) -> Result<Drifts, WriteError> {
    // Before the selectors: a daemon follows its label within a second.
    let nodes = label::restore(context, migration, snapshot, strategy).await?;
    let mut cluster = restore_daemon_sets(context, cache, settings, snapshot).await?;
    let now = Timestamp::now();
    let is_due = memory
        .drift_looked_at
        .is_none_or(|at| now.duration_since(at).abs() >= INTERVAL);
    if is_due {
        cluster.extend(restore_calicos_objects(context, settings).await?);
        memory.drift_looked_at = Some(now);
    }
    Ok(Drifts { nodes, cluster })
}

async fn restore_daemon_sets(
    context: &Context,
    cache: &Cache,
    settings: &Settings,
    snapshot: &Snapshot,
) -> Result<Vec<String>, WriteError> {
    let mut drifts = Vec::new();
    let needs_flannel = snapshot
        .node_migrations
        .values()
        .any(|object| object.spec.finished_at.is_none());
    let flannel = (
        settings.flannel_daemon_set_namespace.value.as_str(),
        settings.flannel_daemon_set_name.value.as_str(),
    );
    if needs_flannel {
        drifts.extend(restore_selector(context, cache, flannel, names::NETWORK_FLANNEL).await?);
    }
    let calico = (
        settings.calico_daemon_set_namespace.value.as_str(),
        settings.calico_daemon_set_name.value.as_str(),
    );
    drifts.extend(restore_selector(context, cache, calico, names::NETWORK_CALICO).await?);
    Ok(drifts)
}

/// The node selector keeps a network's daemon off the other's nodes.
async fn restore_selector(
    context: &Context,
    cache: &Cache,
    (namespace, name): (&str, &str),
    network: &str,
) -> Result<Option<String>, WriteError> {
    let label = names::NODE_NETWORK_LABEL;
    let Some(set) = daemon_set(cache, namespace, name) else {
        return Ok(Some(format!(
            "DaemonSet {namespace}/{name} was deleted; apply its manifest again, with the node selector {label}={network}"
        )));
    };
    let read = facts::daemon_sets::daemon_set(&set);
    let found = read.node_selector.get(label);
    if found.is_some_and(|found| found == network) {
        return Ok(None);
    }
    let change = json!({ "spec": { "template": { "spec": { "nodeSelector": { label: network } } } } });
    let sets: Api<DaemonSet> = Api::namespaced(context.client.clone(), namespace);
    write::patch(&sets, set.as_ref(), "restoring the node selector of", change).await?;
    let found = found.map_or_else(|| "missing".to_owned(), |found| format!("{found:?}"));
    Ok(Some(format!(
        "DaemonSet {namespace}/{name}: node selector {label} was {found}, needed {network:?}; it is set again"
    )))
}

/// The pool that living pods have their addresses from, and what both networks' tunnels and IPAM go by.
async fn restore_calicos_objects(context: &Context, settings: &Settings) -> Result<Vec<String>, WriteError> {
    let mut drifts = Vec::new();
    let ipam = objects::ipam_config();
    let ipam = ensure(context, calico::IPAM_CONFIG, &ipam, objects::ipam_config_change);
    drifts.extend(told("IPAMConfig default", ipam.await?));
    let found = node_objects::pools(context).await?;
    match found.and_then(|found| objects::pools(settings, &found).map_err(|conflict| conflict.to_string())) {
        Ok(pools) => {
            for pool in pools {
                if let Some(object) = &pool.create {
                    calico::IP_POOL.create(&context.client, object).await?;
                    drifts.push(format!("IPPool {} was deleted; it is made again", pool.name));
                }
            }
        }
        // Its owner has a reason, or not: which, nobody here can tell.
        Err(conflict) => drifts.push(format!("{conflict}; set it back")),
    }
    let felix = objects::felix_configuration(settings);
    let felix = ensure(context, calico::FELIX_CONFIGURATION, &felix, |found| {
        objects::felix_configuration_change(settings, found)
    });
    drifts.extend(told("FelixConfiguration default", felix.await?));
    Ok(drifts)
}

fn told(object: &str, ensured: Ensured) -> Option<String> {
    match ensured {
        Ensured::AsItWas => None,
        Ensured::Created => Some(format!("{object} was deleted; it is made again")),
        Ensured::Changed(change) => {
            let fields: Vec<String> = change
                .as_object()
                .into_iter()
                .flatten()
                .map(|(field, needed)| match needed {
                    Value::Null => format!("{field} was set, needed is none"),
                    needed => format!("{field} was another, needed {needed}"),
                })
                .collect();
            Some(format!("{object}: {}; it is set again", fields.join(", ")))
        }
    }
}

/// Tells what was changed, and writes down that it stops the rollout. Says whether one does: it stands until somebody says
/// resume. Only what goes forward is stopped.
pub async fn stop(
    context: &Context,
    migration: &Migration,
    drifts: &Drifts,
    status: &mut MigrationStatus,
    now: Timestamp,
) -> bool {
    let goes_forward = migration.spec.desired == Desired::Run;
    let mut all = drifts.nodes.values().chain(&drifts.cluster);
    if let Some(first) = all.next() {
        let others = match all.count() {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        let what = format!("somebody else changed what this migration wrote: {first}{others}");
        let message = if goes_forward {
            format!(
                "{what}. No node is started; those in work are finished. Find out who it was, then `kubectl replumb resume`, or go \
                 back with `kubectl replumb abort`"
            )
        } else {
            what
        };
        let reason = HaltReason::Drift.as_str();
        context
            .teller
            .migration(migration, Tone::Warning, reason, &message)
            .await;
        let resumed_at = migration.spec.resumed_at;
        status.drift = Some(Drift {
            at: now,
            message,
            resumed_at,
        });
    }
    // Another time is a new word: whose clock it was does not matter.
    let stands = |drift: &Drift| drift.resumed_at == migration.spec.resumed_at;
    goes_forward && status.drift.as_ref().is_some_and(stands)
}
