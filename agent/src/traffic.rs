//! Continuous traffic: a traffic pod on the node's pod network sends and counts probes, the agent judges and reports.
//!
//! Both communicate over a socket in a folder of the host ([`mod@line`]), independent of the network under test: the pod
//! ([`pod`], [`prober`]) reports its counts, the agent ([`hub`]) says which flows to send.

pub mod hub;
pub mod line;
pub mod metrics;
pub mod pod;
pub mod prober;
