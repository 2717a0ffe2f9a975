//! Keeps old tunnel addresses on the host while Calico replaces them, and adds the new ones before Calico reads them.
//!
//! Needs no journal: a kept address has replumb's label and is recognized after any restart, and is removed once it is no longer
//! requested.

use pod_cidr::host::{AddressChange, ChangedTunnelAddress, changes, refused};

use crate::host::netlink::{Netlink, NetlinkError};

/// Sets the addresses of the host to the requested ones, and returns refused requests, one line each.
///
/// # Errors
///
/// The kernel refuses the request, or the netlink socket fails.
pub async fn set_addresses(
    netlink: &Netlink,
    ends: &[ChangedTunnelAddress],
) -> Result<Vec<String>, NetlinkError> {
    let found = netlink.link_addresses().await?;
    for change in changes(ends, &found) {
        netlink.change_address(&change).await?;
        match change {
            AddressChange::Keep(address) => {
                tracing::info!(%address, "old tunnel address added to the loopback link");
            }
            AddressChange::Drop(address) => {
                tracing::info!(%address, "old tunnel address removed from the loopback link");
            }
            AddressChange::Add(link, address) => {
                tracing::info!(%address, link, "new tunnel address added");
            }
        }
    }
    Ok(refused(ends, &found))
}
