//! Report of a conversion of Calico's datastore, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use traffic::report::Summary;

use super::late::Late;
use super::stores::Flags;
use crate::demo::End;
use crate::demo::report::{self as common, Pods};

/// The report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The implementation of Calico.
    pub calico: String,
    /// The phase in which the migration ended.
    pub phase: String,
    /// Time from the first change to the last, in seconds.
    pub seconds: i64,
    /// Each stage with its direction and its seconds, in order.
    pub stages: Vec<String>,
    /// Which stores were open for Calico.
    pub flags: Flags,
    /// The highest number of pods without a network that the migration itself counted during the pause.
    pub counted_without_network: u64,
    /// Pods that were created and deleted during the pause.
    pub late: Late,
    /// The probes.
    pub probes: Summary,
    /// Pods of the workloads.
    pub pods: Pods,
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
    /// Faults that were found; empty is a pass.
    pub problems: Vec<String>,
}

/// The observations from which the report is made.
#[derive(Debug)]
pub struct Observations {
    /// The implementation of Calico.
    pub calico: String,
    /// Status of the Migration.
    pub status: Value,
    /// Both flags.
    pub flags: Flags,
    /// Pods that were created and deleted during the pause.
    pub late: Late,
    /// The probes.
    pub probes: Summary,
    /// Pods of the workloads.
    pub pods: Pods,
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

impl Report {
    /// Makes the report from the observations, and lists the faults.
    pub fn of(end: End, looks: Observations) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let status = &looks.status;
        let took = time(&status["startedAt"])
            .zip(time(&status["completedAt"]))
            .map(|(from, to)| to.duration_since(from).as_secs());
        let known = &status["calicoDatastore"];
        let stages = known["history"].as_array().into_iter().flatten().map(|stage| {
            let seconds = time(&stage["startedAt"])
                .zip(time(&stage["finishedAt"]))
                .map_or(0.0, |(from, to)| to.duration_since(from).as_secs_f64());
            format!(
                "{} {} {seconds:.1} s",
                text(&stage["direction"]),
                text(&stage["name"])
            )
        });
        let [before, after] = &looks.objects;
        let mut report = Self {
            calico: looks.calico,
            phase: text(&status["phase"]),
            seconds: took.unwrap_or_default(),
            stages: stages.collect(),
            counted_without_network: known["maxPodsWithoutNetwork"].as_u64().unwrap_or_default(),
            other_address: other_addresses(&looks.addresses),
            v2_changed: changed(&looks.v2),
            v3_keys: looks.v3.len(),
            objects_changed: before
                .iter()
                .filter(|(name, object)| after.get(*name) != Some(object))
                .map(|(name, _)| name.clone())
                .collect(),
            flags: looks.flags,
            late: looks.late,
            probes: looks.probes,
            pods: looks.pods,
            images: looks.images,
            problems: Vec::new(),
        };
        report.problems = report.judge(end);
        report
    }

    fn judge(&self, end: End) -> Vec<String> {
        let mut problems = Vec::new();
        let mut wrong = |is_wrong: bool, words: String| {
            if is_wrong {
                problems.push(words);
            }
        };
        let (phase, version) = match end {
            End::Migrated => ("Completed", ":v3."),
            End::RolledBack => ("RolledBack", ":v2."),
        };
        wrong(
            self.phase != phase,
            format!("phase of the migration: found {}, needed {phase}", self.phase),
        );
        wrong(
            self.flags.both_open > 0,
            format!("reads in which both stores were open: {}", self.flags.both_open),
        );
        wrong(
            self.flags.looks == 0 || self.flags.paused_ms == 0,
            "no read observed the pause".to_owned(),
        );
        match (end, &self.flags.incomplete_at_opening) {
            (End::Migrated, None) => wrong(true, "no read found etcd v3 open".to_owned()),
            (End::Migrated, Some(found)) => wrong(
                !found.is_empty(),
                format!("etcd v3 was opened without {}", found.join(", ")),
            ),
            (End::RolledBack, found) => wrong(found.is_some(), "etcd v3 was opened".to_owned()),
        }
        wrong(self.probes.all.sent == 0, "no probe was sent".to_owned());
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
            !self.other_address.is_empty(),
            format!("pods with another address: {}", self.other_address.join(", ")),
        );
        wrong(
            self.late.made == 0 || self.late.run != self.late.made,
            format!(
                "pods created during the pause: {}, running at the end: {}",
                self.late.made, self.late.run
            ),
        );
        wrong(
            self.late.started_in_the_pause > 0,
            format!(
                "pods that started during the pause: {}",
                self.late.started_in_the_pause
            ),
        );
        wrong(
            !self.late.deleted_is_gone,
            "the pod that was deleted during the pause still exists".to_owned(),
        );
        wrong(
            self.counted_without_network == 0,
            "the migration counted no pod without a network".to_owned(),
        );
        wrong(
            !self.v2_changed.is_empty(),
            format!("keys of etcd v2 have changed: {}", self.v2_changed.join(", ")),
        );
        wrong(
            self.images.is_empty() || self.images.iter().any(|image| !image.contains(version)),
            format!("calico-node runs {}", self.images.join(", ")),
        );
        match end {
            End::Migrated => wrong(self.v3_keys == 0, "etcd v3 is empty".to_owned()),
            End::RolledBack => {
                wrong(
                    self.v3_keys > 0,
                    format!("keys remaining in etcd v3: {}", self.v3_keys),
                );
                wrong(
                    !self.objects_changed.is_empty(),
                    format!("objects have changed: {}", self.objects_changed.join(", ")),
                );
            }
        }
        problems
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format_args!(
            "{} in {} s: {} (Calico: {})",
            self.phase,
            self.seconds,
            self.stages.join(", "),
            self.calico
        ));
        line(format_args!(
            "Calico was paused for {:.1} s; reads of both flags: {}, with both true: {}",
            f64::from(i32::try_from(self.flags.paused_ms).unwrap_or(i32::MAX)) / 1000.0,
            self.flags.looks,
            self.flags.both_open
        ));
        line(format_args!(
            "pods created during the pause: {}, started during the pause: {}, running: {}, the last one Ready {} s after the \
             pause; pods without a network, by the migration: at most {}",
            self.late.made,
            self.late.started_in_the_pause,
            self.late.run,
            self.late.waited_seconds,
            self.counted_without_network
        ));
        line(format_args!(
            "changed keys of etcd v2, without its flag: {}; keys of etcd v3: {}; calico-node: {}",
            self.v2_changed.len(),
            self.v3_keys,
            self.images.join(", ")
        ));
        text.push_str(&common::text(&self.probes, &self.pods));
        for problem in &self.problems {
            let _ = writeln!(text, "PROBLEM: {problem}");
        }
        text
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
