//! The part of the report that only a migration to another Service range has.

use std::collections::BTreeMap;

use api::migration::MigrationPhase;
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use service_cidr::objects::differences;

use super::recreation;
pub use super::recreation::Recreation;
use crate::demo::End;
use crate::demo::report::{self as common, ManualStep, Measurements, OwnPart};

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
pub type Report = common::Report<ServiceCidr>;

/// The part that only this kind has.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceCidr {
    /// The Services.
    pub services: Services,
    /// Ranges from which addresses are allocated at the end, by the name of their `ServiceCIDR`.
    pub ready_ranges: BTreeMap<String, Vec<String>>,
    /// Events about Services whose address is not allocated.
    pub wrong_events: Vec<String>,
    /// The manual steps that the migration requested, with the user's actions.
    pub manual_steps: Vec<ManualStep>,
    /// For comparison, the losses of deleting Services and creating them again; only on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recreation: Option<Recreation>,
}

/// The Services.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
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

impl OwnPart for ServiceCidr {
    const KIND: &'static str = "serviceCidr";

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "Services with another address: {} of {}; other differences: {}",
            self.services.moved,
            self.services.all,
            self.services.changed_other_than_ip.len()
        )];
        lines.extend(self.ready_ranges.iter().map(|(name, ranges)| {
            format!(
                "range from which addresses are allocated: {} (ServiceCIDR {name})",
                ranges.join(",")
            )
        }));
        lines.extend(self.recreation.as_ref().map(recreation::text));
        lines
    }
}

impl ServiceCidr {
    /// Compares the Services before and after, and reads the ranges and the events at the end.
    pub fn of(
        [before, after]: [&BTreeMap<String, Value>; 2],
        ranges: &Value,
        events: &Value,
        manual_steps: Vec<ManualStep>,
        recreation: Option<Recreation>,
    ) -> Self {
        Self {
            services: compare(before, after),
            ready_ranges: ready(ranges),
            wrong_events: wrong(events, Timestamp::now()),
            manual_steps,
            recreation,
        }
    }
}

impl Report {
    /// Makes the report from the observations, and lists the faults.
    pub fn of(end: End, measurements: Measurements, own: ServiceCidr) -> Self {
        let mut report = Self::new(measurements, own, MigrationPhase::from(end));
        report.problems.extend(report.judge(end));
        report
    }

    /// The faults that only this kind can have. No probe may be lost.
    fn judge(&self, end: End) -> Vec<String> {
        let ServiceCidr {
            services,
            ready_ranges,
            wrong_events,
            recreation,
            ..
        } = &self.own;
        let mut problems = Vec::new();
        if self.probes.all.lost > 0 {
            problems.push(format!("lost probes: {}", self.probes.all.lost));
        }
        problems.extend(services.changed_other_than_ip.iter().cloned());
        if ready_ranges.len() != 1 {
            problems.push(format!(
                "ranges from which addresses are allocated: found {ready_ranges:?}, needed exactly one"
            ));
        }
        problems.extend(wrong_events.iter().cloned());
        if recreation
            .as_ref()
            .is_some_and(|found| !recreation::is_valid(found))
        {
            problems.push(
                "deleting Services and creating them again lost no request: their probers did not work"
                    .to_owned(),
            );
        }
        let Services {
            moved,
            movable,
            moved_names,
            ..
        } = services;
        match end {
            End::Migrated if moved == movable && *moved > 0 => {}
            End::Migrated => problems.push(format!(
                "Services with another address than before: found {moved}, needed {movable}"
            )),
            End::RolledBack => problems.extend(
                moved_names
                    .iter()
                    .map(|name| format!("Service {name} has another address than before")),
            ),
        }
        problems
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
