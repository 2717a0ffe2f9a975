//! Decisions of the agent: the phase of the host, and the next change to the host.

mod adopt;
mod adopt_back;
mod adopt_step;
mod dead_mans_switch;
mod detach;
mod device;
mod in_place;
mod phase;
mod rollback;
mod settings;
mod step;
mod step_object;
mod subnets;

pub use adopt::{AdoptionSettings, obstacles, pods_that_stay};
pub use adopt_step::{PodAction, PodChange, PodEnd, frame_rule};
pub use dead_mans_switch::{Orders, PodNetworkService, calico_has_written, remaining_time, service};
pub use detach::leftovers;
pub use device::calico_device_problem;
pub use in_place::links_without_known_pod;
pub use phase::phase;
pub use rollback::changes;
pub use settings::{HostSettings, Ipv6HostSettings};
pub use step::{HostStep, Undo};

use std::collections::BTreeSet;

use super::cni;
use super::facts::HostFacts;
use super::phase::{Goal, Phase};
pub use super::plugin::BRIDGE;
use detach::{detach, hold};

/// A tunnel link with its two names, and the sizes of the networks behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The name in flannel.
    pub flannel_name: String,
    /// The name in Calico.
    pub calico_name: &'static str,
    /// MTU in bytes.
    pub mtu: u32,
    /// The prefix length of Calico's IPAM blocks.
    block_size: u8,
    /// The prefix length of the subnet of a node.
    node_range_length: u8,
}

impl Tunnel {
    /// Whether links of both names exist: then the user has to find out which link is in use.
    fn is_twice(&self, facts: &HostFacts) -> bool {
        facts.vxlan(&self.flannel_name).is_some() && facts.vxlan(self.calico_name).is_some()
    }

    /// The current name of the link; `None` if neither link exists.
    fn name(&self, facts: &HostFacts) -> Option<&str> {
        let names = [self.calico_name, self.flannel_name.as_str()];
        names.into_iter().find(|name| facts.vxlan(name).is_some())
    }
}

/// Prefixes of the names of flannel's VXLAN links, before the VNI.
pub const FLANNEL_DEVICES: [&str; 2] = ["flannel.", "flannel-v6."];
/// Name of Calico's VXLAN link.
pub const CALICO_DEVICE: &str = "vxlan.calico";
/// Name of Calico's VXLAN link for IPv6.
pub const CALICO_DEVICE_V6: &str = "vxlan-v6.calico";
/// Number of the routing table of replumb with routes to whole IPv6 subnets of nodes. Felix uses tables from 1 to 250
/// (`RouteTableRange`), and only for `WireGuard` and BPF.
pub const SUBNET_TABLE: u32 = 8282;
/// Label of the addresses of the bridge that replumb puts on the loopback interface for adopted pods.
pub const KEPT_LABEL: &str = "lo:adopted";

/// State in the agent's journal that the host does not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalState {
    /// The step that was started and not finished.
    pub interrupted: Option<HostStep>,
    /// Changes that were made and not reverted, the newest last.
    pub unreverted: Vec<HostStep>,
    /// Whether the agent rolls the host back on its own, and the coordinator does not know it yet.
    pub without_coordinator: bool,
    /// Sandboxes of pods whose links calico-node has not taken in time.
    pub not_taken: BTreeSet<String>,
}

/// The next action of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostDecision {
    /// Perform this step, then observe again.
    Run(HostStep),
    /// The goal is not reached, and another program has to act next: the reason of the wait.
    Wait(String),
    /// The host has reached the goal.
    Settled,
    /// The facts forbid the next step: the message for the user.
    Halt(String),
}

/// The next change that brings the host towards the goal.
///
/// A host that is past its goal is not changed: only [`Goal::Flannel`] reverts changes.
///
/// # Examples
///
/// ```
/// use flannel_to_calico::facts::HostFacts;
/// use flannel_to_calico::host::{HostDecision, HostSettings, HostStep, JournalState, decide};
/// use flannel_to_calico::phase::Goal;
/// use serde_json::json;
///
/// // flannel has run on this host, and its pod has ended.
/// let facts: HostFacts = serde_json::from_value(json!({
///     "flanneldRunning": false,
///     "subnetEnvironment": { "present": {
///         "network": "10.244.0.0/16", "subnet": "10.244.1.1/24", "mtu": 1450, "ipMasquerade": true,
///     } },
///     // …
/// #     "cni": { "path": "/etc/cni/net.d", "files": [] },
/// #     "vxlanDevices": [],
/// #     "bridge": { "absent": true },
/// #     "directRoutes": [],
/// #     "reversePathFilter": { "all": 1, "interfaces": {} },
/// #     "firewall": [],
/// #     "leases": 0,
/// #     "delegates": 0,
/// #     "detectedAddress": null,
/// #     "uplink": null,
/// #     "bridgeNfCallIptables": null,
/// }))?;
/// let settings = HostSettings {
///     vni: 1,
///     port: 8472,
///     mtu: 1450,
///     cni_configuration_directory: "/etc/cni/net.d".to_owned(),
///     block_size: 26,
///     node_range_length: 24,
///     ipv6: None,
///     adopt_pods: false,
///     write_firewall_twins: false,
///     adoption: Default::default(),
/// };
/// let next = |goal| decide(&facts, &settings, goal, &JournalState::default());
/// assert_eq!(next(Goal::Held), HostDecision::Run(HostStep::WithdrawSubnetEnvironment));
/// assert_eq!(next(Goal::Hold), HostDecision::Settled);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn decide(
    facts: &HostFacts,
    settings: &HostSettings,
    goal: Goal,
    remembered: &JournalState,
) -> HostDecision {
    // After a crash, a link may be missing or incomplete: only the journal has its configuration.
    match &remembered.interrupted {
        Some(
            step @ (HostStep::RenameVxlanDevice { from, .. } | HostStep::ReturnVxlanDevice { from, .. }),
        ) if facts.vxlan(from).is_none() => return HostDecision::Run(step.clone()),
        Some(step @ (HostStep::RestoreVxlanDevice(_) | HostStep::RestoreBridge)) => {
            return HostDecision::Run(step.clone());
        }
        Some(_) | None => {}
    }
    let Some(wanted) = goal.phase() else {
        return HostDecision::Settled;
    };
    if goal == Goal::Flannel {
        return rollback::decide(facts, settings, remembered);
    }
    let facts = &remembered.complete(facts, settings);
    let at = phase(facts, settings);
    let upkeep = match at {
        Phase::Swapped | Phase::Mixed => {
            subnets::upkeep(facts, settings).or_else(|| in_place::upkeep(facts, settings))
        }
        Phase::Detached | Phase::Calico => subnets::upkeep(facts, settings),
        Phase::Flannel | Phase::Held => None,
    };
    if let Some(step) = upkeep {
        return HostDecision::Run(step);
    }
    if at.reaches(wanted) {
        // While calico-node becomes Ready and the node is probed, the adoption begins.
        let prepares = settings.adopt_pods && (at, wanted) == (Phase::Mixed, Phase::Mixed);
        let step = prepares.then(|| adopt::prepare(facts, settings)).flatten();
        return step.map_or(HostDecision::Settled, HostDecision::Run);
    }
    let in_place = match wanted {
        Phase::Swapped | Phase::Mixed => true,
        Phase::Flannel | Phase::Held | Phase::Detached | Phase::Calico => false,
    };
    let needs_flanneld_gone = match at {
        Phase::Flannel | Phase::Held => true,
        Phase::Swapped | Phase::Mixed | Phase::Detached | Phase::Calico => false,
    };
    if needs_flanneld_gone
        && !facts.flanneld_running
        && let Some(first) = facts.unread_processes.first()
    {
        return HostDecision::Wait(format!("{first}; the process may be flanneld"));
    }
    match at {
        Phase::Flannel => hold(facts),
        Phase::Held if in_place => in_place::swap(facts, settings),
        Phase::Swapped if in_place => attach(facts, settings),
        Phase::Held | Phase::Swapped | Phase::Mixed => detach(facts, settings, &remembered.unreverted),
        Phase::Detached => attach(facts, settings),
        Phase::Calico => HostDecision::Settled,
    }
}

fn attach(facts: &HostFacts, settings: &HostSettings) -> HostDecision {
    // flannel's conflist must not be removed before Calico's can replace it: with an empty directory the node becomes
    // NotReady. The order of the two does not matter: the first file after the removal of flannel's files does.
    let folder = &facts.cni.path;
    match facts.cni.files.iter().find(|file| !cni::is_flannel(file)) {
        Some(file) if file.error.is_none() && cni::is_calico(file) => {}
        Some(file) => {
            let problem = file
                .error
                .as_deref()
                .unwrap_or("the file belongs to another network");
            return HostDecision::Wait(format!(
                "{folder}/{} comes before Calico's conflist: {problem}",
                file.name
            ));
        }
        None => {
            let winner = facts.cni.winner().map_or("no file", |file| file.name.as_str());
            return HostDecision::Wait(format!(
                "Calico's conflist is not in {folder} yet; {winner} is in use"
            ));
        }
    }
    if let Some(problem) = calico_device_problem(facts, settings) {
        return HostDecision::Wait(problem);
    }
    match cni::flannel_files(&facts.cni).next() {
        Some(file) => HostDecision::Run(HostStep::RemoveConflist(file.name.clone())),
        None => HostDecision::Settled,
    }
}

#[cfg(test)]
mod tests;
