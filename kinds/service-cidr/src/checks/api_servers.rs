//! The API servers: version of the API, flag and certificate of each, and the path of replumb to them.

use std::net::IpAddr;

use super::CheckName;
use crate::addresses::first;
use crate::facts::{ApiServer, ClusterFacts};
use crate::ranges::{DEFAULT, joined};
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
        // Without a version the settings are not detected either: see `detect`.
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
                "upgrade Kubernetes, see check ApiVersion in the runbook",
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
                "check `kubectl get endpointslices -n default`: replumb reads flag and certificate of each API server",
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
                    joined(ranges),
                    format!("{}, which ServiceCIDR {DEFAULT} has", joined(wanted.of(Side::Old))),
                    "set the same flag on all API servers first: one with another flag would create the default ServiceCIDR \
                     again with its own range",
                ),
            ),
            Err(why) => report.unknown(
                "API server",
                address.to_string(),
                Finding::new(
                    "--service-cluster-ip-range",
                    why,
                    "its flag, from /flagz or the command line of its static pod",
                    "make the flag readable, see check ApiServerFlags in the runbook: an API server with an unknown flag may \
                     revert the new range",
                ),
            ),
        }
        certificate(settings, address, server, &mut report);
    }
    report.finish(
        "every API server",
        format!(
            "flag and certificate are suitable, API servers: {}",
            facts.api_servers.len()
        ),
    )
}

/// Checks that the certificate of an API server is for the new first address.
fn certificate(settings: &Settings, address: &IpAddr, server: &ApiServer, report: &mut Report) {
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
                        "issue a new certificate together with the flag (stage ControlPlane waits for both): kubeadm: \
                         apiServer.certSANs, then `kubeadm init phase certs apiserver`; kops: in its rolling update. \
                         Clients of the new address of Service default/kubernetes would refuse the current certificate",
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
                "the addresses in the certificate",
                "check that the API server is reachable from the coordinator's node",
            ),
        ),
    }
}

/// Coordinator and agents must not depend on an address that changes.
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
            "path to the API server",
            found,
            "the address of an API server, or of a load balancer in front of them",
            format!(
                "set KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT in {whom}: over an address that changes, a failed \
                 change could not be reverted"
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
        format!("reach the API server at {}", facts.own_path),
    )
}
