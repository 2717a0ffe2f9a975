//! The part of the report that only a migration to another pod range has.

use std::collections::BTreeMap;

use api::migration::MigrationPhase;
use api::traffic::{ClassCount, PathClass};
use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use traffic::report::Summary;

use super::old_range::RangeObjects;
use crate::demo::End;
use crate::demo::report::{
    self as common, ManualStep, Measurements, MigrationReport, NodeReport, OwnPart, Pods,
};
use crate::demo::watch::Peak;

/// The report.
pub type Report = common::Report<PodCidr>;

/// The part that only this kind has.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodCidr {
    /// The objects of the source range before the migration.
    pub before: Counts,
    /// The objects of the abandoned range at the end.
    #[serde(flatten)]
    pub after: Counts,
    /// Number of pods with an address of the target range at the end.
    pub pods_in_new_range: usize,
    /// The manual steps that the migration requested, with the user's actions.
    pub manual_steps: Vec<ManualStep>,
    /// The traffic between the migration's own pods, with DNS, by class, since the last start of the agents.
    pub traffic: Vec<ClassCount>,
    /// Pods that were created during the migration: one for each pod that had to move, or two with a rollback.
    pub pods_created: usize,
}

/// The number of objects of a range, by tools other than replumb.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Pods of the pod network that have not ended.
    pub pods_in_old_range: usize,
    /// Blocks of Calico's IPAM, and block affinities.
    pub blocks_in_old_range: usize,
    /// Calico's pools.
    pub pools_in_old_range: usize,
    /// Routes by node.
    pub routes_in_old_range: BTreeMap<String, usize>,
}

/// The observations, without the Migration and the ranges.
pub struct Observations {
    /// Unavailable nodes.
    pub peak: Peak,
    /// The traffic.
    pub probes: Summary,
    /// Pods that were recreated or restarted.
    pub pods: Pods,
    /// Number of pods that were created.
    pub pods_created: usize,
    /// The hosts.
    pub nodes: Vec<NodeReport>,
    /// The manual steps that were taken.
    pub manual_steps: Vec<ManualStep>,
    /// The implementation of Calico.
    pub calico: String,
}

impl From<&RangeObjects> for Counts {
    fn from(found: &RangeObjects) -> Self {
        Self {
            pods_in_old_range: found.pods.len(),
            blocks_in_old_range: found.blocks.len(),
            pools_in_old_range: found.pools.len(),
            routes_in_old_range: found
                .routes
                .iter()
                .map(|(node, routes)| (node.clone(), routes.len()))
                .collect(),
        }
    }
}

impl OwnPart for PodCidr {
    const KIND: &'static str = "podCidr";

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("pods created in total: {}", self.pods_created)];
        lines.extend(self.manual_steps.iter().flat_map(ManualStep::lines));
        lines.extend(self.traffic.iter().map(|ClassCount { class, totals }| {
            format!(
                "  probes of the migration: {:<10} {:>7} sent, {:>5} lost, {:>5} of them answered too late",
                class.as_str(),
                totals.sent,
                totals.lost,
                totals.late
            )
        }));
        let routes = |counts: &Counts| counts.routes_in_old_range.values().sum::<usize>();
        lines.push(format!(
            "abandoned range, by kubectl and ip: pods {}, blocks and affinities {}, routes {}, nodes {} (source range before the \
             migration: pods {}, blocks and affinities {}, routes {})",
            self.after.pods_in_old_range,
            self.after.blocks_in_old_range,
            routes(&self.after),
            self.after.routes_in_old_range.len(),
            self.before.pods_in_old_range,
            self.before.blocks_in_old_range,
            routes(&self.before)
        ));
        lines
    }

    fn verdict(_report: &Report) -> Option<String> {
        Some(
            "every pod has an address of the target range, and no foreign rule or route has changed"
                .to_owned(),
        )
    }
}

impl Report {
    /// Makes the report from the observations, and lists the faults.
    pub fn of(
        migration: &Value,
        end: End,
        ranges: [Ipv4Net; 2],
        [before, after]: [&RangeObjects; 2],
        pods_in_new_range: usize,
        observations: Observations,
    ) -> Self {
        let traffic = migration["status"]["traffic"].clone();
        let own = PodCidr {
            before: before.into(),
            after: after.into(),
            pods_in_new_range,
            manual_steps: observations.manual_steps,
            traffic: serde_json::from_value(traffic).unwrap_or_default(),
            pods_created: observations.pods_created,
        };
        let measurements = Measurements {
            migration: MigrationReport::of::<PodCidr>(migration, Some(&observations.peak)),
            nodes: observations.nodes,
            probes: observations.probes,
            pods: observations.pods,
            calico: Some(observations.calico),
        };
        let mut report = Self::new(measurements, own, MigrationPhase::from(end));
        report.problems.extend(report.judge(end, ranges, after));
        report
    }

    /// The faults that only this kind can have, whatever the budget for lost probes.
    fn judge(&self, end: End, [from, to]: [Ipv4Net; 2], after: &RangeObjects) -> Vec<String> {
        let names = after.pods.iter();
        let mut problems: Vec<String> = names
            .map(|name| format!("pod {name} has an address of {from}"))
            .collect();
        let objects = after.blocks.iter().chain(&after.pools);
        problems.extend(objects.map(|name| format!("{name} of {from} remains")));
        for (node, routes) in &after.routes {
            problems.extend(
                routes
                    .iter()
                    .map(|route| format!("node {node} has a route of {from}: {route}")),
            );
        }
        if self.own.pods_in_new_range == 0 {
            problems.push(format!("no pod has an address of {to}"));
        }
        let moves = match end {
            End::Migrated => 1,
            End::RolledBack => 2,
        };
        if self.own.pods_created > moves * self.pods.recreated {
            problems.push(format!(
                "pods created: found {}, needed at most {}: some pod was disrupted more often than necessary",
                self.own.pods_created,
                moves * self.pods.recreated
            ));
        }
        if self.own.manual_steps.is_empty() {
            problems.push(format!(
                "the migration requested no change of the setting from which calico-node would create a pool of {from}"
            ));
        }
        let resolved = |class: &ClassCount| class.class == PathClass::PodToDns && class.totals.sent > 0;
        if !self.own.traffic.iter().any(resolved) {
            problems.push("no name was resolved: losses of DNS are unknown".to_owned());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::demo::report::Foreign;

    fn report(change: impl FnOnce(&mut Value, &mut RangeObjects, &mut Observations)) -> Report {
        let mut migration = json!({ "status": {
            "phase": "Completed",
            "startedAt": "2026-11-22T16:00:00Z", "completedAt": "2026-11-22T16:01:30Z",
            "traffic": [{ "class": "PodToDns", "sent": 5, "lost": 0, "late": 0, "longestGapMilliseconds": 0 }],
            "podCidr": { "history": [{
                "name": "Move", "direction": "Forward",
                "startedAt": "2026-11-22T16:00:10Z", "finishedAt": "2026-11-22T16:00:12.5Z",
            }] },
        } });
        let mut after = RangeObjects::default();
        let mut probes = Summary::of(&[]);
        probes.all.sent = 1;
        let mut seen = Observations {
            peak: Peak {
                observations: 1,
                ..Peak::default()
            },
            probes,
            pods: Pods {
                recreated: 3,
                restarted: 0,
            },
            pods_created: 3,
            nodes: Vec::new(),
            manual_steps: vec![ManualStep {
                requested: "set it".to_owned(),
                done: "set".to_owned(),
            }],
            calico: "a stand-in".to_owned(),
        };
        change(&mut migration, &mut after, &mut seen);
        let ranges = ["10.244.0.0/16", "10.200.0.0/16"].map(|range| range.parse().unwrap());
        Report::of(
            &migration,
            End::Migrated,
            ranges,
            [&RangeObjects::default(), &after],
            7,
            seen,
        )
    }

    #[test]
    fn a_report_has_the_counts_and_the_times_of_stages() {
        let report = report(|_, after, _| {
            after.routes.insert("n1".to_owned(), Vec::new());
        });
        assert_eq!(report.problems, Vec::<String>::new());
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["podCidr"]["podsInOldRange"], 0);
        assert_eq!(value["podCidr"]["blocksInOldRange"], 0);
        assert_eq!(value["podCidr"]["routesInOldRange"], json!({ "n1": 0 }));
        assert_eq!(value["podCidr"]["podsInNewRange"], 7);
        assert_eq!(value["migration"]["seconds"], 90.0);
        assert_eq!(
            value["migration"]["stages"],
            json!([{ "name": "Move", "direction": "Forward", "seconds": 2.5 }])
        );
    }

    #[test]
    fn every_remaining_object_is_a_fault_with_its_name() {
        let report = report(|migration, after, seen| {
            migration["status"]["phase"] = json!("Halted");
            after.pods.push("sample/web-0".to_owned());
            after.blocks.push("IPAMBlock 10-244-1-0-26".to_owned());
            after.pools.push("IPPool default-ipv4-ippool".to_owned());
            after.routes.insert("n1".to_owned(), vec!["blackhole".to_owned()]);
            seen.manual_steps.clear();
            seen.pods_created = 4;
            let foreign = Foreign {
                gone: vec!["foreign route".to_owned()],
                new: Vec::new(),
            };
            seen.nodes
                .push(NodeReport::with_foreign("n2".to_owned(), foreign));
        });
        let text = report.problems.join("\n");
        for word in [
            "Halted",
            "sample/web-0",
            "10-244-1-0-26",
            "default-ipv4-ippool",
            "node n1",
            "requested no change of the setting",
            "pods created: found 4, needed at most 3",
            "gone from node n2",
        ] {
            assert!(text.contains(word), "{word} is not in:\n{text}");
        }
        assert_eq!(report.problems.len(), 8, "{text}");
    }
}
