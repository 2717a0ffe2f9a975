//! A run of a conversion on the stores: its record, and the next step from any state.
//!
//! Two flags decide which store Calico works with: `/calico/v1/Ready` in v2, and `datastoreReady` of `ClusterInformation` in v3.
//! Both are never true at the same time. While both are false, Calico is *paused*: traffic follows the existing rules, and no new
//! pod gets a network. Therefore the pause has a deadline, after which every run returns to v2.

pub mod decide;
pub mod record;
pub mod refusal;

#[cfg(test)]
mod walk;
