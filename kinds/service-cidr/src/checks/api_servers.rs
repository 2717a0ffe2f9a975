//! The API servers: which version of the API, which flag and which certificate each has, and the tool's own path to them.

use std::net::IpAddr;

use super::CheckName;
use crate::addresses::first;
use crate::facts::ClusterFacts;
use crate::ranges::{DEFAULT, listed};
use crate::settings::Settings;
use crate::side::Side;
use engine::check::{Check, Finding, Report};
use engine::words;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    [
        api_version(facts),
        api_servers(settings, facts),
        own_path(settings, facts),
    ]
    .concat()
}

fn api_version(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::ApiVersion);
    let found = match facts.api_version.as_deref() {
        // Without any the settings were not found either: see `detect`.
        None => "none".to_owned(),
        Some(version) => format!("networking.k8s.io/{version}"),
    };
    if facts.api_version.is_none() {
        report.fail(
            "group",
            "networking.k8s.io",
            Finding::new(
                "",
                "no ServiceCIDRs",
                "ServiceCIDRs",
                "see check ApiVersion in the runbook",
            ),
        );
    }
    report.finish("ServiceCIDRs", found)
}

fn api_servers(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::ApiServerFlags);
    if facts.api_servers.is_empty() {
        report.unknown(
            "endpoints of Service",
            "default/kubernetes",
            Finding::new(
                "",
                "none",
                "the address of every API server",
                "each is asked for its own flag and certificate: see `kubectl get endpointslices -n default`",
            ),
        );
    }
    let wanted = settings.defaults();
    for (address, server) in &facts.api_servers {
        match &server.ranges {
            Ok(ranges) if ranges == wanted.of(Side::Old) || ranges == wanted.of(Side::New) => {}
            Ok(ranges) => report.fail(
                "API server",
                address.to_string(),
                Finding::new(
                    "--service-cluster-ip-range",
                    listed(ranges),
                    format!("{}, which ServiceCIDR {DEFAULT} has", listed(wanted.of(Side::Old))),
                    "an API server with another flag makes the default range again as its own says, once it is gone: let all say the same \
                     first",
                ),
            ),
            Err(why) => report.unknown(
                "API server",
                address.to_string(),
                Finding::new(
                    "--service-cluster-ip-range",
                    why,
                    "its flag, by /flagz or the command line of its static pod",
                    "one whose flag nobody knows may take the new range back: see check ApiServerFlags in the runbook",
                ),
            ),
        }
        match &server.addresses {
            Ok(names) => {
                let missing: Vec<String> = settings
                    .changed()
                    .of(Side::New)
                    .iter()
                    .filter_map(first)
                    .filter(|first| !names.contains(first))
                    .map(|first| first.to_string())
                    .collect();
                if !missing.is_empty() {
                    report.warn(
                        "API server",
                        address.to_string(),
                        Finding::new(
                            "its certificate",
                            format!("is not for {}", words::names(&missing)),
                            "the old and the new first address",
                            "whoever asks Service default/kubernetes by its new address refuses this certificate. It has to be made anew \
                             together with the flag (stage ControlPlane waits for both): kubeadm: apiServer.certSANs, then `kubeadm init \
                             phase certs apiserver`; kops makes it when it rolls",
                        ),
                    );
                }
            }
            Err(why) => report.unknown(
                "API server",
                address.to_string(),
                Finding::new(
                    "its certificate",
                    why,
                    "the addresses that it is for",
                    "is it reached from the coordinator's node?",
                ),
            ),
        }
    }
    report.finish(
        "every API server",
        format!("{} are known, with flag and certificate", facts.api_servers.len()),
    )
}

/// Whoever exchanges an address must not stand on it.
fn own_path(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::OwnPath);
    let changed = settings.changed();
    let changes = |host: &str| {
        let address: Option<IpAddr> = host.parse().ok();
        let both = || changed.old.iter().chain(&changed.new);
        address.is_some_and(|address| both().any(|range| range.contains(&address)))
    };
    let finding = |found: &str, whom: &str| {
        Finding::new(
            "way to the API server",
            found,
            "the address of an API server, or of a balancer in front of them",
            format!(
                "set KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT of {whom}: who exchanges the address that it stands on, and fails, \
                 cannot take it back"
            ),
        )
    };
    if changes(&facts.own_path) {
        report.fail(
            "the coordinator's",
            "Deployment",
            finding(&facts.own_path, "Deployment replumb-system/replumb-coordinator"),
        );
    }
    for (node, host) in facts.hosts.iter().filter(|(_, host)| changes(&host.api_server)) {
        report.fail(
            "agent of Node",
            node,
            finding(&host.api_server, "DaemonSet replumb-system/replumb-agent"),
        );
    }
    report.finish(
        "coordinator and agents",
        format!("reach the API server by {}", facts.own_path),
    )
}
