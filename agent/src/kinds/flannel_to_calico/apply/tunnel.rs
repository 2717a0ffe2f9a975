//! The tunnel under its two names: flannel's and Calico's. It carries packets while it is renamed, unless the kernel does not rename
//! a link that is up.

use super::Saved;
use super::context::StepContext;
use super::error::ApplyError;
use crate::host::netlink::{NetlinkError, Renamed};
use crate::host::snapshot::{Link, Snapshot};
use crate::kinds::flannel_to_calico::journal::Before;

impl StepContext<'_> {
    /// Gives the tunnel Calico's name. Calico's routes are added first.
    pub(super) async fn rename_tunnel(
        &self,
        (from, to): (&str, &str),
        block_size: u8,
        saved: &Before,
    ) -> Result<(), ApplyError> {
        let restore = async |network: &Snapshot, name: &str| {
            let index = self.netlink.restore_vxlan(network, name).await?;
            let moved = network.moved_to(index);
            self.netlink.add_block_routes(&moved, block_size).await
        };
        if let Some(link) = self.seen.snapshot.link(from) {
            let tunnel = self.seen.snapshot.of_link(link.index);
            let routed = self.netlink.add_block_routes(&tunnel, block_size).await;
            routed.map_err(ApplyError::netlink(self.step))?;
            return self.rename_tunnel_link(link, to, restore).await;
        }
        self.restore_tunnel(saved, to, restore).await
    }

    /// Gives the tunnel flannel's name. flannel's routes are restored first: once the routes to the nodes' tunnel ends are deleted,
    /// the facts do not identify Calico's routes any more.
    pub(super) async fn return_tunnel(
        &self,
        (from, to): (&str, &str),
        saved: &Saved,
    ) -> Result<(), ApplyError> {
        let restore = async |network: &Snapshot, name: &str| {
            let index = self.netlink.restore_vxlan(network, name).await?;
            self.restore_tunnel_routes(&network.moved_to(index), saved).await
        };
        if let Some(link) = self.seen.snapshot.link(from) {
            let tunnel = self.seen.snapshot.of_link(link.index);
            let routed = self.restore_tunnel_routes(&tunnel, saved).await;
            routed.map_err(ApplyError::netlink(self.step))?;
            return self.rename_tunnel_link(link, to, restore).await;
        }
        self.restore_tunnel(&saved.of_this, to, restore).await
    }

    /// After a restart of the host or of the agent, only the journal has the attributes of the link.
    async fn restore_tunnel(
        &self,
        saved: &Before,
        name: &str,
        restore: impl AsyncFn(&Snapshot, &str) -> Result<(), NetlinkError>,
    ) -> Result<(), ApplyError> {
        match &saved.network {
            Some(network) => {
                let restored = restore(network, name).await;
                restored.map_err(ApplyError::netlink(self.step))
            }
            None => Ok(()),
        }
    }

    /// Renames the link. A kernel that does not rename a link that is up needs it down for a moment: then `restore` adds again what
    /// the kernel has deleted, under the new name, or under the old one after a failure.
    async fn rename_tunnel_link(
        &self,
        link: &Link,
        to: &str,
        restore: impl AsyncFn(&Snapshot, &str) -> Result<(), NetlinkError>,
    ) -> Result<(), ApplyError> {
        let netlink_error = || ApplyError::netlink(self.step);
        let renamed = self.netlink.rename_link(link, to).await;
        if renamed.map_err(netlink_error())? == Renamed::Yes {
            return Ok(());
        }
        tracing::info!(
            link = link.name,
            "the kernel does not rename a link that is up: the link is down for a moment"
        );
        let tunnel = self.seen.snapshot.of_link(link.index);
        let destinations = tunnel.routes.iter().map(|route| route.destination).collect();
        let links = vec![link.name.clone(), to.to_owned()];
        self.keep_connections(links, Some(link), destinations, async || {
            let renamed = self.netlink.rename_while_down(link, to);
            let name = if renamed.is_ok() { to } else { &link.name };
            restore(&tunnel, name).await.map_err(netlink_error())?;
            renamed.map_err(netlink_error())
        })
        .await
    }

    async fn restore_tunnel_routes(&self, tunnel: &Snapshot, saved: &Saved) -> Result<(), NetlinkError> {
        if let Some(length) = range_length(&saved.of_change) {
            self.netlink.restore_node_routes(tunnel, length).await?;
        }
        self.netlink.restore_own_routes(tunnel).await
    }
}

/// Prefix length of a node's range: the shortest of the routes that start with another node's tunnel end. The route to the node's
/// first block starts with it, too, and may remain after a crash.
fn range_length(before: &Before) -> Option<u8> {
    let routes = before.network.as_ref()?.routes.iter();
    routes
        .filter(|route| {
            let gateway = route.hops.first().and_then(|(gateway, _)| *gateway);
            gateway == Some(route.destination.network())
        })
        .map(|route| route.destination.prefix_len())
        .min()
}
