//! The way back: everything of the new network goes, and what the journal has of the old one is put where it was.
//!
//! No packet of a living pod is lost on it: what carries packets is there under one name or the other at every moment.

use super::in_place::two_tunnels;
use super::switch::calico_has_begun;
use super::{HostDecision, HostSettings, HostStep, Remembered};
use crate::facts::HostFacts;
use engine::cni::CniFile;
use engine::words::names;

/// The next change on the way back.
pub(super) fn decide(facts: &HostFacts, settings: &HostSettings, remembered: &Remembered) -> HostDecision {
    let pending = pending(facts, settings, &remembered.standing);
    // A host that goes back alone ends no process. One that runs and has done nothing on the host yet is as one that may start later.
    if facts.calico.node_running && (!remembered.alone || calico_has_begun(facts)) {
        return HostDecision::Wait(
            "calico-node still runs on this host; it would make its link and its routes again".to_owned(),
        );
    }
    // While the Node's label may say Calico still, its installer may put its conflist back: new pods are not to take it.
    let late = facts.cni.files.iter().find(|file| CniFile::is_calico(file));
    if let Some(file) = late.filter(|_| remembered.alone && facts.cni.flannel_files().next().is_some()) {
        return HostDecision::Run(HostStep::RemoveCalicoConflist(file.name.clone()));
    }
    // And calico-node may start, and blackhole the node's blocks: the pods' own routes and what serves them stay until the
    // coordinator has taken notice. So does what no new pod of flannel's needs, since each of these steps may be refused for ever.
    let waits = |step: &&HostStep| {
        remembered.alone
            && matches!(
                step,
                HostStep::UnrouteLegacyPods
                    | HostStep::StopAnsweringForPods
                    | HostStep::UnrouteSubnets
                    | HostStep::DeleteCalicoSets
                    | HostStep::RemoveCalicoRecords
            )
    };
    // Their plugins' DEL did not come: the conflist of the moment was another network's.
    let gone = facts.legacy_pods.iter().find(|pod| !pod.attached);
    let forget = gone.map(|pod| HostStep::ForgetLegacyPod(pod.sandbox.clone()));
    let Some(first) = pending.iter().find(|step| !waits(step)) else {
        // A plugin that fails for ever does not hold up a host that goes back alone: it is asked last.
        return forget
            .filter(|_| remembered.alone)
            .map_or(HostDecision::Settled, HostDecision::Run);
    };
    // The folder first. New pods wait from then on, and those of Calico's that live still leave.
    match first {
        HostStep::RestoreConflist(_) => return HostDecision::Run(first.clone()),
        HostStep::RemoveCalicoConflist(_) if facts.cni.flannel_files().next().is_some() => {
            return HostDecision::Run(first.clone());
        }
        HostStep::RemoveCalicoConflist(name) => {
            return HostDecision::Halt(format!(
                "flannel's conflist is neither in {folder} nor in the journal, and without one the node would be \
                 NotReady; write it to {folder} from key cni-conf.json of flannel's ConfigMap. {name} goes then",
                folder = facts.cni.path
            ));
        }
        _ => {}
    }
    // A cable of Calico's is a pod that lives: its network is not taken from it. It goes by eviction.
    if !facts.calico.pods.is_empty() {
        return HostDecision::Wait(format!(
            "{} pods of Calico's are still attached: {}",
            facts.calico.pods.len(),
            names(&facts.calico.pods)
        ));
    }
    let tunnels = settings.tunnels();
    if let Some(tunnel) = tunnels.iter().find(|tunnel| tunnel.is_twice(facts)) {
        return two_tunnels(&tunnel.flannels, tunnel.calicos);
    }
    HostDecision::Run(
        forget
            .filter(|_| !remembered.alone)
            .unwrap_or_else(|| first.clone()),
    )
}

/// What is different from before, one line each: what the way back has to do still.
pub fn changes(facts: &HostFacts, settings: &HostSettings, standing: &[HostStep]) -> Vec<String> {
    let running = facts
        .calico
        .node_running
        .then(|| "process calico-node".to_owned());
    let attached = (!facts.calico.pods.is_empty()).then(|| "pods of Calico's".to_owned());
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

/// Every step of the way back that has something to do, in order.
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
        .filter(|file| CniFile::is_calico(file))
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
        .filter(|tunnel| facts.vxlan(tunnel.calicos).is_some())
        .map(|tunnel| HostStep::ReturnVxlanDevice {
            from: tunnel.calicos.to_owned(),
            to: tunnel.flannels.clone(),
        });
    // One that was renamed and is gone by now (the host was started anew) is made by flanneld.
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
    conflists
        .chain(calicos)
        .chain(firewall)
        .chain([HostStep::DeleteCalicoSets])
        .chain(flannels)
        .chain([HostStep::DeleteBlackholes])
        .chain(routes)
        .chain(names)
        .chain(links)
        .chain([HostStep::UnrouteLegacyPods, HostStep::UnrouteSubnets])
        .chain(addresses)
        .chain(answering)
        .chain([HostStep::RemoveCalicoRecords])
        // Last: from here on new pods are flannel's, and none of Calico's routes may hide them.
        .chain(environment)
        // What stands of parameters is taken back whatever they say now: a crash may have left one of two.
        .filter(|step| {
            let of_bridge = *step == HostStep::StopAnsweringForPods && facts.bridge.present().is_some();
            of_bridge || !step.is_done(facts)
        })
        .collect()
}
