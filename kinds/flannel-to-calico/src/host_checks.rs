//! Checks of the agent on its own host, with the value found, the value needed and the fix.

use strum::{EnumString, IntoStaticStr, VariantArray};

use std::path::Path;

use super::cni;
use super::facts::HostFacts;
use super::host::{HostSettings, calico_device_problem, leftovers};
use super::phase::{Goal, Phase};
use engine::check::{Check, Verdict};
use engine::cni::CniFile;
use engine::words::lines;

mod flannel;

/// Name of a check of an agent: a metric label and an anchor in the runbook.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr, VariantArray,
)]
pub enum HostCheck {
    /// The host could be read completely.
    HostReadable,
    /// The container runtime uses a valid CNI configuration of flannel or Calico.
    CniConfiguration,
    /// `/run/flannel/subnet.env` exists and is valid.
    SubnetEnvironment,
    /// flanneld runs.
    FlannelProcess,
    /// flannel's VXLAN link agrees with the settings.
    FlannelDevice,
    /// `cni0` is the bridge of flannel's CNI plugin.
    FlannelBridge,
    /// All routes to pods of other nodes use the tunnel.
    DirectRouting,
    /// The reverse path filter of the uplink is strict.
    ReversePathFilter,
    /// `net.bridge.bridge-nf-call-iptables` is 1.
    BridgeNetfilter,
    /// Calico will detect an address.
    HostAddress,
    /// Calico's VXLAN link agrees with the settings.
    CalicoDevice,
    /// Nothing of flannel is left.
    Leftovers,
    /// The agent can write its journal, which a change needs.
    Journal,
}

impl HostCheck {
    /// Every check.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the check in status and metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Reads [`HostCheck::as_str`].
    pub fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// The subject of the checks: one host at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'facts> {
    /// Name of the Node.
    pub node: &'facts str,
    /// The facts about the host.
    pub facts: &'facts HostFacts,
    /// The settings that the host should have.
    pub settings: &'facts HostSettings,
    /// Whether the settings are those of the Migration, and not the defaults before the detection.
    pub settings_are_known: bool,
    /// The phase that the facts prove.
    pub phase: Phase,
    /// The goal from the coordinator.
    pub goal: Goal,
}

/// The check result for a host that could not be read: `Unknown`.
pub fn unreadable(node: &str, problem: &str) -> Vec<Check> {
    vec![Check::not_pass(
        HostCheck::HostReadable.as_str(),
        Verdict::Unknown,
        format!("Node {node}"),
        problem,
        "a host that the agent can read",
        "check the log of the agent on this node",
    )]
}

/// Whether the agent can write its journal in this directory. Without a journal, the agent changes nothing.
pub fn journal(node: &str, folder: &Path, outcome: &Result<(), String>) -> Check {
    let name = HostCheck::Journal.as_str();
    let object = format!("Node {node}: {}", folder.display());
    match outcome {
        Ok(()) => Check::pass(name, object, "writable"),
        Err(problem) => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            problem,
            "a writable directory with free space",
            "free space on the disk, or fix the problem in the message",
        ),
    }
}

/// All checks that apply at this moment.
pub fn checks(subject: Subject<'_>) -> Vec<Check> {
    let Subject { phase, goal, .. } = subject;
    let mut checks = vec![readable(subject), cni_configuration(subject)];
    // Without a goal from the coordinator, the host should be on flannel, even if flannel's state is incomplete.
    if phase == Phase::Flannel || (phase == Phase::Held && goal == Goal::Hold) {
        checks.extend([
            flannel::subnet_environment(subject),
            flannel::process(subject),
            flannel::bridge(subject),
            flannel::direct_routing(subject),
        ]);
        if subject.settings_are_known {
            checks.push(flannel::device(subject));
        }
    }
    checks.extend([
        reverse_path_filter(subject),
        bridge_netfilter(subject),
        host_address(subject),
    ]);
    let on_calico = matches!(phase, Phase::Mixed | Phase::Calico);
    // The goal is given before calico-node starts, and Calico's conflist replaces flannel's after that.
    let goes_to_calico = matches!(goal, Goal::Mixed | Goal::Calico) && subject.facts.calico.node_running;
    if on_calico || goes_to_calico {
        checks.push(calico_device(subject));
    }
    // While pods are adopted, flannel serves the others: the phase says when the host is done.
    let removes_at_once = goes_to_calico && goal == Goal::Calico && !subject.settings.adopt_pods;
    if phase == Phase::Calico || removes_at_once {
        checks.push(remaining(subject));
    }
    checks
}

/// The host was read completely.
fn readable(subject: Subject<'_>) -> Check {
    let (name, object) = (HostCheck::HostReadable.as_str(), format!("Node {}", subject.node));
    let Some(first) = subject.facts.unread_tables.first() else {
        return Check::pass(name, object, "links, files and firewall read");
    };
    Check::not_pass(
        name,
        Verdict::Unknown,
        object,
        first,
        "a firewall that iptables can read",
        "delete the rules that were added with nft, or add them to a separate table",
    )
}

/// What to do about the file of another network that comes first.
fn without_other_network(winner: &CniFile) -> String {
    match cni::meta_plugin(winner) {
        Some(plugin) => {
            format!(
                "none: {plugin} attaches pods to several networks; its file must not be removed while pods need it"
            )
        }
        None => format!(
            "remove {}, which belongs to another network, or rename it so that it comes later",
            winner.name
        ),
    }
}

fn cni_configuration(subject: Subject<'_>) -> Check {
    let name = HostCheck::CniConfiguration.as_str();
    let Subject {
        node,
        facts,
        phase,
        goal,
        ..
    } = subject;
    let folder = &facts.cni.path;
    let object = format!("Node {node}: {folder}");
    if let Some(file) = facts.cni.broken() {
        let problem = file.error.as_deref().unwrap_or_default();
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            format!("{} comes first and is not valid: {problem}", file.name),
            "a valid file that comes first",
            format!("correct or remove {folder}/{}", file.name),
        );
    }
    let Some(winner) = facts.cni.winner() else {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            "no CNI configuration",
            "flannel's or Calico's conflist",
            "check why the DaemonSet of the network has not written its conflist",
        );
    };
    let found = format!("{} is in use ({})", winner.name, winner.plugins.join(", "));
    let others: Vec<String> = facts
        .cni
        .files
        .iter()
        .filter_map(|file| Some(format!("{}: {}", file.name, file.error.as_ref()?)))
        .collect();
    if cni::is_calico(winner) && phase == Phase::Flannel && goal == Goal::Hold {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            "flannel's conflist, until this node is migrated",
            format!(
                "add the missing node selector to Calico's DaemonSet, and remove {folder}/{}",
                winner.name
            ),
        );
    }
    if !cni::is_calico(winner) && !cni::is_flannel(winner) {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            "flannel's or Calico's conflist",
            without_other_network(winner),
        );
    }
    if !others.is_empty() {
        return Check::not_pass(
            name,
            Verdict::Warn,
            object,
            format!("{found}; not valid: {}", lines(&others)),
            "valid files only",
            "correct or remove the files that are not valid",
        );
    }
    Check::pass(name, object, found)
}

/// Only warns: the coordinator refuses loose mode by the version of Calico.
fn reverse_path_filter(subject: Subject<'_>) -> Check {
    let name = HostCheck::ReversePathFilter.as_str();
    let Subject { node, facts, .. } = subject;
    let filter = &facts.reverse_path_filter;
    let Some(uplink) = &facts.uplink else {
        return Check::not_pass(
            name,
            Verdict::Unknown,
            format!("Node {node}: rp_filter"),
            "no interface with a default route or an address",
            "1 (strict)",
            "give the node an address",
        );
    };
    let object = format!("Node {node}: net.ipv4.conf.{uplink}.rp_filter");
    let own = filter.interfaces.get(uplink).copied();
    match (filter.effective(uplink), own) {
        (Some(1), Some(own)) => Check::pass(name, object, format!("1 (all {}, own {own})", filter.all)),
        (Some(effective), Some(own)) => Check::not_pass(
            name,
            Verdict::Warn,
            object,
            format!(
                "{effective} (all {}, own {own}; the larger one applies)",
                filter.all
            ),
            "1 (strict)",
            "run `sysctl -w net.ipv4.conf.all.rp_filter=1`, and set the same value in /etc/sysctl.d",
        ),
        _ => Check::not_pass(
            name,
            Verdict::Unknown,
            object,
            "not listed by the kernel",
            "1 (strict)",
            "check whether the interface exists",
        ),
    }
}

fn bridge_netfilter(subject: Subject<'_>) -> Check {
    let name = HostCheck::BridgeNetfilter.as_str();
    let object = format!("Node {}: net.bridge.bridge-nf-call-iptables", subject.node);
    let (found, fix) = match subject.facts.bridge_nf_call_iptables {
        Some(true) => return Check::pass(name, object, "1"),
        Some(false) => ("0", "run `sysctl -w net.bridge.bridge-nf-call-iptables=1`"),
        None => ("br_netfilter is not loaded", "run `modprobe br_netfilter`"),
    };
    Check::not_pass(
        name,
        Verdict::Warn,
        object,
        found,
        "1, without which pods on flannel's bridge do not reach Services with pods on the same bridge",
        fix,
    )
}

fn host_address(subject: Subject<'_>) -> Check {
    let name = HostCheck::HostAddress.as_str();
    let object = format!("Node {}: address that Calico detects", subject.node);
    match subject.facts.detected_address {
        Some(address) => Check::pass(name, object, address.to_string()),
        None => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            "none",
            "a global IPv4 address on an interface that Calico considers",
            "set IP_AUTODETECTION_METHOD of calico-node",
        ),
    }
}

fn calico_device(subject: Subject<'_>) -> Check {
    let name = HostCheck::CalicoDevice.as_str();
    let Subject {
        node,
        facts,
        settings,
        ..
    } = subject;
    let tunnels = settings.tunnels();
    let links: Vec<&str> = tunnels.iter().map(|tunnel| tunnel.calico_name).collect();
    let sizes: Vec<String> = tunnels.iter().map(|tunnel| tunnel.mtu.to_string()).collect();
    let object = format!("Node {node}: link {}", links.join(" and "));
    let needed = format!(
        "VNI {}, port {}, MTU {}, up, with an address",
        settings.vni,
        settings.port,
        sizes.join(" and ")
    );
    if let Some(problem) = calico_device_problem(facts, settings) {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            problem,
            needed,
            "check the log of calico-node on this node, and FelixConfiguration default",
        );
    }
    let differing = tunnels.iter().find_map(|tunnel| {
        let device = facts.vxlan(tunnel.calico_name)?;
        (device.mtu != tunnel.mtu).then(|| format!("MTU {} of link {}", device.mtu, device.name))
    });
    match differing {
        Some(found) => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            needed,
            "set vxlanMTU (for IPv6: vxlanMTUV6) in FelixConfiguration default",
        ),
        None => Check::pass(name, object, needed),
    }
}

fn remaining(subject: Subject<'_>) -> Check {
    let name = HostCheck::Leftovers.as_str();
    let object = format!("Node {}: leftovers of flannel", subject.node);
    let found = leftovers(subject.facts, subject.settings);
    if found.is_empty() {
        return Check::pass(name, object, "none");
    }
    Check::not_pass(
        name,
        Verdict::Fail,
        object,
        found.join(", "),
        "none",
        if subject.phase == Phase::Calico {
            "stop flannel on this node, which has created them again"
        } else {
            "wait: the agent removes them when Calico works"
        },
    )
}

#[cfg(test)]
mod tests;
