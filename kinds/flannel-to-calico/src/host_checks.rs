//! The agent's checks of its own host: what the facts mean, with the value found, the value needed and the fix.

use std::path::Path;

use super::facts::HostFacts;
use super::host::{HostSettings, calico_device_problem, leftovers};
use super::phase::{Goal, Phase};
use engine::check::{Check, Verdict};
use engine::words::lines;

mod flannel;

/// Every check of an agent. A metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostCheck {
    /// The host could be read at all.
    HostReadable,
    /// Which CNI configuration the runtime uses.
    CniConfiguration,
    /// `/run/flannel/subnet.env`.
    SubnetEnvironment,
    /// flanneld runs.
    FlannelProcess,
    /// flannel's VXLAN link is as the settings say.
    FlannelDevice,
    /// `cni0` is the bridge of flannel's CNI plugin.
    FlannelBridge,
    /// No route to other nodes' pods past the tunnel.
    DirectRouting,
    /// Reverse path filter of the uplink.
    ReversePathFilter,
    /// `net.bridge.bridge-nf-call-iptables`.
    BridgeNetfilter,
    /// The address that Calico will detect.
    HostAddress,
    /// Calico's VXLAN link is as the settings say.
    CalicoDevice,
    /// Nothing of flannel is left.
    Leftovers,
    /// The agent can write what was there before it changes it.
    Journal,
}

impl HostCheck {
    /// Every check.
    pub const ALL: [Self; 13] = [
        Self::HostReadable,
        Self::CniConfiguration,
        Self::SubnetEnvironment,
        Self::FlannelProcess,
        Self::FlannelDevice,
        Self::FlannelBridge,
        Self::DirectRouting,
        Self::ReversePathFilter,
        Self::BridgeNetfilter,
        Self::HostAddress,
        Self::CalicoDevice,
        Self::Leftovers,
        Self::Journal,
    ];

    /// The check as it stands in status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostReadable => "HostReadable",
            Self::CniConfiguration => "CniConfiguration",
            Self::SubnetEnvironment => "SubnetEnvironment",
            Self::FlannelProcess => "FlannelProcess",
            Self::FlannelDevice => "FlannelDevice",
            Self::FlannelBridge => "FlannelBridge",
            Self::DirectRouting => "DirectRouting",
            Self::ReversePathFilter => "ReversePathFilter",
            Self::BridgeNetfilter => "BridgeNetfilter",
            Self::HostAddress => "HostAddress",
            Self::CalicoDevice => "CalicoDevice",
            Self::Leftovers => "Leftovers",
            Self::Journal => "Journal",
        }
    }

    /// Reads [`HostCheck::as_str`].
    pub fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.as_str() == text)
    }
}

/// What is judged: one host at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'facts> {
    /// Name of the Node.
    pub node: &'facts str,
    /// What was read off it.
    pub facts: &'facts HostFacts,
    /// What it should be like.
    pub settings: &'facts HostSettings,
    /// Whether those are the Migration's, and not the usual ones of a cluster that nobody has looked at yet.
    pub settings_are_known: bool,
    /// The phase that the facts prove.
    pub phase: Phase,
    /// What the coordinator asks for.
    pub goal: Goal,
}

/// The check of a host that could not be read: nobody knows.
pub fn unreadable(node: &str, problem: &str) -> Vec<Check> {
    vec![Check::not_pass(
        HostCheck::HostReadable.as_str(),
        Verdict::Unknown,
        format!("Node {node}"),
        problem,
        "a host that the agent can read",
        "see the agent's log on that node",
    )]
}

/// Whether the agent can keep its journal in this folder: without it nothing is changed.
pub fn journal(node: &str, folder: &Path, outcome: &Result<(), String>) -> Check {
    let name = HostCheck::Journal.as_str();
    let object = format!("Node {node}: {}", folder.display());
    match outcome {
        Ok(()) => Check::pass(name, object, "can be written"),
        Err(problem) => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            problem,
            "a folder on a disk with room",
            "make room on the disk, or mend what the message names",
        ),
    }
}

/// Every check that means something at this moment.
pub fn checks(subject: Subject<'_>) -> Vec<Check> {
    let Subject { phase, goal, .. } = subject;
    let mut checks = vec![readable(subject), cni_configuration(subject)];
    // A host on which nobody asked for anything should be on flannel, however little of it is there.
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
    if on_calico || matches!(goal, Goal::Mixed | Goal::Calico) {
        checks.push(calico_device(subject));
    }
    if phase == Phase::Calico || goal == Goal::Calico {
        checks.push(left(subject));
    }
    checks
}

/// What was read of the host is all of it.
fn readable(subject: Subject<'_>) -> Check {
    let (name, object) = (HostCheck::HostReadable.as_str(), format!("Node {}", subject.node));
    let Some(first) = subject.facts.unread_tables.first() else {
        return Check::pass(name, object, "links, files, firewall");
    };
    Check::not_pass(
        name,
        Verdict::Unknown,
        object,
        first,
        "a firewall that iptables can read",
        "delete the rules that were added with nft, or write them into a table of their own",
    )
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
            format!("{} is read first and is not valid: {problem}", file.name),
            "a valid file that is read first",
            format!("mend or remove {folder}/{}", file.name),
        );
    }
    let Some(winner) = facts.cni.winner() else {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            "no CNI configuration",
            "flannel's or Calico's conflist",
            "see why the network's DaemonSet has not written its conflist",
        );
    };
    let found = format!("{} wins ({})", winner.name, winner.plugins.join(", "));
    let others: Vec<String> = facts
        .cni
        .files
        .iter()
        .filter_map(|file| Some(format!("{}: {}", file.name, file.error.as_ref()?)))
        .collect();
    if winner.is_calico() && phase == Phase::Flannel && goal == Goal::Hold {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            "flannel's conflist, until it is this node's turn",
            format!(
                "Calico was installed without its node selector; add it and remove {folder}/{}",
                winner.name
            ),
        );
    }
    if !winner.is_calico() && !winner.is_flannel() {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            "flannel's or Calico's conflist",
            format!(
                "{} belongs to another network; it has to go, or come later by name",
                winner.name
            ),
        );
    }
    if !others.is_empty() {
        return Check::not_pass(
            name,
            Verdict::Warn,
            object,
            format!("{found}; not valid: {}", lines(&others)),
            "valid files only",
            "mend or remove the files that are not valid",
        );
    }
    Check::pass(name, object, found)
}

/// The version of Calico decides whether loose mode is refused; that is the coordinator's to say. Here it is told.
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
            format!("{effective} (all {}, own {own}; the larger counts)", filter.all),
            "1 (strict)",
            "sysctl -w net.ipv4.conf.all.rp_filter=1, and the same in /etc/sysctl.d",
        ),
        _ => Check::not_pass(
            name,
            Verdict::Unknown,
            object,
            "not listed by the kernel",
            "1 (strict)",
            "see whether the interface is there",
        ),
    }
}

fn bridge_netfilter(subject: Subject<'_>) -> Check {
    let name = HostCheck::BridgeNetfilter.as_str();
    let object = format!("Node {}: net.bridge.bridge-nf-call-iptables", subject.node);
    let (found, fix) = match subject.facts.bridge_nf_call_iptables {
        Some(true) => return Check::pass(name, object, "1"),
        Some(false) => ("0", "sysctl -w net.bridge.bridge-nf-call-iptables=1"),
        None => ("br_netfilter is not loaded", "modprobe br_netfilter"),
    };
    Check::not_pass(
        name,
        Verdict::Warn,
        object,
        found,
        "1: pods on flannel's bridge reach Services of their own node only with it",
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
            "a global IPv4 address on an interface that Calico looks at",
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
    let links: Vec<&str> = tunnels.iter().map(|tunnel| tunnel.calicos).collect();
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
            "see the log of calico-node on this node, and FelixConfiguration default",
        );
    }
    let differing = tunnels.iter().find_map(|tunnel| {
        let device = facts.vxlan(tunnel.calicos)?;
        (device.mtu != tunnel.mtu).then(|| format!("MTU {} of link {}", device.mtu, device.name))
    });
    match differing {
        Some(found) => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            needed,
            "set vxlanMTU (of IPv6 vxlanMTUV6) of FelixConfiguration default",
        ),
        None => Check::pass(name, object, needed),
    }
}

fn left(subject: Subject<'_>) -> Check {
    let name = HostCheck::Leftovers.as_str();
    let object = format!("Node {}: what is left of flannel", subject.node);
    let found = leftovers(subject.facts, subject.settings);
    if found.is_empty() {
        return Check::pass(name, object, "nothing");
    }
    Check::not_pass(
        name,
        Verdict::Fail,
        object,
        found.join(", "),
        "nothing",
        if subject.phase == Phase::Calico {
            "somebody made it again; stop flannel on this node"
        } else {
            "the agent removes it once Calico is there"
        },
    )
}

#[cfg(test)]
#[path = "host_checks_tests.rs"]
mod tests;
