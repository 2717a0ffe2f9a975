//! How soon a changed report of a host is needed.

use engine::host_report::{HostReport, Urgency};

use crate::host::{HostFacts, HostSettings, is_news};

impl HostReport for HostFacts {
    type Orders = HostSettings;

    fn urgency(&self, old: &Self, _orders: Option<&HostSettings>) -> Urgency {
        if is_news(old, self) {
            Urgency::Now
        } else if old == self {
            Urgency::Late
        } else {
            Urgency::Soon
        }
    }
}
