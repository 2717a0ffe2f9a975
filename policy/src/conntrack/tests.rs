use rstest::rstest;

use super::*;
use crate::cluster::Facts;
use crate::fixture::{address, declare, node, pod};
use crate::settings::Settings;

const CLIENT: u16 = 45000;

fn cluster(data_plane: DataPlane) -> Cluster {
    Cluster::new(Facts {
        settings: Settings {
            data_plane,
            ..Settings::default()
        },
        nodes: vec![
            node("n1", "192.0.2.11", "10.244.1.0"),
            node("n2", "192.0.2.12", "10.244.2.0"),
        ],
        pods: vec![
            pod("shop", "web", "n1", "10.244.1.5", &[]),
            declare(pod("shop", "db", "n1", "10.244.1.6", &[]), "pg", 5432),
            declare(pod("shop", "rpc", "n1", "10.244.1.7", &[]), "rpc", 40000),
        ],
        ..Facts::default()
    })
}

fn host() -> Host {
    Host {
        node: Arc::from("n1"),
        client_ports: 32768..=60999,
        tunnel_ports: vec![8472, 4789],
    }
}

fn direct(protocol: Protocol, source: (&str, u16), destination: (&str, u16)) -> Entry {
    let original = Tuple {
        source: address(source.0),
        destination: address(destination.0),
        source_port: source.1,
        destination_port: destination.1,
    };
    let reply = Tuple {
        source: original.destination,
        destination: original.source,
        source_port: original.destination_port,
        destination_port: original.source_port,
    };
    Entry {
        protocol,
        original,
        reply,
        is_replied: true,
    }
}

fn seen(entry: &Entry) -> Observation {
    observe(&cluster(DataPlane::Iptables), &host(), entry)
}

fn flow_of(source: &str, destination: &str, port: u16) -> Flow {
    Flow {
        node: Arc::from("n1"),
        source: address(source),
        destination: address(destination),
        protocol: Protocol::Tcp,
        port: Some(port),
        state: State::New,
    }
}

#[rstest]
#[case::as_seen(("10.244.1.5", CLIENT), ("10.244.1.6", 5432), ("10.244.1.5", "10.244.1.6", 5432))]
#[case::reply_first(("10.244.1.6", 5432), ("10.244.1.5", CLIENT), ("10.244.1.5", "10.244.1.6", 5432))]
#[case::server_with_a_high_port(("10.244.1.5", CLIENT), ("10.244.1.7", 40000), ("10.244.1.5", "10.244.1.7", 40000))]
#[case::client_with_a_low_port(("10.244.1.5", 700), ("10.244.1.6", 2049), ("10.244.1.5", "10.244.1.6", 2049))]
#[case::two_high_ports(("10.244.1.5", CLIENT), ("10.244.1.6", 50000), ("10.244.1.5", "10.244.1.6", 50000))]
fn the_server_has_the_port_that_is_declared(
    #[case] source: (&str, u16),
    #[case] destination: (&str, u16),
    #[case] expected: (&str, &str, u16),
) {
    let entry = direct(Protocol::Tcp, source, destination);
    let (source, destination, port) = expected;
    let expected = Observation::Connection(flow_of(source, destination, port));
    assert_eq!(seen(&entry), expected);
}

#[rstest]
#[case::nothing_declared(("192.0.2.12", 6443), ("10.244.1.5", CLIENT))]
#[case::both_declared(("10.244.1.6", 5432), ("10.244.1.7", 40000))]
fn a_reply_that_may_be_a_request_is_unclear(#[case] source: (&str, u16), #[case] destination: (&str, u16)) {
    let entry = direct(Protocol::Tcp, source, destination);
    let Observation::Unclear { why, .. } = seen(&entry) else {
        panic!("unclear");
    };
    assert_eq!(why, UnknownReason::AmbiguousDirection);
}

#[test]
fn an_entry_with_nat_is_never_exchanged() {
    let mut entry = direct(Protocol::Tcp, ("10.244.1.6", 5432), ("10.96.0.9", 80));
    entry.reply.source = address("10.244.1.5");
    entry.reply.source_port = CLIENT;
    let expected = Observation::Connection(flow_of("10.244.1.6", "10.244.1.5", CLIENT));
    assert_eq!(seen(&entry), expected);
}

#[test]
fn an_entry_without_a_reply_is_apart() {
    let entry = Entry {
        is_replied: false,
        ..direct(Protocol::Tcp, ("10.244.1.5", CLIENT), ("10.244.1.6", 5432))
    };
    let expected = Observation::WithoutReply(flow_of("10.244.1.5", "10.244.1.6", 5432));
    assert_eq!(seen(&entry), expected);
}

#[rstest]
#[case::tunnel(direct(Protocol::Udp, ("192.0.2.12", CLIENT), ("192.0.2.11", 8472)))]
#[case::ipip(direct(Protocol::Ipip, ("192.0.2.12", 0), ("192.0.2.11", 0)))]
#[case::loopback(direct(Protocol::Tcp, ("127.0.0.1", CLIENT), ("127.0.0.1", 80)))]
fn traffic_of_the_host_is_nothing(#[case] entry: Entry) {
    assert_eq!(seen(&entry), Observation::Nothing);
}

#[test]
fn a_pod_that_sends_vxlan_is_seen() {
    let entry = direct(Protocol::Udp, ("10.244.1.5", CLIENT), ("198.51.100.9", 4789));
    assert!(matches!(seen(&entry), Observation::Connection(_)));
}

#[test]
fn a_protocol_without_ports_has_none() {
    let entry = direct(Protocol::Icmp, ("10.244.1.5", 0), ("10.244.1.6", 0));
    let Observation::Connection(flow) = seen(&entry) else {
        panic!("a connection");
    };
    assert_eq!(flow.port, None);
}

#[test]
fn another_node_may_hide_a_client_that_ebpf_shows() {
    let entry = direct(Protocol::Tcp, ("10.244.2.0", CLIENT), ("10.244.1.6", 5432));
    let found = observe(&cluster(DataPlane::Ebpf), &host(), &entry);
    let Observation::Unclear { why, .. } = found else {
        panic!("unclear");
    };
    assert_eq!(why, UnknownReason::SourceChanges);
}

#[test]
fn a_node_that_is_not_in_the_cluster_is_unclear() {
    let other = Host {
        node: Arc::from("n9"),
        ..host()
    };
    let entry = direct(Protocol::Tcp, ("10.244.1.5", CLIENT), ("10.244.1.6", 5432));
    let found = observe(&cluster(DataPlane::Iptables), &other, &entry);
    assert!(matches!(
        found,
        Observation::Unclear {
            why: UnknownReason::NodeMissing,
            ..
        }
    ));
}
