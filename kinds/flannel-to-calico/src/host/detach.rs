//! The way from flannel to a host that Calico can take over: new pods are held, the tunnel gets Calico's name, and the leftovers of
//! flannel are deleted.

use engine::words::{names, number};

use super::device::{flannel_devices, renames};
use super::step_object::describe_firewall_object;
use super::{BRIDGE, HostDecision, HostSettings, HostStep, adopt, adopt_back, subnets};
use crate::cni;
use crate::facts::{Found, HostFacts};

/// Leftovers of flannel on the host, one line each; empty if the host is clean.
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
    for file in cni::flannel_files(&facts.cni) {
        found.push(format!("file {}/{}", facts.cni.path, file.name));
    }
    if !facts.subnet_environment.is_absent() {
        found.push("file /run/flannel/subnet.env".to_owned());
    }
    // Adopted pods keep their leases and delegate files: flannel's CNI plugin removes them with the pod.
    let are_left = !facts.has_adopted_pods();
    if facts.leases > 0 && are_left {
        let files = number(facts.leases, "file", "files");
        found.push(format!("{files} of host-local in /var/lib/cni/networks"));
    }
    if facts.delegates > 0 && are_left {
        let files = number(facts.delegates, "delegate file", "delegate files");
        found.push(format!("{files} in /var/lib/cni/flannel"));
    }
    if !subnets::are_needed(settings) && !facts.calico.subnet_routes.is_gone() {
        let routes = number(facts.calico.subnet_routes.found, "route", "routes");
        found.push(format!("{routes} of replumb to subnets of nodes, with the rule"));
    }
    found
}

pub(super) fn hold(facts: &HostFacts) -> HostDecision {
    if facts.flanneld_running {
        return HostDecision::Wait(
            "flanneld still runs on this host, and would write /run/flannel/subnet.env again".to_owned(),
        );
    }
    HostDecision::Run(HostStep::WithdrawSubnetEnvironment)
}

/// `standing` are the changes that were made and not reverted.
pub(super) fn detach(facts: &HostFacts, settings: &HostSettings, standing: &[HostStep]) -> HostDecision {
    if let Found::Malformed(problem) = &facts.bridge {
        return HostDecision::Halt(format!(
            "{problem}. The link is not flannel's, so replumb does not delete it: rename or delete the link"
        ));
    }
    if settings.adopt_pods {
        let step = adopt_back::next(facts, settings, standing).or_else(|| adopt::next(facts, settings));
        if let Some(step) = step {
            return HostDecision::Run(step);
        }
    }
    if let Some(wait) = adopt::between(facts).or_else(|| adopt::not_taken(facts)) {
        return HostDecision::Wait(wait);
    }
    // A link on the bridge belongs to a running pod, which must be evicted before its network is removed.
    if let Found::Present(bridge) = &facts.bridge
        && !bridge.ports.is_empty()
    {
        let verb = if bridge.ports.len() == 1 {
            "pod is"
        } else {
            "pods are"
        };
        let adopted = adopt::cannot_be_adopted(facts, settings).filter(|_| settings.adopt_pods);
        return HostDecision::Wait(adopted.unwrap_or_else(|| {
            format!(
                "{} {verb} still attached to {BRIDGE}: {}",
                bridge.ports.len(),
                names(&bridge.ports)
            )
        }));
    }
    let gone = facts
        .legacy_pods
        .iter()
        .filter(|pod| !pod.is_running())
        .map(|pod| HostStep::ForgetLegacyPod(pod.sandbox.clone()));
    let renames = renames(facts, settings);
    // Before Felix deletes flannel's routes: its own lead to claimed blocks only.
    let routes = (!renames.is_empty())
        .then(|| subnets::upkeep(facts, settings))
        .flatten();
    // The firewall comes before the label that starts Calico: flannel's masquerade jump would translate packets of Calico's pods.
    let firewall = facts.firewall.iter().cloned();
    let steps = routes
        .into_iter()
        .chain(renames)
        .chain(firewall.map(HostStep::DeleteFirewallObject))
        .chain(flannel_devices(facts, settings).map(HostStep::DeleteVxlanDevice))
        .chain(gone)
        .chain(adopt::keep_addresses(facts))
        .chain([HostStep::DeleteBridge])
        .chain((!facts.has_adopted_pods()).then_some(HostStep::RemoveLeases))
        .chain(adopt::clean(facts));
    match steps.into_iter().find(|step| !step.is_done(facts)) {
        Some(step) => HostDecision::Run(step),
        None => HostDecision::Halt(format!(
            "the host is not detached, but no step remains; leftovers: {}",
            names(&leftovers(facts, settings))
        )),
    }
}
