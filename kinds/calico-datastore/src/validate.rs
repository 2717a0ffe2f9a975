//! Validates objects as v3 does (libcalico-go, `lib/validator/v3`). A finding has the field, the value found and the value
//! needed.

pub(super) mod endpoint;
pub(super) mod metadata;
pub(super) mod policy;
pub(super) mod pool;
pub(super) mod rule;
pub(super) mod text;
pub(super) mod workload;

use super::finding::Findings;
