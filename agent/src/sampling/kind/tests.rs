use rstest::rstest;

use super::*;
use crate::sampling::fixture::{CLIENTS, POD, SERVER, TCP, UDP, address, direct, spec, to_service};

#[rstest]
#[case::to_a_server((POD, 45000), (SERVER, 80), ServerPort::OfReceiver(80))]
#[case::both_low((POD, 700), (SERVER, 2049), ServerPort::OfReceiver(2049))]
#[case::server_with_a_port_of_clients((POD, 45000), (SERVER, 50051), ServerPort::OfReceiver(50051))]
#[case::an_answer_seen_first((SERVER, 80), (POD, 45000), ServerPort::OfSender(80))]
#[case::first_port_of_clients((SERVER, 80), (POD, 32768), ServerPort::OfSender(80))]
#[case::last_port_of_clients((SERVER, 80), (POD, 60999), ServerPort::OfSender(80))]
#[case::beyond_the_ports_of_clients((SERVER, 80), (POD, 61000), ServerPort::OfReceiver(61000))]
fn the_port_of_the_server_is_kept(
    #[case] sender: (&str, u16),
    #[case] receiver: (&str, u16),
    #[case] expected: ServerPort,
) {
    for protocol in WITH_PORTS {
        let found = kind(&direct(protocol, sender, receiver), CLIENTS);
        assert_eq!(
            found,
            ConnectionKind {
                protocol,
                source: address(sender.0),
                destination: address(receiver.0),
                port: expected,
                is_translated: false,
            }
        );
    }
}

#[rstest]
#[case::icmp(1)]
#[case::icmpv6(58)]
#[case::gre(47)]
fn protocols_without_ports_have_none(#[case] protocol: u8) {
    let found = kind(&direct(protocol, (POD, 1), (SERVER, 40000)), CLIENTS);
    assert_eq!(found.port, ServerPort::None);
}

#[test]
fn a_connection_to_a_service_is_one_to_the_pod_behind_it() {
    let found = kind(
        &to_service((POD, 45000), ("10.96.0.60", 80), (SERVER, 8080)),
        CLIENTS,
    );
    assert_eq!((found.source, found.destination), (address(POD), address(SERVER)));
    assert_eq!(found.port, ServerPort::OfReceiver(8080));
    assert!(found.is_translated);
}

#[test]
fn a_translated_connection_is_never_an_answer() {
    // Another node has masqueraded the client and chosen its port at random; this one has translated the Service.
    let connection = to_service(("10.244.2.0", 5000), ("192.0.2.11", 30080), (POD, 40000));
    assert_eq!(kind(&connection, CLIENTS).port, ServerPort::OfReceiver(40000));
}

#[test]
fn a_masqueraded_client_is_the_pod() {
    let mut connection = direct(UDP, (POD, 45000), ("198.51.100.9", 53));
    connection.reply.destination = address("192.0.2.11");
    connection.reply.destination_port = 6001;
    let found = kind(&connection, CLIENTS);
    assert_eq!((found.source, found.is_translated), (address(POD), true));
}

#[test]
fn a_port_alone_may_be_translated() {
    let mut connection = direct(TCP, (POD, 45000), (SERVER, 80));
    connection.original.destination_port = 8080;
    let found = kind(&connection, CLIENTS);
    assert_eq!(
        (found.port, found.is_translated),
        (ServerPort::OfReceiver(80), true)
    );
}

#[rstest]
#[case::to_a_server(&[SERVER], &[], true, true)]
#[case::from_a_client(&[], &[POD], true, true)]
#[case::from_a_server(&[], &[SERVER], false, true)]
#[case::to_a_client(&[POD], &[], false, true)]
#[case::of_others(&["10.244.1.9"], &["10.244.1.9"], false, false)]
fn connections_to_ingress_and_from_egress_are_sampled(
    #[case] ingress: &[&str],
    #[case] egress: &[&str],
    #[case] expected: bool,
    #[case] expected_if_unclear: bool,
) {
    let addresses = SampledAddresses::of(&spec(9, ingress, egress));
    let have = |connection| addresses.have(&kind(&connection, CLIENTS), CLIENTS);
    assert_eq!(have(direct(TCP, (POD, 45000), (SERVER, 80))), expected);
    // The same connection, of which an answer was seen first, or one of a client with a low port: which of these is not known.
    assert_eq!(have(direct(TCP, (SERVER, 80), (POD, 45000))), expected_if_unclear);
    assert_eq!(
        have(to_service((POD, 45000), ("10.96.0.60", 80), (SERVER, 8080))),
        expected
    );
}

#[test]
fn either_side_may_be_the_server_if_both_have_ports_of_clients() {
    let addresses = SampledAddresses::of(&spec(9, &[POD], &[]));
    let have = |connection| addresses.have(&kind(&connection, CLIENTS), CLIENTS);
    assert!(have(direct(TCP, (POD, 50051), (SERVER, 45000))));
    assert!(!have(to_service(
        (POD, 50051),
        ("10.96.0.60", 80),
        (SERVER, 45000)
    )));
    assert!(!have(direct(1, (POD, 0), (SERVER, 0))));
}
