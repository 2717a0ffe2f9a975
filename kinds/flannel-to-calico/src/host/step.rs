//! One change to a host as data: what it changes, when it is done, and how it is reverted.

use std::net::IpAddr;

use ipnet::Ipv6Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantNames};

use super::adopt_step::PodChange;
use crate::facts::{FirewallObject, HostFacts};

/// `HostStep` is one change to a host. Each step is idempotent; [`HostStep::is_done`] checks whether it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr, VariantNames)]
#[serde(rename_all = "camelCase")]
pub enum HostStep {
    /// Move `subnet.env` to the backup directory of the agent. flannel's CNI plugin then rejects new pods, the kubelet retries,
    /// and pods can still be deleted.
    WithdrawSubnetEnvironment,
    /// Delete a VXLAN link with this name of flannel. The tunnel is not deleted but renamed, unless a link has its new name already.
    DeleteVxlanDevice(String),
    /// Delete the bridge of flannel's CNI plugin.
    DeleteBridge,
    /// Delete one chain of flannel and the jumps to it, or one table.
    DeleteFirewallObject(FirewallObject),
    /// In place: give each of these pods its own route to `cni0`, because Felix adds blackhole routes for the blocks of these
    /// pods.
    RouteLegacyPods(#[schemars(with = "Vec<String>")] Vec<IpAddr>),
    /// In place: let `cni0` answer ARP requests for pods that are not attached to it. Pods of flannel expect the whole podCIDR on
    /// their own link, and new pods of Calico on the node are not there.
    AnswerForPods,
    /// In place: let `cni0` answer for exactly these IPv6 networks, which cover the addresses that pods of Calico on the node may
    /// get. `AnswerForPods` cannot do so for all IPv6 addresses at once.
    AnswerForAddresses(#[schemars(with = "Vec<String>")] Vec<Ipv6Net>),
    /// Add a route to the whole IPv6 subnet of each node that the tunnel leads to, in a table of replumb. Calico has routes to
    /// claimed blocks only.
    RouteSubnets {
        /// The tunnel link, under either name.
        link: String,
        /// The prefix length of the subnet of a node.
        length: u8,
    },
    /// Rename flannel's VXLAN link to the name of Calico's. If the kernel does not rename links that are up, the link
    /// is down for a moment, and everything that was configured on it is added again.
    RenameVxlanDevice {
        /// flannel's name.
        from: String,
        /// Calico's name.
        to: String,
        /// The prefix length of an IPAM block. Felix deletes flannel's routes (one for each node) before it adds its own (one for
        /// each block), so the routes of Calico are added first.
        block_size: u8,
    },
    /// In place: remove what a deleted pod of flannel has left behind: its routes, its lease and its port mappings. The value is
    /// the ID of its sandbox.
    ForgetLegacyPod(String),
    /// Adoption: loosen the reverse path filter of `cni0`, and accept frames to the MAC addresses of adopted pods there.
    OpenBridge,
    /// Adoption: one action for the links of pods.
    ChangePods(PodChange),
    /// Adoption: put the addresses of `cni0` on the loopback interface. Adopted pods have them as their gateway.
    KeepBridgeAddresses(#[schemars(with = "Vec<String>")] Vec<IpAddr>),
    /// Adoption: remove the rules for frames of links, by name, that no pod needs any longer.
    RemoveFrameRules(Vec<String>),
    /// Adoption: remove these addresses from the loopback interface.
    DropBridgeAddresses(#[schemars(with = "Vec<String>")] Vec<IpAddr>),
    /// Rollback: create `cni0` again from the journal, so that adopted pods can return to it.
    RestoreBridge,
    /// Rollback: revert one action for the links of pods.
    RevertPods(PodChange),
    /// Rollback: restore the reverse path filter of `cni0`, and accept only frames to its own MAC address.
    CloseBridge,
    /// Remove host-local leases and delegate files of the old network. A backup is kept.
    RemoveLeases,
    /// Move flannel's conflist with this file name to the backup directory of the agent. Calico's conflist is in use by then.
    RemoveConflist(String),
    /// Rollback: put flannel's conflist with this file name back.
    RestoreConflist(String),
    /// Rollback: move Calico's conflist with this file name to the backup directory of the agent. flannel's conflist is in use
    /// then; without `subnet.env`, new pods wait.
    RemoveCalicoConflist(String),
    /// Rollback: delete chains and rules of Calico in one table, or one table of Calico.
    DeleteCalicoFirewall(FirewallObject),
    /// Rollback: delete Calico's IP sets.
    DeleteCalicoSets,
    /// Rollback: create flannel's chain with the jumps to it, or flannel's table, again.
    RestoreFirewallObject(FirewallObject),
    /// Rollback: delete Calico's blackhole routes for its own blocks.
    DeleteBlackholes,
    /// Rollback: add flannel's route to each other node, then delete the routes to the blocks of that node.
    RestoreNodeRoutes {
        /// The tunnel link, under either name.
        link: String,
        /// The prefix length of the subnet of a node.
        length: u8,
    },
    /// Rollback: give the VXLAN link flannel's name again, with everything that is configured on it.
    ReturnVxlanDevice {
        /// Calico's name.
        from: String,
        /// flannel's name.
        to: String,
    },
    /// Rollback: create flannel's VXLAN link again from the journal.
    RestoreVxlanDevice(String),
    /// Rollback: delete the routes to single pods of flannel.
    UnrouteLegacyPods,
    /// Rollback: restore the ARP settings of `cni0`.
    StopAnsweringForPods,
    /// Rollback: let `cni0` answer for its own IPv6 addresses only.
    StopAnsweringForAddresses,
    /// Delete the routes to whole subnets and the rule for their table, which are no longer needed.
    UnrouteSubnets,
    /// Rollback: remove cached results of libcni for deleted pods of Calico.
    RemoveCalicoRecords,
    /// Rollback: put `subnet.env` back. New pods get addresses from flannel again.
    RestoreSubnetEnvironment,
}

/// How a change is reverted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// By this step.
    By(HostStep),
    /// Nothing has to be reverted, for this reason.
    Nothing(&'static str),
}

impl HostStep {
    /// The name of the step in status, metrics and the journal. One of a fixed set, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ChangePods(change) => change.name(),
            Self::RevertPods(change) => change.reverse_name(),
            step => step.into(),
        }
    }

    /// The names of every step.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let of_pods = ["ChangePods", "RevertPods"];
        Self::VARIANTS
            .iter()
            .copied()
            .filter(move |name| !of_pods.contains(name))
            .chain(PodChange::names())
    }

    /// How the change is reverted, so that the host is as before.
    pub fn undo(&self) -> Undo {
        match self {
            Self::WithdrawSubnetEnvironment => Undo::By(Self::RestoreSubnetEnvironment),
            Self::DeleteVxlanDevice(name) => Undo::By(Self::RestoreVxlanDevice(name.clone())),
            Self::DeleteFirewallObject(object) => Undo::By(Self::RestoreFirewallObject(object.clone())),
            Self::RouteLegacyPods(_) => Undo::By(Self::UnrouteLegacyPods),
            Self::AnswerForPods => Undo::By(Self::StopAnsweringForPods),
            Self::AnswerForAddresses(_) => Undo::By(Self::StopAnsweringForAddresses),
            Self::RouteSubnets { .. } => Undo::By(Self::UnrouteSubnets),
            Self::RenameVxlanDevice { from, to, .. } => Undo::By(Self::ReturnVxlanDevice {
                from: to.clone(),
                to: from.clone(),
            }),
            Self::RemoveConflist(name) => Undo::By(Self::RestoreConflist(name.clone())),
            Self::OpenBridge => Undo::By(Self::CloseBridge),
            Self::ChangePods(change) => Undo::By(Self::RevertPods(change.clone())),
            Self::KeepBridgeAddresses(addresses) => Undo::By(Self::DropBridgeAddresses(addresses.clone())),
            // Only for adopted pods: otherwise flannel's CNI plugin creates the bridge with its next pod.
            Self::DeleteBridge => Undo::By(Self::RestoreBridge),
            Self::RemoveFrameRules(_) | Self::DropBridgeAddresses(_) => {
                Undo::Nothing("the pods that needed it are gone, or have returned to the bridge")
            }
            Self::ForgetLegacyPod(_) | Self::RemoveLeases => Undo::Nothing(
                "the pods are gone, and the address of a restored lease would never be assigned again",
            ),
            Self::RestoreConflist(_)
            | Self::RemoveCalicoConflist(_)
            | Self::RestoreBridge
            | Self::RevertPods(_)
            | Self::CloseBridge
            | Self::DeleteCalicoFirewall(_)
            | Self::DeleteCalicoSets
            | Self::RestoreFirewallObject(_)
            | Self::DeleteBlackholes
            | Self::RestoreNodeRoutes { .. }
            | Self::ReturnVxlanDevice { .. }
            | Self::RestoreVxlanDevice(_)
            | Self::UnrouteLegacyPods
            | Self::StopAnsweringForPods
            | Self::StopAnsweringForAddresses
            | Self::UnrouteSubnets
            | Self::RemoveCalicoRecords
            | Self::RestoreSubnetEnvironment => {
                Undo::Nothing("the step belongs to a rollback, and Calico creates what it needs again")
            }
        }
    }

    /// What remains of a change after this step: nothing if the step reverts it completely, the change itself if the step reverts
    /// nothing of it.
    pub fn remainder(&self, change: &Self) -> Option<Self> {
        match (self, change) {
            (Self::RevertPods(reverted), Self::ChangePods(change)) => {
                reverted.remainder(change).map(Self::ChangePods)
            }
            _ => (!self.reverts(change)).then(|| change.clone()),
        }
    }

    /// Whether this step reverts that change completely.
    pub fn reverts(&self, change: &Self) -> bool {
        let renamed_back = |from: &str, to: &str| match self {
            Self::ReturnVxlanDevice { from: back, to: end } => back == to && end == from,
            _ => false,
        };
        match change {
            Self::RenameVxlanDevice { from, to, .. } => renamed_back(from, to),
            // The link under its other name was renamed back, or the link was created again.
            Self::DeleteVxlanDevice(name) => match self {
                Self::ReturnVxlanDevice { to, .. } | Self::RestoreVxlanDevice(to) => to == name,
                _ => false,
            },
            Self::ChangePods(_) => match self {
                Self::RevertPods(_) => self.remainder(change).is_none(),
                _ => false,
            },
            other => other.undo() == Undo::By(self.clone()),
        }
    }

    /// Whether the facts alone show that an interrupted step is complete. They do not for a link that was being created again:
    /// the link may exist under its new name without its routes.
    pub fn is_proved_by_facts(&self) -> bool {
        match self {
            // The facts show that both parameters have the needed values, but not which values they had before.
            Self::RenameVxlanDevice { .. }
            | Self::ReturnVxlanDevice { .. }
            | Self::RestoreVxlanDevice(_)
            | Self::OpenBridge
            | Self::CloseBridge
            | Self::ChangePods(_)
            | Self::RevertPods(_)
            | Self::RestoreBridge
            | Self::StopAnsweringForPods => false,
            Self::WithdrawSubnetEnvironment
            | Self::DeleteVxlanDevice(_)
            | Self::DeleteBridge
            | Self::DeleteFirewallObject(_)
            | Self::RouteLegacyPods(_)
            | Self::AnswerForPods
            | Self::AnswerForAddresses(_)
            | Self::RouteSubnets { .. }
            | Self::StopAnsweringForAddresses
            | Self::UnrouteSubnets
            | Self::ForgetLegacyPod(_)
            | Self::KeepBridgeAddresses(_)
            | Self::RemoveFrameRules(_)
            | Self::DropBridgeAddresses(_)
            | Self::RemoveLeases
            | Self::RemoveConflist(_)
            | Self::RestoreConflist(_)
            | Self::RemoveCalicoConflist(_)
            | Self::DeleteCalicoFirewall(_)
            | Self::DeleteCalicoSets
            | Self::RestoreFirewallObject(_)
            | Self::DeleteBlackholes
            | Self::RestoreNodeRoutes { .. }
            | Self::UnrouteLegacyPods
            | Self::RemoveCalicoRecords
            | Self::RestoreSubnetEnvironment => true,
        }
    }

    /// Whether the facts show that the step has nothing left to do.
    pub fn is_done(&self, facts: &HostFacts) -> bool {
        match self {
            Self::WithdrawSubnetEnvironment => facts.subnet_environment.is_absent(),
            Self::DeleteVxlanDevice(name) => facts.vxlan(name).is_none(),
            Self::DeleteBridge => facts.bridge.is_absent(),
            Self::DeleteFirewallObject(object) => !facts.firewall.contains(object),
            Self::OpenBridge => facts.bridge.present().is_none_or(|bridge| bridge.open),
            Self::CloseBridge => facts.bridge.present().is_none_or(|bridge| !bridge.open),
            Self::ChangePods(change) => change.is_done(facts),
            Self::RevertPods(change) => change.is_undone(facts),
            Self::KeepBridgeAddresses(addresses) => {
                let kept = &facts.calico.kept_addresses;
                addresses.iter().all(|address| kept.contains(address))
            }
            Self::DropBridgeAddresses(addresses) => {
                let kept = &facts.calico.kept_addresses;
                !addresses.iter().any(|address| kept.contains(address))
            }
            Self::RemoveFrameRules(links) => {
                !links.iter().any(|link| facts.calico.frame_rules.contains(link))
            }
            Self::RestoreBridge => !facts.bridge.is_absent(),
            Self::RouteLegacyPods(addresses) => !facts.legacy_pods.iter().any(|pod| {
                pod.attached && !pod.routed && pod.addresses.iter().any(|address| addresses.contains(address))
            }),
            Self::AnswerForPods => facts
                .bridge
                .present()
                .is_none_or(|bridge| bridge.answers_for_pods),
            Self::AnswerForAddresses(networks) => facts
                .bridge
                .present()
                .is_none_or(|bridge| bridge.answered == *networks),
            Self::StopAnsweringForAddresses => facts
                .bridge
                .present()
                .is_none_or(|bridge| bridge.answered.is_empty()),
            Self::RouteSubnets { .. } => facts.calico.subnet_routes.is_complete(),
            Self::UnrouteSubnets => facts.calico.subnet_routes.is_gone(),
            Self::RenameVxlanDevice { from, to, .. } | Self::ReturnVxlanDevice { from, to } => {
                facts.vxlan(from).is_none() && facts.vxlan(to).is_some()
            }
            Self::ForgetLegacyPod(sandbox) => !facts.legacy_pods.iter().any(|pod| &pod.sandbox == sandbox),
            Self::RemoveLeases => facts.leases == 0 && facts.delegates == 0,
            Self::RemoveConflist(name) | Self::RemoveCalicoConflist(name) => !has_file(facts, name),
            Self::RestoreConflist(name) => has_file(facts, name),
            Self::DeleteCalicoFirewall(object) => !facts.calico.firewall.contains(object),
            Self::DeleteCalicoSets => facts.calico.sets == 0,
            Self::RestoreFirewallObject(object) => facts.firewall.contains(object),
            Self::DeleteBlackholes => facts.calico.blackholes == 0,
            Self::RestoreNodeRoutes { link, .. } => {
                facts.vxlan(link).is_none_or(|device| device.block_routes == 0)
            }
            Self::RestoreVxlanDevice(name) => facts.vxlan(name).is_some(),
            Self::UnrouteLegacyPods => facts.calico.pod_routes == 0,
            Self::StopAnsweringForPods => facts
                .bridge
                .present()
                .is_none_or(|bridge| !bridge.answers_for_pods),
            Self::RemoveCalicoRecords => facts.calico.records == 0,
            Self::RestoreSubnetEnvironment => !facts.subnet_environment.is_absent(),
        }
    }
}

fn has_file(facts: &HostFacts, name: &str) -> bool {
    facts.cni.files.iter().any(|file| file.name == name)
}
