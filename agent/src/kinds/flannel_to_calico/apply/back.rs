//! Rollback steps to flannel that need more than one call.

use std::path::Path;

use super::error::ApplyError;
use flannel_to_calico::attachment::{PluginCall, deletion};
use flannel_to_calico::host::BRIDGE;

use crate::host::netlink::{Netlink, NetlinkError};
use crate::host::paths::Paths;
use crate::host::snapshot::Route;
use crate::host::sysctl;
use crate::host::{cniplugin, files};
use crate::kinds::flannel_to_calico::journal::Before;
use crate::kinds::flannel_to_calico::observe::Observation;

/// Restores a file with its content, owner and permissions.
pub(super) fn restore_file(step: &'static str, saved: &Before, path: &Path) -> Result<(), ApplyError> {
    let file = saved
        .files
        .iter()
        .find(|file| file.path == path)
        .ok_or_else(|| ApplyError::Lost {
            step,
            problem: format!(
                "the journal has no copy of {}: restart flannel's pod on this node, which writes it",
                path.display()
            ),
        })?;
    if !file.is_whole().map_err(ApplyError::file(step))? {
        return Err(ApplyError::Lost {
            step,
            problem: format!(
                "backup {} was changed (SHA-256 differs, needed {}): create {} manually, or restart flannel's pod on \
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

/// Deletes routes of a snapshot.
pub(super) async fn delete_routes<'seen>(
    routes: impl Iterator<Item = &'seen Route>,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    for route in routes {
        netlink.delete_route(route).await?;
    }
    Ok(())
}

/// Restores flannel's routes to the other nodes through this link.
pub(super) async fn restore_node_routes(
    link: &str,
    length: u8,
    seen: &Observation,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    match seen.snapshot.link(link) {
        Some(link) => {
            netlink
                .restore_node_routes(&seen.snapshot.of_link(link.index), length)
                .await
        }
        None => Ok(()),
    }
}

/// Restores flannel's link from the journal.
pub(super) async fn restore_link(
    step: &'static str,
    link: &str,
    saved: &Before,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    let network = saved.network.as_ref().ok_or_else(|| ApplyError::Lost {
        step,
        problem: format!(
            "the journal has no record of link {link}: restart flannel's pod on this node, which creates it"
        ),
    })?;
    netlink
        .restore_vxlan(network, link)
        .await
        .map(|_| ())
        .map_err(ApplyError::netlink(step))
}

/// Deletes all proxy neighbour entries of the bridge.
pub(super) async fn stop_answering(seen: &Observation, netlink: &Netlink) -> Result<(), NetlinkError> {
    let Some(bridge) = seen.snapshot.link(BRIDGE) else {
        return Ok(());
    };
    for proxy in seen.snapshot.of_link(bridge.index).proxies {
        netlink.delete_proxy(&proxy).await?;
    }
    Ok(())
}

/// Restores kernel parameters of links. Those of a deleted link do not exist any more.
pub(super) fn restore_parameters(step: &'static str, saved: &Before) -> Result<(), ApplyError> {
    for (path, value) in &saved.texts {
        sysctl::write_if_exists(path, value).map_err(ApplyError::file(step))?;
    }
    Ok(())
}

/// Removes records of ended Calico pods, and their host ports: portmap keeps these under the name of the pods' network, so that
/// the runtime's DEL with flannel's conflist did not remove them. Calico has no state of these pods any more.
pub(super) async fn remove_calico_records(
    step: &'static str,
    seen: &Observation,
    paths: &Paths,
) -> Result<(), ApplyError> {
    for path in &seen.state.of_calico {
        let Some(bytes) = files::read_if_exists(path).map_err(ApplyError::file(step))? else {
            continue;
        };
        // A malformed record names no port that could be released.
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
