//! The decisions of an adoption: running pods of flannel become Calico's own, without a restart.

use std::net::{IpAddr, Ipv6Addr};

use engine::words::names;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::adopt_step::{PodAction, PodChange, PodEnd};
use super::{BRIDGE, HostSettings, HostStep};
use crate::facts::{HostFacts, LegacyPod, PodLink};
use crate::objects;

/// `AdoptionSettings` is how running pods of flannel are adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptionSettings {
    /// `takingSeconds` is the time, in seconds, within which calico-node must take the link of an adopted pod. Afterwards the agent
    /// returns the pod to `cni0`. Defaults to 60.
    #[serde(default = "usual_taking_seconds")]
    pub taking_seconds: u32,
    /// `resumedAt` is the value of `spec.resumedAt` of the Migration at the last attempt. When it changes, the agent adopts the
    /// pods again that it has returned. Unset if the migration was never resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}

/// Felix takes a link within two seconds. A calico-node that restarts needs some ten seconds more.
fn usual_taking_seconds() -> u32 {
    60
}

impl Default for AdoptionSettings {
    fn default() -> Self {
        Self {
            taking_seconds: usual_taking_seconds(),
            resumed_at: None,
        }
    }
}

impl AdoptionSettings {
    /// Whether every value is the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The next change that adopts the pods of `cni0`; `None` if no pod remains that can be adopted. A pod that is adopted may miss its
/// routes: a kernel that does not rename a link that is up deletes them, and the agent may have been killed before it added them again.
pub(super) fn next(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    let pods: Vec<(&LegacyPod, &PodLink)> = facts
        .legacy_pods
        .iter()
        .filter(|pod| !pod.is_adopted() || pod.waits_for_felix())
        .filter(|pod| obstacle(pod, facts, settings).is_none())
        .filter_map(|pod| Some((pod, pod.pod_link.as_ref()?)))
        .collect();
    if pods.iter().any(|(pod, _)| !pod.is_adopted())
        && facts.bridge.present().is_some_and(|bridge| !bridge.open)
    {
        return Some(HostStep::OpenBridge);
    }
    PodAction::ALL.iter().find_map(|action| {
        let ends: Vec<PodEnd> = pods
            .iter()
            .filter(|(pod, link)| {
                !action.is_done(pod, link) && (!pod.is_adopted() || *action == PodAction::Route)
            })
            .filter_map(|(pod, _)| PodEnd::of(pod))
            .collect();
        (!ends.is_empty()).then_some(HostStep::ChangePods(PodChange {
            action: *action,
            pods: ends,
        }))
    })
}

/// The next change of an adoption that keeps every pod on `cni0`; `None` if none remains. Such changes need no calico-node: they are
/// made while it starts.
pub(super) fn prepare(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    next(facts, settings).filter(|step| match step {
        HostStep::OpenBridge => true,
        HostStep::ChangePods(change) => change.action.keeps_pods_on_bridge(),
        _ => false,
    })
}

/// Why a pod that runs on `cni0` cannot be adopted, as a part of a sentence after the name of the pod; `None` if it can.
fn obstacle(pod: &LegacyPod, facts: &HostFacts, settings: &HostSettings) -> Option<String> {
    if let Some(obstacle) = &pod.obstacle {
        return Some(obstacle.clone());
    }
    let Some(link) = &pod.pod_link else {
        return Some(format!("link {} does not match the record of the pod", pod.link));
    };
    if let Some(seconds) = pod.not_taken_within {
        return Some(format!(
            "calico-node has not taken link {} within {seconds} s (find the reason in the log of calico-node, then `kubectl \
             replumb resume`)",
            link.calico_name
        ));
    }
    if pod.mac.is_empty() {
        return Some("the record of the pod has no MAC address".to_owned());
    }
    if let Some(address) = pod
        .ipv6_addresses()
        .find(|address| !is_in_blocks(*address, facts, settings))
    {
        return Some(format!(
            "address {address} is in no IPAM block of the node, so other nodes on Calico have no route to it"
        ));
    }
    let is_same = |other: &&LegacyPod| other.sandbox == pod.sandbox;
    if facts.legacy_pods.iter().filter(is_same).count() > 1 {
        return Some("the pod has more than one interface".to_owned());
    }
    link.name_taken
        .then(|| format!("another link has the name {}", link.calico_name))
}

/// Whether this IPv6 address is in a block that the migration claims for the node. Calico routes blocks, and its IPAM knows addresses
/// in blocks only.
fn is_in_blocks(address: Ipv6Addr, facts: &HostFacts, settings: &HostSettings) -> bool {
    let address = IpAddr::V6(address);
    let ranges = facts.bridge.present().map(|bridge| &bridge.addresses);
    let mut ranges = ranges
        .into_iter()
        .flatten()
        .filter(|range| range.contains(&address));
    settings.ipv6.as_ref().is_some_and(|ipv6| {
        ranges.any(|range| {
            let blocks = objects::blocks(range.trunc(), ipv6.block_size).unwrap_or_default();
            blocks.iter().any(|block| block.contains(&address))
        })
    })
}

/// The pods on `cni0` that cannot be adopted, each with its reason and the way out.
pub fn obstacles(facts: &HostFacts, settings: &HostSettings) -> Vec<String> {
    facts
        .legacy_pods
        .iter()
        .filter(|pod| pod.attached)
        .filter_map(|pod| {
            let reason = obstacle(pod, facts, settings)?;
            Some(format!("pod {}/{}: {reason}", pod.namespace, pod.name))
        })
        .collect()
}

/// The pods that stay on `cni0` because they cannot be adopted; empty while other pods are to be adopted, wait for Felix, or return
/// to `cni0`.
pub fn pods_that_stay(facts: &HostFacts, settings: &HostSettings) -> Vec<String> {
    let is_on_its_way = |pod: &LegacyPod| {
        let returns = !pod.attached && pod.pod_link.is_some() && must_return(pod, facts, settings);
        returns || pod.is_between() || pod.waits_for_felix()
    };
    if next(facts, settings).is_some() || facts.legacy_pods.iter().any(is_on_its_way) {
        return Vec::new();
    }
    obstacles(facts, settings)
}

/// Whether the pod has to return to `cni0`: calico-node has not taken its link, or an obstacle has come up in the middle.
pub(super) fn must_return(pod: &LegacyPod, facts: &HostFacts, settings: &HostSettings) -> bool {
    pod.not_taken_within.is_some() || (!pod.is_adopted() && obstacle(pod, facts, settings).is_some())
}

/// The wait for pods that are neither on `cni0` nor adopted, and whose way back is not in the journal; `None` if there is none.
pub(super) fn between(facts: &HostFacts) -> Option<String> {
    let pods = facts.legacy_pods.iter().filter(|pod| pod.is_between());
    let found: Vec<String> = pods
        .map(|pod| format!("{} of pod {}/{}", pod.link, pod.namespace, pod.name))
        .collect();
    (!found.is_empty()).then(|| {
        format!(
            "links that are neither on {BRIDGE} nor adopted, and that the journal does not know: {}. Restart these pods",
            names(&found)
        )
    })
}

/// The sentence for pods that stay on `cni0`.
pub(super) fn cannot_be_adopted(facts: &HostFacts, settings: &HostSettings) -> Option<String> {
    let found = obstacles(facts, settings);
    (!found.is_empty()).then(|| {
        format!(
            "pods that cannot be adopted stay on {BRIDGE}: {}. Restart each of them: the new pod uses Calico",
            names(&found)
        )
    })
}

/// The wait for Felix: no policy holds yet for a pod whose link Felix has not taken; `None` if there is no such pod.
pub(super) fn not_taken(facts: &HostFacts) -> Option<String> {
    let waiting: Vec<String> = facts
        .legacy_pods
        .iter()
        .filter(|pod| pod.waits_for_felix())
        .filter_map(|pod| {
            let link = pod.pod_link.as_ref()?;
            Some(format!("{} of pod {}/{}", link.name, pod.namespace, pod.name))
        })
        .collect();
    (!waiting.is_empty()).then(|| {
        format!(
            "calico-node has not taken links of adopted pods yet: {}",
            names(&waiting)
        )
    })
}

/// The next change that removes what no adopted pod needs any longer.
pub(super) fn clean(facts: &HostFacts) -> Option<HostStep> {
    let is_needed = |rule: &String| {
        let of_pod = |pod: &LegacyPod| PodEnd::of(pod).is_some_and(|end| end.frame_rule() == *rule);
        facts.legacy_pods.iter().any(of_pod) || (rule == BRIDGE && !facts.bridge.is_absent())
    };
    let rules: Vec<String> = facts
        .calico
        .frame_rules
        .iter()
        .filter(|rule| !is_needed(rule))
        .cloned()
        .collect();
    if !rules.is_empty() {
        return Some(HostStep::RemoveFrameRules(rules));
    }
    let kept = &facts.calico.kept_addresses;
    (!kept.is_empty() && facts.bridge.is_absent() && !facts.has_adopted_pods())
        .then(|| HostStep::DropBridgeAddresses(kept.clone()))
}

/// The change that keeps the addresses of `cni0`, which adopted pods have as their gateway; `None` if there is nothing to keep.
pub(super) fn keep_addresses(facts: &HostFacts) -> Option<HostStep> {
    let bridge = facts.bridge.present().filter(|_| facts.has_adopted_pods())?;
    let addresses: Vec<_> = bridge
        .addresses
        .iter()
        .map(ipnet::IpNet::addr)
        .filter(|address| !facts.calico.kept_addresses.contains(address))
        .collect();
    (!addresses.is_empty()).then_some(HostStep::KeepBridgeAddresses(addresses))
}
