//! Reads both stores for a decision.

use calico_datastore::controller_objects::ControllerObjects;
use calico_datastore::run::decide::{Goal, Observed, ReadyV2};
use calico_datastore::v2::READY;
use jiff::{SignedDuration, Timestamp};

use super::prepared::Prepared;
use crate::error::StoreError;
use crate::stores::{ROOT, Recorded, Stores, ready_v3};

/// One read of both stores.
pub(super) struct Observation {
    pub(super) observed: Observed,
    /// Revision of the record.
    pub(super) revision: i64,
    /// Index of v2's flag, if it exists.
    pub(super) index: Option<u64>,
}

/// Reads both stores. v2 is read first: its index must be older than the record and the flag of v3 that the decision depends on.
pub(super) async fn observe(
    stores: &Stores,
    prepared: &Prepared,
    goal: Goal,
    settle: SignedDuration,
) -> Result<Observation, StoreError> {
    let flag = stores.v2.get(READY).await?;
    let (recorded, information, keys) = tokio::try_join!(
        stores.record(),
        stores.cluster_information(),
        stores.v3.count(ROOT),
    )?;
    let (record, revision) = match recorded {
        Some(Recorded { record, revision }) => (Some(record), revision),
        None => (None, 0),
    };
    let missing = match goal {
        Goal::Complete {
            despite_missing: false,
            ..
        } => stores.missing(prepared.remaining.clone()).await?,
        Goal::Complete { .. }
        | Goal::Start { .. }
        | Goal::AnnounceNodes
        | Goal::Reopen
        | Goal::Abort { .. } => ControllerObjects::default(),
    };
    let observed = Observed {
        record,
        v2: ReadyV2::of(flag.as_ref().map(|flag| flag.value.as_str())),
        v3: ready_v3(information.as_ref().map(|(_, value)| value))?,
        keys,
        cluster: prepared.cluster.clone(),
        hash: prepared.hash.clone(),
        missing,
        settle,
        now: Timestamp::now(),
    };
    Ok(Observation {
        observed,
        revision,
        index: flag.map(|flag| flag.index),
    })
}
