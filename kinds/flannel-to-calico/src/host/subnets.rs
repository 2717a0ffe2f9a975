//! IPv6: routes to whole subnets of nodes, as long as flannel pods run in them.

use super::{HostSettings, HostStep};
use crate::facts::HostFacts;

/// Whether flannel pods may have addresses without a route of Calico.
pub(super) fn are_needed(settings: &HostSettings) -> bool {
    settings.ipv6.as_ref().is_some_and(|ipv6| ipv6.flannel_pods)
}

/// The next change to these routes: nodes may join, and Felix adds its own routes first.
pub(super) fn upkeep(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    let routes = facts.calico.subnet_routes;
    if are_needed(settings) {
        return (!routes.is_complete()).then(|| lay(facts, settings)).flatten();
    }
    (!routes.is_gone()).then_some(HostStep::UnrouteSubnets)
}

/// The step that adds the routes through the tunnel, with the current name of the tunnel.
fn lay(facts: &HostFacts, settings: &HostSettings) -> Option<HostStep> {
    let tunnel = settings.ipv6_tunnel()?;
    Some(HostStep::RouteSubnets {
        link: tunnel.name(facts)?.to_owned(),
        length: tunnel.node_range_length,
    })
}
