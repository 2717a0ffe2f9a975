//! Traffic without pause: a traffic pod on the node's pod network sends and counts, the agent judges and reports.
//!
//! They talk over a socket in a folder of the host ([`line`]), so that what they say does not depend on the network
//! that they look at: the pod ([`pod`], [`prober`]) says what it counted, the agent ([`hub`]) what to send to whom.

pub mod hub;
pub mod line;
pub mod metrics;
pub mod pod;
pub mod prober;
