//! Connections to addresses that are left, as the kernel tracks them: `/proc/net/nf_conntrack`.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use plan::found::Found;
use plan::pod_cidr::host::Listed;
use plan::service_cidr::host::{Connection, ServicePort};

/// Under the agent's own network namespace, which is the host's.
const FILE: &str = "thread-self/net/nf_conntrack";
/// States of a connection that is over: nobody uses it.
const OVER: [&str; 2] = ["TIME_WAIT", "CLOSE"];

/// Reads them.
pub fn read(proc: &Path, left: &[IpNet]) -> Found<Listed<Connection>> {
    let path = proc.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => listed(&text, left),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Malformed(format!(
            "the kernel lists no connections: {} is not there",
            path.display()
        )),
        Err(error) => Found::Malformed(format!("read {}: {error}", path.display())),
    }
}

fn listed(text: &str, left: &[IpNet]) -> Found<Listed<Connection>> {
    let found: BTreeSet<Connection> = text.lines().filter_map(|line| connection(line, left)).collect();
    if found.is_empty() {
        Found::Absent
    } else {
        Found::Present(found.into_iter().collect())
    }
}

/// `ipv4     2 tcp      6 86399 ESTABLISHED src=… dst=… sport=… dport=… src=… …`: what was asked for comes first, the way of the answer
/// after it.
fn connection(line: &str, left: &[IpNet]) -> Option<Connection> {
    let mut words = line.split_ascii_whitespace();
    let protocol = words.nth(2)?;
    let (mut source, mut destination, mut port) = (None, None, None);
    for word in words {
        if OVER.contains(&word) {
            return None;
        }
        let Some((key, value)) = word.split_once('=') else {
            continue;
        };
        match key {
            "src" if source.is_none() => source = value.parse::<IpAddr>().ok(),
            "dst" if destination.is_none() => destination = value.parse::<IpAddr>().ok(),
            "dport" if port.is_none() => port = value.parse::<u16>().ok(),
            _ => {}
        }
    }
    let address = destination.filter(|address| left.iter().any(|range| range.contains(address)))?;
    Some(Connection {
        source: source?,
        service: ServicePort {
            address,
            protocol: protocol.to_ascii_uppercase(),
            port: port.unwrap_or_default(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=10.96.0.1 sport=4001 dport=443 src=172.18.0.2 dst=10.244.1.5 sport=6443 dport=4001 [ASSURED] mark=0 zone=0 use=2
ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=10.96.0.1 sport=4002 dport=443 src=172.18.0.2 dst=10.244.1.5 sport=6443 dport=4002 [ASSURED] mark=0 zone=0 use=2
ipv4     2 tcp      6 20 TIME_WAIT src=10.244.1.6 dst=10.96.0.1 sport=4001 dport=443 src=172.18.0.2 dst=10.244.1.6 sport=6443 dport=4001 [ASSURED] mark=0 zone=0 use=2
ipv4     2 udp      17 20 src=10.244.1.7 dst=10.96.0.10 sport=5353 dport=53 [UNREPLIED] src=10.244.0.2 dst=10.244.1.7 sport=53 dport=5353 mark=0 zone=0 use=2
ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=172.30.0.1 sport=4003 dport=443 src=172.18.0.2 dst=10.244.1.5 sport=6443 dport=4003 [ASSURED] mark=0 zone=0 use=2
";

    #[test]
    fn who_asks_an_address_that_is_left_is_told_once() {
        let left: [IpNet; 1] = ["10.96.0.0/12".parse().unwrap()];
        let Found::Present(found) = listed(TEXT, &left) else {
            panic!("none found");
        };
        let texts: Vec<String> = found.first.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "10.244.1.5 to 10.96.0.1:443/TCP",
                "10.244.1.7 to 10.96.0.10:53/UDP"
            ]
        );
        assert_eq!(listed(TEXT, &["10.250.0.0/16".parse().unwrap()]), Found::Absent);
    }

    #[test]
    fn a_kernel_that_lists_none_is_not_one_without_any() {
        let empty = tempfile::tempdir().unwrap();
        let Found::Malformed(what) = read(empty.path(), &[]) else {
            panic!("it cannot know");
        };
        assert!(what.contains("nf_conntrack is not there"), "{what}");
    }
}
