//! The part of the report that only a conversion of Calico's datastore has.

use std::collections::BTreeMap;

use api::migration::MigrationPhase;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::late::PodsInPause;
use super::stores::Flags;
use crate::demo::End;
use crate::demo::report::{self as common, Measurements, OwnPart};

/// The report.
pub type Report = common::Report<CalicoDatastore>;

/// The part that only this kind has.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalicoDatastore {
    /// Which stores were open for Calico.
    pub flags: Flags,
    /// The highest number of pods without a network that the migration itself counted during the pause.
    pub max_pods_without_network: u64,
    /// Pods that were created and deleted during the pause.
    pub pods_in_pause: PodsInPause,
    /// Pods that existed before and have another address now.
    pub other_address: Vec<String>,
    /// Keys of etcd v2 that have changed, except the flag, and keys that pods and nodes of v2 write while they run.
    pub v2_changed: Vec<String>,
    /// Number of keys of Calico in etcd v3 at the end.
    pub v3_keys: usize,
    /// Images of calico-node at the end.
    pub images: Vec<String>,
    /// Objects that have changed; after a rollback none may have.
    pub objects_changed: Vec<String>,
}

/// The observations from which the part of this kind is made.
#[derive(Debug)]
pub struct Observations {
    /// Both flags.
    pub flags: Flags,
    /// Pods that were created and deleted during the pause.
    pub pods_in_pause: PodsInPause,
    /// Addresses before and after.
    pub addresses: [Value; 2],
    /// v2 before and after.
    pub v2: [BTreeMap<String, String>; 2],
    /// Keys of v3 after.
    pub v3: BTreeMap<String, String>,
    /// Images of calico-node.
    pub images: Vec<String>,
    /// DaemonSet, Deployment and `ConfigMap` before and after, by name.
    pub objects: [BTreeMap<String, Value>; 2],
}

impl OwnPart for CalicoDatastore {
    const KIND: &'static str = "calicoDatastore";

    fn lines(&self) -> Vec<String> {
        let Flags {
            observations,
            both_open,
            paused_ms,
            ..
        } = self.flags;
        let PodsInPause {
            created,
            started_in_pause,
            running,
            longest_wait_seconds,
            ..
        } = self.pods_in_pause;
        vec![
            format!(
                "Calico was paused for {:.1} s; reads of both flags: {observations}, with both true: {both_open}",
                f64::from(i32::try_from(paused_ms).unwrap_or(i32::MAX)) / 1000.0
            ),
            format!(
                "pods created during the pause: {created}, started during the pause: {started_in_pause}, running: {running}, the \
                 last one Ready {longest_wait_seconds} s after the pause; pods without a network, by the migration: at most {}",
                self.max_pods_without_network
            ),
            format!(
                "changed keys of etcd v2, without its flag: {}; keys of etcd v3: {}; calico-node: {}",
                self.v2_changed.len(),
                self.v3_keys,
                self.images.join(", ")
            ),
        ]
    }
}

impl Report {
    /// Makes the report from the observations, and lists the faults.
    pub fn of(end: End, migration: &Value, measurements: Measurements, observations: Observations) -> Self {
        let [before, after] = &observations.objects;
        let known = &migration["status"]["calicoDatastore"];
        let own = CalicoDatastore {
            max_pods_without_network: known["maxPodsWithoutNetwork"].as_u64().unwrap_or_default(),
            other_address: other_addresses(&observations.addresses),
            v2_changed: changed(&observations.v2),
            v3_keys: observations.v3.len(),
            objects_changed: before
                .iter()
                .filter(|(name, object)| after.get(*name) != Some(object))
                .map(|(name, _)| name.clone())
                .collect(),
            flags: observations.flags,
            pods_in_pause: observations.pods_in_pause,
            images: observations.images,
        };
        let mut report = Self::new(measurements, own, MigrationPhase::from(end));
        report.problems.extend(report.judge(end));
        report
    }

    /// The faults that only this kind can have. No probe may be lost, and no pod may be disrupted.
    fn judge(&self, end: End) -> Vec<String> {
        let own = &self.own;
        let mut problems = Vec::new();
        let mut wrong = |is_wrong: bool, words: String| {
            if is_wrong {
                problems.push(words);
            }
        };
        let version = match end {
            End::Migrated => ":v3.",
            End::RolledBack => ":v2.",
        };
        wrong(
            own.flags.both_open > 0,
            format!("reads in which both stores were open: {}", own.flags.both_open),
        );
        wrong(
            own.flags.observations == 0 || own.flags.paused_ms == 0,
            "no read observed the pause".to_owned(),
        );
        match (end, &own.flags.incomplete_at_opening) {
            (End::Migrated, None) => wrong(true, "no read found etcd v3 open".to_owned()),
            (End::Migrated, Some(found)) => wrong(
                !found.is_empty(),
                format!("etcd v3 was opened without {}", found.join(", ")),
            ),
            (End::RolledBack, found) => wrong(found.is_some(), "etcd v3 was opened".to_owned()),
        }
        wrong(
            self.probes.all.lost > 0,
            format!("lost probes: {}", self.probes.all.lost),
        );
        wrong(
            self.pods.recreated != 0 || self.pods.restarted != 0,
            format!(
                "pods created again: {}, container restarts: {}",
                self.pods.recreated, self.pods.restarted
            ),
        );
        wrong(
            !own.other_address.is_empty(),
            format!("pods with another address: {}", own.other_address.join(", ")),
        );
        wrong(
            own.pods_in_pause.created == 0 || own.pods_in_pause.running != own.pods_in_pause.created,
            format!(
                "pods created during the pause: {}, running at the end: {}",
                own.pods_in_pause.created, own.pods_in_pause.running
            ),
        );
        wrong(
            own.pods_in_pause.started_in_pause > 0,
            format!(
                "pods that started during the pause: {}",
                own.pods_in_pause.started_in_pause
            ),
        );
        wrong(
            !own.pods_in_pause.deleted_is_gone,
            "the pod that was deleted during the pause still exists".to_owned(),
        );
        wrong(
            own.max_pods_without_network == 0,
            "the migration counted no pod without a network".to_owned(),
        );
        wrong(
            !own.v2_changed.is_empty(),
            format!("keys of etcd v2 have changed: {}", own.v2_changed.join(", ")),
        );
        wrong(
            own.images.is_empty() || own.images.iter().any(|image| !image.contains(version)),
            format!("calico-node runs {}", own.images.join(", ")),
        );
        match end {
            End::Migrated => wrong(own.v3_keys == 0, "etcd v3 is empty".to_owned()),
            End::RolledBack => {
                wrong(
                    own.v3_keys > 0,
                    format!("keys remaining in etcd v3: {}", own.v3_keys),
                );
                wrong(
                    !own.objects_changed.is_empty(),
                    format!("objects have changed: {}", own.objects_changed.join(", ")),
                );
            }
        }
        problems
    }
}

/// Pods that still exist, with another address.
fn other_addresses([before, after]: &[Value; 2]) -> Vec<String> {
    let pods = before.as_object().into_iter().flatten();
    pods.filter(|(uid, pod)| after.get(uid.as_str()).is_some_and(|now| now != *pod))
        .map(|(_, pod)| pod.to_string())
        .collect()
}

/// Keys that have changed, without those that pods write: pods were created and deleted.
fn changed([before, after]: &[BTreeMap<String, String>; 2]) -> Vec<String> {
    let of_pods = [
        "/calico/ipam/v2/",
        "/workload/",
        "/calico/felix/",
        "/calico/v1/policy/profile/",
    ];
    let counts = |key: &&String| !of_pods.iter().any(|part| key.contains(part));
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    keys.into_iter()
        .filter(counts)
        .filter(|key| before.get(*key) != after.get(*key))
        .cloned()
        .collect()
}
