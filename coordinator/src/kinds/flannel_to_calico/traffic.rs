//! Traffic pods wanted on each node, by network.

use std::collections::BTreeMap;

use ::flannel_to_calico::api::OrEmpty as _;
use api::migration::{Desired, Strategy};
use api::names;
use engine::traffic::Generation;
use engine::traffic::pods::{NodeProgress, Place, decide};
use flannel_to_calico::facts::LegacyPod;

use super::pass::Pass;
use super::view::is_on_flannel;
use crate::facts;
use crate::snapshot::Snapshot;
use crate::traffic::{Fates, Network, Networks, is_traffic_pod};

/// The two networks. The node determines the network of a pod.
pub fn networks() -> Networks {
    let of = |name| Network {
        name,
        annotations: BTreeMap::new(),
    };
    Networks {
        old: of(names::NETWORK_FLANNEL),
        new: of(names::NETWORK_CALICO),
    }
}

/// Fate of the traffic pods of every node. `next` are the nodes that are rolled back next: a traffic pod answers for some seconds after
/// its deletion, and the host of its node is not put back before it has ended, so it is deleted while the nodes before are rolled back.
pub(super) fn fates<'snapshot>(
    pass: &Pass<'_>,
    snapshot: &'snapshot Snapshot,
    next: &[&str],
) -> Fates<'snapshot> {
    let mut fates = BTreeMap::new();
    for (name, object) in &snapshot.node_migrations {
        let Some(node) = snapshot.nodes.get(name) else {
            continue;
        };
        let spec = &object.spec;
        let stand = match (spec.finished_at, spec.started, spec.rolling_back) {
            (Some(_), _, _) if next.contains(&name.as_str()) => NodeProgress::Back,
            (Some(_), _, _) => NodeProgress::Done,
            (None, true, true) => NodeProgress::Back,
            (None, true, false) => NodeProgress::There,
            (None, false, _) => NodeProgress::Idle,
        };
        let host = object
            .status
            .as_ref()
            .and_then(|status| status.flannel_to_calico.or_empty().facts.as_ref());
        let place = Place {
            progress: stand,
            in_place: pass.kind.strategy == Strategy::InPlace,
            on_old: is_on_flannel(node),
            // During a rollback no pod is created.
            usable: pass.migration.spec.desired != Desired::Rollback
                && facts::nodes::is_ready(node)
                && snapshot.agent_ready(name),
            others_of_old: host.map(|host| {
                let others =
                    |pod: &&LegacyPod| !is_traffic_pod(&pod.namespace, &pod.name, &pass.context.namespace);
                host.legacy_pods.iter().any(|pod| others(&pod))
            }),
        };
        for generation in [Generation::Old, Generation::New] {
            fates.insert((name.as_str(), generation), decide(generation, place));
        }
    }
    fates
}
