//! The kind of docs/adding-a-kind.md: it labels one ConfigMap once every agent has reported, and removes the label in a rollback.
//!
//! A kind decides here, without I/O. The coordinator and the agent read and write for it, each in its own `kinds/example/`.

pub mod api;
pub mod decide;
