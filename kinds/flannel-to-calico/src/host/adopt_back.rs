//! The return of adopted pods to `cni0`: of all in a rollback, and of those that cannot stay adopted.

use std::borrow::Cow;

use super::adopt_step::{PodAction, PodChange, PodEnd};
use super::{HostSettings, HostStep, JournalState, adopt};
use crate::facts::{HostFacts, LegacyPod};

impl JournalState {
    /// The facts with what the host itself does not show: pods whose links calico-node has not taken in time.
    pub fn complete<'facts>(
        &self,
        facts: &'facts HostFacts,
        settings: &HostSettings,
    ) -> Cow<'facts, HostFacts> {
        let is_named = |pod: &LegacyPod| self.not_taken.contains(&pod.sandbox);
        if !facts.legacy_pods.iter().any(is_named) {
            return Cow::Borrowed(facts);
        }
        let mut facts = facts.clone();
        for pod in facts.legacy_pods.iter_mut().filter(|pod| is_named(pod)) {
            pod.not_taken_within = Some(settings.adoption.taking_seconds);
        }
        Cow::Owned(facts)
    }
}

/// The steps that return all adopted pods to `cni0`, in order.
pub(super) fn all(facts: &HostFacts, standing: &[HostStep]) -> Vec<HostStep> {
    let reverts: Vec<HostStep> = PodAction::ALL
        .iter()
        .rev()
        .flat_map(|action| changes(standing, *action))
        .filter(|change| change.pods.iter().any(|end| runs(facts, end)))
        .map(|change| HostStep::RevertPods(change.clone()))
        .collect();
    let restored = (!reverts.is_empty()).then_some(HostStep::RestoreBridge);
    let was_opened = standing.contains(&HostStep::OpenBridge);
    let kept = standing.iter().filter_map(|step| match step {
        HostStep::KeepBridgeAddresses(addresses) => Some(HostStep::DropBridgeAddresses(addresses.clone())),
        _ => None,
    });
    let closed = was_opened.then_some(HostStep::CloseBridge);
    let rules = (!facts.calico.frame_rules.is_empty())
        .then(|| HostStep::RemoveFrameRules(facts.calico.frame_rules.clone()));
    restored
        .into_iter()
        .chain(reverts)
        .chain(kept)
        .chain(closed)
        .chain(rules)
        .collect()
}

/// The next step that returns pods that cannot stay adopted. The other adopted pods stay as they are.
///
/// The journal says what has to be reverted: after a crash, the facts do not show a kernel parameter that is not restored yet.
pub(super) fn next(facts: &HostFacts, settings: &HostSettings, standing: &[HostStep]) -> Option<HostStep> {
    let reverts: Vec<HostStep> = PodAction::ALL
        .iter()
        .rev()
        .filter_map(|action| {
            let ends = ends_to_return(facts, settings, standing, *action);
            (!ends.is_empty()).then_some(HostStep::RevertPods(PodChange {
                action: *action,
                pods: ends,
            }))
        })
        .collect();
    let flannels = standing.iter().filter_map(|step| match step {
        HostStep::DeleteFirewallObject(object) => Some(HostStep::RestoreFirewallObject(object.clone())),
        _ => None,
    });
    // The bridge may be gone if Felix had taken the links and has given one up.
    let before = flannels.chain([HostStep::RestoreBridge]);
    if let Some(first) = reverts.into_iter().next() {
        return before
            .into_iter()
            .find(|step| !step.is_done(facts))
            .or(Some(first));
    }
    let has_ports = facts
        .bridge
        .present()
        .is_some_and(|bridge| !bridge.ports.is_empty());
    let kept = &facts.calico.kept_addresses;
    if has_ports && !kept.is_empty() {
        return Some(HostStep::DropBridgeAddresses(kept.clone()));
    }
    let is_in_use = PodAction::ALL
        .iter()
        .flat_map(|action| changes(standing, *action))
        .any(|change| change.pods.iter().any(|end| runs(facts, end)));
    let is_open = standing.contains(&HostStep::OpenBridge) && has_ports;
    (is_open && !is_in_use && adopt::next(facts, settings).is_none()).then_some(HostStep::CloseBridge)
}

/// The ends of pods that return and for which this action is not reverted yet.
fn ends_to_return(
    facts: &HostFacts,
    settings: &HostSettings,
    standing: &[HostStep],
    action: PodAction,
) -> Vec<PodEnd> {
    let mut ends: Vec<PodEnd> = Vec::new();
    for end in changes(standing, action).flat_map(|change| &change.pods) {
        let mut pods = facts.legacy_pods.iter();
        let returns = pods.any(|pod| pod.sandbox == end.sandbox && adopt::must_return(pod, facts, settings));
        if returns && runs(facts, end) && !ends.iter().any(|other| other.sandbox == end.sandbox) {
            ends.push(end.clone());
        }
    }
    ends
}

/// The standing changes with this action.
fn changes(standing: &[HostStep], action: PodAction) -> impl Iterator<Item = &PodChange> {
    standing.iter().filter_map(move |step| match step {
        HostStep::ChangePods(change) if change.action == action => Some(change),
        _ => None,
    })
}

/// Whether the pod of this end runs.
fn runs(facts: &HostFacts, end: &PodEnd) -> bool {
    let mut pods = facts.legacy_pods.iter();
    pods.any(|pod| pod.sandbox == end.sandbox && pod.pod_link.is_some())
}
