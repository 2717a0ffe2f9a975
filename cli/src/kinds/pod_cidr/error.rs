//! Errors of podCidr.

use thiserror::Error;

use crate::error::KindError;

/// Why there are no ranges to migrate.
#[derive(Debug, Error)]
pub enum RangeError {
    /// A new Migration with podCidr lacks a range.
    #[error("a new Migration with spec.podCidr needs both ranges: found no {}", .missing.join(" and no "))]
    NoRange {
        /// The missing flags.
        missing: Vec<&'static str>,
    },
    /// The given ranges allow no migration.
    #[error("{}", .errors.join("\n       "))]
    Ranges {
        /// Every error.
        errors: Vec<String>,
        /// What the user does, if the errors do not say it.
        hint: Option<String>,
    },
}

impl KindError for RangeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoRange { .. } => Some(
                "`kubectl get ippools.crd.projectcalico.org -o custom-columns=NAME:.metadata.name,RANGE:.spec.cidr` lists the \
                 existing IPPools"
                    .to_owned(),
            ),
            Self::Ranges { hint, .. } => hint.clone(),
        }
    }
}
