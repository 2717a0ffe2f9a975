//! Paths from or to the new network on which packets arrive from another address than that of the pod, where packets within the old
//! network keep theirs: network policies and applications would see the address of a node. Pure.

use std::collections::BTreeMap;
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

/// The wait while packets from or to the new network are masqueraded. `senders`: traffic pods by UID. `flows`: wanted paths by node.
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
    let mut old: BTreeMap<(&str, Path), bool> = BTreeMap::new();
    let mut changed: Vec<(&str, Path, &Masquerade, IpAddr)> = Vec::new();
    for (node, report) in reports {
        for flow in flows.get(node).into_iter().flatten() {
            let Some(sender) = senders.get(flow.source.as_str()) else {
                continue;
            };
            let found = report.masquerades.iter().find(|found| found.flow == *flow);
            let Some((path, is_of_old)) = Path::of(flow.class, sender.generation) else {
                continue;
            };
            if is_of_old && report.reporting.contains(&flow.source) {
                let is_kept = old.entry((node, path)).or_insert(true);
                *is_kept &= found.is_none();
            }
            let mut addresses = sender.addresses.iter();
            let own = addresses.find(|own| own.is_ipv4() == flow.address.is_ipv4());
            if let (false, Some(found), Some(own)) = (is_of_old, found, own) {
                changed.push((node, path, found, *own));
            }
        }
    }
    // What the old network does not have either is not the fault of the new one: on the same node, if that is known.
    let lost = changed.into_iter().filter(|(node, path, ..)| {
        let anywhere = || old.iter().any(|((_, other), is_kept)| other == path && *is_kept);
        old.get(&(*node, *path)).copied().unwrap_or_else(anywhere)
    });
    let texts: Vec<String> = lost
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
            "packets from or to pods of the new network lose their source address, so policies and applications would see a node instead \
             of the pod: {}. Make the program that masquerades them (kube-proxy, ip-masq-agent, a firewall) recognize the new range, \
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
    /// The way of this class, and whether it has the old network at both ends; `None` if the other end does not report what it sees.
    fn of(class: PathClass, source: Generation) -> Option<(Self, bool)> {
        match class {
            PathClass::OldToOld => Some((Self::Direct, true)),
            PathClass::OldToNew | PathClass::NewToOld | PathClass::NewToNew | PathClass::SameNode => {
                Some((Self::Direct, false))
            }
            PathClass::PodToService => Some((Self::Service, source == Generation::Old)),
            PathClass::PodToDns | PathClass::PodToApi => None,
        }
    }
}

#[cfg(test)]
mod tests;
