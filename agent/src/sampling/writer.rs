//! Writes the status of the `ConnectionSample`, at a pace that the API server stands with thousands of nodes.

use std::sync::Arc;
use std::time::Duration;

use api::connection_sample::{ConnectionSampleStatus, SeenConnection};
use api::{ConnectionSample, names};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use runtime::error::chain;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::metrics::SamplingMetrics;
use crate::backoff::{Backoff, LONGEST_PAUSE_ON_WATCH};
use crate::host::random;
use crate::watched_object::newest;

/// Shortest time between two writes.
const PACE: Duration = Duration::from_secs(30);
/// The same while only times and counts change, or while the sample is incomplete because of its capacity: its kinds change all the
/// time then. A status may have 400 KiB, and there is one on each node.
const SLOW_PACE: Duration = Duration::from_mins(5);
/// Pause without a change.
pub const IDLE: Duration = Duration::from_mins(5);

/// The writer of one object.
#[derive(Debug)]
pub struct Writer {
    api: Api<ConnectionSample>,
    metrics: Arc<SamplingMetrics>,
    /// The object after the last write, until the watch has seen that write.
    written: Option<Arc<ConnectionSample>>,
    wrote_at: Option<Instant>,
    failures: Backoff,
    not_before: Option<Instant>,
}

impl Writer {
    /// A writer that has written nothing yet.
    pub fn new(api: Api<ConnectionSample>, metrics: Arc<SamplingMetrics>) -> Self {
        Self {
            api,
            metrics,
            written: None,
            wrote_at: None,
            failures: Backoff::default(),
            not_before: None,
        }
    }

    /// Writes the status if it has changed and its time has come. Returns the pause until the next attempt.
    pub async fn write(
        &mut self,
        watched: &Arc<ConnectionSample>,
        wanted: &ConnectionSampleStatus,
    ) -> Duration {
        let object = newest(&mut self.written, watched);
        let old = object.status.as_ref();
        if old == Some(wanted) {
            return IDLE;
        }
        let due = self.wrote_at.map(|at| at + pace(old, wanted));
        let now = Instant::now();
        if let Some(next) = due.max(self.not_before).filter(|next| *next > now) {
            return next - now;
        }
        match self.patch(&object, wanted).await {
            Ok(after) => {
                self.metrics.count_write(true);
                if self.failures != Backoff::default() {
                    tracing::info!("the status of the ConnectionSample is written again");
                }
                self.failures.succeeded();
                self.not_before = None;
                self.wrote_at = Some(Instant::now());
                self.written = Some(Arc::new(after));
                IDLE
            }
            Err(error) => {
                self.metrics.count_write(false);
                if self.failures == Backoff::default() {
                    let error = chain(&error);
                    tracing::warn!(
                        error,
                        "writing the status of the ConnectionSample failed; retrying"
                    );
                }
                self.written = None;
                let random = random::number().unwrap_or_default();
                let pause = self.failures.after_failure(LONGEST_PAUSE_ON_WATCH, random);
                self.not_before = Some(Instant::now() + pause);
                pause
            }
        }
    }

    async fn patch(
        &self,
        object: &ConnectionSample,
        wanted: &ConnectionSampleStatus,
    ) -> Result<ConnectionSample, kube::Error> {
        let body = patch(object, wanted).map_err(kube::Error::SerdeError)?;
        let parameters = PatchParams {
            field_manager: Some(names::AGENT_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let name = object.name_any();
        self.api
            .patch_status(&name, &parameters, &Patch::Merge(body))
            .await
    }
}

/// The merge patch of the status.
fn patch(object: &ConnectionSample, wanted: &ConnectionSampleStatus) -> Result<Value, serde_json::Error> {
    let old = match &object.status {
        Some(status) => serde_json::to_value(status)?,
        None => json!({}),
    };
    let change = api::merge::difference(&old, &serde_json::to_value(wanted)?);
    Ok(json!({
        // Another object with the same name belongs to another Migration.
        "metadata": { "uid": object.uid() },
        "status": change.unwrap_or_else(|| json!({})),
    }))
}

/// How long after the last write the new status is written.
fn pace(old: Option<&ConnectionSampleStatus>, new: &ConnectionSampleStatus) -> Duration {
    match old {
        None => PACE,
        Some(old) if is_news(old, new) => PACE,
        Some(_) => SLOW_PACE,
    }
}

/// Whether more than times and counts has changed.
fn is_news(old: &ConnectionSampleStatus, new: &ConnectionSampleStatus) -> bool {
    let facts = |status: &ConnectionSampleStatus| {
        (
            status.since,
            status.problem.is_some(),
            status.limitation.is_some(),
            status.replaced > 0,
            status.client_ports.map(|ports| (ports.first, ports.last)),
        )
    };
    if facts(old) != facts(new) {
        return true;
    }
    new.replaced == 0 && kinds(old) != kinds(new)
}

/// The kinds and whether each has a reply, in an order that does not depend on counts.
fn kinds(status: &ConnectionSampleStatus) -> Vec<impl Ord + use<>> {
    let kind = |seen: &SeenConnection| {
        (
            seen.protocol,
            seen.source,
            seen.source_port,
            seen.destination,
            seen.port,
            seen.is_translated,
            seen.replied > 0,
        )
    };
    let mut kinds: Vec<_> = status.connections.iter().map(kind).collect();
    kinds.sort_unstable();
    kinds
}

#[cfg(test)]
mod tests;
