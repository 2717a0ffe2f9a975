//! Why a conversion does not go where it was to go, and what a person does about it.

use thiserror::Error;

use super::record::Phase;
use crate::left::Left;

/// Why it does not go there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// v2 has no flag.
    #[error("etcd v2 has no key /calico/v1/Ready: no Calico v2 works with it")]
    NoFlag,
    /// v2 was paused by somebody else.
    #[error(
        "/calico/v1/Ready in etcd v2 is {value:?} and there is no record of ours: somebody else has paused Calico"
    )]
    PausedBySomebody {
        /// What the flag says.
        value: String,
    },
    /// v3 has data.
    #[error("etcd v3 has {keys} keys below /calico/: whose they are is not known")]
    NotEmpty {
        /// How many.
        keys: usize,
    },
    /// v3 is open without our doing, or since we were done.
    #[error("Calico works with etcd v3 already (datastoreReady is true): {then}")]
    V3Open {
        /// What would follow.
        then: &'static str,
    },
    /// v2 is open while v3 is to be.
    #[error(
        "/calico/v1/Ready in etcd v2 is true: with datastoreReady as well Calico would work with two stores"
    )]
    V2Open,
    /// There is nothing to complete.
    #[error(
        "there is no record of a conversion in etcd v3: Calico would be led to a store that nobody has filled"
    )]
    NothingConverted,
    /// It is not far enough.
    #[error(
        "the conversion is in phase {phase}: v3 is opened only when everything is written and was read again (Verified)"
    )]
    NotVerified {
        /// How far it is.
        phase: Phase,
    },
    /// It was completed.
    #[error("the conversion was completed at an earlier time: Calico works with etcd v3")]
    Completed,
    /// It was completed, and is to be left.
    #[error(
        "the conversion was completed: what has been written to etcd v3 since then would be lost, and pods with it their network"
    )]
    LeavesCompleted,
    /// v3 has lost what was written.
    #[error(
        "etcd v3 has {keys} keys below /calico/, and {objects} were written: Calico would be led to half a store"
    )]
    Lost {
        /// How many are there.
        keys: usize,
        /// How many there have to be.
        objects: usize,
    },
    /// It is being completed.
    #[error("the conversion is being completed")]
    BeingCompleted,
    /// v2 has changed.
    #[error("etcd v2 says something else than what was converted: those changes would be lost")]
    Changed,
    /// The controllers of v3 have not written theirs.
    #[error(
        "etcd v3 has not yet {left}, which Calico's controllers of v3 write: once v3 is open, new connections of pods whose profile is missing are \
         dropped, and policies that are missing hold nothing back"
    )]
    Missing {
        /// What is missing.
        left: Left,
    },
    /// The record is of another cluster.
    #[error("the record in etcd v3 is of the cluster {record:?}, and etcd v2 is of the cluster {here:?}")]
    OtherCluster {
        /// The record's.
        record: String,
        /// That of v2.
        here: String,
    },
}

impl Refusal {
    /// What a person does about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoFlag => {
                "are these the endpoints of the etcd that Calico v2 uses, and is Calico v2 with etcd installed?"
            }
            Self::PausedBySomebody { .. } => {
                "if no other upgrade is under way, `abort` sets it to true; then start again"
            }
            Self::NotEmpty { .. } => {
                "look at them (`etcdctl get --prefix --keys-only /calico/`); remove them, or start with --ignore-v3-data, which writes over \
                 equal keys and, on abort, puts back what was there"
            }
            Self::V3Open { .. } => {
                "who opened it? `status` shows both stores; nobody but a person can tell which of them is right"
            }
            Self::V2Open => "who set it to true? `abort` takes the conversion back; then start again",
            Self::NothingConverted => "`start` first; and are these the endpoints that it was started with?",
            Self::NotVerified { .. } => "`start` goes on where it stopped, `abort` takes it back",
            Self::Completed => "nothing is to be done; `status` shows both stores",
            Self::LeavesCompleted => {
                "undo the upgrade of calico-node and the controllers first (`kubectl rollout undo`), then `abort --after-completion`"
            }
            Self::Lost { .. } => "who took them away? `abort` takes the conversion back; then start again",
            Self::BeingCompleted => "`complete` goes on where it stopped; `abort` takes it back",
            Self::Changed => {
                "`abort`, then start again; or `complete --despite-changes` if what changed does not matter (`dry-run` shows it)"
            }
            Self::Missing { .. } => {
                "let calico-kube-controllers of v3 run, which write it within seconds while Calico is paused (see their log); then `complete` again. \
                 Where nobody is to write it (its namespace was deleted meanwhile, no controllers run), `complete --despite-missing`"
            }
            Self::OtherCluster { .. } => "check the endpoints of both stores: they have to be of one cluster",
        }
    }
}
