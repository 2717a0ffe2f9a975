//! The measurements, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::audit::Requests;
use super::measure::{Passes, quantile};
use super::objects::Largest;
use super::size::Size;
use crate::demo::report::ManualStep;

/// Bytes of a mebibyte.
const MEBIBYTE: f64 = 1_048_576.0;

/// The measurements.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The cluster and the migration.
    pub size: Size,
    /// Bytes of one ordinary pod's JSON, with its status and managed fields.
    pub pod_bytes: usize,
    /// The kind of the coordinator's memory limit.
    pub limited_by: &'static str,
    /// The most resident memory.
    pub peak_resident_bytes: u64,
    /// The most anonymous memory.
    pub peak_anonymous_bytes: u64,
    /// The largest object of replumb, by resource.
    pub largest_objects: BTreeMap<String, Largest>,
    /// Seconds from the Migration's creation to its plan.
    pub plan_seconds: f64,
    /// Seconds from the start to the end.
    pub migration_seconds: f64,
    /// The status of the Migration at the time limit; absent if it had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<String>,
    /// The manual steps of the migration, with the actions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub manual_steps: Vec<ManualStep>,
    /// While the plan was made.
    pub planning: Part,
    /// Without any change, before the start.
    pub idle: Part,
    /// While the nodes were migrated.
    pub migration: Part,
    /// Seconds from an agent's report to the coordinator's write that answers it, as `super::audit` counts it for each kind.
    pub answers: Answers,
}

/// One part of the time.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// The duration.
    pub seconds: f64,
    /// The passes.
    pub passes: Passes,
    /// The coordinator's requests to the API server.
    pub requests: Requests,
    /// Bytes from the API server: watches, lists, answers.
    pub bytes_from_server: u64,
    /// Bytes to the API server.
    pub bytes_to_server: u64,
}

/// Time that agents waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answers {
    /// Number of answered reports.
    pub count: usize,
    /// Seconds, median.
    pub median: f64,
    /// Seconds, 99th percentile.
    pub p99: f64,
}

impl Answers {
    /// Computed from single times.
    pub fn of(mut seconds: Vec<f64>) -> Self {
        Self {
            count: seconds.len(),
            median: quantile(&mut seconds, 0.5),
            p99: quantile(&mut seconds, 0.99),
        }
    }
}

impl Report {
    /// The largest object of replumb of any kind.
    pub fn largest(&self) -> usize {
        self.largest_objects
            .values()
            .map(|largest| largest.bytes)
            .max()
            .unwrap_or_default()
    }

    /// The coordinator's writes from the Migration's creation to its end, divided by the number of nodes. Refused writes count.
    pub fn writes_per_node(&self) -> f64 {
        let parts = [&self.planning, &self.idle, &self.migration];
        ratio(
            parts.iter().map(|part| part.requests.writes).sum(),
            self.size.nodes,
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = &self.size;
        writeln!(
            formatter,
            "{} nodes, {} pods of {:.1} KB, {} Services, {}, {} pods a second start and end",
            size.nodes,
            size.pods,
            thousands(self.pod_bytes),
            size.services,
            size.description(),
            size.churn
        )?;
        writeln!(
            formatter,
            "  the control plane is real; kwok plays kubelets and pods, hollow agents play the agents"
        )?;
        writeln!(
            formatter,
            "  memory: at most {:.1} MiB resident, of which {:.1} MiB anonymous ({} of {:.0} MiB)",
            mebibytes(self.peak_resident_bytes),
            mebibytes(self.peak_anonymous_bytes),
            self.limited_by,
            mebibytes(size.memory_limit)
        )?;
        for (resource, largest) in &self.largest_objects {
            writeln!(
                formatter,
                "  largest of {resource}: {:.1} KiB ({})",
                thousands(largest.bytes) * 1_000.0 / 1_024.0,
                largest.name
            )?;
        }
        writeln!(
            formatter,
            "  plan: {:.1} s; whole migration: {:.1} s; writes per node: {:.1}",
            self.plan_seconds,
            self.migration_seconds,
            self.writes_per_node()
        )?;
        if let Some(words) = &self.unfinished {
            writeln!(formatter, "  NOT FINISHED: {words}")?;
        }
        for line in self.manual_steps.iter().flat_map(ManualStep::lines) {
            writeln!(formatter, "  {line}")?;
        }
        writeln!(
            formatter,
            "  answer to an agent: median {:.2} s, p99 {:.2} s, of {}",
            self.answers.median, self.answers.p99, self.answers.count
        )?;
        for (name, part) in [
            ("planning", &self.planning),
            ("idle", &self.idle),
            ("migration", &self.migration),
        ] {
            let passes = &part.passes;
            writeln!(
                formatter,
                "  {name}: {:.1} s, {} passes of {:.1} ms CPU (p99 {:.1} ms), {:.1} % of a core, {:.1} MiB received, {:.1} MiB sent, {} writes, {} evictions",
                part.seconds,
                passes.count,
                passes.processor_milliseconds_median,
                passes.processor_milliseconds_p99,
                passes.processor_share * 100.0,
                mebibytes(part.bytes_from_server),
                mebibytes(part.bytes_to_server),
                part.requests.writes,
                part.requests.evictions
            )?;
            for (kind, number) in &part.requests.by_kind {
                writeln!(
                    formatter,
                    "    {kind}: {number} ({:.2} per node)",
                    ratio(*number, size.nodes)
                )?;
            }
            for (code, number) in &part.requests.refused {
                writeln!(formatter, "    refused with {code}: {number}")?;
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers for the user")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MEBIBYTE
}

#[expect(clippy::cast_precision_loss, reason = "numbers for the user")]
fn thousands(bytes: usize) -> f64 {
    bytes as f64 / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "numbers for the user")]
fn ratio(number: u64, by: u32) -> f64 {
    number as f64 / f64::from(by.max(1))
}
