//! The keys of v3: written in batches, and read again.

use std::collections::BTreeMap;

use calico_datastore::run::record::{Phase, Record, Snapshot};
use calico_datastore::verify::cross_check;

use super::batch::{BYTES, bytes};
use super::prepared::Written;
use super::{RunError, Runner};
use crate::access::V3;
use crate::error::StoreError;
use crate::etcd3::{Change, Condition, Entry};
use crate::stores::{ROOT, kept_prefix};

/// Differences that are named.
const NAMED: usize = 10;

impl Runner<'_> {
    /// Writes the next batch, and in the same transaction the record of it.
    pub(super) async fn write(&self, mut record: Record, revision: i64, from: usize) -> Result<(), RunError> {
        let snapshot = self.snapshot(&record)?;
        let mut conditions = vec![Condition::Modified {
            key: crate::stores::record_key(),
            at: revision,
        }];
        let mut changes = Vec::new();
        let mut keys = Vec::new();
        let mut size = 0;
        // The record is one of the changes; it and the lock are two of the conditions.
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
                // Somebody else who writes there now is not written over.
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
            Err(RunError::Store(StoreError::Changed { .. })) => self.who_wrote(&keys, &attempt).await,
            ended => ended,
        }
    }

    /// A batch was not written. One of its keys may be somebody else's: then it goes back.
    async fn who_wrote(&self, keys: &[String], attempt: &str) -> Result<(), RunError> {
        for key in keys {
            if self.stores.v3.get(key).await?.is_some() {
                return Err(RunError::TookBack {
                    why: format!(
                        "somebody else has written {key} to etcd v3: a calico-node or a controller of v3 that runs already?"
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

    /// Reads every key again: each has to be what was to be written, and nothing else may be there.
    pub(super) async fn verify(&self, mut record: Record, revision: i64) -> Result<(), RunError> {
        let snapshot = self.snapshot(&record)?;
        let mut there: BTreeMap<String, Entry> = self
            .stores
            .v3
            .list(ROOT)
            .await?
            .into_iter()
            .map(|entry| (entry.key.clone(), entry))
            .collect();
        let mut wrong = Vec::new();
        for Written { key, value } in self.prepared.all(&record.id, snapshot.taken_at) {
            match there.remove(&key) {
                Some(entry) if entry.value == value => {}
                Some(_) => wrong.push(format!("{key} has another value")),
                None => wrong.push(format!("{key} is not there")),
            }
        }
        let before = self.kept().await?;
        for (key, entry) in there {
            match before.get(&key) {
                Some(kept) if kept.value == entry.value => {}
                Some(_) => wrong.push(format!("{key}, which was there before, has another value")),
                None => wrong.push(format!("{key} was written by somebody else")),
            }
        }
        if !wrong.is_empty() {
            let count = wrong.len();
            wrong.truncate(NAMED);
            let named = wrong.join("; ");
            return Err(RunError::TookBack {
                why: format!("{count} keys of v3 are not what was written: {named}"),
            });
        }
        record.phase = Phase::Verified;
        self.record(&record, revision).await?;
        let objects = self.prepared.conversion.as_ref();
        let torn = objects.map_or(0, |conversion| cross_check(&conversion.objects).len());
        (self.tell)(&format!(
            "all {} keys are written, were read again, and are what they have to be; of Calico's IPAM {}",
            snapshot.objects,
            if torn == 0 {
                "every address has a handle that counts it".to_owned()
            } else {
                format!("{torn} addresses and handles do not go together, as they did not in v2 (notes)")
            }
        ));
        Ok(())
    }

    /// What is converted. It is looked at before: this is for a record that says what cannot be.
    fn snapshot(&self, record: &Record) -> Result<Snapshot, RunError> {
        let snapshot = record.snapshot.clone();
        let found = snapshot.filter(|snapshot| self.prepared.is(snapshot));
        found.ok_or_else(|| {
            StoreError::Changed {
                store: V3,
                attempt: format!("writing keys beside {}", kept_prefix()),
            }
            .into()
        })
    }
}
