//! Report of a migration to another Service range, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::Value;
use service_cidr::objects::differences;
use traffic::report::Summary;

use super::follow_up::FollowUp;
use super::recreation::{self, Recreation};
use crate::demo::End;
use crate::demo::report::{self as common, Pods};

/// Reasons of events about a Service whose address is not allocated.
const WRONG: [&str; 2] = ["ClusterIPOutOfRange", "ClusterIPNotAllocated"];
/// The age up to which such an event counts.
const LAST: SignedDuration = SignedDuration::from_mins(2);
/// Fields of the metadata that the owner of a Service has written, or that identify it.
const KEPT: [&str; 6] = [
    "uid",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "creationTimestamp",
];

/// The report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The phase in which the migration ended.
    pub phase: String,
    /// The stages, in order.
    pub stages: Vec<String>,
    /// The requests, by class of path.
    pub requests: Requests,
    /// The Services.
    pub services: Services,
    /// Ranges from which addresses are allocated at the end, by the name of their `ServiceCIDR`.
    pub ready_ranges: BTreeMap<String, Vec<String>>,
    /// Events about Services whose address is not allocated.
    pub wrong_events: Vec<String>,
    /// The manual steps that the migration requested, with the user's actions.
    pub follow_ups: Vec<FollowUp>,
    /// For comparison, the losses of deleting Services and creating them again; only on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recreation: Option<Recreation>,
    /// Faults that were found; empty is a pass.
    pub problems: Vec<String>,
}

/// The requests.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Number of lost requests.
    pub lost: u64,
    /// All counts, by class of path.
    #[serde(flatten)]
    pub summary: Summary,
}

/// The Services.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Services {
    /// Number of Services.
    pub all: usize,
    /// Number of Services with an address that can be exchanged.
    pub movable: usize,
    /// Number of Services with another address than before.
    pub moved: usize,
    /// Their names.
    #[serde(skip)]
    moved_names: Vec<String>,
    /// Differences of Services in fields other than the address.
    pub changed_other_than_ip: Vec<String>,
}

impl Report {
    /// Makes the report from the observations, and lists the faults.
    #[expect(clippy::too_many_arguments, reason = "each is a part of one report")]
    pub fn of(
        end: End,
        status: &Value,
        [before, after]: [&BTreeMap<String, Value>; 2],
        ranges: &Value,
        events: &Value,
        requests: Summary,
        follow_ups: Vec<FollowUp>,
        recreation: Option<Recreation>,
    ) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let history = status["serviceCidr"]["history"].as_array().into_iter().flatten();
        let mut report = Self {
            phase: text(&status["phase"]),
            stages: history.map(|stage| text(&stage["name"])).collect(),
            requests: Requests {
                lost: requests.all.lost,
                summary: requests,
            },
            services: compare(before, after),
            ready_ranges: ready(ranges),
            wrong_events: wrong(events, Timestamp::now()),
            follow_ups,
            recreation,
            problems: Vec::new(),
        };
        report.problems = report.judge(end);
        report
    }

    fn judge(&self, end: End) -> Vec<String> {
        let mut problems = Vec::new();
        let needed = match end {
            End::Migrated => "Completed",
            End::RolledBack => "RolledBack",
        };
        if self.phase != needed {
            problems.push(format!(
                "phase of the migration: found {}, needed {needed}",
                self.phase
            ));
        }
        if self.requests.lost > 0 {
            problems.push(format!("lost requests: {}", self.requests.lost));
        }
        problems.extend(self.services.changed_other_than_ip.iter().cloned());
        if self.ready_ranges.len() != 1 {
            problems.push(format!(
                "ranges from which addresses are allocated: found {:?}, needed exactly one",
                self.ready_ranges
            ));
        }
        problems.extend(self.wrong_events.iter().cloned());
        if self
            .recreation
            .as_ref()
            .is_some_and(|found| !recreation::shows(found))
        {
            problems.push(
                "deleting Services and creating them again lost no request: their probers did not work"
                    .to_owned(),
            );
        }
        let Services { moved, movable, .. } = self.services;
        match end {
            End::Migrated if moved == movable && moved > 0 => {}
            End::Migrated => problems.push(format!(
                "Services with another address than before: found {moved}, needed {movable}"
            )),
            End::RolledBack => problems.extend(
                self.services
                    .moved_names
                    .iter()
                    .map(|name| format!("Service {name} has another address than before")),
            ),
        }
        problems
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "migration {}: {}", self.phase, self.stages.join(" → "));
        let _ = writeln!(
            text,
            "Services with another address: {} of {}; other differences: {}",
            self.services.moved,
            self.services.all,
            self.services.changed_other_than_ip.len()
        );
        for (name, ranges) in &self.ready_ranges {
            let _ = writeln!(
                text,
                "range from which addresses are allocated: {} (ServiceCIDR {name})",
                ranges.join(",")
            );
        }
        text.push_str(&common::text(&self.requests.summary, &Pods::default()));
        if let Some(found) = &self.recreation {
            text.push_str(&recreation::text(found));
        }
        for problem in &self.problems {
            let _ = writeln!(text, "PROBLEM: {problem}");
        }
        text
    }
}

fn compare(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Services {
    let mut services = Services {
        all: after.len(),
        ..Services::default()
    };
    for (name, old) in before {
        let Some(new) = after.get(name) else {
            services
                .changed_other_than_ip
                .push(format!("Service {name} is gone"));
            continue;
        };
        services.movable += usize::from(is_movable(&old["spec"]));
        if old["spec"]["clusterIP"] != new["spec"]["clusterIP"] {
            services.moved += 1;
            services.moved_names.push(name.clone());
        }
        let fields = differences(&old["spec"], &new["spec"]).into_iter();
        services
            .changed_other_than_ip
            .extend(fields.map(|what| format!("Service {name}: {what}")));
        for field in KEPT
            .iter()
            .filter(|field| old["metadata"][**field] != new["metadata"][**field])
        {
            services.changed_other_than_ip.push(format!(
                "Service {name}: metadata.{field}: {} became {}",
                old["metadata"][*field], new["metadata"][*field]
            ));
        }
    }
    let new = after.keys().filter(|name| !before.contains_key(*name));
    services
        .changed_other_than_ip
        .extend(new.map(|name| format!("Service {name} is new")));
    services
}

fn is_movable(spec: &Value) -> bool {
    let address = spec["clusterIP"].as_str().unwrap_or_default();
    !matches!(address, "" | "None") && spec["type"] != "LoadBalancer"
}

fn ready(ranges: &Value) -> BTreeMap<String, Vec<String>> {
    let all = ranges["items"].as_array().into_iter().flatten();
    all.filter(|range| range["metadata"]["deletionTimestamp"].is_null())
        .map(|range| {
            let cidrs = range["spec"]["cidrs"].as_array().into_iter().flatten();
            let name = range["metadata"]["name"].as_str().unwrap_or_default();
            (
                name.to_owned(),
                cidrs
                    .filter_map(|text| text.as_str().map(str::to_owned))
                    .collect(),
            )
        })
        .collect()
}

/// Events of the last minutes. Earlier events may be about a helper Service that had just released its address.
fn wrong(events: &Value, now: Timestamp) -> Vec<String> {
    let all = events["items"].as_array().into_iter().flatten();
    let is_recent = |event: &&Value| {
        let times = ["lastTimestamp", "eventTime"].into_iter();
        let mut times = times.filter_map(|field| event[field].as_str()?.parse::<Timestamp>().ok());
        times.next().is_none_or(|at| now.duration_since(at) < LAST)
    };
    all.filter(|event| WRONG.iter().any(|reason| event["reason"] == *reason))
        .filter(is_recent)
        .map(|event| format!("event {}: {}", event["reason"], event["message"]))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_recent_events_are_faults() {
        let event = |reason: &str, at: &str| json!({ "reason": reason, "message": "an address", "lastTimestamp": at });
        let events = json!({ "items": [
            event("ClusterIPOutOfRange", "2026-11-23T17:00:00Z"),
            event("ClusterIPOutOfRange", "2026-11-23T17:09:00Z"),
            event("Started", "2026-11-23T17:09:00Z"),
            { "reason": "ClusterIPNotAllocated", "message": "without a time" },
        ] });
        let found = wrong(&events, "2026-11-23T17:10:00Z".parse().unwrap());
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
