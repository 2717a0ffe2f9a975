//! The lab's traffic: something that answers, something that asks and counts, the reports about it, and the program that
//! holds a pod's namespaces.
//!
//! A probe counts as lost if nothing came back in time *and* its target was meant to be there when it was sent: a single
//! pod while its endpoint is Ready and not terminating, a Service always. The prober watches the `EndpointSlices` of the
//! Service for that, and [`serve`] goes on answering for a while after it was told to end, so that no probe is counted
//! that was on its way while the news spread.

pub mod flood;
pub mod packet;
pub mod pause;
pub mod probe;
pub mod report;
pub mod serve;
mod socket;
