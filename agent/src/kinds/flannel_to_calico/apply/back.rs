//! Changes back to flannel that are more than one call.

use std::path::Path;

use super::Saved;
use super::error::ApplyError;
use engine::cni::{PluginCall, deletion};
use flannel_to_calico::host::BRIDGE;

use crate::host::netlink::{Netlink, NetlinkError, Renamed};
use crate::host::snapshot::{Route, Snapshot};
use crate::host::sysctl;
use crate::host::{cniplugin, files};
use crate::kinds::flannel_to_calico::journal::Before;
use crate::kinds::flannel_to_calico::observe::{Observation, Paths};

/// Puts a file where it was, with its bytes, its owner and its permissions.
pub(super) fn put_back(step: &'static str, saved: &Before, path: &Path) -> Result<(), ApplyError> {
    let file = saved
        .files
        .iter()
        .find(|file| file.path == path)
        .ok_or_else(|| ApplyError::Lost {
            step,
            problem: format!(
                "the journal has no copy of {}; restart flannel's pod on this node, which writes it",
                path.display()
            ),
        })?;
    if !file.is_whole().map_err(ApplyError::file(step))? {
        return Err(ApplyError::Lost {
            step,
            problem: format!(
                "{} is not as it was saved (its SHA-256 is not {}); put {} there by hand, or restart flannel's pod on \
                 this node, which writes it",
                file.copy.display(),
                file.sha256,
                path.display()
            ),
        });
    }
    let bytes = files::read(&file.copy).map_err(ApplyError::file(step))?;
    files::write_durably_as(path, &bytes, file.mode, (file.user, file.group)).map_err(ApplyError::file(step))
}

/// Deletes routes as they were seen.
pub(super) async fn delete_routes<'seen>(
    routes: impl Iterator<Item = &'seen Route>,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    for route in routes {
        netlink.delete_route(route).await?;
    }
    Ok(())
}

/// The old name, while packets go through; or, where the kernel does not do that, the link made again. With flannel's
/// routes: of Calico's nobody can tell by the facts alone that they are Calico's, once those to the nodes' ends are gone.
pub(super) async fn return_link(
    from: &str,
    to: &str,
    seen: &Observation,
    saved: &Saved,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    if let Some(link) = seen.snapshot.link(from) {
        restore_routes(&seen.snapshot.of_link(link.index), saved, netlink).await?;
        match netlink.rename_link(link, to).await? {
            Renamed::Yes => return Ok(()),
            Renamed::Refused => netlink.delete_link(link.index, from).await?,
        }
    }
    let Some(network) = &saved.of_this.network else {
        return Ok(());
    };
    let index = netlink.restore_vxlan(network, to).await?;
    restore_routes(&network.moved_to(index), saved, netlink).await
}

async fn restore_routes(tunnel: &Snapshot, saved: &Saved, netlink: &Netlink) -> Result<(), NetlinkError> {
    if let Some(length) = range_length(&saved.of_change) {
        netlink.restore_node_routes(tunnel, length).await?;
    }
    netlink.restore_own_routes(tunnel).await
}

/// Length of a node's range: that of flannel's route to any other node, which begins with that node's end. So does the route
/// to its first block, which a crash may have left beside it.
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

/// flannel's link, as the journal has it.
pub(super) async fn restore_link(
    step: &'static str,
    link: &str,
    saved: &Before,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    let network = saved.network.as_ref().ok_or_else(|| ApplyError::Lost {
        step,
        problem: format!(
            "the journal does not say what link {link} was; flanneld makes it when its pod starts"
        ),
    })?;
    netlink
        .restore_vxlan(network, link)
        .await
        .map(|_| ())
        .map_err(ApplyError::netlink(step))
}

/// The bridge answers for no address of IPv6 but its own.
pub(super) async fn stop_answering(seen: &Observation, netlink: &Netlink) -> Result<(), NetlinkError> {
    let Some(bridge) = seen.snapshot.link(BRIDGE) else {
        return Ok(());
    };
    for proxy in seen.snapshot.of_link(bridge.index).proxies {
        netlink.delete_proxy(&proxy).await?;
    }
    Ok(())
}

/// Kernel parameters as they were. Those of a link that is gone went with it.
pub(super) fn put_parameters_back(step: &'static str, saved: &Before) -> Result<(), ApplyError> {
    for (path, value) in &saved.texts {
        if files::read_if_there(path)
            .map_err(ApplyError::file(step))?
            .is_some()
        {
            sysctl::write(path, value).map_err(ApplyError::file(step))?;
        }
    }
    Ok(())
}

/// What Calico's pods that are gone have left beside Calico: ports of the host, which portmap keeps under the name of their
/// network and the runtime's own DEL, by flannel's conflist, did not find. Calico itself has nothing of them any more.
pub(super) async fn forget_calicos_pods(
    step: &'static str,
    seen: &Observation,
    paths: &Paths,
) -> Result<(), ApplyError> {
    for path in &seen.state.of_calico {
        let Some(bytes) = files::read_if_there(path).map_err(ApplyError::file(step))? else {
            continue;
        };
        // A record that is not understood names nothing that could be given back.
        let calls: Vec<PluginCall> = deletion(&bytes)
            .unwrap_or_default()
            .into_iter()
            .filter(|call| call.plugin == "portmap")
            .collect();
        cniplugin::call(&paths.cni_plugins, &calls)
            .await
            .map_err(|source| ApplyError::CniPlugin { step, source })?;
        files::remove_durably(path).map_err(ApplyError::file(step))?;
    }
    Ok(())
}
