//! The lab's traffic: a server that answers, a prober that sends and counts, the reports of the prober, and the
//! program that holds a pod's namespaces.
//!
//! A probe counts as lost if no answer arrived in time *and* its target should have been available when it was sent:
//! a single pod while its endpoint is Ready and not terminating, a Service always. For that purpose the prober
//! watches the `EndpointSlices` of the Service, and [`serve`] continues to answer for a while after it was told to
//! end, so that probes are not counted that were sent before the change was known everywhere.

#![expect(
    clippy::missing_errors_doc,
    reason = "a test prints its error with the attempt, and no crate of the product calls these functions"
)]

pub mod answer;
pub mod ask;
pub mod flood;
pub mod packet;
pub mod pause;
pub mod probe;
pub mod report;
pub mod serve;
mod socket;
