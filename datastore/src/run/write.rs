//! Writes the keys of v3 in batches, and verifies them.

use std::collections::BTreeMap;

use calico_datastore::run::record::{Phase, Record, Snapshot};
use calico_datastore::verify::cross_check;

use super::Runner;
use super::batch::{BYTES, bytes};
use super::error::RunError;
use super::prepared::Written;
use crate::access::V3;
use crate::error::StoreError;
use crate::etcd3::{Change, Condition, Entry};
use crate::stores::{ROOT, copies_prefix};

/// Most differences that a message lists.
const NAMED: usize = 10;

impl Runner<'_> {
    /// Writes the next batch, and the record in the same transaction.
    pub(super) async fn write(&self, mut record: Record, revision: i64, from: usize) -> Result<(), RunError> {
        let snapshot = self.snapshot(&record)?;
        let mut conditions = vec![Condition::Modified {
            key: crate::stores::record_key(),
            at: revision,
        }];
        let mut changes = Vec::new();
        let mut keys = Vec::new();
        let mut size = 0;
        // The record is one of the changes. Record and lock are two of the conditions.
        for place in from..(from + self.options.batch.saturating_sub(2).max(1)).min(snapshot.objects) {
            let Some(Written { key, value }) = self.prepared.written(place, &record.id, snapshot.taken_at)
            else {
                break;
            };
            let put = Change::Put {
                key: key.clone(),
                value,
                lease: None,
            };
            size += bytes(&put);
            if size > BYTES && !changes.is_empty() {
                break;
            }
            if record.kept == Some(0) {
                // Keys of another program that writes at the same time are not overwritten.
                conditions.push(Condition::Created {
                    key: key.clone(),
                    at: 0,
                });
                keys.push(key);
            }
            changes.push(put);
        }
        record.written = from + changes.len();
        let attempt = format!(
            "writing keys {} to {} of {}",
            from + 1,
            record.written,
            snapshot.objects
        );
        changes.push(Change::Put {
            key: crate::stores::record_key(),
            value: serde_json::json!(record).to_string().into_bytes(),
            lease: None,
        });
        match self.commit(&attempt, conditions, changes).await {
            Err(RunError::Store(StoreError::Changed { .. })) => self.explain_conflict(&keys, &attempt).await,
            ended => ended,
        }
    }

    /// Explains why a batch was not written. A key of another program aborts the conversion.
    async fn explain_conflict(&self, keys: &[String], attempt: &str) -> Result<(), RunError> {
        for key in keys {
            if self.stores.v3.get(key).await?.is_some() {
                return Err(RunError::Aborted {
                    why: format!(
                        "another program has written {key} to etcd v3: check for a running calico-node or controller of v3"
                    ),
                });
            }
        }
        Err(StoreError::Changed {
            store: V3,
            attempt: attempt.to_owned(),
        }
        .into())
    }

    /// Reads every key again: each must have the value that was written, and no other key may exist.
    pub(super) async fn verify(&self, mut record: Record, revision: i64) -> Result<(), RunError> {
        let snapshot = self.snapshot(&record)?;
        let mut present: BTreeMap<String, Entry> = self
            .stores
            .v3
            .list(ROOT)
            .await?
            .into_iter()
            .map(|entry| (entry.key.clone(), entry))
            .collect();
        let mut wrong = Vec::new();
        for Written { key, value } in self.prepared.all(&record.id, snapshot.taken_at) {
            match present.remove(&key) {
                Some(entry) if entry.value == value => {}
                Some(_) => wrong.push(format!("{key} has another value")),
                None => wrong.push(format!("{key} is missing")),
            }
        }
        let before = self.kept().await?;
        for (key, entry) in present {
            match before.get(&key) {
                Some(kept) if kept.value == entry.value => {}
                Some(_) => wrong.push(format!("{key}, which existed before, has another value")),
                None => wrong.push(format!("{key} was written by another program")),
            }
        }
        if !wrong.is_empty() {
            let count = wrong.len();
            wrong.truncate(NAMED);
            let named = wrong.join("; ");
            return Err(RunError::Aborted {
                why: format!("keys of v3 that differ from the written data: {count}: {named}"),
            });
        }
        record.phase = Phase::Verified;
        self.record(&record, revision).await?;
        let objects = self.prepared.conversion.as_ref();
        let torn = objects.map_or(0, |conversion| cross_check(&conversion.objects).len());
        (self.tell)(&format!(
            "all keys are written and verified: {}; Calico's IPAM: {}",
            snapshot.objects,
            if torn == 0 {
                "every address is counted by its handle".to_owned()
            } else {
                format!("addresses and handles that do not match, as in v2: {torn} (see the notes)")
            }
        ));
        Ok(())
    }

    /// The snapshot of the record. The decision has compared it already, so an error means a record that another process has
    /// changed.
    fn snapshot(&self, record: &Record) -> Result<Snapshot, RunError> {
        let snapshot = record.snapshot.clone();
        let found = snapshot.filter(|snapshot| self.prepared.is(snapshot));
        found.ok_or_else(|| {
            StoreError::Changed {
                store: V3,
                attempt: format!("writing keys beside {}", copies_prefix()),
            }
            .into()
        })
    }
}
