//! IPv6: routes to whole subnets of nodes, as long as pods of flannel's live in them.

use super::{HostSettings, HostStep};
use crate::facts::HostFacts;

/// Whether pods of flannel's may have addresses that Calico has no route to.
pub(super) fn are_needed(settings: &HostSettings) -> bool {
    settings.ipv6.as_ref().is_some_and(|ipv6| ipv6.flannel_pods)
}

/// The next change to these routes: nodes come, and Felix lays the routes of its own first.
pub(super) fn upkeep(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    let routes = facts.calico.subnet_routes;
    if are_needed(settings) {
        return (!routes.is_complete()).then(|| lay(facts, settings)).flatten();
    }
    (!routes.is_gone()).then_some(HostStep::UnrouteSubnets)
}

/// Lays them through the tunnel under the name that it has.
fn lay(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    let tunnel = settings.ipv6_tunnel()?;
    Some(HostStep::RouteSubnets {
        link: tunnel.name(facts)?.to_owned(),
        length: tunnel.node_range_length,
    })
}
