//! One step, made.

use calico_datastore::left::Left;
use calico_datastore::run::decide::Step;
use calico_datastore::run::record::{Phase, Record, Snapshot};
use calico_datastore::v2;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::prepared::Prepared;
use super::{Looked, RunError, Runner};
use crate::access::{V2, V3};
use crate::backup;
use crate::error::StoreError;
use crate::etcd3::{Change, Condition};
use crate::stores::{CLUSTER_INFORMATION, ROOT, record_key};

impl Runner<'_> {
    /// Makes a step, by what it was decided by.
    pub(super) async fn perform(&mut self, step: Step, looked: Looked) -> Result<(), RunError> {
        let Looked {
            observed,
            revision,
            index,
        } = looked;
        match (step, observed.record) {
            (Step::Announce, _) => self.announce(revision).await,
            (Step::Pause, _) => self.set_ready_v2(index, "false").await,
            // Of an abort that nobody has a record of, this is all.
            (Step::OpenV2, _) => {
                self.open_v2(index).await?;
                (self.tell)("Calico works with etcd v2");
                Ok(())
            }
            (Step::Restore, Some(record)) => self.restore_and_record(record, revision, index).await,
            (step, Some(record)) => self.go_on(step, record, revision).await,
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

    async fn go_on(&mut self, step: Step, mut record: Record, revision: i64) -> Result<(), RunError> {
        match step {
            Step::Announce | Step::Pause | Step::OpenV2 | Step::Restore => Ok(()),
            Step::RecordPaused => {
                record.phase = Phase::Paused;
                record.paused_at = Some(Timestamp::now());
                self.record(&record, revision).await?;
                (self.tell)("Calico is paused: pods that run go on, new ones get no network");
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
                (self.tell)(
                    "etcd v2 says something else than when its data were chosen: they are chosen anew",
                );
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

    /// A backup, then the record: from here on whoever comes goes on.
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

    /// Everything of both stores, once in this process.
    pub(super) async fn back_up(&mut self) -> Result<(), RunError> {
        let Some(folder) = self.options.backups.as_ref().filter(|_| self.backup.is_none()) else {
            return Ok(());
        };
        let tree = self.stores.v2.tree().await?;
        let entries = self.stores.v3.list(ROOT).await?;
        let made = backup::write(folder, &tree, &entries, Timestamp::now())?;
        (self.tell)(&format!(
            "backup: {} ({} keys of v2, {} of v3, sha256 {})",
            made.path.display(),
            made.v2_keys,
            made.v3_keys,
            made.sha256
        ));
        self.backup = Some(made);
        Ok(())
    }

    /// Writes v2's flag, unless somebody has written it since it was read.
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

    /// Lets Calico work with v2. Also where it does already: whoever stood still before a write of his own finds another index.
    pub(super) async fn open_v2(&self, index: Option<u64>) -> Result<(), RunError> {
        self.set_ready_v2(index, "true").await
    }

    /// Sets the flag of v3, and nothing else of its object: calico-node of v3 writes its version there.
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
        // As long as what controllers of v3 wrote in an earlier attempt is there, nobody can tell whether those of this one have written
        // theirs, and calico-node of v3 would go by it.
        let stale = self.restore(&record, Left::is_key).await?;
        if stale > 0 {
            (self.tell)(&format!(
                "{stale} profiles of namespaces and policies of Kubernetes that were in etcd v3 before are kept aside: its controllers write them anew"
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
        (self.tell)(&format!("{} keys are to be written", self.prepared.objects()));
        Ok(())
    }

    /// Writes the record, and nothing else.
    pub(super) async fn record(&self, record: &Record, revision: i64) -> Result<(), RunError> {
        let attempt = format!("recording phase {}", record.phase);
        self.commit_record(&attempt, record, revision, Vec::new()).await
    }

    /// Makes these changes and writes the record, if nobody has written it meanwhile.
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

    /// Makes these changes, if all of that is so and the lock is ours.
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
        // Which of them was not so?
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

/// Names a run: of two processes, hosts or times it is another.
fn new_id(holder: &str, now: Timestamp) -> String {
    use sha2::{Digest as _, Sha256};
    let text = format!("{holder} {} {}", now.as_nanosecond(), std::process::id());
    backup::hexadecimal(&Sha256::digest(text.as_bytes())[..16])
}

impl Prepared {
    /// Whether it is what a snapshot is of.
    pub(super) fn is(&self, snapshot: &Snapshot) -> bool {
        self.hash == snapshot.hash && self.objects() == snapshot.objects
    }
}
