//! Rollback of a host: the new network is removed, and the old one is restored from the journal.
//!
//! No packet of a running pod is lost: at every moment the tunnel exists under one of its two names.

use super::dead_mans_switch::calico_has_written;
use super::in_place::two_tunnels;
use super::{HostDecision, HostSettings, HostStep, JournalState, adopt_back};
use crate::cni;
use crate::facts::HostFacts;
use engine::words::names;

/// The next change of the rollback.
pub(super) fn decide(facts: &HostFacts, settings: &HostSettings, remembered: &JournalState) -> HostDecision {
    let pending = pending(facts, settings, &remembered.unreverted);
    // A rollback without the coordinator ends no process. A calico-node that has not written to the host yet is like one that
    // may start later.
    if facts.calico.node_running && (!remembered.without_coordinator || calico_has_written(facts)) {
        return HostDecision::Wait(
            "calico-node still runs on this host, and would create its link and its routes again".to_owned(),
        );
    }
    // While the label of the Node may still be `calico`, install-cni may write Calico's conflist again: new pods must not use
    // it.
    let late = facts.cni.files.iter().find(|file| cni::is_calico(file));
    if let Some(file) =
        late.filter(|_| remembered.without_coordinator && cni::flannel_files(&facts.cni).next().is_some())
    {
        return HostDecision::Run(HostStep::RemoveCalicoConflist(file.name.clone()));
    }
    // And calico-node may start, and add blackhole routes for the blocks of the node: the routes of single pods, and what
    // belongs to them, stay until the coordinator knows of the rollback. The same holds for steps that no new flannel pod
    // needs, because each of these may fail for ever.
    let waits = |step: &&HostStep| {
        remembered.without_coordinator
            && matches!(
                step,
                HostStep::UnrouteLegacyPods
                    | HostStep::StopAnsweringForPods
                    | HostStep::UnrouteSubnets
                    | HostStep::DeleteCalicoSets
                    | HostStep::RemoveCalicoRecords
            )
    };
    // The runtime did not call DEL of their plugin, because another network's conflist was in use.
    let gone = facts.legacy_pods.iter().find(|pod| !pod.is_running());
    let forget = gone.map(|pod| HostStep::ForgetLegacyPod(pod.sandbox.clone()));
    let Some(first) = pending.iter().find(|step| !waits(step)) else {
        // Without the coordinator, DEL of the plugins comes last, because a plugin may fail for ever.
        return forget
            .filter(|_| remembered.without_coordinator)
            .map_or(HostDecision::Settled, HostDecision::Run);
    };
    // The CNI directory first: then new pods wait, and Calico's running pods can still be deleted.
    match first {
        HostStep::RestoreConflist(_) => return HostDecision::Run(first.clone()),
        HostStep::RemoveCalicoConflist(_) if cni::flannel_files(&facts.cni).next().is_some() => {
            return HostDecision::Run(first.clone());
        }
        HostStep::RemoveCalicoConflist(name) => {
            return HostDecision::Halt(format!(
                "flannel's conflist is neither in {folder} nor in the journal, and without a conflist the node would be \
                 NotReady: write key cni-conf.json of flannel's ConfigMap to a file in {folder}. The agent then removes \
                 {name}",
                folder = facts.cni.path
            ));
        }
        _ => {}
    }
    // A link of Calico belongs to a running pod, which must be evicted before its network is removed.
    if !facts.calico.pods.is_empty() {
        return HostDecision::Wait(format!(
            "pods on Calico are still attached ({}): {}",
            facts.calico.pods.len(),
            names(&facts.calico.pods)
        ));
    }
    let tunnels = settings.tunnels();
    if let Some(tunnel) = tunnels.iter().find(|tunnel| tunnel.is_twice(facts)) {
        return two_tunnels(&tunnel.flannel_name, tunnel.calico_name);
    }
    HostDecision::Run(
        forget
            .filter(|_| !remembered.without_coordinator)
            .unwrap_or_else(|| first.clone()),
    )
}

/// Differences from the state before the migration, one line each: the remaining work of the rollback.
pub fn changes(facts: &HostFacts, settings: &HostSettings, standing: &[HostStep]) -> Vec<String> {
    let running = facts
        .calico
        .node_running
        .then(|| "process calico-node".to_owned());
    let attached = (!facts.calico.pods.is_empty()).then(|| "pods on Calico".to_owned());
    let pending = pending(facts, settings, standing);
    running
        .into_iter()
        .chain(attached)
        .chain(
            pending
                .iter()
                .map(|step| format!("{} ({})", step.name(), step.object())),
        )
        .collect()
}

/// All steps of the rollback that have something to do, in order.
fn pending(facts: &HostFacts, settings: &HostSettings, standing: &[HostStep]) -> Vec<HostStep> {
    let undo = |wanted: fn(&HostStep) -> Option<HostStep>| standing.iter().filter_map(wanted);
    let conflists = undo(|step| match step {
        HostStep::RemoveConflist(name) => Some(HostStep::RestoreConflist(name.clone())),
        _ => None,
    });
    let calicos = facts
        .cni
        .files
        .iter()
        .filter(|file| cni::is_calico(file))
        .map(|file| HostStep::RemoveCalicoConflist(file.name.clone()));
    let firewall = facts
        .calico
        .firewall
        .iter()
        .cloned()
        .map(HostStep::DeleteCalicoFirewall);
    let flannels = undo(|step| match step {
        HostStep::DeleteFirewallObject(object) => Some(HostStep::RestoreFirewallObject(object.clone())),
        _ => None,
    });
    let tunnels = settings.tunnels();
    let routes = tunnels.iter().filter_map(|tunnel| {
        Some(HostStep::RestoreNodeRoutes {
            link: tunnel.name(facts)?.to_owned(),
            length: tunnel.node_range_length,
        })
    });
    let names = tunnels
        .iter()
        .filter(|tunnel| facts.vxlan(tunnel.calico_name).is_some())
        .map(|tunnel| HostStep::ReturnVxlanDevice {
            from: tunnel.calico_name.to_owned(),
            to: tunnel.flannel_name.clone(),
        });
    // flanneld creates a link that was renamed and is gone now (the host has restarted).
    let links = undo(|step| match step {
        HostStep::DeleteVxlanDevice(name) => Some(HostStep::RestoreVxlanDevice(name.clone())),
        _ => None,
    });
    let environment = undo(|step| match step {
        HostStep::WithdrawSubnetEnvironment => Some(HostStep::RestoreSubnetEnvironment),
        _ => None,
    });
    let answering = undo(|step| match step {
        HostStep::AnswerForPods => Some(HostStep::StopAnsweringForPods),
        _ => None,
    });
    let answered = |step: &HostStep| matches!(step, HostStep::AnswerForAddresses(_));
    let addresses = standing
        .iter()
        .any(answered)
        .then_some(HostStep::StopAnsweringForAddresses);
    let returning = adopt_back::all(facts, standing);
    conflists
        .chain(calicos)
        .chain(firewall)
        .chain([HostStep::DeleteCalicoSets])
        .chain(flannels)
        .chain(returning)
        .chain([HostStep::DeleteBlackholes])
        .chain(routes)
        .chain(names)
        .chain(links)
        .chain([HostStep::UnrouteLegacyPods, HostStep::UnrouteSubnets])
        .chain(addresses)
        .chain(answering)
        .chain([HostStep::RemoveCalicoRecords])
        // Last: from now on new pods use flannel, and no route of Calico may hide them.
        .chain(environment)
        // Changed kernel parameters and links are reverted whatever their state is now: a crash may have changed only one of two.
        .filter(|step| {
            let of_bridge = *step == HostStep::StopAnsweringForPods && facts.bridge.present().is_some();
            let of_pods = matches!(step, HostStep::RevertPods(_));
            of_bridge || of_pods || !step.is_done(facts)
        })
        .collect()
}
