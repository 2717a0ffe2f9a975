//! Validates host endpoints, and the fields that they share with workload endpoints.

use super::super::endpoint_port::EndpointPort;
use super::super::network::address;
use super::super::spec::host_endpoint::Spec;
use super::metadata::NAME;
use super::text::{is_interface, is_port_name, is_subdomain};
use super::{Findings, rule};

/// Valid names of interfaces.
pub const INTERFACE: &str = "\"*\", or 1 to 15 letters, digits, '_', '.' or '-'";

/// Validates the names of profiles.
pub fn profiles(profiles: &[String], findings: &mut Findings) {
    for (place, profile) in profiles.iter().enumerate() {
        findings.text(
            is_subdomain(profile),
            format!("spec.profiles[{place}]"),
            profile,
            NAME,
        );
    }
}

/// Validates named ports.
pub fn ports(ports: &[EndpointPort], findings: &mut Findings) {
    for (place, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{place}]");
        findings.text(
            is_port_name(&port.name),
            format!("{field}.name"),
            &port.name,
            "at most 15 lower-case letters, digits and single dashes between them, with at least one letter",
        );
        if port.protocol.has_ports() {
            rule::protocol(&format!("{field}.protocol"), &port.protocol, findings);
        } else {
            findings.add(format!("{field}.protocol"), &port.protocol, "TCP, UDP or SCTP");
        }
        if port.port == 0 {
            findings.add(format!("{field}.port"), 0, "1 to 65535");
        }
    }
}

/// Validates the spec of a host endpoint.
pub fn host(spec: &Spec, findings: &mut Findings) {
    findings.text(is_subdomain(&spec.node), "spec.node", &spec.node, NAME);
    if !spec.interface_name.is_empty() {
        findings.text(
            is_interface(&spec.interface_name),
            "spec.interfaceName",
            &spec.interface_name,
            INTERFACE,
        );
    } else if spec.expected_ips.is_empty() {
        findings.text(
            false,
            "spec.interfaceName",
            &spec.interface_name,
            "a name, because there are no expectedIPs",
        );
    }
    for (place, expected) in spec.expected_ips.iter().enumerate() {
        findings.text(
            address(expected).is_some(),
            format!("spec.expectedIPs[{place}]"),
            expected,
            "an address",
        );
    }
    profiles(&spec.profiles, findings);
    ports(&spec.ports, findings);
}
