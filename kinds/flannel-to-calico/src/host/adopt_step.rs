//! The adoption of running pods, as steps: the link of a pod leaves `cni0` and becomes what Calico's CNI plugin would have made.
//!
//! Only the host's side changes. Each action alone loses no packet, in the order of [`PodAction::ALL`]; undoing them in the
//! reverse order does not either.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::facts::{HostFacts, LegacyPod, PodLink};

/// `PodEnd` is the end of a pod's link on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodEnd {
    /// `sandbox` is the ID of the pod sandbox.
    pub sandbox: String,
    /// `link` is the name of the link in flannel.
    pub link: String,
    /// `calicoLink` is the name of the link in Calico.
    pub calico_link: String,
    /// `mac` is the MAC address of the interface in the pod.
    pub mac: String,
    /// `addresses` is the list of addresses of the pod.
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpAddr>,
}

impl PodEnd {
    /// The end of a pod's link; `None` if the link does not exist.
    pub fn of(pod: &LegacyPod) -> Option<Self> {
        let link = pod.pod_link.as_ref()?;
        Some(Self {
            sandbox: pod.sandbox.clone(),
            link: pod.link.clone(),
            calico_link: link.calico_name.clone(),
            mac: pod.mac.clone(),
            addresses: pod.addresses.clone(),
        })
    }

    /// Whether the pod has an IPv6 address.
    pub fn speaks_ipv6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6)
    }

    /// The name of the rule that accepts frames of the pod: the two names of its link.
    pub fn frame_rule(&self) -> String {
        frame_rule(&self.link, &self.calico_link)
    }
}

/// The name of the rule that accepts frames of the link with these two names.
pub fn frame_rule(link: &str, calico_link: &str) -> String {
    format!("{link}_{calico_link}")
}

/// `PodAction` is one change to the link of a pod.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, VariantArray,
)]
#[serde(rename_all = "camelCase")]
pub enum PodAction {
    /// Loosen the reverse path filter of the link: until the link has left `cni0`, packets of the pod arrive on `cni0`, while their
    /// way back is the link.
    Loosen,
    /// Route the addresses of the pod through its own link, with a permanent neighbour entry: a port of a bridge may send, but does
    /// not see the answers of ARP.
    Route,
    /// Let the link answer ARP requests for all addresses without delay, and forward: a pod of flannel expects its whole subnet on its
    /// own link.
    Answer,
    /// Accept the frames of the pod whatever MAC address they are for: the pod remembers those of `cni0` and of its neighbours.
    Accept,
    /// Take the link from `cni0`, which delivers frames for the pod to the host from then on: neighbours remember the MAC address of
    /// the pod, and the host routes these frames. Not before: the answer to an ARP request of the pod would not reach it.
    Detach,
    /// Give the link Calico's name. Felix knows the pod under this name.
    Rename,
}

impl PodAction {
    /// Every action, in the order of an adoption.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Whether the pod is on `cni0` after this action: the actions before [`PodAction::Detach`].
    pub(super) fn keeps_pods_on_bridge(self) -> bool {
        match self {
            Self::Loosen | Self::Route | Self::Answer | Self::Accept => true,
            Self::Detach | Self::Rename => false,
        }
    }

    /// Whether the link of this pod shows that the action is done.
    pub(super) fn is_done(self, pod: &LegacyPod, link: &PodLink) -> bool {
        match self {
            Self::Loosen => link.loose,
            Self::Route => link.routed,
            Self::Answer => link.answers,
            Self::Accept => link.accepts_frames,
            Self::Detach => !pod.attached && link.frame_delivery,
            Self::Rename => link.name == link.calico_name,
        }
    }
}

/// `PodChange` is one action for the links of several pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodChange {
    /// `action` is the action.
    pub action: PodAction,
    /// `pods` are the ends of the links.
    pub pods: Vec<PodEnd>,
}

impl PodChange {
    /// The name of the change in status, metrics and the journal.
    pub(super) fn name(&self) -> &'static str {
        match self.action {
            PodAction::Loosen => "LoosenPodLinks",
            PodAction::Route => "RoutePodsByLink",
            PodAction::Answer => "AnswerOnPodLinks",
            PodAction::Accept => "AcceptPodFrames",
            PodAction::Detach => "DetachPodLinks",
            PodAction::Rename => "RenamePodLinks",
        }
    }

    /// The name of the reverse change.
    pub(super) fn reverse_name(&self) -> &'static str {
        match self.action {
            PodAction::Loosen => "TightenPodLinks",
            PodAction::Route => "RoutePodsByBridge",
            PodAction::Answer => "StopAnsweringOnPodLinks",
            PodAction::Accept => "StopAcceptingPodFrames",
            PodAction::Detach => "AttachPodLinks",
            PodAction::Rename => "ReturnPodLinks",
        }
    }

    /// The names of every change and its reverse.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PodAction::ALL.iter().flat_map(|action| {
            let change = Self {
                action: *action,
                pods: Vec::new(),
            };
            [change.name(), change.reverse_name()]
        })
    }

    /// What remains of a change after this reversal: the pods that the reversal does not name; `None` if none remains.
    pub(super) fn remainder(&self, change: &Self) -> Option<Self> {
        let is_reverted = |end: &PodEnd| self.pods.iter().any(|other| other.sandbox == end.sandbox);
        let pods: Vec<PodEnd> = change
            .pods
            .iter()
            .filter(|end| self.action != change.action || !is_reverted(end))
            .cloned()
            .collect();
        (!pods.is_empty()).then_some(Self {
            action: change.action,
            pods,
        })
    }

    /// Whether the action is done for every one of the pods that runs.
    pub(super) fn is_done(&self, facts: &HostFacts) -> bool {
        self.running(facts)
            .all(|(pod, link)| self.action.is_done(pod, link))
    }

    /// Whether the action is undone for every one of the pods that runs.
    pub(super) fn is_undone(&self, facts: &HostFacts) -> bool {
        self.running(facts).all(|(pod, link)| match self.action {
            PodAction::Detach => pod.attached && !link.frame_delivery,
            PodAction::Route => !link.routed && pod.routed,
            action => !action.is_done(pod, link),
        })
    }

    fn running<'facts>(
        &'facts self,
        facts: &'facts HostFacts,
    ) -> impl Iterator<Item = (&'facts LegacyPod, &'facts PodLink)> {
        facts.legacy_pods.iter().filter_map(|pod| {
            let is_named = self.pods.iter().any(|end| end.sandbox == pod.sandbox);
            Some((pod, pod.pod_link.as_ref()?)).filter(|_| is_named)
        })
    }
}
