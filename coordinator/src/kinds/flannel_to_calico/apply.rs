//! The writes: cluster-wide objects before the first node, the steps of a node, the end after the last node, and the rollback of
//! cluster-wide objects, each in a documented order.

pub(super) mod finish;
pub(super) mod import;
pub(super) mod node;
pub(super) mod prepare;
pub(super) mod rollback;
