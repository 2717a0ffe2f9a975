//! In place: the tunnel link changes its name, and pods of flannel's live on beside Calico's.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

use super::{HostDecision, HostSettings, HostStep, detach, flannel_devices, subnets};
use crate::facts::{Bridge, Found, HostFacts};
use crate::objects;
use engine::words::names;

/// The next change that makes the tunnel Calico's while every pod keeps its packets.
///
/// Routes first: from its first moment Felix blackholes the node's own blocks, and flannel's pods live in them.
pub(super) fn swap(facts: &HostFacts, settings: &HostSettings) -> HostDecision {
    if let Found::Malformed(problem) = &facts.bridge {
        return HostDecision::Halt(format!(
            "{problem}. It is not flannel's, and its pods cannot be told; rename or delete it"
        ));
    }
    if let Some(first) = unknown_ports(facts).first() {
        return HostDecision::Wait(first.clone());
    }
    let tunnels = settings.tunnels();
    let foreign: Vec<String> = flannel_devices(facts, settings)
        .filter(|name| !tunnels.iter().any(|tunnel| tunnel.flannels == *name))
        .collect();
    if !foreign.is_empty() {
        return HostDecision::Halt(format!(
            "VXLAN links {} are named as flannel names its own, and flannel's VNI is {}; delete those that nobody uses",
            names(&foreign),
            settings.vni
        ));
    }
    if let Some(tunnel) = tunnels.iter().find(|tunnel| tunnel.is_twice(facts)) {
        return two_tunnels(&tunnel.flannels, tunnel.calicos);
    }
    if let Some(tunnel) = tunnels.iter().find(|tunnel| tunnel.name(facts).is_none()) {
        // The host was started anew in between: no pod lives on the bridge, and Felix makes the tunnel by itself.
        if !facts.legacy_pods.iter().any(|pod| pod.attached) {
            return detach(facts, settings);
        }
        return HostDecision::Halt(format!(
            "link {} is not there, so there is nothing to rename; restart flannel's pod on this node, or use \
             strategy Drain",
            tunnel.flannels
        ));
    }
    upkeep_step(facts, settings)
        .or_else(|| subnets::upkeep(facts, settings))
        .into_iter()
        .chain(
            tunnels
                .into_iter()
                .filter(|tunnel| facts.vxlan(&tunnel.flannels).is_some())
                .map(|tunnel| HostStep::RenameVxlanDevice {
                    from: tunnel.flannels,
                    to: tunnel.calicos.to_owned(),
                    block_size: tunnel.block_size,
                }),
        )
        .next()
        .map_or(HostDecision::Settled, HostDecision::Run)
}

/// Both names are taken.
pub(super) fn two_tunnels(from: &str, to: &str) -> HostDecision {
    HostDecision::Halt(format!(
        "links {from} and {to} are both there, and only one can carry the packets; see whether flanneld and calico-node \
         both run on this node, and delete the one that carries no packets"
    ))
}

/// What a host with pods of both networks needs: pods come late, pods go.
pub(super) fn upkeep(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    upkeep_step(facts, settings).or_else(|| {
        let gone = facts.legacy_pods.iter().find(|pod| !pod.attached)?;
        Some(HostStep::ForgetLegacyPod(gone.sandbox.clone()))
    })
}

fn upkeep_step(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    let unrouted: Vec<IpAddr> = facts
        .legacy_pods
        .iter()
        .filter(|pod| pod.attached && !pod.routed)
        .flat_map(|pod| pod.addresses.iter().copied())
        .collect();
    if !unrouted.is_empty() {
        return Some(HostStep::RouteLegacyPods(unrouted));
    }
    let bridge = facts.bridge.present().filter(|bridge| !bridge.ports.is_empty())?;
    if !bridge.answers_for_pods {
        return Some(HostStep::AnswerForPods);
    }
    let wanted = to_answer_for(facts, bridge, settings);
    (!wanted.is_empty() && wanted != bridge.answered).then_some(HostStep::AnswerForAddresses(wanted))
}

/// Addresses of IPv6 that Calico's pods on this node may have: `cni0` answers for them and for no others.
///
/// flannel's living pods answer for themselves: a second answer would look like an address that is taken.
fn to_answer_for(facts: &HostFacts, bridge: &Bridge, settings: &HostSettings) -> Vec<Ipv6Net> {
    let Some(ipv6) = &settings.ipv6 else {
        return Vec::new();
    };
    let own = bridge.addresses.iter().map(IpNet::addr);
    let pods = facts.legacy_pods.iter().filter(|pod| pod.attached);
    let taken: BTreeSet<IpAddr> = own
        .chain(pods.flat_map(|pod| pod.addresses.iter().copied()))
        .collect();
    let free = bridge
        .addresses
        .iter()
        .filter(|range| matches!(range, IpNet::V6(_)))
        // A range that holds no block is the check IpamBlocks's.
        .flat_map(|range| objects::blocks(range.trunc(), ipv6.block_size).unwrap_or_default())
        .flat_map(|block| block.hosts())
        .filter_map(|address| match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        })
        .filter(|address| !taken.contains(&IpAddr::V6(*address)));
    Ipv6Net::aggregate(&free.map(Ipv6Net::from).collect())
}

/// Pods on the bridge that nobody can name: their addresses would be given to others. One sentence each.
pub fn unknown_ports(facts: &HostFacts) -> Vec<String> {
    let mut found = facts.legacy_problems.clone();
    if let Found::Present(bridge) = &facts.bridge {
        found.extend(
            bridge
                .ports
                .iter()
                .filter(|port| {
                    !facts
                        .legacy_pods
                        .iter()
                        .any(|pod| pod.attached && pod.link == **port)
                })
                .map(|port| {
                    format!(
                        "link {port} is on {}, and no record under /var/lib/cni/results says whose it is: its address \
                         cannot be kept from others. End that container, or use strategy Drain",
                        bridge.name
                    )
                }),
        );
    }
    found
}
