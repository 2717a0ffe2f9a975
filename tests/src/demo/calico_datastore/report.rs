//! How a conversion of Calico's datastore went: for people as text, for programs as JSON.

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

/// How it went.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Who played Calico.
    pub calico: String,
    /// Where the migration ended.
    pub phase: String,
    /// From the first change to the last, in seconds.
    pub seconds: i64,
    /// Each stage with its direction and its seconds, in order.
    pub stages: Vec<String>,
    /// Which store Calico was let work with.
    pub flags: Flags,
    /// The most pods without a network that the migration itself has counted while it was paused.
    pub counted_without_network: u64,
    /// Pods that came and went meanwhile.
    pub late: Late,
    /// The probes.
    pub probes: Summary,
    /// Pods of the workloads.
    pub pods: Pods,
    /// Pods that were there before and have another address.
    pub other_address: Vec<String>,
    /// Keys of etcd v2 that are otherwise than before, but for its flag, and for what pods and nodes of v2 write while they live.
    pub v2_changed: Vec<String>,
    /// Keys of Calico's in etcd v3 at the end.
    pub v3_keys: usize,
    /// What runs on the nodes at the end.
    pub images: Vec<String>,
    /// What of the objects is otherwise than before; on the way back nothing is to be.
    pub objects_changed: Vec<String>,
    /// What is not as it should be; empty is well.
    pub problems: Vec<String>,
}

/// What was looked at.
#[derive(Debug)]
pub struct Looks {
    /// Who played Calico.
    pub calico: String,
    /// Of the Migration.
    pub status: Value,
    /// Of both flags.
    pub flags: Flags,
    /// Of pods that came and went.
    pub late: Late,
    /// Of the traffic.
    pub probes: Summary,
    /// Of pods.
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
    /// Puts it together, and judges it.
    pub fn of(end: End, looks: Looks) -> Self {
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
            counted_without_network: known["mostPodsWithoutNetwork"].as_u64().unwrap_or_default(),
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
            End::There => ("Completed", ":v3."),
            End::Back => ("RolledBack", ":v2."),
        };
        wrong(
            self.phase != phase,
            format!("the migration ended {}, and not {phase}", self.phase),
        );
        wrong(
            self.flags.both_open > 0,
            format!("both stores were open at {} looks", self.flags.both_open),
        );
        wrong(
            self.flags.looks == 0 || self.flags.paused_ms == 0,
            "nobody saw the pause".to_owned(),
        );
        match (end, &self.flags.incomplete_at_opening) {
            (End::There, None) => wrong(true, "nobody saw etcd v3 open".to_owned()),
            (End::There, Some(found)) => wrong(
                !found.is_empty(),
                format!("etcd v3 was opened without {}", found.join(", ")),
            ),
            (End::Back, found) => wrong(found.is_some(), "etcd v3 was opened".to_owned()),
        }
        wrong(self.probes.all.sent == 0, "no probe was sent".to_owned());
        wrong(
            self.probes.all.lost > 0,
            format!("{} probes were lost", self.probes.all.lost),
        );
        wrong(
            self.pods.recreated != 0 || self.pods.restarted != 0,
            format!(
                "{} pods were made again, {} containers started again",
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
                "of {} pods that came in the pause {} run",
                self.late.made, self.late.run
            ),
        );
        wrong(
            self.late.started_in_the_pause > 0,
            format!(
                "{} pods were started in the pause",
                self.late.started_in_the_pause
            ),
        );
        wrong(
            !self.late.deleted_is_gone,
            "the pod that was deleted in the pause is not gone".to_owned(),
        );
        wrong(
            self.counted_without_network == 0,
            "the migration has counted no pod without a network".to_owned(),
        );
        wrong(
            !self.v2_changed.is_empty(),
            format!("etcd v2 says something else: {}", self.v2_changed.join(", ")),
        );
        wrong(
            self.images.is_empty() || self.images.iter().any(|image| !image.contains(version)),
            format!("calico-node runs {}", self.images.join(", ")),
        );
        match end {
            End::There => wrong(self.v3_keys == 0, "etcd v3 is empty".to_owned()),
            End::Back => {
                wrong(
                    self.v3_keys > 0,
                    format!("{} keys are left in etcd v3", self.v3_keys),
                );
                wrong(
                    !self.objects_changed.is_empty(),
                    format!("otherwise than before: {}", self.objects_changed.join(", ")),
                );
            }
        }
        problems
    }

    /// For people.
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
            "Calico was paused for {:.1} s; both flags were read {} times, and {} times both were true",
            f64::from(i32::try_from(self.flags.paused_ms).unwrap_or(i32::MAX)) / 1000.0,
            self.flags.looks,
            self.flags.both_open
        ));
        line(format_args!(
            "{} pods came in the pause, {} of them started in it; {} run, the last one Ready {} s after it. The migration counted {} at most",
            self.late.made,
            self.late.started_in_the_pause,
            self.late.run,
            self.late.waited_seconds,
            self.counted_without_network
        ));
        line(format_args!(
            "etcd v2: {} keys otherwise than before but for its flag; etcd v3: {} keys; calico-node: {}",
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

/// Pods that are there still, under another address.
fn other_addresses([before, after]: &[Value; 2]) -> Vec<String> {
    let pods = before.as_object().into_iter().flatten();
    pods.filter(|(uid, pod)| after.get(uid.as_str()).is_some_and(|now| now != *pod))
        .map(|(_, pod)| pod.to_string())
        .collect()
}

/// Keys that are otherwise. What belongs to a pod that went, or came, on the way back is its own.
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
