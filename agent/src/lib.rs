//! The node agent: drives its own node to its goal.
//!
//! Data flows one way in each turn of the host thread ([`host_thread`]): the host is read into facts, the kind decides, each step
//! is recorded and then performed. The main thread ([`turn`]) writes the outcome to the API ([`report`]), and runs the listeners
//! and probes. The kind of the migration ([`kinds`]) determines which facts are read and which steps are performed. Only the
//! files below [`host`] touch the machine. [`sampling`] runs beside both, for the policy preview.

pub mod args;
pub mod backoff;
pub mod echo;
pub mod goal;
pub mod health;
pub mod host;
pub mod host_thread;
pub mod kernel_tables;
pub mod kinds;
pub mod metrics;
pub mod probe;
pub mod report;
pub mod sampling;
pub mod status;
pub mod traffic;
pub mod turn;
pub mod watched_object;
