//! What a conversion says: names that changed, names that clash, errors.

use std::fmt;

use thiserror::Error;

pub use super::decode::Mismatch;
use super::difference::Difference;
use super::key::{V2Key, V3Name};
pub use super::validate::Finding;

/// An object under its new name. Prints a line of the report `convertednames`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// What it was.
    pub from: V2Key,
    /// What it is.
    pub to: V3Name,
}

impl fmt::Display for Renamed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} -> {}", self.from, self.to)
    }
}

/// Two objects with one new name. Prints a line of the report `nameclashes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The one that came to a name which was taken.
    pub later: V2Key,
    /// The one that had it.
    pub earlier: V2Key,
    /// The name.
    pub name: V3Name,
}

impl fmt::Display for Clash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} and {} -> {}", self.later, self.earlier, self.name)
    }
}

/// A value that cannot be converted, or that v3 would refuse. Prints one line of a report.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Problem {
    /// The value.
    pub key: V2Key,
    /// Where it stands in the v2 store; of a value with several keys the directory.
    pub path: String,
    /// What it would be in v3, if it got so far.
    pub v3: Option<V3Name>,
    /// What is wrong.
    #[source]
    pub cause: Cause,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.v3 {
            Some(v3) => write!(
                formatter,
                "{} -> {v3}: {}; write {} anew in v2",
                self.key, self.cause, self.path
            ),
            None => write!(formatter, "{}: {}", self.key, self.cause),
        }
    }
}

/// What is wrong with a value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// It has to be JSON.
    #[error("the value is no JSON ({reason}): write it anew, or delete the key")]
    NotJson {
        /// What the reader says.
        reason: String,
    },
    /// A field is of another type.
    #[error("{0}: write the value anew, or delete the key")]
    Mismatch(Mismatch),
    /// It has to be something that can be read.
    #[error("found {found:?}, needed {needed}: write it anew, or delete the key")]
    Value {
        /// What it says.
        found: String,
        /// What it has to say.
        needed: &'static str,
        /// Why Calico's own tool does not say so, or says it otherwise.
        difference: Option<Difference>,
    },
    /// The key itself has to be something that can be read.
    #[error("the key ends in no {needed}: delete it, and write the value under its right key")]
    Key {
        /// What it has to end in.
        needed: &'static str,
    },
    /// v3's setting has a form that nobody wrote in v2.
    #[error(
        "found {found:?}, which has no form to be converted from: delete the key, and set it in the FelixConfiguration after the migration"
    )]
    Unconvertible {
        /// What it says.
        found: String,
    },
    /// A policy is for ingress or egress.
    #[error("types: found {found:?}, needed \"ingress\" or \"egress\": write the policy anew")]
    PolicyType {
        /// What it says.
        found: String,
    },
    /// Tags become labels.
    #[error(
        "the tag {tag:?} becomes a label without a value, and there is a label {tag:?} with the value {value:?}: rename one of them"
    )]
    TagIsLabel {
        /// The tag.
        tag: String,
        /// The label's value.
        value: String,
    },
    /// Kubernetes' workloads are called namespace.pod.
    #[error(
        "the workload is called {workload:?}, needed NAMESPACE.POD as Calico's CNI plugin writes it: delete the endpoint, or give it to another orchestrator"
    )]
    Workload {
        /// The workload.
        workload: String,
    },
    /// A part of a name.
    #[error(
        "{field} is {value:?}, needed one that is not empty and has no dash at an end: it is a part of the name in v3"
    )]
    Segment {
        /// The field in v3.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// v3 refuses it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Finding>),
    /// The object cannot be written as JSON.
    #[error("it cannot be written: {0}")]
    Unwritable(String),
    /// Nobody could release the address.
    #[error("{address} is given out, and has no handle by which it is released")]
    NoHandle {
        /// The address.
        address: String,
    },
    /// The block is torn.
    #[error("{address} is given out, and points at attribute {index} of {attributes}")]
    NoAttribute {
        /// The address.
        address: String,
        /// The attribute's place.
        index: i64,
        /// How many there are.
        attributes: usize,
    },
    /// A handle and a block count otherwise.
    #[error("it counts {counted} addresses of {block}, and the block gives it {given}")]
    HandleCount {
        /// The block's network.
        block: String,
        /// What the handle says.
        counted: i64,
        /// What the block says.
        given: i64,
    },
}

impl Cause {
    /// Why Calico's own tool does not say so, or says it otherwise.
    pub fn difference(&self) -> Option<Difference> {
        match self {
            Self::NotJson { .. } | Self::Mismatch(_) => Some(Difference::UnparsableValue),
            Self::Value { difference, .. } => *difference,
            Self::Key { .. } => Some(Difference::UnreadableKey),
            Self::Invalid(findings) => findings.iter().find_map(|finding| finding.difference),
            Self::Unconvertible { .. }
            | Self::PolicyType { .. }
            | Self::TagIsLabel { .. }
            | Self::Workload { .. }
            | Self::Segment { .. }
            | Self::Unwritable(_)
            | Self::NoHandle { .. }
            | Self::NoAttribute { .. }
            | Self::HandleCount { .. } => None,
        }
    }
}
