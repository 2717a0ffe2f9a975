//! The record of a conversion, in etcd v3 beside Calico's own keys.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::{Display, VariantArray};

/// Prefix of all keys of replumb in etcd v3. Not below `/calico/`, which belongs to Calico and has to be empty before.
pub const PREFIX: &str = "/replumb/calico-datastore/";

/// Phase of a conversion: the state that is certain.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Display, VariantArray,
)]
pub enum Phase {
    /// The conversion is announced. v2 may be paused.
    Pausing,
    /// The conversion has paused v2. v3 is unchanged.
    Paused,
    /// Former keys of v3 are copied, the snapshot of v2 is taken, and some of its keys may be in v3.
    Writing,
    /// All keys are in v3.
    Written,
    /// All keys were read again and are correct.
    Verified,
    /// v3 is being opened, and may be open.
    Completing,
    /// v3 is open, and v2 is not. Final.
    Completed,
    /// The conversion is being aborted. Either flag may have changed already.
    Aborting,
    /// v2 is open, and v3 is restored. Final.
    Aborted,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

/// The snapshot of v2 that is converted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// SHA-256 of the converted data, in hexadecimal, without `uid` and time.
    pub hash: String,
    /// Time of the read of v2, and `creationTimestamp` of every resource.
    pub taken_at: Timestamp,
    /// Number of keys to write.
    pub objects: usize,
}

/// The record of one conversion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// ID of the run: 32 hexadecimal digits. The `uid` of each resource is derived from it, so that a run that continues writes
    /// the same values.
    pub id: String,
    /// Phase of the conversion.
    pub phase: Phase,
    /// `ClusterGUID` of v2. The record is valid only for this cluster.
    pub cluster: String,
    /// Time of the announcement.
    pub started_at: Timestamp,
    /// Time at which v2 was found paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// Time of the automatic abort, unless v3 is open by then.
    pub abort_at: Timestamp,
    /// The snapshot; set in phase Writing and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// Number of keys of the snapshot that are in v3, in order.
    #[serde(default)]
    pub written: usize,
    /// Whether v3 may have keys below `/calico/`, which are overwritten.
    #[serde(default)]
    pub over_existing: bool,
    /// Number of former keys below `/calico/` in v3, which are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<usize>,
    /// Whether a calico-node of v3 may run. One that starts without `ClusterInformation` opens v3, so an abort keeps this object,
    /// with the flag false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nodes_of_v3: bool,
    /// Cause of an automatic abort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Version of the tool that wrote the record.
    pub tool: String,
}

impl Record {
    /// Whether the record belongs to another cluster. The record of an aborted conversion belongs to none.
    pub fn is_of_another(&self, cluster: &str) -> bool {
        self.phase != Phase::Aborted && self.cluster != cluster
    }

    /// Whether the pause has lasted longer than its limit.
    pub fn is_overdue(&self, v3_is_open: bool, now: Timestamp) -> bool {
        let is_paused = match self.phase {
            Phase::Pausing
            | Phase::Paused
            | Phase::Writing
            | Phase::Written
            | Phase::Verified
            | Phase::Aborting => true,
            Phase::Completing => !v3_is_open,
            Phase::Completed | Phase::Aborted => false,
        };
        is_paused && self.abort_at <= now
    }
}
