//! Checks of the tunnels on the hosts, compared with flannel's configuration and the API.

mod device;
mod hosts;
mod public_address;

use super::CheckName;
use crate::detect::network_configuration;
use crate::facts::ClusterFacts;
use crate::settings::Settings;
use device::devices;
use engine::check::{Check, Finding, Report, names};
use engine::cluster::DaemonSet;
use engine::words::number;
use public_address::public_address;

pub(super) use hosts::{hosts, reported};

pub(super) fn check(
    settings: &Settings,
    facts: &ClusterFacts,
    flannel: Option<&DaemonSet>,
    calico: Option<&DaemonSet>,
) -> Vec<Check> {
    [
        devices(settings, facts),
        direct_routing(facts, flannel),
        public_address(settings, facts, calico),
    ]
    .concat()
}

fn direct_routing(facts: &ClusterFacts, flannel: Option<&DaemonSet>) -> Vec<Check> {
    let mut report = Report::new(CheckName::DirectRouting);
    let configuration = flannel.and_then(|set| network_configuration(set, facts).ok().flatten());
    let fix = "set Backend.DirectRouting to false in net-conf.json and restart flannel's pods: while nodes change, \
               replies that bypass the tunnel are dropped";
    if let Some((configuration, object)) = &configuration
        && configuration.direct_routing
    {
        report.fail(
            "",
            object,
            Finding::new("Backend.DirectRouting", "true", "false", fix),
        );
    }
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        if host.direct_routes.is_empty() {
            continue;
        }
        let routes: Vec<String> = host
            .direct_routes
            .iter()
            .map(|route| format!("{} via {} dev {}", route.destination, route.gateway, route.link))
            .collect();
        let finding = Finding::new(
            "routes",
            names(&routes),
            "only routes through the tunnel to pods of other nodes",
            fix,
        );
        report.fail("Node", &node.name, finding);
    }
    report.finish(
        format!("routes of {}", number(hosts.len(), "host", "hosts")),
        "all through the tunnel",
    )
}

#[cfg(test)]
mod tests;
