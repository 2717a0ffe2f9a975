//! One conversion of a datastore as it is carried out: what is recorded, and what is next from whatever was left behind.
//!
//! Two flags say which store Calico works with: `/calico/v1/Ready` in v2, and `datastoreReady` of `ClusterInformation` in v3. At no moment
//! are both true. While neither is, Calico is *paused*: packets flow by the rules that are there, and no pod gets a network. So the
//! pause has a deadline, and whoever finds it past leads back to v2.

pub mod decide;
pub mod record;
pub mod refusal;

#[cfg(test)]
mod walk;
