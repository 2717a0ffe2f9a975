//! Finds connections to old addresses in the kernel's connection tracking table: `/proc/net/nf_conntrack`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::net::IpAddr;
use std::path::Path;

use engine::found::Found;
use engine::kernel::Listed;
use service_cidr::host::{Connection, ServicePort, SourceAddresses};

use super::old_addresses::OldAddresses;

/// Path for the agent's own network namespace, which is the host's.
const FILE: &str = "thread-self/net/nf_conntrack";
/// States of closed connections, which no client uses.
const OVER: [&str; 2] = ["TIME_WAIT", "CLOSE"];
/// The kernel's flag for an entry without an answer: no server answers, or the protocol has no answers. One datagram every 25 s
/// keeps such an entry forever.
const UNANSWERED: &str = "[UNREPLIED]";
/// Maximum number of connections that are listed one by one.
const MOST_NAMED: usize = 20;
/// Protocols of Services; `ping` uses none of them.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Reads the connections.
pub fn read(proc: &Path, left: &SourceAddresses) -> Found<Listed<Connection>> {
    let path = proc.join(FILE);
    match File::open(&path).and_then(|file| list(BufReader::new(file), &OldAddresses::from(left))) {
        Ok(found) if found.is_empty() => Found::Absent,
        Ok(found) => Found::Present(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Found::Malformed("the kernel does not list connections: no /proc/net/nf_conntrack".to_owned())
        }
        Err(error) => Found::Malformed(format!("could not read {}: {error}", path.display())),
    }
}

/// The first connections, each once, and the number of entries of the others. Reads line by line, and holds only the listed
/// connections: a host may track a million of them, and pods create them.
fn list(mut lines: impl io::BufRead, left: &OldAddresses) -> io::Result<Listed<Connection>> {
    let mut named = BTreeMap::<Connection, u32>::new();
    let mut more = 0_u32;
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        if let Some(connection) = connection(&line, left) {
            let entries = named.entry(connection).or_default();
            *entries = entries.saturating_add(1);
        }
        if named.len() > MOST_NAMED {
            // A connection that sorts behind all of these will not be listed later.
            let entries = named.pop_last().map_or(0, |(_, entries)| entries);
            more = more.saturating_add(entries);
        }
        line.clear();
    }
    Ok(Listed {
        items: named.into_keys().collect(),
        remaining: more,
    })
}

/// `ipv4     2 tcp      6 86399 ESTABLISHED src=… dst=… sport=… dport=… src=… …`: the original direction first, then the reply
/// direction.
fn connection(line: &str, left: &OldAddresses) -> Option<Connection> {
    let mut words = line.split_ascii_whitespace();
    let protocol = words.nth(2).filter(|protocol| PROTOCOLS.contains(protocol))?;
    let (mut source, mut destination) = (None, None);
    while let Some(word) = words.next() {
        if OVER.contains(&word) {
            return None;
        }
        match word.split_once('=') {
            Some(("src", value)) if source.is_none() => source = Some(value.parse::<IpAddr>().ok()?),
            Some(("dst", value)) if destination.is_none() => {
                let address = value.parse::<IpAddr>().ok()?;
                // Most connections have another destination: the rest of the line does not matter then.
                if !left.contains(address) {
                    return None;
                }
                destination = Some(address);
            }
            Some(("dport", value)) => {
                let service = ServicePort {
                    address: destination?,
                    protocol: protocol.to_ascii_uppercase(),
                    port: value.parse().ok()?,
                };
                let source = source?;
                let is_answered = words.all(|word| word != UNANSWERED);
                return is_answered.then_some(Connection { source, service });
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

    fn left() -> SourceAddresses {
        SourceAddresses {
            ranges: vec!["10.96.0.0/12".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
            excluded: vec!["10.96.3.9".parse().unwrap()],
        }
    }

    fn asked() -> OldAddresses {
        OldAddresses::from(&left())
    }

    fn texts(listed: &Listed<Connection>) -> Vec<String> {
        listed.items.iter().map(ToString::to_string).collect()
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
    #[case::an_answered_datagram(
        "ipv4     2 udp      17 20 src=10.244.1.7 dst=10.96.0.10 sport=5353 dport=53 packets=1 bytes=60 src=10.244.0.2 dst=10.244.1.7 sport=53 dport=5353 packets=1 bytes=90 mark=0 zone=0 use=2",
        Some("10.244.1.7 to 10.96.0.10:53/UDP")
    )]
    #[case::a_datagram_without_an_answer(
        "ipv4     2 udp      17 20 src=10.244.1.7 dst=10.96.0.77 sport=5353 dport=53 [UNREPLIED] src=10.96.0.77 dst=10.244.1.7 sport=53 dport=5353 mark=0 zone=0 use=2",
        None
    )]
    #[case::counted_without_an_answer(
        "ipv4     2 udp      17 20 src=10.244.1.7 dst=10.96.0.77 sport=5353 dport=53 packets=9 bytes=540 [UNREPLIED] src=10.96.0.77 dst=10.244.1.7 sport=53 dport=5353 packets=0 bytes=0 mark=0 zone=0 use=2",
        None
    )]
    #[case::a_syn_without_an_answer(
        "ipv4     2 tcp      6 115 SYN_SENT src=10.244.1.7 dst=10.96.0.77 sport=40001 dport=443 [UNREPLIED] src=10.96.0.77 dst=10.244.1.7 sport=443 dport=40001 mark=0 zone=0 use=2",
        None
    )]
    #[case::a_syn_that_is_answered(
        "ipv4     2 tcp      6 55 SYN_RECV src=10.244.1.7 dst=10.96.0.1 sport=40001 dport=443 src=172.18.0.2 dst=10.244.1.7 sport=6443 dport=40001 mark=0 zone=0 use=2",
        Some("10.244.1.7 to 10.96.0.1:443/TCP")
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
    // The reply direction does not count.
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
    fn only_an_answered_open_connection_to_an_old_address_counts(
        #[case] line: &str,
        #[case] expected: Option<&str>,
    ) {
        let found = connection(line, &asked()).map(|connection| connection.to_string());
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn connections_of_one_source_to_one_service_are_listed_once() {
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
        let found = list(text.as_bytes(), &asked()).unwrap();
        assert_eq!(found.remaining, 0);
        assert_eq!(
            texts(&found),
            [
                "10.244.1.5 to 10.96.0.1:443/TCP",
                "10.244.1.6 to 10.96.0.1:443/TCP"
            ]
        );
    }

    #[test]
    fn the_first_connections_are_listed_and_the_others_counted() {
        let line = |last: u32, port: u32| {
            format!(
                "ipv4     2 udp      17 20 src=10.244.1.{last} dst=10.96.0.10 sport={port} dport=53 src=10.244.0.2 dst=10.244.1.{last} \
                 sport=53 dport={port} mark=0 zone=0 use=2\n"
            )
        };
        // The largest first: each of those that are named in the end drives another one out. Each has two entries.
        let lines: String = (1..=100)
            .rev()
            .flat_map(|last| [line(last, 1), line(last, 2)])
            .chain([line(100, 3)])
            .collect();
        let found = list(lines.as_bytes(), &asked()).unwrap();
        let expected: Vec<String> = (1..=20)
            .map(|last| format!("10.244.1.{last} to 10.96.0.10:53/UDP"))
            .collect();
        assert_eq!((texts(&found), found.remaining), (expected, 161));
    }

    #[test]
    fn a_missing_table_is_malformed_and_an_empty_one_is_absent() {
        let proc = tempfile::tempdir().unwrap();
        let words = "the kernel does not list connections: no /proc/net/nf_conntrack";
        assert_eq!(read(proc.path(), &left()), Found::Malformed(words.to_owned()));
        let folder = proc.path().join("thread-self/net");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("nf_conntrack"), "").unwrap();
        assert_eq!(read(proc.path(), &left()), Found::Absent);
    }
}
