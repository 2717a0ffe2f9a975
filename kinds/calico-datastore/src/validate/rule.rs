//! Validates rules.

use super::super::network::cidr;
use super::super::protocol::{Port, Protocol};
use super::super::rule::{ACTIONS, Entity, Icmp, Rule};
use super::super::selector;
use super::Findings;
use super::text::is_port_name;

/// Largest type and largest code of ICMP that the kernel can match.
const LAST_TYPE: i64 = 254;
const LAST_CODE: i64 = 255;

/// Validates each rule of a list. `field` is the name of the list.
pub fn rules(field: &str, rules: &[Rule], findings: &mut Findings) {
    for (place, rule) in rules.iter().enumerate() {
        one(&format!("{field}[{place}]"), rule, findings);
    }
}

fn one(field: &str, rule: &Rule, findings: &mut Findings) {
    findings.text(
        ACTIONS.contains(&rule.action.as_str()),
        format!("{field}.action"),
        &rule.action,
        "Allow, Deny, Log or Pass",
    );
    if let Some(version) = rule.ip_version.filter(|version| ![4, 6].contains(version)) {
        findings.add(format!("{field}.ipVersion"), version, "4 or 6");
    }
    for (name, found) in [("protocol", &rule.protocol), ("notProtocol", &rule.not_protocol)] {
        if let Some(found) = found {
            protocol(&format!("{field}.{name}"), found, findings);
        }
    }
    for (name, found) in [("icmp", &rule.icmp), ("notICMP", &rule.not_icmp)] {
        if let Some(found) = found {
            icmp(&format!("{field}.{name}"), found, findings);
        }
    }
    for (name, end) in [("source", &rule.source), ("destination", &rule.destination)] {
        entity(&format!("{field}.{name}"), end, findings);
    }
    together(field, rule, findings);
    networks(field, rule, findings);
}

/// Validates a protocol: a number, or a known name.
pub fn protocol(field: &str, found: &Protocol, findings: &mut Findings) {
    if !found.is_known() {
        findings.add(
            field,
            found,
            "a number from 1 to 255, TCP, UDP, ICMP, ICMPv6, SCTP or UDPLite",
        );
    }
}

fn icmp(field: &str, icmp: &Icmp, findings: &mut Findings) {
    let bounds = [("type", icmp.kind, LAST_TYPE), ("code", icmp.code, LAST_CODE)];
    for (name, found, last) in bounds {
        if let Some(found) = found.filter(|found| !(0..=last).contains(found)) {
            findings.add(format!("{field}.{name}"), found, format!("0 to {last}"));
        }
    }
    if icmp.kind.is_none()
        && let Some(code) = icmp.code
    {
        findings.add(
            format!("{field}.code"),
            code,
            "a type as well: the kernel cannot match a code without a type",
        );
    }
}

fn entity(field: &str, entity: &Entity, findings: &mut Findings) {
    for (name, found) in [
        ("selector", &entity.selector),
        ("notSelector", &entity.not_selector),
    ] {
        selector(&format!("{field}.{name}"), found, findings);
    }
    for (name, ports) in [("ports", &entity.ports), ("notPorts", &entity.not_ports)] {
        for (place, port) in ports.iter().enumerate() {
            let needed = match port {
                Port::Range(0, _) => "ports from 1 to 65535",
                Port::Named(name) if !is_port_name(name) => {
                    "a name of at most 15 lower-case letters, digits and single dashes between them, with at least one letter"
                }
                Port::Range(..) | Port::Named(_) => continue,
            };
            findings.add(
                format!("{field}.{name}[{place}]"),
                format_args!("{:?}", port.to_string()),
                needed,
            );
        }
    }
}

/// Validates a selector; an empty one is valid.
pub fn selector(field: &str, found: &str, findings: &mut Findings) {
    if let Err(error) = selector::parse(found) {
        findings.add(field, format_args!("{found:?}"), format!("a selector: {error}"));
    }
}

/// Validates fields that depend on each other.
fn together(field: &str, rule: &Rule, findings: &mut Findings) {
    if !rule.protocol.as_ref().is_some_and(Protocol::has_ports) {
        let found = rule
            .protocol
            .as_ref()
            .map_or_else(|| "missing".to_owned(), ToString::to_string);
        let ports = [
            ("source.ports", &rule.source.ports),
            ("source.notPorts", &rule.source.not_ports),
            ("destination.ports", &rule.destination.ports),
            ("destination.notPorts", &rule.destination.not_ports),
        ];
        for (name, _) in ports.iter().filter(|(_, ports)| !ports.is_empty()) {
            findings.add(
                format!("{field}.protocol"),
                &found,
                format!("TCP, UDP or SCTP, because {name} is set"),
            );
        }
    }
    let is =
        |protocol: &Option<Protocol>, name: &str| protocol.as_ref().is_some_and(|protocol| protocol.is(name));
    if rule.icmp.is_some() && !is(&rule.protocol, "ICMP") && !is(&rule.protocol, "ICMPv6") {
        let found = rule
            .protocol
            .as_ref()
            .map_or_else(|| "missing".to_owned(), ToString::to_string);
        findings.add(
            format!("{field}.protocol"),
            found,
            "ICMP or ICMPv6 as a name, because icmp is set",
        );
    }
    for (name, version) in [("ICMP", 4), ("ICMPv6", 6)] {
        let asked = is(&rule.protocol, name) || is(&rule.not_protocol, name);
        if asked && let Some(found) = rule.ip_version.filter(|found| *found != version) {
            findings.add(
                format!("{field}.ipVersion"),
                found,
                format!("{version}, because the protocol is {name}"),
            );
        }
    }
}

/// Validates that all networks of a rule have one family, which is that of the rule.
fn networks(field: &str, rule: &Rule, findings: &mut Findings) {
    let mut seen: [bool; 2] = [false; 2];
    let lists = [
        ("source.nets", &rule.source.nets),
        ("source.notNets", &rule.source.not_nets),
        ("destination.nets", &rule.destination.nets),
        ("destination.notNets", &rule.destination.not_nets),
    ];
    for (name, nets) in lists {
        let versions: Vec<u8> = nets
            .iter()
            .filter_map(|text| cidr(text))
            .map(|(_, network)| network.version())
            .collect();
        let here = [versions.contains(&4), versions.contains(&6)];
        let field = format!("{field}.{name}");
        let found = format!("{nets:?}");
        if let Some(version) = rule.ip_version
            && ((here[0] && version != 4) || (here[1] && version != 6))
        {
            findings.add(
                &field,
                &found,
                format!("networks of IPv{version}, because ipVersion is {version}"),
            );
        }
        let both = |one: [bool; 2], other: [bool; 2]| one[0] && other[1];
        if both(here, here) || both(here, seen) || both(seen, here) {
            findings.add(field, found, "networks of one family in the whole rule");
        }
        seen = [seen[0] || here[0], seen[1] || here[1]];
    }
}
