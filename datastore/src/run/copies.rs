//! Saves the keys below `/calico/` in v3 before the conversion, and restores them.

use std::collections::BTreeMap;

use calico_datastore::run::record::{Phase, Record};

use super::Runner;
use super::batch::batches;
use super::error::RunError;
use crate::etcd3::{Change, Entry};
use crate::stores::{CLUSTER_INFORMATION, ROOT, copies_prefix, copy_key};

/// The first major version whose calico-node creates a missing `ClusterInformation` with `datastoreReady: true`.
const NODES_OF_V3: u64 = 3;

impl Runner<'_> {
    /// Copies all keys, and records their number.
    pub(super) async fn keep(&self, mut record: Record, revision: i64) -> Result<(), RunError> {
        let present = self.stores.v3.list(ROOT).await?;
        if !present.is_empty() && !record.over_existing {
            return Err(RunError::Aborted {
                why: format!(
                    "etcd v3 was empty and now has keys: {}, the first is {}",
                    present.len(),
                    present[0].key
                ),
            });
        }
        let forget = Change::DeletePrefix {
            prefix: copies_prefix(),
        };
        // Copies of an earlier conversion, or of one that was killed here.
        self.commit("deleting earlier copies of v3's keys", Vec::new(), vec![forget])
            .await?;
        let copies = present.iter().map(|entry| Change::Put {
            key: copy_key(&entry.key),
            value: entry.value.clone(),
            lease: None,
        });
        self.make("copying v3's keys", copies.collect()).await?;
        record.kept = Some(present.len());
        self.record(&record, revision).await
    }

    /// The copies, by their original key below `/calico/`.
    pub(super) async fn kept(&self) -> Result<BTreeMap<String, Entry>, RunError> {
        let all = self.stores.v3.list(&copies_prefix()).await?.into_iter();
        let named =
            all.filter_map(|entry| Some((entry.key.strip_prefix(&copies_prefix())?.to_owned(), entry)));
        Ok(named.collect())
    }

    /// Restores the keys below `/calico/` to their state before the first write, except keys that `is_left_out` names. Does
    /// nothing when no copy was made. Returns the number of former keys that are not restored.
    pub(super) async fn restore(
        &self,
        record: &Record,
        is_left_out: impl Fn(&str) -> bool,
    ) -> Result<usize, RunError> {
        if record.kept.is_none() {
            return Ok(0);
        }
        let present: BTreeMap<String, Entry> = by_key(self.stores.v3.list(ROOT).await?);
        let kept = self.kept().await?.into_iter();
        let (left_out, before): (BTreeMap<_, _>, BTreeMap<_, _>) =
            kept.partition(|(key, _)| is_left_out(key));
        let is_other = |(key, entry): &(&String, &Entry)| {
            present.get(*key).is_none_or(|found| found.value != entry.value)
        };
        let mut changes: Vec<Change> = before
            .iter()
            .filter(is_other)
            .map(|(key, entry)| Change::Put {
                key: key.clone(),
                value: entry.value.clone(),
                lease: None,
            })
            .collect();
        let gone = present.keys().filter(|key| !before.contains_key(*key));
        // Deleted last: as long as it exists, it keeps Calico from using v3.
        let (last, first): (Vec<_>, Vec<_>) = gone.partition(|key| *key == CLUSTER_INFORMATION);
        changes.extend(first.into_iter().map(|key| Change::Delete { key: key.clone() }));
        for key in last {
            let may_run = record.nodes_of_v3 || present.get(key).is_some_and(has_nodes_of_v3);
            if may_run && !self.options.no_nodes_of_v3 {
                (self.tell)(
                    "ClusterInformation stays in etcd v3 with datastoreReady false: a calico-node of v3 has written to etcd v3 or \
                     may do so, and without this object it would open v3. Undo the upgrade of calico-node, then delete the key \
                     (`etcdctl del /calico/resources/v3/projectcalico.org/clusterinformations/default`)",
                );
            } else {
                changes.push(Change::Delete { key: key.clone() });
            }
        }
        self.make("restoring v3's keys", changes).await?;
        Ok(left_out.len())
    }

    /// The last step of an abort.
    pub(super) async fn restore_and_record(
        &mut self,
        mut record: Record,
        revision: i64,
        index: Option<u64>,
    ) -> Result<(), RunError> {
        self.back_up().await?;
        self.open_v2(index).await?;
        self.restore(&record, |_| false).await?;
        record.phase = Phase::Aborted;
        record.written = 0;
        record.snapshot = None;
        let forget = Change::DeletePrefix {
            prefix: copies_prefix(),
        };
        self.commit_record("recording that v3 is restored", &record, revision, vec![forget])
            .await?;
        (self.tell)("etcd v3 is restored to its former state");
        Ok(())
    }

    /// Makes changes in transactions that etcd accepts.
    async fn make(&self, attempt: &str, changes: Vec<Change>) -> Result<(), RunError> {
        for batch in batches(changes, self.options.batch) {
            self.commit(attempt, Vec::new(), batch).await?;
        }
        Ok(())
    }
}

/// Whether a calico-node of v3 has written its version. An unreadable value counts as yes.
fn has_nodes_of_v3(information: &Entry) -> bool {
    let Ok(value) = information.json() else {
        return true;
    };
    let version = value["spec"]["calicoVersion"].as_str().unwrap_or_default();
    let major = version
        .trim_start_matches('v')
        .split('.')
        .next()
        .unwrap_or_default();
    major.parse::<u64>().is_ok_and(|major| major >= NODES_OF_V3)
}

fn by_key(entries: Vec<Entry>) -> BTreeMap<String, Entry> {
    entries
        .into_iter()
        .map(|entry| (entry.key.clone(), entry))
        .collect()
}
