//! Fast lookup of old addresses: tenants determine the number of lookups.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use service_cidr::host::Left;

/// The same as [`Left`], with constant time per lookup also for 4 000 kept addresses.
#[derive(Debug)]
pub struct Asked {
    ranges: Vec<IpNet>,
    kept: HashSet<IpAddr>,
}

impl Asked {
    /// Whether this is an old address.
    pub fn has(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(&address)) && !self.kept.contains(&address)
    }
}

impl From<&Left> for Asked {
    fn from(left: &Left) -> Self {
        Self {
            ranges: left.ranges.clone(),
            kept: left.kept.iter().copied().collect(),
        }
    }
}
