//! Reasons to refuse a goal, with the fix for the user.

use thiserror::Error;

use super::record::Phase;
use crate::controller_objects::ControllerObjects;

/// Reason to refuse a goal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// v2 has no flag.
    #[error("etcd v2 has no key /calico/v1/Ready: no Calico v2 works with it")]
    NoFlag,
    /// Another program has paused v2.
    #[error(
        "/calico/v1/Ready in etcd v2 is {value:?}, and etcd v3 has no record of it: another program has paused Calico"
    )]
    PausedByOthers {
        /// The value of the flag.
        value: String,
    },
    /// v3 has data.
    #[error("etcd v3 has keys of unknown origin below /calico/: {keys}")]
    NotEmpty {
        /// Number of keys.
        keys: usize,
    },
    /// v3 is open, and this tool has not opened it in this conversion.
    #[error("Calico works with etcd v3 already (datastoreReady is true): {then}")]
    V3Open {
        /// The consequence.
        then: &'static str,
    },
    /// v2 is open, and v3 would be open as well.
    #[error(
        "/calico/v1/Ready in etcd v2 is true: with datastoreReady true as well, Calico would work with two stores"
    )]
    V2Open,
    /// There is no conversion to complete.
    #[error("etcd v3 has no record of a conversion: Calico would work with a store without data")]
    NothingConverted,
    /// The data of v3 is not verified yet.
    #[error("the conversion is in phase {phase}, needed Verified: all keys written and read again")]
    NotVerified {
        /// Phase of the conversion.
        phase: Phase,
    },
    /// The conversion is completed.
    #[error("the conversion was completed before: Calico works with etcd v3")]
    Completed,
    /// The conversion is completed, and an abort would lose data.
    #[error(
        "the conversion was completed: later changes in etcd v3 would be lost, and newer pods would lose their network"
    )]
    AlreadyCompleted,
    /// Keys of v3 are missing.
    #[error(
        "keys below /calico/ in etcd v3: found {keys}, needed {objects}: Calico would work with an incomplete store"
    )]
    KeysMissing {
        /// Number of existing keys.
        keys: usize,
        /// Number of written keys.
        objects: usize,
    },
    /// The conversion is being completed.
    #[error("the conversion is being completed")]
    BeingCompleted,
    /// v2 has changed.
    #[error("etcd v2 has changed since the conversion: these changes would be lost")]
    Changed,
    /// The controllers of v3 have not written all their objects.
    #[error(
        "etcd v3 has not yet {missing}, which Calico's controllers of v3 write: with v3 open, pods without a profile lose new \
         connections, and missing policies restrict nothing"
    )]
    Missing {
        /// The missing objects.
        missing: ControllerObjects,
    },
    /// The record belongs to another cluster.
    #[error("the record in etcd v3 belongs to cluster {record:?}, and etcd v2 to cluster {here:?}")]
    OtherCluster {
        /// Cluster of the record.
        record: String,
        /// Cluster of v2.
        here: String,
    },
}

impl Refusal {
    /// The fix for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoFlag => {
                "check that these are the endpoints of the etcd of Calico v2, and that Calico v2 with etcd is installed"
            }
            Self::PausedByOthers { .. } => {
                "if no other upgrade is in progress, `abort` sets it to true; then start again"
            }
            Self::NotEmpty { .. } => {
                "list them (`etcdctl get --prefix --keys-only /calico/`) and remove them, or start with --ignore-v3-data, which \
                 overwrites equal keys; `abort` restores them"
            }
            Self::V3Open { .. } => {
                "find out which program opened it: `status` shows both stores, and only you can decide which one is right"
            }
            Self::V2Open => "find out which program set it to true; `abort` the conversion, then start again",
            Self::NothingConverted => "run `start` first, and check that the endpoints are the same",
            Self::NotVerified { .. } => "`start` continues where it stopped, `abort` undoes the conversion",
            Self::Completed => "nothing to do; `status` shows both stores",
            Self::AlreadyCompleted => {
                "undo the upgrade of calico-node and controllers first (`kubectl rollout undo`), then `abort --after-completion`"
            }
            Self::KeysMissing { .. } => {
                "find out which program deleted them; `abort` the conversion, then start again"
            }
            Self::BeingCompleted => "`complete` continues where it stopped; `abort` undoes the conversion",
            Self::Changed => {
                "`abort`, then start again; or `complete --despite-changes` if the changes do not matter (see `dry-run`)"
            }
            Self::Missing { .. } => {
                "run calico-kube-controllers of v3, which writes them within seconds while Calico is paused (check its log), \
                 then `complete` again. If they will never be written (the namespace was deleted, or no controllers run), use \
                 `complete --despite-missing`"
            }
            Self::OtherCluster { .. } => {
                "check the endpoints of both stores: both have to belong to one cluster"
            }
        }
    }
}
