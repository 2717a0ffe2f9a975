//! What is written down about a conversion, in etcd v3 beside Calico's own keys.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Everything of ours in etcd v3. Not below `/calico/`: that has to be empty before, and is Calico's.
pub const PREFIX: &str = "/replumb/calico-datastore/";

/// How far it is, as what is true for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// It was announced. Whether v2 is paused is not known from this alone.
    Pausing,
    /// v2 is paused, by us. v3 is as it was.
    Paused,
    /// What was in v3 before is kept aside. The data of v2 that are converted are chosen, and some of them are in v3.
    Writing,
    /// All of them are in v3.
    Written,
    /// They were read again, and are what the conversion says.
    Verified,
    /// v3 is being opened. Whether it is open is not known from this alone.
    Completing,
    /// v3 is open, v2 is not. The end.
    Completed,
    /// It goes back. Which of the flags have been turned is not known from this alone.
    Aborting,
    /// v2 is open, v3 is as it was before. The other end.
    Aborted,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 9] = [
        Self::Pausing,
        Self::Paused,
        Self::Writing,
        Self::Written,
        Self::Verified,
        Self::Completing,
        Self::Completed,
        Self::Aborting,
        Self::Aborted,
    ];
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// The data of v2 that are converted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// SHA-256 of all that is written, in hexadecimal: of equal data it is equal.
    pub hash: String,
    /// When v2 was read. `creationTimestamp` of every resource.
    pub taken_at: Timestamp,
    /// How many keys are written.
    pub objects: usize,
}

/// The record of one conversion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Names it: 32 hexadecimal digits. The `uid` of each resource follows from it, so that whoever goes on writes the same.
    pub id: String,
    /// How far it is.
    pub phase: Phase,
    /// `ClusterGUID` of v2: of another cluster this record says nothing.
    pub cluster: String,
    /// When it was announced.
    pub started_at: Timestamp,
    /// When v2 was found paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// When it goes back by itself, unless v3 is open by then.
    pub abort_at: Timestamp,
    /// What is converted; from phase Writing on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// How many keys of the snapshot are in v3, in order.
    #[serde(default)]
    pub written: usize,
    /// Whether something may be below `/calico/` in v3 before, and is written over.
    #[serde(default)]
    pub over_existing: bool,
    /// How many keys were below `/calico/` in v3 before; they are kept aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<usize>,
    /// Whether a calico-node of v3 may run: one that starts and finds no `ClusterInformation` opens v3, so that it stays there, closed,
    /// on the way back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nodes_of_v3: bool,
    /// Why it goes back, or went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Version of the tool that wrote this.
    pub tool: String,
}

impl Record {
    /// Whether it says something of another cluster. One that has gone back says nothing of any.
    pub fn is_of_another(&self, cluster: &str) -> bool {
        self.phase != Phase::Aborted && self.cluster != cluster
    }

    /// Whether no pod gets a network by now for longer than was meant.
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
