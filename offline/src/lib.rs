//! A snapshot of a cluster, judged without the cluster: the coordinator's own passes over an API server in memory.
//!
//! [`snapshot`] reads the document and completes it to objects and reports of hosts; `agents` reports for the hosts as their agents
//! would; [`cluster`] answers the requests of a command and of the coordinator; [`judge`] returns checks and plan; [`field_case`]
//! compares them with what is right; [`bundle`] makes a snapshot of a real cluster, and [`rehearsal`] runs a
//! whole migration on one.

mod agents;
pub mod bundle;
pub mod cluster;
pub mod field_case;
pub mod judge;
mod lock;
mod paths;
pub mod rehearsal;
pub mod snapshot;
mod source;
