//! The node agent's side: the phase that the host is in, and the next change to it.

mod back;
mod in_place;
mod step;
mod subnets;
mod switch;

pub use back::changes;
pub use in_place::unknown_ports;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use step::describe_firewall_object;
pub use step::{HostStep, Undo};
pub use switch::{Orders, Patience, Service, left_to_wait, service};

use super::facts::{Found, HostFacts};
use super::phase::{Goal, Phase};
use super::settings::Settings;
use engine::words::names;

/// `HostSettings` is what an agent needs to know about flannel and Calico on its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSettings {
    /// `vni` is the VXLAN network identifier of flannel. The name of flannel's tunnel is `flannel.<VNI>`.
    pub vni: u32,
    /// `port` is the UDP port of VXLAN.
    pub port: u16,
    /// `mtu` is the MTU of the IPv4 tunnel, in bytes.
    pub mtu: u32,
    /// `cniConfigurationDirectory` is the CNI configuration directory on the host.
    pub cni_configuration_directory: String,
    /// `blockSize` is the prefix length of Calico's IPv4 IPAM blocks. Defaults to 26.
    #[serde(default = "usual_block_size")]
    pub block_size: u8,
    /// `nodeRangeLength` is the prefix length of the IPv4 subnet of a node. Defaults to 24.
    #[serde(default = "usual_node_range_length")]
    pub node_range_length: u8,
    /// `ipv6` is what the agent needs to know about IPv6. Unset if pods have IPv4 addresses only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6HostSettings>,
}

/// `Ipv6HostSettings` is what an agent needs to know about IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6HostSettings {
    /// `mtu` is the MTU of the IPv6 tunnel, in bytes. Defaults to 1280.
    #[serde(default = "least_mtu")]
    pub mtu: u32,
    /// `blockSize` is the prefix length of Calico's IPv6 IPAM blocks.
    pub block_size: u8,
    /// `nodeRangeLength` is the prefix length of the IPv6 subnet of a node.
    pub node_range_length: u8,
    /// `flannelPods` is whether pods of flannel may run on any node. While it is true, the agent keeps routes to the whole IPv6
    /// subnets of other nodes. The coordinator sets it to false when no pod of flannel is left. Defaults to true.
    #[serde(default = "yes")]
    pub flannel_pods: bool,
}

/// A tunnel link by its two names, and how the networks behind it are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// flannel's name.
    pub flannels: String,
    /// Calico's name.
    pub calicos: &'static str,
    /// MTU in bytes.
    pub mtu: u32,
    /// Length of the prefix of an address block in Calico's IPAM.
    block_size: u8,
    /// Length of the prefix of a node's own range.
    node_range_length: u8,
}

/// What every path of IPv6 carries.
fn least_mtu() -> u32 {
    1280
}

fn yes() -> bool {
    true
}

fn usual_block_size() -> u8 {
    super::settings::defaults::IP_POOL_BLOCK_SIZE
}

fn usual_node_range_length() -> u8 {
    super::settings::defaults::FLANNEL_SUBNET_LENGTH
}

impl Tunnel {
    /// Whether there are links of both names: nobody but a person can tell which is in use.
    fn is_twice(&self, facts: &HostFacts) -> bool {
        facts.vxlan(&self.flannels).is_some() && facts.vxlan(self.calicos).is_some()
    }

    /// The name that the link has now; `None` when there is no link of either.
    fn name(&self, facts: &HostFacts) -> Option<&str> {
        let names = [self.calicos, self.flannels.as_str()];
        names.into_iter().find(|name| facts.vxlan(name).is_some())
    }
}

impl HostSettings {
    /// What an agent needs to know of the settings, while pods of flannel's may live.
    pub fn of(settings: &Settings) -> Self {
        Self {
            vni: settings.flannel_vni.value,
            port: settings.flannel_port.value,
            mtu: settings.flannel_mtu.value,
            cni_configuration_directory: settings.cni_configuration_directory.value.clone(),
            block_size: settings.ip_pool_block_size.value,
            node_range_length: settings.flannel_subnet_length.value,
            ipv6: settings.ipv6.as_ref().map(|ipv6| Ipv6HostSettings {
                mtu: settings.flannel_ipv6_mtu(),
                block_size: ipv6.ip_pool_block_size.value,
                node_range_length: ipv6.flannel_subnet_length.value,
                flannel_pods: true,
            }),
        }
    }

    /// Name of flannel's VXLAN link.
    pub fn flannel_device(&self) -> String {
        format!("{}{}", FLANNEL_DEVICES[0], self.vni)
    }

    /// The tunnel links: one for each family of addresses that pods have.
    pub fn tunnels(&self) -> Vec<Tunnel> {
        let ipv4 = Tunnel {
            flannels: self.flannel_device(),
            calicos: CALICO_DEVICE,
            mtu: self.mtu,
            block_size: self.block_size,
            node_range_length: self.node_range_length,
        };
        [ipv4].into_iter().chain(self.ipv6_tunnel()).collect()
    }

    /// Bytes of the largest packet between any two pods: Calico gives a pod of both families the smaller of the tunnels' MTUs.
    pub fn pod_mtu(&self) -> u32 {
        self.ipv6.as_ref().map_or(self.mtu, |ipv6| self.mtu.min(ipv6.mtu))
    }

    /// The one of IPv6.
    pub fn ipv6_tunnel(&self) -> Option<Tunnel> {
        self.ipv6.as_ref().map(|ipv6| Tunnel {
            flannels: format!("{}{}", FLANNEL_DEVICES[1], self.vni),
            calicos: CALICO_DEVICE_V6,
            mtu: ipv6.mtu,
            block_size: ipv6.block_size,
            node_range_length: ipv6.node_range_length,
        })
    }
}

/// What the names of flannel's VXLAN links begin with, before the VNI.
pub const FLANNEL_DEVICES: [&str; 2] = ["flannel.", "flannel-v6."];
/// Name of Calico's VXLAN link.
pub const CALICO_DEVICE: &str = "vxlan.calico";
/// Name of Calico's VXLAN link for IPv6.
pub const CALICO_DEVICE_V6: &str = "vxlan-v6.calico";
/// Number of this tool's table of routes to whole IPv6 subnets of nodes. Felix takes its own from 1 to 250
/// (`RouteTableRange`), and only for `WireGuard` and BPF.
pub const SUBNET_TABLE: u32 = 8282;
/// Name of the bridge of flannel's CNI plugin.
pub const BRIDGE: &str = "cni0";

/// What the agent's journal knows and the host does not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// The step that was begun and not finished.
    pub interrupted: Option<HostStep>,
    /// Changes that were made and have not been taken back, the newest last.
    pub standing: Vec<HostStep>,
    /// Whether the host goes back by itself, and the coordinator does not know of it yet.
    pub alone: bool,
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
    if !subnets::are_needed(settings) && !facts.calico.subnet_routes.is_gone() {
        found.push(format!(
            "{} routes of this tool's to subnets of nodes, and the rule to look them up",
            facts.calico.subnet_routes.laid
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
    if flannel_devices(facts, settings).next().is_some() {
        return Phase::Held;
    }
    let calico_wins = facts.cni.winner().is_some_and(engine::cni::CniFile::is_calico);
    let calico_alone = calico_wins
        && facts.cni.flannel_files().next().is_none()
        && calico_device_problem(facts, settings).is_none();
    let old_pods_served = !facts.bridge.is_absent()
        || !facts.firewall.is_empty()
        || facts.leases > 0
        || facts.delegates > 0
        || !facts.legacy_pods.is_empty();
    match (old_pods_served, calico_alone) {
        (true, true) => Phase::Mixed,
        (true, false) if facts.vxlan(CALICO_DEVICE).is_some() => Phase::Swapped,
        (true, false) => Phase::Held,
        (false, true) => Phase::Calico,
        (false, false) => Phase::Detached,
    }
}

/// The next change that brings the host towards the goal.
///
/// A host that is further than its goal is left where it is: only [`Goal::Flannel`] leads back.
pub fn decide(
    facts: &HostFacts,
    settings: &HostSettings,
    goal: Goal,
    remembered: &Remembered,
) -> HostDecision {
    // Between the two names there may be no link at all, or one that is half made: only the journal knows what it was.
    match &remembered.interrupted {
        Some(
            step @ (HostStep::RenameVxlanDevice { from, .. } | HostStep::ReturnVxlanDevice { from, .. }),
        ) if facts.vxlan(from).is_none() => return HostDecision::Run(step.clone()),
        Some(step @ HostStep::RestoreVxlanDevice(_)) => return HostDecision::Run(step.clone()),
        Some(_) | None => {}
    }
    let Some(wanted) = goal.phase() else {
        return HostDecision::Settled;
    };
    if goal == Goal::Flannel {
        return back::decide(facts, settings, remembered);
    }
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
        return HostDecision::Settled;
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
        return HostDecision::Wait(format!("{first}; whether it is flanneld is not known"));
    }
    match at {
        Phase::Flannel => hold(facts),
        Phase::Held if in_place => in_place::swap(facts, settings),
        Phase::Swapped if in_place => attach(facts, settings),
        Phase::Held | Phase::Swapped | Phase::Mixed => detach(facts, settings),
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
            names(&bridge.ports)
        ));
    }
    let gone = facts
        .legacy_pods
        .iter()
        .filter(|pod| !pod.attached)
        .map(|pod| HostStep::ForgetLegacyPod(pod.sandbox.clone()));
    // Firewall first: until flannel's masquerade jump is gone, Calico's pods would be translated.
    let steps = facts
        .firewall
        .iter()
        .cloned()
        .map(HostStep::DeleteFirewallObject)
        .chain(flannel_devices(facts, settings).map(HostStep::DeleteVxlanDevice))
        .chain(gone)
        .chain([HostStep::DeleteBridge, HostStep::RemoveLeases]);
    match steps.into_iter().find(|step| !step.is_done(facts)) {
        Some(step) => HostDecision::Run(step),
        None => HostDecision::Halt(format!(
            "the host is not detached and no step is left; still there: {}",
            names(&leftovers(facts, settings))
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

/// What is missing or wrong about Calico's devices; `None` when they are as they should be.
pub fn calico_device_problem(facts: &HostFacts, settings: &HostSettings) -> Option<String> {
    settings
        .tunnels()
        .iter()
        .find_map(|tunnel| device_problem(facts, settings, tunnel.calicos))
}

fn device_problem(facts: &HostFacts, settings: &HostSettings, name: &str) -> Option<String> {
    let Some(device) = facts.vxlan(name) else {
        return Some(format!("link {name} is not there yet"));
    };
    if !device.up {
        return Some(format!("link {name} is down"));
    }
    if device.vni != settings.vni || device.port != settings.port {
        return Some(format!(
            "link {name} has VNI {} port {}, needed VNI {} port {}",
            device.vni, device.port, settings.vni, settings.port
        ));
    }
    if device.addresses.is_empty() {
        return Some(format!("link {name} has no tunnel address yet"));
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
            || FLANNEL_DEVICES.iter().any(|prefix| {
                device
                    .name
                    .strip_prefix(prefix)
                    .is_some_and(|vni| vni.parse::<u32>().is_ok())
            });
        is_flannel.then(|| device.name.clone())
    })
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
