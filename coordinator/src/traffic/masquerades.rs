//! Paths on which packets of pods of the new network arrive from another address than that of the pod, where those of pods of the
//! old network keep theirs: network policies and applications of moved pods would see the address of a node. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::traffic::Masquerade;
use engine::decision::{Wait, WaitReason};
use engine::traffic::{Flow, Generation, PathClass};
use engine::words::lines;
use jiff::Timestamp;

use crate::snapshot::Snapshot;

/// A running traffic pod.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The network that its address is from.
    pub generation: Generation,
    /// Its addresses, one of each family.
    pub addresses: Vec<IpAddr>,
}

/// The wait while packets of the new network are masqueraded. `senders`: traffic pods by UID. `flows`: wanted paths by node.
pub fn wait(
    snapshot: &Snapshot,
    senders: &BTreeMap<&str, Sender>,
    flows: &BTreeMap<String, Vec<Flow>>,
    judged_since: Option<Timestamp>,
) -> Option<Wait> {
    let reports = snapshot.node_migrations.iter().filter_map(|(node, object)| {
        let report = object.status.as_ref()?.traffic.as_ref()?;
        (report.losses_counted_since == judged_since).then_some((node.as_str(), report))
    });
    let mut kept: BTreeSet<(Option<&str>, Path)> = BTreeSet::new();
    let mut lost: Vec<(&str, Path, &Masquerade, IpAddr)> = Vec::new();
    for (node, report) in reports {
        for flow in flows.get(node).into_iter().flatten() {
            let Some(sender) = senders.get(flow.source.as_str()) else {
                continue;
            };
            let Some(path) = Path::of(flow.class) else {
                continue;
            };
            let found = report.masquerades.iter().find(|found| found.flow == *flow);
            let own = sender
                .addresses
                .iter()
                .find(|own| own.is_ipv4() == flow.address.is_ipv4());
            match (sender.generation, found, own) {
                (Generation::Old, None, _) if report.reporting.contains(&flow.source) => {
                    kept.extend([(Some(node), path), (None, path)]);
                }
                (Generation::New, Some(found), Some(own)) => lost.push((node, path, found, *own)),
                (Generation::Old | Generation::New, _, _) => {}
            }
        }
    }
    let has_old = |node: &str, path: Path| {
        let flows = flows.get(node).into_iter().flatten();
        flows
            .filter(|flow| Path::of(flow.class) == Some(path))
            .any(|flow| {
                let sender = senders.get(flow.source.as_str());
                sender.is_some_and(|sender| sender.generation == Generation::Old)
            })
    };
    // What the old network does not have either is not the fault of the new one: on the same node, if it has both.
    lost.retain(|(node, path, ..)| {
        let place = has_old(node, *path).then_some(*node);
        kept.contains(&(place, *path))
    });
    let texts: Vec<String> = lost
        .iter()
        .map(|(node, _, found, own)| {
            format!(
                "{} from node {node} to {} ({}): the traffic pod has {own}, and its packets arrive from {}",
                found.flow.class.words(),
                found.flow.to,
                found.flow.address,
                found.source_seen
            )
        })
        .collect();
    (!texts.is_empty()).then(|| Wait {
        reason: WaitReason::PodsMasqueraded,
        message: format!(
            "packets of pods of the new network lose their source address, so policies and applications would see a node instead of \
             the pod: {}. Make the program that masquerades them (kube-proxy, ip-masq-agent, a firewall) recognize the new range, \
             or accept it with gates.sourceAddresses: Ignore",
            lines(&texts)
        ),
        until: None,
    })
}

/// The way of packets to their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Path {
    /// From pod to pod.
    Direct,
    /// By a Service.
    Service,
}

impl Path {
    /// The way of this class, if the other end reports what it sees.
    fn of(class: PathClass) -> Option<Self> {
        match class {
            PathClass::OldToOld
            | PathClass::OldToNew
            | PathClass::NewToOld
            | PathClass::NewToNew
            | PathClass::SameNode => Some(Self::Direct),
            PathClass::PodToService => Some(Self::Service),
            PathClass::PodToDns | PathClass::PodToApi => None,
        }
    }
}

#[cfg(test)]
mod tests;
