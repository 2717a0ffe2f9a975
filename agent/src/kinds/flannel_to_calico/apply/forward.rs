//! Steps towards Calico that need more than one call.

use std::net::{IpAddr, Ipv6Addr};

use flannel_to_calico::attachment::deletion;
use flannel_to_calico::host::{BRIDGE, HostStep};
use ipnet::{IpNet, Ipv6Net};

use super::before::records;
use super::error::ApplyError;
use crate::host::files::{self, FileError};
use crate::host::netlink::{Netlink, NetlinkError, ROUTE_PROTOCOL};
use crate::host::paths::Paths;
use crate::host::snapshot::Route;
use crate::host::{cniplugin, sysctl};
use crate::kinds::flannel_to_calico::facts;
use crate::kinds::flannel_to_calico::observe::Observation;

/// Deletes a link by its index in the observation: a newer link with the same name belongs to another program.
pub(super) async fn delete_link(
    step: &'static str,
    link: &str,
    seen: &Observation,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    match seen.snapshot.link(link) {
        Some(link) => netlink
            .delete_link(link.index, &link.name)
            .await
            .map_err(ApplyError::netlink(step)),
        None => Ok(()),
    }
}

/// Adds a route to the bridge for each of these pods.
pub(super) async fn route(
    addresses: &[IpAddr],
    seen: &Observation,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    let Some(bridge) = seen.snapshot.link(BRIDGE) else {
        return Ok(());
    };
    for address in addresses {
        netlink.add_host_route(*address, bridge.index).await?;
    }
    Ok(())
}

/// Sets the parameters with which the bridge answers for pods.
pub(super) fn answer_for_pods(seen: &Observation, paths: &Paths) -> Result<(), FileError> {
    let speaks_ipv6 = facts::speaks_ipv6(&seen.snapshot, BRIDGE);
    for (parameter, value) in sysctl::answering(BRIDGE, speaks_ipv6) {
        sysctl::write(&paths.sysctl.join(parameter), value)?;
    }
    Ok(())
}

/// Adds routes to the subnets of the other nodes through this link.
pub(super) async fn route_subnets(
    link: &str,
    length: u8,
    seen: &Observation,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    match seen.snapshot.link(link) {
        Some(link) => {
            netlink
                .add_subnet_routes(&seen.snapshot.of_link(link.index), length)
                .await
        }
        None => Ok(()),
    }
}

/// Removes the leases and records of flannel's CNI plugins, then their empty folders.
pub(super) fn remove_leases(seen: &Observation) -> Result<(), FileError> {
    let state = &seen.state;
    for path in state
        .leases
        .iter()
        .chain(&state.bookkeeping)
        .chain(&state.delegates)
    {
        files::remove_durably(path)?;
    }
    for folder in &state.folders {
        files::remove_folder_if_empty(folder)?;
    }
    Ok(())
}

/// Sets the bridge's proxy neighbour entries to exactly these addresses.
pub(super) async fn answer(
    networks: &[Ipv6Net],
    seen: &Observation,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    let Some(bridge) = seen.snapshot.link(BRIDGE) else {
        return Ok(());
    };
    let existing = seen.snapshot.of_link(bridge.index).proxies;
    let is_wanted = |address: &Ipv6Addr| networks.iter().any(|network| network.contains(address));
    for proxy in existing.iter().filter(|proxy| !is_wanted(&proxy.address)) {
        netlink.delete_proxy(proxy).await?;
    }
    let exists = |address: &Ipv6Addr| existing.iter().any(|proxy| proxy.address == *address);
    for address in networks.iter().flat_map(Ipv6Net::hosts) {
        if !exists(&address) {
            netlink.add_proxy(bridge.index, address).await?;
        }
    }
    Ok(())
}

/// Removes the remains of an ended pod. Its record is removed last: while it exists, the step is not done.
pub(super) async fn remove_legacy_pod(
    sandbox: &str,
    seen: &Observation,
    paths: &Paths,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    let step = HostStep::ForgetLegacyPod(sandbox.to_owned()).name();
    let pods = seen.facts.legacy_pods.iter().filter(|pod| pod.sandbox == sandbox);
    let addresses: Vec<IpNet> = pods
        .flat_map(|pod| &pod.addresses)
        .map(|own| IpNet::from(*own))
        .collect();
    let is_own = |route: &&Route| route.protocol == ROUTE_PROTOCOL && addresses.contains(&route.destination);
    for route in seen.snapshot.routes.iter().filter(is_own) {
        netlink
            .delete_route(route)
            .await
            .map_err(ApplyError::netlink(step))?;
    }
    for path in records(seen, sandbox) {
        let file_error = ApplyError::file(step);
        let Some(bytes) = files::read_if_exists(path).map_err(&file_error)? else {
            continue;
        };
        let calls = deletion(&bytes).map_err(|source| ApplyError::Attachment {
            step,
            path: path.display().to_string(),
            source,
        })?;
        cniplugin::call(&paths.cni_plugins, &calls)
            .await
            .map_err(|source| ApplyError::CniPlugin { step, source })?;
        files::remove_durably(path).map_err(&file_error)?;
    }
    Ok(())
}
