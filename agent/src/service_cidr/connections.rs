//! Connections to addresses that are left, as the kernel tracks them: `/proc/net/nf_conntrack`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader};
use std::net::IpAddr;
use std::path::Path;

use plan::found::Found;
use plan::pod_cidr::host::Listed;
use plan::service_cidr::host::{Connection, Left, ServicePort};

/// Under the agent's own network namespace, which is the host's.
const FILE: &str = "thread-self/net/nf_conntrack";
/// States of a connection that is over: nobody uses it.
const OVER: [&str; 2] = ["TIME_WAIT", "CLOSE"];
/// Protocols that Services have; who asks whether an address is there (`ping`) uses none.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Reads them.
pub fn read(proc: &Path, left: &Left) -> Found<Listed<Connection>> {
    let path = proc.join(FILE);
    match File::open(&path).and_then(|file| list(BufReader::new(file), left)) {
        Ok(found) if found.is_empty() => Found::Absent,
        Ok(found) => Found::Present(found.into_iter().collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Found::Malformed("the kernel does not list connections: no /proc/net/nf_conntrack".to_owned())
        }
        Err(error) => Found::Malformed(format!("could not read {}: {error}", path.display())),
    }
}

/// Each once, line by line: a host may track a million of them.
fn list(mut lines: impl io::BufRead, left: &Left) -> io::Result<BTreeSet<Connection>> {
    let mut found = BTreeSet::new();
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        found.extend(connection(&line, left));
        line.clear();
    }
    Ok(found)
}

/// `ipv4     2 tcp      6 86399 ESTABLISHED src=… dst=… sport=… dport=… src=… …`: what was asked for comes first, the way of the answer
/// after it.
fn connection(line: &str, left: &Left) -> Option<Connection> {
    let mut words = line.split_ascii_whitespace();
    let protocol = words.nth(2).filter(|protocol| PROTOCOLS.contains(protocol))?;
    let (mut source, mut destination) = (None, None);
    for word in words {
        if OVER.contains(&word) {
            return None;
        }
        match word.split_once('=') {
            Some(("src", value)) if source.is_none() => source = Some(value.parse::<IpAddr>().ok()?),
            Some(("dst", value)) if destination.is_none() => {
                let address = value.parse::<IpAddr>().ok()?;
                // Most are somebody else's: the rest of the line says nothing more then.
                if !left.has(address) {
                    return None;
                }
                destination = Some(address);
            }
            Some(("dport", value)) => {
                return Some(Connection {
                    source: source?,
                    service: ServicePort {
                        address: destination?,
                        protocol: protocol.to_ascii_uppercase(),
                        port: value.parse().ok()?,
                    },
                });
            }
            Some(_) | None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn left() -> Left {
        Left {
            ranges: vec!["10.96.0.0/12".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
            kept: vec!["10.96.3.9".parse().unwrap()],
        }
    }

    #[rstest]
    #[case::to_a_load_balancer(
        "ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=10.96.3.9 sport=4001 dport=443 src=10.244.2.2 dst=10.244.1.5 sport=6443 dport=4001 [ASSURED] mark=0 zone=0 use=2",
        None
    )]
    #[case::established(
        "ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=10.96.0.1 sport=4001 dport=443 src=172.18.0.2 dst=10.244.1.5 sport=6443 dport=4001 [ASSURED] mark=0 zone=0 use=2",
        Some("10.244.1.5 to 10.96.0.1:443/TCP")
    )]
    #[case::closed_by_one_side(
        "ipv4     2 tcp      6 60 CLOSE_WAIT src=10.244.1.5 dst=10.96.0.1 sport=4001 dport=443 src=172.18.0.2 dst=10.244.1.5 sport=6443 dport=4001 mark=0 zone=0 use=2",
        Some("10.244.1.5 to 10.96.0.1:443/TCP")
    )]
    #[case::without_an_answer(
        "ipv4     2 udp      17 20 src=10.244.1.7 dst=10.96.0.10 sport=5353 dport=53 [UNREPLIED] src=10.244.0.2 dst=10.244.1.7 sport=53 dport=5353 mark=0 zone=0 use=2",
        Some("10.244.1.7 to 10.96.0.10:53/UDP")
    )]
    #[case::ipv6(
        "ipv6     10 sctp     132 431999 ESTABLISHED src=fd00:0244:0000:0000:0000:0000:0000:0005 dst=fd00:0096:0000:0000:0000:0000:0000:0001 sport=4001 dport=7 src=fd00:0244::9 dst=fd00:0244::5 sport=7 dport=4001 mark=0 zone=0 use=2",
        Some("fd00:244::5 to [fd00:96::1]:7/SCTP")
    )]
    #[case::over(
        "ipv4     2 tcp      6 20 TIME_WAIT src=10.244.1.6 dst=10.96.0.1 sport=4001 dport=443 src=172.18.0.2 dst=10.244.1.6 sport=6443 dport=4001 [ASSURED] mark=0 zone=0 use=2",
        None
    )]
    #[case::closed(
        "ipv4     2 tcp      6 5 CLOSE src=10.244.1.6 dst=10.96.0.1 sport=4001 dport=443 src=172.18.0.2 dst=10.244.1.6 sport=6443 dport=4001 mark=0 zone=0 use=2",
        None
    )]
    #[case::another_range(
        "ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=172.30.0.1 sport=4003 dport=443 src=172.18.0.2 dst=10.244.1.5 sport=6443 dport=4003 mark=0 zone=0 use=2",
        None
    )]
    // The way of the answer is nobody's who asks.
    #[case::answered_from_there(
        "ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=192.0.2.7 sport=4003 dport=443 src=10.96.0.1 dst=10.244.1.5 sport=443 dport=4003 mark=0 zone=0 use=2",
        None
    )]
    #[case::a_ping(
        "ipv4     2 icmp     1 29 src=10.244.1.5 dst=10.96.0.1 type=8 code=0 id=7 src=10.96.0.1 dst=10.244.1.5 type=0 code=0 id=7 mark=0 zone=0 use=2",
        None
    )]
    #[case::half_a_line(
        "ipv4     2 tcp      6 86399 ESTABLISHED src=10.244.1.5 dst=10.96.0.1 sp",
        None
    )]
    #[case::nothing("", None)]
    fn a_line(#[case] line: &str, #[case] expected: Option<&str>) {
        let found = connection(line, &left()).map(|connection| connection.to_string());
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn who_asks_for_the_same_again_is_told_once() {
        let line = |source: &str, port: u16| {
            format!(
                "ipv4     2 tcp      6 9 ESTABLISHED src={source} dst=10.96.0.1 sport={port} dport=443 src=172.18.0.2 dst={source} \
                 sport=6443 dport={port} mark=0 zone=0 use=2\n"
            )
        };
        let text = [
            line("10.244.1.6", 1),
            line("10.244.1.5", 1),
            line("10.244.1.5", 2),
        ]
        .concat();
        let found = list(text.as_bytes(), &left()).unwrap();
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "10.244.1.5 to 10.96.0.1:443/TCP",
                "10.244.1.6 to 10.96.0.1:443/TCP"
            ]
        );
    }

    #[test]
    fn a_kernel_that_lists_none_is_not_one_without_any() {
        let proc = tempfile::tempdir().unwrap();
        let words = "the kernel does not list connections: no /proc/net/nf_conntrack";
        assert_eq!(read(proc.path(), &left()), Found::Malformed(words.to_owned()));
        let folder = proc.path().join("thread-self/net");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("nf_conntrack"), "").unwrap();
        assert_eq!(read(proc.path(), &left()), Found::Absent);
    }
}
