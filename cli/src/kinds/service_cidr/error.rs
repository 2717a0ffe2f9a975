//! Errors of serviceCidr.

use thiserror::Error;

use crate::error::KindError;

/// A new Migration with serviceCidr lacks the new range.
#[derive(Debug, Error)]
#[error("a new Migration with spec.serviceCidr needs the new range: found no --service-cidr-to")]
pub struct NoServiceRange;

impl KindError for NoServiceRange {
    fn hint(&self) -> Option<String> {
        Some(
            "`kubectl get servicecidrs.networking.k8s.io kubernetes` shows the current range: the new range must not overlap \
             with it, with pods or with nodes"
                .to_owned(),
        )
    }
}
