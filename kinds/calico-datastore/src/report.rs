//! Reports of a conversion: changed names, clashes of names, and errors.

use std::fmt;

use thiserror::Error;

use super::difference::Difference;
pub use super::finding::Finding;
use super::key::{V2Key, V3Name};
pub use super::mismatch::Mismatch;

/// An object under its new name. Prints a line of the report `convertednames`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The object in v2.
    pub from: V2Key,
    /// The object in v3.
    pub to: V3Name,
}

impl fmt::Display for Renamed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} -> {}", self.from, self.to)
    }
}

/// Two objects with the same new name. Prints a line of the report `nameclashes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The later object.
    pub later: V2Key,
    /// The earlier object, which keeps the name.
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
    /// The key in the v2 store; the directory of an object with several keys.
    pub path: String,
    /// The object in v3; `None` when the value was not converted.
    pub v3: Option<V3Name>,
    /// The problem.
    #[source]
    pub cause: Cause,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.v3 {
            Some(v3) => write!(
                formatter,
                "{} -> {v3}: {}; correct {} in v2",
                self.key, self.cause, self.path
            ),
            None => write!(formatter, "{}: {}", self.key, self.cause),
        }
    }
}

/// A problem of a value, and the fix.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// The value is not JSON.
    #[error("the value is not JSON ({reason}): correct it, or delete the key")]
    NotJson {
        /// The error of the parser.
        reason: String,
    },
    /// A field has a wrong type.
    #[error("{0}: correct the value, or delete the key")]
    Mismatch(Mismatch),
    /// The value is invalid.
    #[error("found {found:?}, needed {needed}: correct it, or delete the key")]
    Value {
        /// The value found.
        found: String,
        /// The value needed.
        needed: &'static str,
        /// The difference from Calico's own tool, if there is one.
        difference: Option<Difference>,
    },
    /// The key is invalid.
    #[error("the key has no {needed} at its end: delete it, and write the value under the correct key")]
    Key {
        /// The last part that is needed.
        needed: &'static str,
    },
    /// The setting has no known form in v2.
    #[error(
        "found {found:?}, which has no known form in v2: delete the key, and set it in the FelixConfiguration after the migration"
    )]
    Unconvertible {
        /// The value found.
        found: String,
    },
    /// The type of a policy is invalid.
    #[error("types: found {found:?}, needed \"ingress\" or \"egress\": correct the policy")]
    PolicyType {
        /// The type found.
        found: String,
    },
    /// A tag is already a label.
    #[error(
        "the tag {tag:?} becomes a label without a value, but the label {tag:?} has the value {value:?}: rename one of them"
    )]
    TagIsLabel {
        /// The tag.
        tag: String,
        /// The value of the label.
        value: String,
    },
    /// The name of a workload of Kubernetes is not `NAMESPACE.POD`.
    #[error(
        "workload is {workload:?}, needed NAMESPACE.POD from Calico's CNI plugin: delete the endpoint, or change its orchestrator"
    )]
    Workload {
        /// The workload.
        workload: String,
    },
    /// A part of a name is ambiguous.
    #[error(
        "{field} is {value:?}, needed a text that is not empty and has no dash at its ends: it is a part of the name in v3"
    )]
    Segment {
        /// The field in v3.
        field: &'static str,
        /// The value of the field.
        value: String,
    },
    /// v3 refuses the object.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Finding>),
    /// The object cannot be written as JSON.
    #[error("cannot be written: {0}")]
    Unwritable(String),
    /// An address has no handle.
    #[error("{address} is allocated without a handle, so it cannot be released")]
    NoHandle {
        /// The address.
        address: String,
    },
    /// An address refers to an attribute that does not exist.
    #[error("{address} is allocated to attribute {index} of {attributes}")]
    NoAttribute {
        /// The address.
        address: String,
        /// Index of the attribute.
        index: i64,
        /// Number of attributes.
        attributes: usize,
    },
    /// A handle and a block have different counts.
    #[error("counts addresses of {block}: {counted}, allocated in the block: {given}")]
    HandleCount {
        /// Network of the block.
        block: String,
        /// Count of the handle.
        counted: i64,
        /// Count of the block.
        given: i64,
    },
}

impl Cause {
    /// The difference from Calico's own tool, if there is one.
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
