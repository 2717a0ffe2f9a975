//! Performs one step.

use calico_datastore::controller_objects::ControllerObjects;
use calico_datastore::run::decide::Step;
use calico_datastore::run::record::{Phase, Record, Snapshot};
use calico_datastore::v2;
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Runner;
use super::error::RunError;
use super::observe::Observation;
use super::prepared::Prepared;
use crate::access::{V2, V3};
use crate::backup;
use crate::error::StoreError;
use crate::etcd3::{Change, Condition};
use crate::stores::{CLUSTER_INFORMATION, ROOT, record_key};

impl Runner<'_> {
    /// Performs a step, with the observation that it was decided by.
    pub(super) async fn perform(&mut self, step: Step, observation: Observation) -> Result<(), RunError> {
        let Observation {
            observed,
            revision,
            index,
        } = observation;
        match (step, observed.record) {
            (Step::Announce, _) => self.announce(revision).await,
            (Step::Pause, _) => self.set_ready_v2(index, "false").await,
            // For an abort without a record, this is the only step.
            (Step::OpenV2, _) => {
                self.open_v2(index).await?;
                (self.tell)("Calico works with etcd v2");
                Ok(())
            }
            (Step::Restore, Some(record)) => self.restore_and_record(record, revision, index).await,
            (step, Some(record)) => self.advance(step, record, revision).await,
            (
                Step::Restore
                | Step::RecordPaused
                | Step::Keep
                | Step::TakeSnapshot
                | Step::Write { .. }
                | Step::RecordWritten
                | Step::Verify
                | Step::StartOver
                | Step::RecordNodes
                | Step::AnnounceCompletion
                | Step::OpenV3
                | Step::RecordCompleted
                | Step::AnnounceAbort
                | Step::CloseV3,
                None,
            ) => Err(changed("reading the record").into()),
        }
    }

    async fn advance(&mut self, step: Step, mut record: Record, revision: i64) -> Result<(), RunError> {
        match step {
            Step::Announce | Step::Pause | Step::OpenV2 | Step::Restore => Ok(()),
            Step::RecordPaused => {
                record.phase = Phase::Paused;
                record.paused_at = Some(Timestamp::now());
                self.record(&record, revision).await?;
                (self.tell)("Calico is paused: running pods keep their network, new pods get none");
                Ok(())
            }
            Step::Keep => self.keep(record, revision).await,
            Step::TakeSnapshot => self.take_snapshot(record, revision).await,
            Step::Write { from } => self.write(record, revision, from).await,
            Step::RecordWritten => {
                record.phase = Phase::Written;
                self.record(&record, revision).await
            }
            Step::Verify => self.verify(record, revision).await,
            Step::StartOver => {
                (self.tell)("etcd v2 has changed since its data was read: its data is read again");
                record.phase = Phase::Paused;
                record.written = 0;
                record.snapshot = None;
                self.record(&record, revision).await
            }
            Step::RecordNodes => {
                record.nodes_of_v3 = true;
                self.record(&record, revision).await
            }
            Step::AnnounceCompletion => {
                record.phase = Phase::Completing;
                self.record(&record, revision).await
            }
            Step::OpenV3 => self.set_ready_v3(true).await,
            Step::RecordCompleted => {
                record.phase = Phase::Completed;
                self.record(&record, revision).await?;
                (self.tell)("Calico works with etcd v3");
                Ok(())
            }
            Step::AnnounceAbort => {
                record.phase = Phase::Aborting;
                record.why.clone_from(&self.why);
                self.record(&record, revision).await
            }
            Step::CloseV3 => self.set_ready_v3(false).await,
        }
    }

    /// Writes a backup, then the record: from here on another process can continue.
    async fn announce(&mut self, revision: i64) -> Result<(), RunError> {
        self.back_up().await?;
        let now = Timestamp::now();
        let record = Record {
            id: new_id(&self.options.holder, now),
            phase: Phase::Pausing,
            cluster: self.prepared.cluster.clone(),
            started_at: now,
            paused_at: None,
            abort_at: now
                .saturating_add(self.options.pause_limit)
                .unwrap_or(Timestamp::MAX),
            snapshot: None,
            written: 0,
            over_existing: self.over_existing,
            kept: None,
            nodes_of_v3: false,
            why: None,
            tool: env!("CARGO_PKG_VERSION").to_owned(),
        };
        self.record(&record, revision).await
    }

    /// Backs up both stores, once in this process.
    pub(super) async fn back_up(&mut self) -> Result<(), RunError> {
        let Some(folder) = self.options.backups.as_ref().filter(|_| self.backup.is_none()) else {
            return Ok(());
        };
        let tree = self.stores.v2.tree().await?;
        let entries = self.stores.v3.list(ROOT).await?;
        let made = backup::write(folder, &tree, &entries, Timestamp::now())?;
        (self.tell)(&format!(
            "backup: {} (keys of v2: {}, keys of v3: {}, sha256 {})",
            made.path.display(),
            made.v2_keys,
            made.v3_keys,
            made.sha256
        ));
        self.backup = Some(made);
        Ok(())
    }

    /// Writes v2's flag, unless another program has written it since the read.
    async fn set_ready_v2(&self, index: Option<u64>, value: &str) -> Result<(), RunError> {
        let is_written = match index {
            Some(index) => self.stores.v2.replace(v2::READY, index, value).await?,
            None => false,
        };
        if is_written {
            return Ok(());
        }
        Err(StoreError::Changed {
            store: V2,
            attempt: format!("setting {} to {value:?}", v2::READY),
        }
        .into())
    }

    /// Opens v2. The flag is written even when v2 is open: another process that was stopped before its own write then finds a new
    /// index.
    pub(super) async fn open_v2(&self, index: Option<u64>) -> Result<(), RunError> {
        self.set_ready_v2(index, "true").await
    }

    /// Sets only the flag in the object of v3: calico-node of v3 writes its version to the same object.
    async fn set_ready_v3(&self, ready: bool) -> Result<(), RunError> {
        let attempt = format!("setting datastoreReady to {ready}");
        let Some((entry, mut value)) = self.stores.cluster_information().await? else {
            return Err(changed(&attempt).into());
        };
        let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else {
            return Err(StoreError::Answer {
                store: V3,
                attempt,
                why: format!("{CLUSTER_INFORMATION} has no spec"),
            }
            .into());
        };
        spec.insert("datastoreReady".to_owned(), json!(ready));
        let unchanged = Condition::Modified {
            key: CLUSTER_INFORMATION.to_owned(),
            at: entry.revision,
        };
        let put = Change::Put {
            key: CLUSTER_INFORMATION.to_owned(),
            value: value.to_string().into_bytes(),
            lease: None,
        };
        self.commit(&attempt, vec![unchanged], vec![put]).await
    }

    async fn take_snapshot(&mut self, mut record: Record, revision: i64) -> Result<(), RunError> {
        // Objects that controllers of v3 wrote in an earlier attempt would hide whether the present controllers have written
        // theirs, and calico-node of v3 would use them.
        let stale = self.restore(&record, ControllerObjects::is_key).await?;
        if stale > 0 {
            (self.tell)(&format!(
                "former profiles and policies of Kubernetes removed from etcd v3: {stale}; its controllers write them again"
            ));
        }
        self.prepared = Prepared::of(&self.stores.v2.tree().await?)?;
        record.phase = Phase::Writing;
        record.written = 0;
        record.snapshot = Some(Snapshot {
            hash: self.prepared.hash.clone(),
            taken_at: Timestamp::now(),
            objects: self.prepared.objects(),
        });
        self.record(&record, revision).await?;
        (self.tell)(&format!("keys to write: {}", self.prepared.objects()));
        Ok(())
    }

    /// Writes the record alone.
    pub(super) async fn record(&self, record: &Record, revision: i64) -> Result<(), RunError> {
        let attempt = format!("recording phase {}", record.phase);
        self.commit_record(&attempt, record, revision, Vec::new()).await
    }

    /// Makes these changes and writes the record, unless another process has written it since the read.
    pub(super) async fn commit_record(
        &self,
        attempt: &str,
        record: &Record,
        revision: i64,
        mut changes: Vec<Change>,
    ) -> Result<(), RunError> {
        let unchanged = Condition::Modified {
            key: record_key(),
            at: revision,
        };
        changes.push(Change::Put {
            key: record_key(),
            value: json!(record).to_string().into_bytes(),
            lease: None,
        });
        self.commit(attempt, vec![unchanged], changes).await
    }

    /// Makes these changes if all conditions hold and this process holds the lock.
    pub(super) async fn commit(
        &self,
        attempt: &str,
        mut conditions: Vec<Condition>,
        changes: Vec<Change>,
    ) -> Result<(), RunError> {
        let ours = self.lock.condition();
        conditions.push(ours.clone());
        if self.stores.v3.commit(attempt, &conditions, &changes).await? {
            return Ok(());
        }
        // Find out which condition failed.
        let still_ours = self.stores.v3.commit(attempt, &[ours], &[]).await?;
        Err(if still_ours {
            changed(attempt)
        } else {
            StoreError::LockLost {
                attempt: attempt.to_owned(),
            }
        }
        .into())
    }
}

fn changed(attempt: &str) -> StoreError {
    StoreError::Changed {
        store: V3,
        attempt: attempt.to_owned(),
    }
}

/// ID of a run, unique for process, host and time.
fn new_id(holder: &str, now: Timestamp) -> String {
    use sha2::{Digest as _, Sha256};
    let text = format!("{holder} {} {}", now.as_nanosecond(), std::process::id());
    HEXLOWER.encode(&Sha256::digest(text.as_bytes())[..16])
}

impl Prepared {
    /// Whether the snapshot is of the same data.
    pub(super) fn is(&self, snapshot: &Snapshot) -> bool {
        self.hash == snapshot.hash && self.objects() == snapshot.objects
    }
}
