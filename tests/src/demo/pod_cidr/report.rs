//! Report of a migration to another pod range, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::traffic::{ClassCount, PathClass};
use ipnet::Ipv4Net;
use serde::Serialize;
use serde_json::Value;
use traffic::report::Summary;

use super::follow_up::FollowUp;
use super::old_range::OldRange;
use crate::demo::End;
use crate::demo::report::{self as common, Foreign, Pods};
use crate::demo::watch::Peak;

/// The report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The Migration.
    pub migration: MigrationReport,
    /// The objects of the source range before the migration.
    pub before: Counts,
    /// The objects of the abandoned range at the end.
    #[serde(flatten)]
    pub after: Counts,
    /// Number of pods with an address of the target range at the end.
    pub pods_in_new_range: usize,
    /// The manual steps that the migration requested, with the user's actions.
    pub follow_ups: Vec<FollowUp>,
    /// The traffic between the migration's own pods, with DNS, by class, since the last start of the agents.
    pub watched: Vec<ClassCount>,
    /// The traffic.
    pub probes: Summary,
    /// Pods that were recreated or restarted: each had to move.
    pub pods: Pods,
    /// Pods that were created during the migration: one for each pod that had to move, or two with a rollback.
    pub pods_created: usize,
    /// Every node.
    pub nodes: Vec<HostReport>,
    /// The implementation of Calico.
    pub calico: String,
    /// Faults that were found; empty is a pass.
    pub problems: Vec<String>,
}

/// The Migration.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationReport {
    /// The phase in which the migration ended.
    pub phase: String,
    /// Time from the first change to the last.
    pub seconds: f64,
    /// Hash of the plan.
    pub plan_hash: String,
    /// Stages of the status, in order.
    pub stages: Vec<Stage>,
    /// The highest number of nodes that were unavailable at the same time, observed from outside.
    pub most_unavailable: usize,
    /// Number of observations.
    pub looks: u64,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// Name.
    pub name: String,
    /// Duration.
    pub seconds: f64,
}

/// The number of objects of a range, by tools other than replumb.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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

/// One host after the migration.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostReport {
    /// Name.
    pub name: String,
    /// Foreign entries on the host that are gone.
    pub foreign_gone: Vec<String>,
    /// Foreign entries on the host that are new.
    pub foreign_new: Vec<String>,
}

/// The observations, without the Migration and the ranges.
pub struct Seen {
    /// Unavailable nodes.
    pub peak: Peak,
    /// The traffic.
    pub probes: Summary,
    /// Pods that were recreated or restarted.
    pub pods: Pods,
    /// Number of pods that were created.
    pub pods_created: usize,
    /// The hosts.
    pub hosts: Vec<HostReport>,
    /// The manual steps that were taken.
    pub followed: Vec<FollowUp>,
    /// The implementation of Calico.
    pub calico: String,
}

impl From<&OldRange> for Counts {
    fn from(found: &OldRange) -> Self {
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

impl Report {
    /// Makes the report from the observations, and lists the faults.
    pub fn of(
        migration: &Value,
        end: End,
        ranges: [Ipv4Net; 2],
        [before, after]: [&OldRange; 2],
        pods_in_new_range: usize,
        seen: Seen,
    ) -> Self {
        let status = &migration["status"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut report = Self {
            migration: MigrationReport {
                phase: text(&status["phase"]),
                seconds: seconds(&status["startedAt"], &status["completedAt"]),
                plan_hash: text(&status["plan"]["hash"]),
                stages: stages(status),
                most_unavailable: seen.peak.nodes.len(),
                looks: seen.peak.looks,
            },
            before: before.into(),
            after: after.into(),
            pods_in_new_range,
            follow_ups: seen.followed,
            watched: serde_json::from_value(status["traffic"].clone()).unwrap_or_default(),
            probes: seen.probes,
            pods: seen.pods,
            pods_created: seen.pods_created,
            nodes: seen.hosts,
            calico: seen.calico,
            problems: Vec::new(),
        };
        report.problems = report.judge(end, ranges, after);
        report
    }

    /// The faults, by rules that hold for every migration, whatever the budget for lost probes.
    fn judge(&self, end: End, [from, to]: [Ipv4Net; 2], after: &OldRange) -> Vec<String> {
        let mut problems = Vec::new();
        let phase = match end {
            End::Migrated => "Completed",
            End::RolledBack => "RolledBack",
        };
        if self.migration.phase != phase {
            problems.push(format!(
                "phase of the migration: found {}, needed {phase}",
                self.migration.phase
            ));
        }
        problems.extend(
            after
                .pods
                .iter()
                .map(|name| format!("pod {name} has an address of {from}")),
        );
        let objects = after.blocks.iter().chain(&after.pools);
        problems.extend(objects.map(|name| format!("{name} of {from} remains")));
        for (node, routes) in &after.routes {
            problems.extend(
                routes
                    .iter()
                    .map(|route| format!("node {node} has a route of {from}: {route}")),
            );
        }
        if self.pods_in_new_range == 0 {
            problems.push(format!("no pod has an address of {to}"));
        }
        for host in &self.nodes {
            let foreign = Foreign {
                gone: host.foreign_gone.clone(),
                new: host.foreign_new.clone(),
            };
            problems.extend(foreign.problems(&host.name));
        }
        let moves = match end {
            End::Migrated => 1,
            End::RolledBack => 2,
        };
        if self.pods_created > moves * self.pods.recreated {
            problems.push(format!(
                "pods created: found {}, needed at most {}: some pod was disrupted more often than necessary",
                self.pods_created,
                moves * self.pods.recreated
            ));
        }
        if self.follow_ups.is_empty() {
            problems.push(format!(
                "the migration requested no change of the setting from which calico-node would create a pool of {from}"
            ));
        }
        if self.probes.all.sent == 0 {
            problems.push("no probe was sent: losses are unknown".to_owned());
        }
        let resolved = |class: &ClassCount| class.class == PathClass::PodToDns && class.totals.sent > 0;
        if !self.watched.iter().any(resolved) {
            problems.push("no name was resolved: losses of DNS are unknown".to_owned());
        }
        if self.migration.looks == 0 {
            problems
                .push("the nodes were not observed: the number of unavailable nodes is unknown".to_owned());
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
            "migration {} in {:.1} s; most nodes unavailable at the same time: {} (Calico: {})",
            self.migration.phase, self.migration.seconds, self.migration.most_unavailable, self.calico
        ));
        for stage in &self.migration.stages {
            line(format_args!("  {:<12} {:>6.1} s", stage.name, stage.seconds));
        }
        for follow_up in &self.follow_ups {
            line(format_args!("manual step requested: {}", follow_up.asked));
            line(format_args!("  done: {}", follow_up.done));
        }
        line(format_args!(
            "{}",
            common::text(&self.probes, &self.pods).trim_end()
        ));
        line(format_args!("pods created in total: {}", self.pods_created));
        for ClassCount { class, totals } in &self.watched {
            line(format_args!(
                "  probes of the migration: {:<10} {:>7} sent, {:>5} lost, {:>5} of them answered too late",
                class.as_str(),
                totals.sent,
                totals.lost,
                totals.late
            ));
        }
        let routes = |counts: &Counts| counts.routes_in_old_range.values().sum::<usize>();
        line(format_args!(
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
        if self.problems.is_empty() {
            line(format_args!(
                "every pod has an address of the target range, and no foreign rule or route has changed"
            ));
        }
        for problem in &self.problems {
            line(format_args!("PROBLEM: {problem}"));
        }
        text
    }
}

fn stages(status: &Value) -> Vec<Stage> {
    let history = status["podCidr"]["history"].as_array();
    history
        .into_iter()
        .flatten()
        .filter_map(|stage| {
            Some(Stage {
                name: stage["name"].as_str()?.to_owned(),
                seconds: seconds(&stage["startedAt"], &stage["finishedAt"]),
            })
        })
        .collect()
}

/// Seconds between two times of an object; 0 if one is missing.
fn seconds(from: &Value, to: &Value) -> f64 {
    let time = |value: &Value| value.as_str()?.parse::<jiff::Timestamp>().ok();
    match (time(from), time(to)) {
        (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(change: impl FnOnce(&mut Value, &mut OldRange, &mut Seen)) -> Report {
        let mut migration = json!({ "status": {
            "phase": "Completed",
            "startedAt": "2026-11-22T16:00:00Z", "completedAt": "2026-11-22T16:01:30Z",
            "traffic": [{ "class": "PodToDns", "sent": 5, "lost": 0, "late": 0, "longestGapMilliseconds": 0 }],
            "podCidr": { "history": [{
                "name": "Move", "direction": "Forward",
                "startedAt": "2026-11-22T16:00:10Z", "finishedAt": "2026-11-22T16:00:12.5Z",
            }] },
        } });
        let mut after = OldRange::default();
        let mut probes = Summary::of(&[]);
        probes.all.sent = 1;
        let mut seen = Seen {
            peak: Peak {
                looks: 1,
                ..Peak::default()
            },
            probes,
            pods: Pods {
                recreated: 3,
                restarted: 0,
            },
            pods_created: 3,
            hosts: Vec::new(),
            followed: vec![FollowUp {
                asked: "set it".to_owned(),
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
            [&OldRange::default(), &after],
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
        assert_eq!(value["podsInOldRange"], 0);
        assert_eq!(value["blocksInOldRange"], 0);
        assert_eq!(value["routesInOldRange"], json!({ "n1": 0 }));
        assert_eq!(value["podsInNewRange"], 7);
        assert_eq!(value["migration"]["seconds"], 90.0);
        assert_eq!(
            value["migration"]["stages"],
            json!([{ "name": "Move", "seconds": 2.5 }])
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
            seen.followed.clear();
            seen.pods_created = 4;
            seen.hosts.push(HostReport {
                name: "n2".to_owned(),
                foreign_gone: vec!["foreign route".to_owned()],
                foreign_new: Vec::new(),
            });
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
