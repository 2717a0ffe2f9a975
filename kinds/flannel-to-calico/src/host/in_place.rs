//! In place: the tunnel link is renamed, and flannel pods keep running beside Calico's pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

use super::detach::detach;
use super::device::{flannel_devices, renames};
use super::{HostDecision, HostSettings, HostStep, subnets};
use crate::facts::{Bridge, Found, HostFacts, LegacyPod};
use crate::objects;
use engine::words::names;

/// The next change that turns the tunnel into Calico's without loss of packets.
///
/// Routes first: at its start, Felix adds blackhole routes for the blocks of the node, and these contain flannel's pods.
pub(super) fn swap(facts: &HostFacts, settings: &HostSettings) -> HostDecision {
    if let Found::Malformed(problem) = &facts.bridge {
        return HostDecision::Halt(format!(
            "{problem}. The link is not flannel's, and its pods are unknown: rename or delete the link"
        ));
    }
    if let Some(first) = links_without_known_pod(facts).first() {
        return HostDecision::Wait(first.clone());
    }
    let tunnels = settings.tunnels();
    let foreign: Vec<String> = flannel_devices(facts, settings)
        .filter(|name| !tunnels.iter().any(|tunnel| tunnel.flannel_name == *name))
        .collect();
    if !foreign.is_empty() {
        return HostDecision::Halt(format!(
            "unexpected VXLAN links with a name of flannel: {}; flannel's VNI is {}. Delete the unused links",
            names(&foreign),
            settings.vni
        ));
    }
    if let Some(tunnel) = tunnels.iter().find(|tunnel| tunnel.is_twice(facts)) {
        return two_tunnels(&tunnel.flannel_name, tunnel.calico_name);
    }
    if let Some(tunnel) = tunnels.iter().find(|tunnel| tunnel.name(facts).is_none()) {
        // The host has restarted in between: no pod runs on the bridge, and Felix creates the tunnel.
        if !facts.legacy_pods.iter().any(LegacyPod::is_running) {
            return detach(facts, settings, &[]);
        }
        return HostDecision::Halt(format!(
            "link {} does not exist, so there is nothing to rename: restart flannel's pod on this node, or use \
             strategy Drain",
            tunnel.flannel_name
        ));
    }
    upkeep_step(facts, settings)
        .or_else(|| subnets::upkeep(facts, settings))
        .into_iter()
        .chain(renames(facts, settings))
        .next()
        .map_or(HostDecision::Settled, HostDecision::Run)
}

/// The halt for links of both names.
pub(super) fn two_tunnels(from: &str, to: &str) -> HostDecision {
    HostDecision::Halt(format!(
        "links {from} and {to} both exist, but only one can carry packets: check whether flanneld and calico-node both run \
         on this node, and delete the link that carries no packets"
    ))
}

/// The next change for a host with pods of both networks: pods may start late, and pods end.
pub(super) fn upkeep(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    upkeep_step(facts, settings).or_else(|| {
        let gone = facts.legacy_pods.iter().find(|pod| !pod.is_running())?;
        Some(HostStep::ForgetLegacyPod(gone.sandbox.clone()))
    })
}

fn upkeep_step(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    let unrouted: Vec<IpAddr> = facts
        .legacy_pods
        .iter()
        .filter(|pod| pod.attached && !pod.routed)
        // A pod that is being adopted has its routes on its own link.
        .filter(|pod| pod.pod_link.as_ref().is_none_or(|link| !link.routed))
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

/// IPv6 addresses that are not on the bridge and that its pods look for there: `cni0` answers for exactly these. Calico's pods on this
/// node may have any free address of the claimed blocks; adopted pods have left the bridge.
///
/// Flannel pods on the bridge answer for their own addresses: a second answer would look like a duplicate address.
fn to_answer_for(facts: &HostFacts, bridge: &Bridge, settings: &HostSettings) -> Vec<Ipv6Net> {
    let Some(ipv6) = &settings.ipv6 else {
        return Vec::new();
    };
    let own = bridge.addresses.iter().map(IpNet::addr);
    let running = || facts.legacy_pods.iter().filter(|pod| pod.is_running());
    let taken: BTreeSet<IpAddr> = own
        .chain(running().flat_map(|pod| pod.addresses.iter().copied()))
        .collect();
    let free = bridge
        .addresses
        .iter()
        .filter(|range| matches!(range, IpNet::V6(_)))
        // The check IpamBlocks names a range that contains no whole block.
        .flat_map(|range| objects::blocks(range.trunc(), ipv6.block_size).unwrap_or_default())
        .flat_map(|block| block.hosts())
        .filter_map(|address| match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        })
        .filter(|address| !taken.contains(&IpAddr::V6(*address)));
    // Before such a pod leaves: its frames go to the host from then on.
    let leaves = |pod: &&LegacyPod| pod.pod_link.as_ref().is_some_and(|link| link.accepts_frames);
    let leaving = running().filter(leaves).flat_map(LegacyPod::ipv6_addresses);
    Ipv6Net::aggregate(&free.chain(leaving).map(Ipv6Net::from).collect())
}

/// Links on the bridge without a known pod, whose addresses Calico could assign to other pods. One sentence each.
pub fn links_without_known_pod(facts: &HostFacts) -> Vec<String> {
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
                        "link {port} is attached to {}, but no record of libcni names its pod, so Calico \
                         could assign its address to another pod. Delete that pod, or use strategy Drain",
                        bridge.name
                    )
                }),
        );
    }
    found
}
