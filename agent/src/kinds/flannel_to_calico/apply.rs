//! Performs one step: records the state before it, changes the host, observes again. Only this module changes the host.

mod adopt;
mod back;
mod before;
mod context;
mod error;
mod forward;
mod tunnel;

use crash_point::Edge;
pub use error::ApplyError;
use flannel_to_calico::host::{BRIDGE, HostStep};
use jiff::Timestamp;

use self::context::StepContext;
use super::facts::{self, LinkParameters};
use super::observe::{Observation, observe};
use crate::host::netlink::Netlink;
use crate::host::paths::Paths;
use crate::host::processes::Processes;
use crate::host::snapshot::Snapshot;
use crate::host::{files, firewall};
use crate::kinds::flannel_to_calico::journal::{Before, Journal};

/// Performs one step and returns an observation of the host after it.
///
/// # Errors
///
/// The journal cannot be written, the network changed since the observation, a change fails, or the host does not have the result
/// of the step afterwards.
pub async fn apply(
    step: &HostStep,
    seen: &Observation,
    paths: &Paths,
    netlink: &Netlink,
    processes: &Processes,
    journal: &mut Journal,
) -> Result<Observation, ApplyError> {
    let name = step.name();
    let before = before::before(step, seen, paths, journal).await?;
    journal
        .begin(step, before, Timestamp::now())
        .map_err(|source| ApplyError::Journal { step: name, source })?;
    crash_point::reach(name, Edge::Announced, None).await;
    if takes_network(step) {
        // The kernel's list of links is not atomic: a pod that was added during the read may be missing.
        let now = netlink.snapshot().await.map_err(ApplyError::netlink(name))?;
        if ports(&now) != ports(&seen.snapshot) {
            return Err(ApplyError::Changed { step: name });
        }
    }
    let saved = Saved {
        of_this: journal.before_interrupted(step).cloned().unwrap_or_default(),
        of_change: journal.before_change(step).unwrap_or_default(),
    };
    perform(step, seen, &saved, paths, netlink).await?;
    crash_point::reach(name, Edge::Changed, None).await;
    let after = observe(paths, netlink, processes)
        .await
        .map_err(|source| ApplyError::Observe { step: name, source })?;
    if !step.is_done(&after.facts) {
        return Err(ApplyError::NotDone {
            step: name,
            object: step.object(),
        });
    }
    journal
        .finish(step, Timestamp::now())
        .map_err(|source| ApplyError::Journal { step: name, source })?;
    crash_point::reach(name, Edge::Recorded, None).await;
    Ok(after)
}

/// The journal's records for a step.
struct Saved {
    /// The state before this step.
    of_this: Before,
    /// The state before the change that this step undoes.
    of_change: Before,
}

/// Links on the bridge, by name.
fn ports(snapshot: &Snapshot) -> Vec<String> {
    facts::bridge(snapshot, false, &LinkParameters::default())
        .present()
        .map(|bridge| bridge.ports.clone())
        .unwrap_or_default()
}

/// Whether the step affects pods on the old network.
fn takes_network(step: &HostStep) -> bool {
    match step {
        HostStep::DeleteVxlanDevice(_)
        | HostStep::DeleteBridge
        | HostStep::DeleteFirewallObject(_)
        | HostStep::RemoveLeases => true,
        HostStep::WithdrawSubnetEnvironment
        | HostStep::RemoveConflist(_)
        | HostStep::RouteLegacyPods(_)
        | HostStep::AnswerForPods
        | HostStep::AnswerForAddresses(_)
        | HostStep::RouteSubnets { .. }
        | HostStep::RenameVxlanDevice { .. }
        | HostStep::ForgetLegacyPod(_)
        | HostStep::OpenBridge
        | HostStep::ChangePods(_)
        | HostStep::KeepBridgeAddresses(_)
        | HostStep::RemoveFrameRules(_)
        | HostStep::DropBridgeAddresses(_)
        | HostStep::RestoreBridge
        | HostStep::RevertPods(_)
        | HostStep::CloseBridge
        | HostStep::RestoreConflist(_)
        | HostStep::RemoveCalicoConflist(_)
        | HostStep::DeleteCalicoFirewall(_)
        | HostStep::DeleteCalicoSets
        | HostStep::RestoreFirewallObject(_)
        | HostStep::DeleteBlackholes
        | HostStep::RestoreNodeRoutes { .. }
        | HostStep::ReturnVxlanDevice { .. }
        | HostStep::RestoreVxlanDevice(_)
        | HostStep::UnrouteLegacyPods
        | HostStep::StopAnsweringForPods
        | HostStep::StopAnsweringForAddresses
        | HostStep::UnrouteSubnets
        | HostStep::RemoveCalicoRecords
        | HostStep::RestoreSubnetEnvironment => false,
    }
}

async fn perform(
    step: &HostStep,
    seen: &Observation,
    saved: &Saved,
    paths: &Paths,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    let name = step.name();
    let file_error = ApplyError::file(name);
    let netlink_error = ApplyError::netlink(name);
    let firewall_error = ApplyError::firewall(name);
    let context = StepContext::new(name, seen, paths, netlink);
    match step {
        HostStep::OpenBridge => context.open_bridge().await,
        HostStep::CloseBridge => context.close_bridge(&saved.of_change).await,
        HostStep::ChangePods(change) => context.change_pods(change).await,
        HostStep::RevertPods(change) => context.revert_pods(change, &saved.of_change).await,
        HostStep::KeepBridgeAddresses(addresses) => context.keep_addresses(addresses).await,
        HostStep::DropBridgeAddresses(addresses) => context.drop_addresses(addresses).await,
        HostStep::RemoveFrameRules(rules) => context.stop_accepting(rules).await,
        HostStep::RestoreBridge => context.restore_bridge(&saved.of_change).await,
        HostStep::WithdrawSubnetEnvironment => {
            files::remove_durably(&paths.subnet_environment()).map_err(file_error)
        }
        HostStep::DeleteVxlanDevice(link) => forward::delete_link(name, link, seen, netlink).await,
        HostStep::DeleteBridge => forward::delete_link(name, BRIDGE, seen, netlink).await,
        HostStep::DeleteFirewallObject(object) => firewall::delete(object).await.map_err(firewall_error),
        HostStep::RouteLegacyPods(addresses) => forward::route(addresses, seen, netlink)
            .await
            .map_err(netlink_error),
        HostStep::AnswerForPods => forward::answer_for_pods(seen, paths).map_err(file_error),
        HostStep::AnswerForAddresses(networks) => forward::answer(networks, seen, netlink)
            .await
            .map_err(netlink_error),
        HostStep::RouteSubnets { link, length } => forward::route_subnets(link, *length, seen, netlink)
            .await
            .map_err(netlink_error),
        HostStep::RenameVxlanDevice { from, to, block_size } => {
            context
                .rename_tunnel((from, to), *block_size, &saved.of_this)
                .await
        }
        HostStep::ForgetLegacyPod(sandbox) => forward::remove_legacy_pod(sandbox, seen, paths, netlink).await,
        HostStep::RemoveLeases => forward::remove_leases(seen).map_err(file_error),
        HostStep::RemoveConflist(file) | HostStep::RemoveCalicoConflist(file) => {
            files::remove_durably(&paths.cni_configuration.join(file)).map_err(file_error)
        }
        HostStep::RestoreConflist(file) => {
            back::restore_file(name, &saved.of_change, &paths.cni_configuration.join(file))
        }
        HostStep::RestoreSubnetEnvironment => {
            back::restore_file(name, &saved.of_change, &paths.subnet_environment())
        }
        HostStep::DeleteCalicoFirewall(object) => {
            firewall::calico::delete(object).await.map_err(firewall_error)
        }
        HostStep::DeleteCalicoSets => firewall::calico::delete_sets().await.map_err(firewall_error),
        HostStep::RestoreFirewallObject(object) => firewall::restore(object, &saved.of_change.rules)
            .await
            .map_err(firewall_error),
        HostStep::DeleteBlackholes => back::delete_routes(facts::blackholes(&seen.snapshot), netlink)
            .await
            .map_err(netlink_error),
        HostStep::UnrouteLegacyPods => back::delete_routes(facts::pod_routes(&seen.snapshot), netlink)
            .await
            .map_err(netlink_error),
        HostStep::RestoreNodeRoutes { link, length } => {
            back::restore_node_routes(link, *length, seen, netlink)
                .await
                .map_err(netlink_error)
        }
        HostStep::ReturnVxlanDevice { from, to } => context.return_tunnel((from, to), saved).await,
        HostStep::RestoreVxlanDevice(link) => back::restore_link(name, link, &saved.of_change, netlink).await,
        HostStep::StopAnsweringForPods => back::restore_parameters(name, &saved.of_change),
        HostStep::StopAnsweringForAddresses => {
            back::stop_answering(seen, netlink).await.map_err(netlink_error)
        }
        HostStep::UnrouteSubnets => netlink
            .delete_subnet_routes(&seen.snapshot)
            .await
            .map_err(netlink_error),
        HostStep::RemoveCalicoRecords => back::remove_calico_records(name, seen, paths).await,
    }
}
