//! What is below `/calico/` in v3 before, kept aside, and put back.

use std::collections::BTreeMap;

use calico_datastore::run::record::{Phase, Record};

use super::batch::batches;
use super::{RunError, Runner};
use crate::etcd3::{Change, Entry};
use crate::stores::{CLUSTER_INFORMATION, ROOT, kept_key, kept_prefix};

/// The first version whose calico-node makes a `ClusterInformation` that says "ready" where there is none.
const NODES_OF_V3: u64 = 3;

impl Runner<'_> {
    /// Copies all of it, and records how much it is.
    pub(super) async fn keep(&self, mut record: Record, revision: i64) -> Result<(), RunError> {
        let there = self.stores.v3.list(ROOT).await?;
        if !there.is_empty() && !record.over_existing {
            return Err(RunError::TookBack {
                why: format!(
                    "{} keys have come to etcd v3 since it was empty, the first is {}",
                    there.len(),
                    there[0].key
                ),
            });
        }
        let forget = Change::DeletePrefix {
            prefix: kept_prefix(),
        };
        // Of a conversion before this one, or of one that was killed here.
        self.commit("forgetting what was kept aside", Vec::new(), vec![forget])
            .await?;
        let copies = there.iter().map(|entry| Change::Put {
            key: kept_key(&entry.key),
            value: entry.value.clone(),
            lease: None,
        });
        self.make("keeping aside what is in v3", copies.collect()).await?;
        record.kept = Some(there.len());
        self.record(&record, revision).await
    }

    /// What is kept aside, by its key below `/calico/`.
    pub(super) async fn kept(&self) -> Result<BTreeMap<String, Entry>, RunError> {
        let all = self.stores.v3.list(&kept_prefix()).await?.into_iter();
        let named = all.filter_map(|entry| Some((entry.key.strip_prefix(&kept_prefix())?.to_owned(), entry)));
        Ok(named.collect())
    }

    /// Makes what is below `/calico/` as it was before the first key was written, but for keys that are left out; nothing, if that was never
    /// looked at. Returns how many were there before and are left out.
    pub(super) async fn restore(
        &self,
        record: &Record,
        is_left_out: impl Fn(&str) -> bool,
    ) -> Result<usize, RunError> {
        if record.kept.is_none() {
            return Ok(0);
        }
        let there: BTreeMap<String, Entry> = by_key(self.stores.v3.list(ROOT).await?);
        let kept = self.kept().await?.into_iter();
        let (left_out, before): (BTreeMap<_, _>, BTreeMap<_, _>) =
            kept.partition(|(key, _)| is_left_out(key));
        let is_other =
            |(key, entry): &(&String, &Entry)| there.get(*key).is_none_or(|found| found.value != entry.value);
        let mut changes: Vec<Change> = before
            .iter()
            .filter(is_other)
            .map(|(key, entry)| Change::Put {
                key: key.clone(),
                value: entry.value.clone(),
                lease: None,
            })
            .collect();
        let gone = there.keys().filter(|key| !before.contains_key(*key));
        // Last: as long as it is there it says that v3 is not to be worked with.
        let (last, first): (Vec<_>, Vec<_>) = gone.partition(|key| *key == CLUSTER_INFORMATION);
        changes.extend(first.into_iter().map(|key| Change::Delete { key: key.clone() }));
        for key in last {
            let may_run = record.nodes_of_v3 || there.get(key).is_some_and(has_nodes_of_v3);
            if may_run && !self.options.no_nodes_of_v3 {
                (self.tell)(
                    "a calico-node of v3 has written to etcd v3, or may: its ClusterInformation stays, closed, since one that starts and finds none \
                     opens v3 by itself. Undo the upgrade of calico-node, then take that key away (`etcdctl del \
                     /calico/resources/v3/projectcalico.org/clusterinformations/default`)",
                );
            } else {
                changes.push(Change::Delete { key: key.clone() });
            }
        }
        self.make("making v3 as it was", changes).await?;
        Ok(left_out.len())
    }

    /// The end of the way back.
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
            prefix: kept_prefix(),
        };
        self.commit_record("recording that v3 is as it was", &record, revision, vec![forget])
            .await?;
        (self.tell)("etcd v3 is as it was before");
        Ok(())
    }

    /// Makes changes, as many at a time as etcd takes.
    async fn make(&self, attempt: &str, changes: Vec<Change>) -> Result<(), RunError> {
        for batch in batches(changes, self.options.batch) {
            self.commit(attempt, Vec::new(), batch).await?;
        }
        Ok(())
    }
}

/// Whether a calico-node of v3 has written its version.
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
