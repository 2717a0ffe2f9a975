//! Reports: the output of each prober, and the sum of many.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The observations of one prober. The report is written repeatedly, and a last time when the prober ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The prober's name: its pod's.
    pub prober: String,
    /// The node that it runs on.
    pub node: String,
    /// Start of the prober.
    pub started: Timestamp,
    /// Time of this report.
    pub updated: Timestamp,
    /// Whether the prober has ended normally: the report is complete.
    pub finished: bool,
    /// The time between two probes of a flow.
    pub interval_ms: u64,
    /// A probe without an answer after this time is lost.
    pub timeout_ms: u64,
    /// The longest time in which the prober itself could not send: the effect of a busy machine on the measurements.
    pub longest_pause_ms: u64,
    /// The last error of the prober.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_problem: Option<String>,
    /// Every present or past flow.
    pub flows: Vec<Flow>,
}

/// The flow from one prober to one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Class of the path: `pod-to-pod`, `pod-to-pod-tcp`, `pod-to-service`, `pod-to-service-stream`, `pod-to-service-tcp`,
    /// `pod-to-dns`, and the same from `host-`; with `-ipv6` for IPv6 paths.
    pub class: String,
    /// The pod or the Service.
    pub target: String,
    /// The address and port.
    pub address: String,
    /// The node that the pod runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// Periods with lost probes; if there are very many, only the longest.
    pub outages: Vec<Outage>,
    /// The reason why the last unanswered probe got no answer, if its sender knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// The counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Probes sent; each is answered, lost or still pending.
    pub sent: u64,
    /// Answers in time.
    pub answered: u64,
    /// Probes without an answer in time.
    pub lost: u64,
    /// Probes that may yet be answered.
    pub pending: u64,
    /// Answers to lost probes, which arrived too late.
    pub late: u64,
    /// Second answers to the same probe.
    pub duplicates: u64,
    /// Answers from another sender than the target.
    pub strays: u64,
    /// Connections that ended although their target was available.
    #[serde(default)]
    pub broken: u64,
    /// The longest time without an answer, in milliseconds: between two answered probes with no answered one in
    /// between, at the prober's own interval. One interval if no probe is lost. Delays of the prober or of a reader
    /// are not included: they are caused by the machine.
    pub longest_gap_ms: u64,
    /// The longest time of a probe and its answer in the kernel, in microseconds: from the sender's call to the
    /// arrival at the receiver, in both directions. UDP only. A kernel with busy cores adds to it: the sender may be
    /// preempted within its call.
    #[serde(default)]
    pub longest_in_network_us: u64,
    /// The longest time from a probe until any answer, in milliseconds, including the machine's delays.
    #[serde(default)]
    pub slowest_answer_ms: u64,
    /// The longest time of a new flow until its first answer, in milliseconds; the flow counts from then on.
    #[serde(default)]
    pub longest_settling_ms: u64,
}

/// Consecutive lost probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outage {
    /// Time of the first probe.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Number of probes.
    pub lost: u64,
    /// Time from the first probe to the next answer; no number if none arrived.
    pub gap_ms: Option<u64>,
}

/// Consecutive lost probes of one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PathOutage {
    /// The prober.
    pub prober: String,
    /// The node.
    pub from: String,
    /// Class of the path.
    pub class: String,
    /// The pod or the Service.
    pub target: String,
    /// The node that the pod runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Time and number.
    #[serde(flatten)]
    pub outage: Outage,
    /// The reason why the last unanswered probe of this path got no answer, if its sender knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Maximum of outages of all flows in a report; the longest are kept.
const NAMED: usize = 50;

/// Sums of many reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The sum of all classes.
    #[serde(flatten)]
    pub all: Counts,
    /// The sum of each class.
    pub classes: BTreeMap<String, Counts>,
    /// Probers without a last report: they were killed before they could write it.
    pub unfinished: Vec<String>,
    /// The longest periods with lost probes, in order of time.
    #[serde(default)]
    pub outages: Vec<PathOutage>,
}

impl Counts {
    /// Adds the counts of another flow.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.lost += other.lost;
        self.pending += other.pending;
        self.late += other.late;
        self.duplicates += other.duplicates;
        self.strays += other.strays;
        self.broken += other.broken;
        self.longest_gap_ms = self.longest_gap_ms.max(other.longest_gap_ms);
        self.longest_in_network_us = self.longest_in_network_us.max(other.longest_in_network_us);
        self.slowest_answer_ms = self.slowest_answer_ms.max(other.slowest_answer_ms);
        self.longest_settling_ms = self.longest_settling_ms.max(other.longest_settling_ms);
    }
}

impl Report {
    /// Writes the report so that a reader never sees an incomplete one.
    pub fn write(&self, file: &Path) -> Result<()> {
        let new = file.with_extension("new");
        let attempt = || -> Result<()> {
            let mut out = fs::File::create(&new)?;
            out.write_all(&serde_json::to_vec_pretty(self)?)?;
            if self.finished {
                out.sync_data()?;
            }
            fs::rename(&new, file)?;
            Ok(())
        };
        attempt().with_context(|| format!("write the report {}", file.display()))
    }

    /// Reads every report in a folder. A missing folder has none.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error).with_context(|| format!("list the reports in {}", folder.display()));
            }
        };
        let mut reports = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text =
                fs::read_to_string(&path).with_context(|| format!("read the report {}", path.display()))?;
            let report = serde_json::from_str(&text)
                .with_context(|| format!("parse the report {}", path.display()))?;
            reports.push(report);
        }
        Ok(reports)
    }
}

#[cfg(test)]
impl Report {
    /// The report of a prober without probes.
    pub(crate) fn empty(prober: &str, finished: bool) -> Self {
        Self {
            prober: prober.to_owned(),
            node: "n".to_owned(),
            started: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
            finished,
            interval_ms: 10,
            timeout_ms: 1000,
            longest_pause_ms: 0,
            last_problem: None,
            flows: Vec::new(),
        }
    }
}

impl Summary {
    /// The sum of these reports.
    pub fn of(reports: &[Report]) -> Self {
        let mut summary = Self::default();
        for report in reports {
            if !report.finished {
                summary.unfinished.push(report.prober.clone());
            }
            for flow in &report.flows {
                summary.all.add(&flow.counts);
                summary
                    .classes
                    .entry(flow.class.clone())
                    .or_default()
                    .add(&flow.counts);
                summary
                    .outages
                    .extend(flow.outages.iter().map(|outage| PathOutage {
                        prober: report.prober.clone(),
                        from: report.node.clone(),
                        class: flow.class.clone(),
                        target: flow.target.clone(),
                        to: flow.node.clone(),
                        outage: *outage,
                        last_error: flow.last_error.clone(),
                    }));
            }
        }
        summary.unfinished.sort();
        let outages = &mut summary.outages;
        outages.sort_by_key(|one| std::cmp::Reverse(one.outage.lost));
        outages.truncate(NAMED);
        outages.sort_by_key(|one| one.outage.since);
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(prober: &str, finished: bool, flows: &[(&str, u64, u64, u64)]) -> Report {
        let flow = |&(class, sent, lost, longest_gap_ms): &(&str, u64, u64, u64)| Flow {
            class: class.to_owned(),
            target: "echo".to_owned(),
            address: "10.0.0.1:7000".to_owned(),
            node: None,
            counts: Counts {
                sent,
                answered: sent - lost,
                lost,
                longest_gap_ms,
                ..Counts::default()
            },
            outages: Vec::new(),
            last_error: None,
        };
        Report {
            flows: flows.iter().map(flow).collect(),
            ..Report::empty(prober, finished)
        }
    }

    #[test]
    fn counts_are_summed_by_class_and_an_unfinished_report_is_named() {
        let reports = [
            report(
                "a",
                true,
                &[("pod-to-pod", 100, 1, 40), ("pod-to-service", 50, 0, 3)],
            ),
            report("b", false, &[("pod-to-pod", 10, 2, 30)]),
        ];
        let summary = Summary::of(&reports);
        assert_eq!(
            (summary.all.sent, summary.all.lost, summary.all.longest_gap_ms),
            (160, 3, 40)
        );
        assert_eq!(
            (
                summary.classes["pod-to-pod"].sent,
                summary.classes["pod-to-pod"].lost
            ),
            (110, 3)
        );
        assert_eq!(summary.unfinished, ["b"]);
    }

    #[test]
    fn the_longest_outages_are_listed_in_order_of_time() {
        let outage = |second: i64, lost: u64| Outage {
            since: Timestamp::from_second(second).unwrap(),
            lost,
            gap_ms: None,
        };
        let mut one = report("a", true, &[("pod-to-pod", 100, 1, 40)]);
        one.flows[0].outages = (0..60).map(|second| outage(second, 1)).collect();
        let mut other = report("b", true, &[("host-to-pod", 100, 9, 40)]);
        other.flows[0].outages = vec![outage(99, 9), outage(7, 8)];
        let named = Summary::of(&[one, other]).outages;
        assert_eq!(named.len(), 50);
        assert_eq!(named.iter().filter(|one| one.prober == "b").count(), 2);
        assert_eq!(named.last().map(|one| one.outage.lost), Some(9));
        assert!(named.is_sorted_by_key(|one| one.outage.since));
    }

    #[test]
    fn a_written_report_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let written = report("a", true, &[("pod-to-pod", 100, 1, 40)]);
        written.write(&folder.path().join("a.json")).unwrap();
        assert_eq!(Report::read_all(folder.path()).unwrap(), [written]);
        assert_eq!(Report::read_all(&folder.path().join("none")).unwrap(), []);
        let text = fs::read_to_string(folder.path().join("a.json")).unwrap();
        assert!(text.contains("\"longestGapMs\": 40"), "{text}");
    }

    #[test]
    fn an_incomplete_report_is_an_error_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.json"), "{").unwrap();
        assert!(format!("{:#}", Report::read_all(folder.path()).unwrap_err()).contains("b.json"));
    }
}
