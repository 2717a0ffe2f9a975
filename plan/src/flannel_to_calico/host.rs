//! The node agent's side: the phase that the host is in, and the next change to it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::facts::{FirewallBackend, FirewallObject, Found, HostFacts};
use super::phase::{Goal, Phase};

/// What the agent must know to tell flannel's things from everybody else's, and to judge Calico's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSettings {
    /// VNI of flannel's device, which names it: `flannel.<VNI>`.
    pub vni: u32,
    /// UDP port of VXLAN.
    pub port: u16,
    /// MTU of the tunnel device.
    pub mtu: u32,
    /// Folder of the CNI configuration on the host.
    pub cni_configuration_directory: String,
}

impl HostSettings {
    /// Name of flannel's VXLAN link.
    pub fn flannel_device(&self) -> String {
        format!("flannel.{}", self.vni)
    }
}

/// Name of Calico's VXLAN link.
pub const CALICO_DEVICE: &str = "vxlan.calico";
/// Name of the bridge of flannel's CNI plugin.
pub const BRIDGE: &str = "cni0";

/// One change to a host: idempotent, with a done-check in [`HostStep::is_done`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HostStep {
    /// Move `subnet.env` into the agent's backup folder: flannel's CNI plugin then refuses new pods and
    /// the kubelet tries again later, while the deletion of pods still works.
    WithdrawSubnetEnvironment,
    /// Delete flannel's VXLAN link of this name.
    DeleteVxlanDevice(String),
    /// Delete the bridge of flannel's CNI plugin.
    DeleteBridge,
    /// Delete one chain of flannel's with the jumps to it, or one table.
    DeleteFirewallObject(FirewallObject),
    /// Remove host-local leases and delegate files of the old network, with a backup.
    RemoveLeases,
    /// Move flannel's conflist of this file name into the agent's backup folder. Calico's has won by now.
    RemoveConflist(String),
}

impl HostStep {
    /// The step as it stands in status, metrics and the journal; bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::WithdrawSubnetEnvironment => "WithdrawSubnetEnvironment",
            Self::DeleteVxlanDevice(_) => "DeleteVxlanDevice",
            Self::DeleteBridge => "DeleteBridge",
            Self::DeleteFirewallObject(_) => "DeleteFirewallObject",
            Self::RemoveLeases => "RemoveLeases",
            Self::RemoveConflist(_) => "RemoveConflist",
        }
    }

    /// The object that the step changes, as a person names it.
    pub fn object(&self) -> String {
        match self {
            Self::WithdrawSubnetEnvironment => "file /run/flannel/subnet.env".to_owned(),
            Self::DeleteVxlanDevice(name) => format!("link {name}"),
            Self::DeleteBridge => format!("link {BRIDGE}"),
            Self::DeleteFirewallObject(object) => describe_firewall_object(object),
            Self::RemoveLeases => {
                "host-local leases and flannel's delegate files under /var/lib/cni".to_owned()
            }
            Self::RemoveConflist(name) => format!("conflist {name}"),
        }
    }

    /// Whether the facts show that the step has nothing left to do.
    pub fn is_done(&self, facts: &HostFacts) -> bool {
        match self {
            Self::WithdrawSubnetEnvironment => facts.subnet_environment.is_absent(),
            Self::DeleteVxlanDevice(name) => facts.vxlan(name).is_none(),
            Self::DeleteBridge => facts.bridge.is_absent(),
            Self::DeleteFirewallObject(object) => !facts.firewall.contains(object),
            Self::RemoveLeases => facts.leases == 0 && facts.delegates == 0,
            Self::RemoveConflist(name) => !facts.cni.files.iter().any(|file| &file.name == name),
        }
    }
}

/// What the agent does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostDecision {
    /// Perform this step, then look again.
    Run(HostStep),
    /// The goal is not reached, and the next change is somebody else's: what is waited for.
    Wait(String),
    /// The host is where it should be.
    Settled,
    /// The facts forbid the next step: what a person must know.
    Halt(String),
}

/// What of flannel is still on the host, one line each; empty when the host is clean.
pub fn leftovers(facts: &HostFacts, settings: &HostSettings) -> Vec<String> {
    let mut found = Vec::new();
    if facts.flanneld_running {
        found.push("process flanneld".to_owned());
    }
    for device in flannel_devices(facts, settings) {
        found.push(format!("link {device}"));
    }
    if !facts.bridge.is_absent() {
        found.push(format!("link {BRIDGE}"));
    }
    for object in &facts.firewall {
        found.push(describe_firewall_object(object));
    }
    for file in facts.cni.flannel_files() {
        found.push(format!("file {}/{}", facts.cni.path, file.name));
    }
    if !facts.subnet_environment.is_absent() {
        found.push("file /run/flannel/subnet.env".to_owned());
    }
    if facts.leases > 0 {
        found.push(format!(
            "{} files of host-local under /var/lib/cni/networks",
            facts.leases
        ));
    }
    if facts.delegates > 0 {
        found.push(format!(
            "{} delegate files in /var/lib/cni/flannel",
            facts.delegates
        ));
    }
    found
}

/// The phase that the facts prove.
pub fn phase(facts: &HostFacts, settings: &HostSettings) -> Phase {
    let new_pods_held = facts.subnet_environment.is_absent() && !facts.flanneld_running;
    if !new_pods_held {
        return Phase::Flannel;
    }
    let carries_packets = flannel_devices(facts, settings).next().is_some()
        || !facts.bridge.is_absent()
        || !facts.firewall.is_empty()
        || facts.leases > 0
        || facts.delegates > 0;
    if carries_packets {
        return Phase::Held;
    }
    let calico_wins = facts
        .cni
        .winner()
        .is_some_and(super::super::cni::CniFile::is_calico);
    let flannel_conflist = facts.cni.flannel_files().next().is_some();
    if calico_wins && !flannel_conflist && calico_device_problem(facts, settings).is_none() {
        return Phase::Calico;
    }
    Phase::Detached
}

/// The next change that brings the host towards the goal.
///
/// A host that is further than its goal is left where it is: going back is another verb.
pub fn decide(facts: &HostFacts, settings: &HostSettings, goal: Goal) -> HostDecision {
    let Some(wanted) = goal.phase() else {
        return HostDecision::Settled;
    };
    let at = phase(facts, settings);
    if at >= wanted {
        return HostDecision::Settled;
    }
    match at {
        Phase::Flannel => hold(facts),
        Phase::Held => detach(facts, settings),
        Phase::Detached => attach(facts, settings),
        Phase::Calico => HostDecision::Settled,
    }
}

fn hold(facts: &HostFacts) -> HostDecision {
    if facts.flanneld_running {
        return HostDecision::Wait(
            "flanneld still runs on this host; it would write /run/flannel/subnet.env again".to_owned(),
        );
    }
    HostDecision::Run(HostStep::WithdrawSubnetEnvironment)
}

fn detach(facts: &HostFacts, settings: &HostSettings) -> HostDecision {
    if let Found::Malformed(problem) = &facts.bridge {
        return HostDecision::Halt(format!(
            "{problem}. It is not flannel's and is not deleted; rename or delete it"
        ));
    }
    // A link on the bridge is a pod that lives: its network is not taken from it. It goes by eviction.
    if let Found::Present(bridge) = &facts.bridge
        && !bridge.ports.is_empty()
    {
        let verb = if bridge.ports.len() == 1 {
            "pod is"
        } else {
            "pods are"
        };
        return HostDecision::Wait(format!(
            "{} {verb} still attached to {BRIDGE}: {}",
            bridge.ports.len(),
            bridge.ports.join(", ")
        ));
    }
    // Firewall first: until flannel's masquerade jump is gone, Calico's pods would be translated.
    let steps = facts
        .firewall
        .iter()
        .cloned()
        .map(HostStep::DeleteFirewallObject)
        .chain(flannel_devices(facts, settings).map(HostStep::DeleteVxlanDevice))
        .chain([HostStep::DeleteBridge, HostStep::RemoveLeases]);
    match steps.into_iter().find(|step| !step.is_done(facts)) {
        Some(step) => HostDecision::Run(step),
        None => HostDecision::Halt(format!(
            "the host is not detached and no step is left; still there: {}",
            leftovers(facts, settings).join(", ")
        )),
    }
}

fn attach(facts: &HostFacts, settings: &HostSettings) -> HostDecision {
    // flannel's conflist must not go before Calico's takes its place: an empty folder turns the node NotReady.
    // Which of the two comes first by name does not matter; what wins once flannel's are gone does.
    let folder = &facts.cni.path;
    match facts.cni.files.iter().find(|file| !file.is_flannel()) {
        Some(file) if file.error.is_none() && file.is_calico() => {}
        Some(file) => {
            let problem = file.error.as_deref().unwrap_or("it is another network's");
            return HostDecision::Wait(format!(
                "{folder}/{} comes before Calico's conflist: {problem}",
                file.name
            ));
        }
        None => {
            let winner = facts.cni.winner().map_or("nothing", |file| file.name.as_str());
            return HostDecision::Wait(format!("Calico's conflist is not in {folder} yet; {winner} wins"));
        }
    }
    if let Some(problem) = calico_device_problem(facts, settings) {
        return HostDecision::Wait(problem);
    }
    match facts.cni.flannel_files().next() {
        Some(file) => HostDecision::Run(HostStep::RemoveConflist(file.name.clone())),
        None => HostDecision::Settled,
    }
}

/// What is missing or wrong about Calico's device; `None` when it is as it should be.
pub fn calico_device_problem(facts: &HostFacts, settings: &HostSettings) -> Option<String> {
    let Some(device) = facts.vxlan(CALICO_DEVICE) else {
        return Some(format!("link {CALICO_DEVICE} is not there yet"));
    };
    if !device.up {
        return Some(format!("link {CALICO_DEVICE} is down"));
    }
    if device.vni != settings.vni || device.port != settings.port {
        return Some(format!(
            "link {CALICO_DEVICE} has VNI {} port {}, needed VNI {} port {}",
            device.vni, device.port, settings.vni, settings.port
        ));
    }
    if device.addresses.is_empty() {
        return Some(format!("link {CALICO_DEVICE} has no tunnel address yet"));
    }
    None
}

/// Names of flannel's VXLAN links: the configured VNI's, and any other named as flannel names them.
fn flannel_devices<'facts>(
    facts: &'facts HostFacts,
    settings: &'facts HostSettings,
) -> impl Iterator<Item = String> + 'facts {
    facts.vxlan_devices.iter().filter_map(|device| {
        let is_flannel = device.name == settings.flannel_device()
            || ["flannel.", "flannel-v6."].iter().any(|prefix| {
                device
                    .name
                    .strip_prefix(prefix)
                    .is_some_and(|vni| vni.parse::<u32>().is_ok())
            });
        is_flannel.then(|| device.name.clone())
    })
}

fn describe_firewall_object(object: &FirewallObject) -> String {
    let backend = match object.backend {
        FirewallBackend::IptablesNft => "iptables (nf_tables)",
        FirewallBackend::Ip6tablesNft => "ip6tables (nf_tables)",
        FirewallBackend::IptablesLegacy => "iptables (legacy)",
        FirewallBackend::Ip6tablesLegacy => "ip6tables (legacy)",
        FirewallBackend::Nftables => "nftables",
    };
    if object.chain.is_empty() {
        format!("{backend} table {}", object.table)
    } else if object.chain.starts_with("FLANNEL-") {
        format!("{backend} chain {} in table {}", object.chain, object.table)
    } else {
        format!(
            "{backend} rules of flannel's in chain {} of table {}",
            object.chain, object.table
        )
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
