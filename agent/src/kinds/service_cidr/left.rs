//! Which addresses are left, as it is asked of each of many: a tenant decides how many there are to ask of.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use service_cidr::host::Left;

/// What [`Left`] says, with as little work for 4 000 addresses that are kept as for one.
#[derive(Debug)]
pub struct Asked {
    ranges: Vec<IpNet>,
    kept: HashSet<IpAddr>,
}

impl Asked {
    /// Whether this address is left.
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
