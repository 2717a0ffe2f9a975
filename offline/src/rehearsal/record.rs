//! What happened in a rehearsal.

use std::collections::BTreeMap;
use std::time::Duration;

use api::migration::MigrationPhase;
use api::{MigrationStatus, NodeMigration};
use engine::drain::Pod;
use jiff::Timestamp;
use memory_api::Objects;
use serde::Serialize;

use crate::judge::words;
use crate::paths::NODE_MIGRATIONS;

/// A migration as it would run. Times are in seconds from the start of the migration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rehearsal {
    /// The phase in which it ends.
    pub phase: MigrationPhase,
    /// Why it ends there.
    pub message: String,
    /// Its length.
    pub seconds: f64,
    /// The nodes in the order in which they begin.
    pub nodes: Vec<NodeRun>,
    /// The evictions, in order.
    pub evictions: Vec<Evicted>,
    /// The evictions that a budget refuses for some time.
    pub blocked: Vec<Blocked>,
    /// The workloads with fewer Ready pods than before, the largest number first.
    pub workloads: Vec<Shortage>,
    /// Pods that no node has room for.
    pub without_place: Vec<WithoutPlace>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRun {
    /// Its name.
    pub name: String,
    /// When it begins.
    pub begins: f64,
    /// Its length; none if it does not end.
    pub seconds: Option<f64>,
    /// Its steps in order, with their lengths.
    pub steps: Vec<(String, f64)>,
}

/// One eviction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evicted {
    /// When it is accepted.
    pub at: f64,
    /// The node.
    pub node: String,
    /// Namespace and name of the pod.
    pub pod: String,
}

/// An eviction that a budget refuses for some time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// Namespace and name of the budget.
    pub budget: String,
    /// Namespace and name of the pod.
    pub pod: String,
    /// The node.
    pub node: String,
    /// The first refusal.
    pub from: f64,
    /// From the first refusal to the eviction, or to the end.
    pub seconds: f64,
    /// Whether the pod is evicted in the end.
    pub is_evicted: bool,
}

/// A workload with fewer Ready pods than before.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// Kind, namespace and name.
    pub workload: String,
    /// Ready pods before the migration.
    pub before: usize,
    /// The most that are missing at the same time.
    pub missing: usize,
    /// The time for which any is missing.
    pub seconds: f64,
}

/// A pod that no node has room for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WithoutPlace {
    /// Namespace and name.
    pub pod: String,
    /// Since when.
    pub from: f64,
    /// How long; none if until the end.
    pub seconds: Option<f64>,
}

/// What happened so far. Times are those of the clocks of the rehearsal.
#[derive(Default)]
pub struct Record {
    owners: BTreeMap<(String, String), String>,
    before: BTreeMap<String, usize>,
    missing: BTreeMap<String, (usize, Duration)>,
    observed: Option<(Duration, BTreeMap<String, usize>)>,
    evictions: Vec<(Duration, String, String)>,
    /// By UID of the pod: budget, pod, node, first refusal, eviction.
    refusals: BTreeMap<String, Refused>,
    places: BTreeMap<String, (Duration, Option<Duration>)>,
}

struct Refused {
    budget: String,
    pod: String,
    node: String,
    from: Duration,
    until: Option<Duration>,
}

impl Record {
    /// The state before the migration.
    pub fn begin(&mut self, objects: &Objects, pods: &[Pod]) {
        for set in objects.below("/apis/apps/v1/namespaces/*/replicasets") {
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            let (metadata, owner) = (&set["metadata"], &set["metadata"]["ownerReferences"][0]);
            if owner["kind"].is_string() {
                let key = (text(&metadata["namespace"]), text(&metadata["name"]));
                self.owners.insert(
                    key,
                    format!(
                        "{} {}/{}",
                        text(&owner["kind"]),
                        text(&metadata["namespace"]),
                        text(&owner["name"])
                    ),
                );
            }
        }
        self.before = self.ready(pods);
    }

    /// Ready pods by workload.
    fn ready(&self, pods: &[Pod]) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for pod in pods.iter().filter(|pod| pod.ready && pod.deleted_at.is_none()) {
            let Some((kind, name)) = &pod.controller else {
                continue;
            };
            let owner = self.owners.get(&(pod.namespace.clone(), name.clone()));
            let workload = owner
                .cloned()
                .unwrap_or_else(|| format!("{kind} {}/{name}", pod.namespace));
            *counts.entry(workload).or_default() += 1;
        }
        counts
    }

    /// Time has passed, and no pod has changed.
    pub fn observe_again(&mut self, now: Duration) {
        if let Some((_, short)) = self.observed.clone() {
            self.note(now, short);
        }
    }

    /// Counts Ready pods.
    pub fn observe(&mut self, now: Duration, pods: &[Pod]) {
        let ready = self.ready(pods);
        let short = self.before.iter().filter_map(|(workload, before)| {
            let missing = before.saturating_sub(ready.get(workload).copied().unwrap_or_default());
            (missing > 0).then(|| (workload.clone(), missing))
        });
        let short = short.collect();
        self.note(now, short);
    }

    /// The workloads that are short of pods from now on.
    fn note(&mut self, now: Duration, short: BTreeMap<String, usize>) {
        if let Some((at, former)) = self.observed.replace((now, short.clone())) {
            for workload in former.keys() {
                let entry = self.missing.entry(workload.clone()).or_default();
                entry.1 += now.saturating_sub(at);
            }
        }
        for (workload, missing) in short {
            let entry = self.missing.entry(workload).or_default();
            entry.0 = entry.0.max(missing);
        }
    }

    /// The pods of this workload end and start because their network does.
    pub fn leave_out(&mut self, workload: &str) {
        self.missing.remove(workload);
    }

    /// An eviction was accepted.
    pub fn evicted(&mut self, now: Duration, pod: &Pod) {
        self.evictions.push((now, pod.node.clone(), pod.key()));
        if let Some(refused) = self.refusals.get_mut(&pod.uid) {
            refused.until = Some(now);
        }
    }

    /// An eviction was refused by this budget.
    pub fn refused(&mut self, now: Duration, pod: &Pod, budget: &str) {
        self.refusals.entry(pod.uid.clone()).or_insert_with(|| Refused {
            budget: budget.to_owned(),
            pod: pod.key(),
            node: pod.node.clone(),
            from: now,
            until: None,
        });
    }

    /// No node has room for a pod.
    pub fn without_place(&mut self, now: Duration, pod: &str) {
        self.places.entry(pod.to_owned()).or_insert((now, None));
    }

    /// A pod has a node.
    pub fn placed(&mut self, now: Duration, pod: &str) {
        if let Some((_, until)) = self.places.get_mut(pod) {
            until.get_or_insert(now);
        }
    }

    /// The whole rehearsal, which began at `begun` on the wall clock and `started` on the other one, and took `length`.
    pub fn end(
        self,
        objects: &Objects,
        status: &MigrationStatus,
        begun: Timestamp,
        length: Duration,
        started: Duration,
    ) -> Rehearsal {
        let since = |at: Duration| seconds(at.saturating_sub(started));
        let whole = started + length;
        let mut workloads: Vec<Shortage> = self
            .missing
            .iter()
            .map(|(workload, (missing, time))| Shortage {
                workload: workload.clone(),
                before: self.before.get(workload).copied().unwrap_or_default(),
                missing: *missing,
                seconds: seconds(*time),
            })
            .collect();
        workloads.sort_by_key(|shortage| (std::cmp::Reverse(shortage.missing), shortage.workload.clone()));
        let mut blocked: Vec<Blocked> = self
            .refusals
            .into_values()
            .map(|refused| Blocked {
                from: since(refused.from),
                seconds: seconds(refused.until.unwrap_or(whole).saturating_sub(refused.from)),
                is_evicted: refused.until.is_some(),
                budget: refused.budget,
                pod: refused.pod,
                node: refused.node,
            })
            .collect();
        blocked.sort_by(|one, other| {
            one.from
                .total_cmp(&other.from)
                .then_with(|| one.pod.cmp(&other.pod))
        });
        // Those of one pass are requested at the same time.
        let mut evictions = self.evictions;
        evictions.sort();
        Rehearsal {
            phase: status.phase,
            message: words(status),
            seconds: seconds(length),
            nodes: nodes(objects, begun),
            evictions: evictions
                .into_iter()
                .map(|(at, node, pod)| Evicted {
                    at: since(at),
                    node,
                    pod,
                })
                .collect(),
            blocked,
            workloads,
            without_place: self
                .places
                .into_iter()
                .map(|(pod, (from, until))| WithoutPlace {
                    pod,
                    from: since(from),
                    seconds: until.map(|until| seconds(until.saturating_sub(from))),
                })
                .collect(),
        }
    }
}

/// The nodes that have begun, in this order.
fn nodes(objects: &Objects, begun: Timestamp) -> Vec<NodeRun> {
    let between = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64().max(0.0);
    let parsed = objects.below(NODE_MIGRATIONS);
    let parsed = parsed.filter_map(|object| serde_json::from_value::<NodeMigration>(object.clone()).ok());
    let mut nodes: Vec<NodeRun> = parsed
        .filter_map(|object| {
            let started = object.spec.started_at?;
            let steps = object.spec.history.iter();
            Some(NodeRun {
                name: object.spec.node_name.clone(),
                begins: rounded(between(begun, started)),
                seconds: object
                    .spec
                    .finished_at
                    .map(|finished| rounded(between(started, finished))),
                steps: steps
                    .map(|step| {
                        (
                            step.name.clone(),
                            rounded(between(step.started_at, step.finished_at)),
                        )
                    })
                    .collect(),
            })
        })
        .collect();
    nodes.sort_by(|one, other| {
        one.begins
            .total_cmp(&other.begins)
            .then_with(|| one.name.cmp(&other.name))
    });
    nodes
}

fn seconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64())
}

/// Tenths of a second.
fn rounded(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}
