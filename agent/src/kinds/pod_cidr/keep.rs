//! Old addresses of tunnels' ends stay on the host while Calico exchanges them, and its new ones are there when it looks.
//!
//! There is no journal: an address that is kept has a label of ours, so that it is known after whatever has happened, and what
//! is not asked for any more goes.

use pod_cidr::host::{AddressChange, TunnelEnd, changes, refused};

use crate::host::netlink::{Netlink, NetlinkError};

/// Brings the addresses of the host to what is asked for, and returns what is not done of it, one line each.
pub async fn keep(netlink: &Netlink, ends: &[TunnelEnd]) -> Result<Vec<String>, NetlinkError> {
    let found = netlink.link_addresses().await?;
    for change in changes(ends, &found) {
        netlink.change_address(&change).await?;
        match change {
            AddressChange::Keep(address) => {
                tracing::info!(%address, "keeping the old address of the tunnel on the loopback");
            }
            AddressChange::Drop(address) => {
                tracing::info!(%address, "the old address of the tunnel is not kept any more");
            }
            AddressChange::Add(link, address) => {
                tracing::info!(%address, link, "the new address of the tunnel is there before Calico looks");
            }
        }
    }
    Ok(refused(ends, &found))
}
