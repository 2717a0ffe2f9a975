//! Validates workload endpoints. Calico's own tool crashes at most invalid addresses here.

use std::net::IpAddr;

use super::super::difference::Difference;
use super::super::network::{address, cidr_or_address};
use super::super::spec::workload_endpoint::Spec;
use super::Findings;
use super::endpoint::{INTERFACE, ports, profiles};
use super::metadata::NAME;
use super::text::{is_container, is_interface, is_subdomain};

/// Validates the spec of an endpoint, and its namespace.
pub fn spec(namespace: &str, spec: &Spec, findings: &mut Findings) {
    if namespace.is_empty() || namespace.contains('/') {
        findings.text(
            false,
            "metadata.namespace",
            namespace,
            "the name of a namespace: delete the endpoint in v2",
        );
        findings.mark_own(Difference::Namespace);
    }
    for (name, found) in [
        ("orchestrator", &spec.orchestrator),
        ("workload", &spec.workload),
        ("node", &spec.node),
        ("pod", &spec.pod),
        ("endpoint", &spec.endpoint),
    ] {
        let is_name = found.is_empty() || is_subdomain(found);
        findings.text(is_name, format!("spec.{name}"), found, NAME);
    }
    let is_id = spec.container_id.is_empty() || is_container(&spec.container_id);
    findings.text(
        is_id,
        "spec.containerID",
        &spec.container_id,
        "letters, digits and '-', no '-' at an end",
    );
    findings.text(
        is_interface(&spec.interface_name),
        "spec.interfaceName",
        &spec.interface_name,
        INTERFACE,
    );
    networks(spec, findings);
    gateways(spec, findings);
    translations(spec, findings);
    profiles(&spec.profiles, findings);
    ports(&spec.ports, findings);
}

fn networks(spec: &Spec, findings: &mut Findings) {
    for (place, text) in spec.ip_networks.iter().enumerate() {
        let field = format!("spec.ipNetworks[{place}]");
        match cidr_or_address(text) {
            None => {
                findings.text(false, field, text, "an address");
                findings.mark_own(Difference::Crash);
            }
            Some((_, network)) => {
                findings.text(
                    network.is_one_address(),
                    field,
                    text,
                    "a network of one address: /32 or /128",
                );
            }
        }
    }
}

fn gateways(spec: &Spec, findings: &mut Findings) {
    for (name, text, is_v4) in [
        ("ipv4Gateway", &spec.ipv4_gateway, true),
        ("ipv6Gateway", &spec.ipv6_gateway, false),
    ] {
        if text.is_empty() {
            continue;
        }
        let field = format!("spec.{name}");
        let needed = if is_v4 {
            "an IPv4 address"
        } else {
            "an IPv6 address"
        };
        match address(text) {
            None => {
                findings.text(false, field, text, needed);
                findings.mark_own(Difference::Crash);
            }
            Some(address) => findings.text(address.is_ipv4() == is_v4, field, text, needed),
        }
    }
}

/// Validates that an internal address belongs to the endpoint, and that the external one has the same family.
fn translations(spec: &Spec, findings: &mut Findings) {
    let is_own = |address: IpAddr| {
        spec.ip_networks
            .iter()
            .filter_map(|text| cidr_or_address(text))
            .any(|(_, network)| network.contains(address))
    };
    for (place, translation) in spec.ip_nats.iter().enumerate() {
        let field = |name: &str| format!("spec.ipNATs[{place}].{name}");
        let (inner, outer) = (
            address(&translation.internal_ip),
            address(&translation.external_ip),
        );
        for (name, text, found) in [
            ("internalIP", &translation.internal_ip, inner),
            ("externalIP", &translation.external_ip, outer),
        ] {
            if found.is_none() {
                findings.text(false, field(name), text, "an address");
                findings.mark_own(Difference::Crash);
            }
        }
        if let (Some(inner), Some(outer)) = (inner, outer) {
            findings.text(
                inner.is_ipv4() == outer.is_ipv4(),
                field("externalIP"),
                &translation.external_ip,
                "an address of the family of internalIP",
            );
        }
        if let Some(inner) = inner {
            findings.text(
                is_own(inner),
                field("internalIP"),
                &translation.internal_ip,
                "one of the endpoint's ipNetworks",
            );
        }
    }
}
