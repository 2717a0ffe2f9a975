//! The node agent: drives its own node to its goal.
//!
//! Data flows one way in each turn of the host's own thread ([`host_thread`]): the host is read into facts, the kind decides, one step
//! after another is written down and performed. The main thread ([`turn`]) tells the API the outcome ([`report`]), and has the
//! listeners and probes. What is read, decided and done differs by
//! the kind of the migration ([`kinds`]). Nothing but the files below [`host`] touches the machine.

pub mod args;
pub mod backoff;
pub mod echo;
pub mod goal;
pub mod health;
pub mod host;
pub mod host_thread;
pub mod kinds;
pub mod metrics;
pub mod probe;
pub mod report;
pub mod traffic;
pub mod turn;
