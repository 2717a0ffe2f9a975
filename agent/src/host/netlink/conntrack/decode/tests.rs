//! Messages that a kernel (6.18) has sent for entries of `conntrack -I`, and the same with faults.

use data_encoding::HEXLOWER;
use proptest::collection::vec;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// TCP, answered.
const TCP: &str = concat!(
    "f00000000001020001000000547d0000020000003400018014000180080001000af40107080002000af402061c000280",
    "050001000600000006000200afc8000006000300005000003400028014000180080001000af40206080002000af40107",
    "1c0002800500010006000000060002000050000006000300afc80000080003000000000e080008000000000008000c00",
    "8ca12a2d08000b000000000108000700000003e7300004802c0001800500010003000000050002000000000005000300",
    "00000000060004000a000000060005000a0000001c001880080001000000000008000200000000000800030000000000",
);
/// UDP to a Service, sent to a pod, without an answer.
const UDP: &str = concat!(
    "c00000000001020001000000547d0000020000003400018014000180080001000af40108080002000a60000a1c000280",
    "0500010011000000060002009c41000006000300003500003400028014000180080001000af40209080002000af40108",
    "1c00028005000100110000000600020014e90000060003009c4100000800030000000008080008000000000008000c00",
    "d00bed8608000b000000000108000700000003e71c001880080001000000000008000200000000000800030000000000",
);
/// SCTP.
const SCTP: &str = concat!(
    "e00000000001020001000000547d0000020000003400018014000180080001000af40107080002000af402061c000280",
    "050001008400000006000200afc90000060003008e3c00003400028014000180080001000af40206080002000af40107",
    "1c0002800500010084000000060002008e3c000006000300afc900000800030000000008080008000000000008000c00",
    "f0ad7a9408000b000000000108000700000003e7200004801c0003800500010004000000080002000100000008000300",
    "020000001c001880080001000000000008000200000000000800030000000000",
);
/// An echo request.
const ICMP: &str = concat!(
    "d00000000001020001000000547d0000020000003c00018014000180080001000af40107080002000af4020624000280",
    "050001000100000006000400004d0000050005000800000005000600000000003c00028014000180080001000af40206",
    "080002000af4010724000280050001000100000006000400004d00000500050000000000050006000000000008000300",
    "00000008080008000000000008000c00a436061908000b000000000108000700000003e71c0018800800010000000000",
    "08000200000000000800030000000000",
);
/// TCP over IPv6, answered.
const IPV6: &str = concat!(
    "200100000001020001000000547d00000a0000004c0001802c00018014000300fd000010024400010000000000000007",
    "14000400fd0000100244000200000000000000061c000280050001000600000006000200afca00000600030001bb0000",
    "4c0002802c00018014000300fd00001002440002000000000000000614000400fd000010024400010000000000000007",
    "1c00028005000100060000000600020001bb000006000300afca0000080003000000000a080008000000000008000c00",
    "9dd69e6c08000b000000000108000700000003e7300004802c0001800500010003000000050002000000000005000300",
    "00000000060004000a000000060005000a0000001c001880080001000000000008000200000000000800030000000000",
);
/// An echo request over IPv6.
const ICMPV6: &str = concat!(
    "000100000001020001000000547d00000a000000540001802c00018014000300fd000010024400010000000000000007",
    "14000400fd00001002440002000000000000000624000280050001003a00000006000700000500000500080080000000",
    "0500090000000000540002802c00018014000300fd00001002440002000000000000000614000400fd00001002440001",
    "000000000000000724000280050001003a00000006000700000500000500080081000000050009000000000008000300",
    "00000008080008000000000008000c0045e6116d08000b000000000108000700000003e71c0018800800010000000000",
    "08000200000000000800030000000000",
);
/// TCP in zone 5.
const ZONE: &str = concat!(
    "f80000000001020001000000547d0000020000003400018014000180080001000af40107080002000af402061c000280",
    "050001000600000006000200afcb000006000300005000003400028014000180080001000af40206080002000af40107",
    "1c0002800500010006000000060002000050000006000300afcb00000600120000050000080003000000000808000800",
    "0000000008000c00ec7f0bf208000b000000000108000700000003e7300004802c000180050001000300000005000200",
    "000000000500030000000000060004000a000000060005000a0000001c00188008000100000000000800020000000000",
    "0800030000000000",
);
/// GRE with keys.
const GRE: &str = concat!(
    "c00000000001020001000000547d0000020000003400018014000180080001000af40107080002000af402061c000280",
    "050001002f000000060002000001000006000300000200003400028014000180080001000af40206080002000af40107",
    "1c000280050001002f000000060002000002000006000300000100000800030000000008080008000000000008000c00",
    "c660207308000b000000000108000700000003e71c001880080001000000000008000200000000000800030000000000",
);
/// The end of a listing.
const END: &str = "140000000300020001000000547d000000000000";

fn bytes(hex: &str) -> Vec<u8> {
    HEXLOWER.decode(hex.as_bytes()).unwrap()
}

fn read_all(messages: &[u8]) -> (Vec<TrackedConnection>, Datagram) {
    let mut connections = Vec::new();
    let found = datagram(messages, &mut |connection| connections.push(connection));
    (connections, found)
}

fn tuple_of(source: &str, source_port: u16, destination: &str, destination_port: u16) -> Tuple {
    Tuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        source_port,
        destination_port,
    }
}

const POD: &str = "10.244.1.7";
const SERVER: &str = "10.244.2.6";
const POD_6: &str = "fd00:10:244:1::7";
const SERVER_6: &str = "fd00:10:244:2::6";

#[rstest]
#[case::tcp(TCP, 6, (POD, 45000, SERVER, 80), (SERVER, 80, POD, 45000), true)]
#[case::a_service(UDP, 17, ("10.244.1.8", 40001, "10.96.0.10", 53), ("10.244.2.9", 5353, "10.244.1.8", 40001), false)]
#[case::sctp(SCTP, 132, (POD, 45001, SERVER, 36412), (SERVER, 36412, POD, 45001), false)]
#[case::icmp(ICMP, 1, (POD, 0, SERVER, 0), (SERVER, 0, POD, 0), false)]
#[case::ipv6(IPV6, 6, (POD_6, 45002, SERVER_6, 443), (SERVER_6, 443, POD_6, 45002), true)]
#[case::icmpv6(ICMPV6, 58, (POD_6, 0, SERVER_6, 0), (SERVER_6, 0, POD_6, 0), false)]
#[case::gre(GRE, 47, (POD, 1, SERVER, 2), (SERVER, 2, POD, 1), false)]
fn an_entry_has_both_directions(
    #[case] message: &str,
    #[case] protocol: u8,
    #[case] original: (&str, u16, &str, u16),
    #[case] reply: (&str, u16, &str, u16),
    #[case] is_replied: bool,
) {
    let (connections, found) = read_all(&bytes(message));
    assert!(
        found.malformed.is_none() && found.refused.is_none() && !found.is_last,
        "{found:?}"
    );
    let [connection] = connections[..] else {
        panic!("{connections:?}");
    };
    let tuple = |(source, source_port, destination, destination_port)| {
        tuple_of(source, source_port, destination, destination_port)
    };
    assert_eq!(connection.protocol, protocol);
    assert_eq!(connection.original, tuple(original));
    assert_eq!(connection.reply, tuple(reply));
    assert_eq!((connection.is_replied, connection.zone), (is_replied, 0));
    assert_ne!(connection.id, 0);
}

#[test]
fn an_entry_of_a_zone_has_its_number() {
    let (connections, _) = read_all(&bytes(ZONE));
    assert_eq!(connections[0].zone, 5);
    assert_eq!(connections[0].id, 0xec7f_0bf2, "as conntrack prints it");
}

#[test]
fn a_datagram_has_many_entries_and_the_last_one_the_end() {
    let all = bytes(&[TCP, ICMPV6, UDP, ICMP, GRE, IPV6, ZONE, SCTP].concat());
    let (connections, found) = read_all(&all);
    assert_eq!(connections.len(), 8);
    assert!(!found.is_last);
    let (connections, found) = read_all(&bytes(&[TCP, END, UDP].concat()));
    assert!(found.is_last && found.refused.is_none());
    assert_eq!(connections.len(), 1, "nothing follows the end");
}

#[test]
fn an_interrupted_listing_is_named() {
    let mut message = bytes(TCP);
    assert!(!read_all(&message).1.is_interrupted);
    message[6] |= 0x10;
    let (connections, found) = read_all(&message);
    assert!(found.is_interrupted);
    assert_eq!(connections.len(), 1, "the entry exists nevertheless");
    let mut end = bytes(END);
    end[6] |= 0x10;
    assert!(read_all(&end).1.is_interrupted);
}

#[test]
fn an_error_of_the_kernel_is_no_end() {
    // NLMSG_ERROR with -EPERM, and the header of the request.
    let error = "24000000020000000100000000000000ffffffff140000000101010301000000".to_owned() + "00000000";
    let (_, found) = read_all(&bytes(&error));
    assert_eq!(found.refused.unwrap().raw_os_error(), Some(1));
    assert!(!found.is_last);
    // NLMSG_DONE with -ENOMEM.
    let end = END[..32].to_owned() + "f4ffffff";
    let (_, found) = read_all(&bytes(&end));
    assert!(found.is_last);
    assert_eq!(found.refused.unwrap().raw_os_error(), Some(12));
}

/// The message with other bytes at this place.
fn changed(message: &str, at: usize, other: &[u8]) -> Vec<u8> {
    let mut message = bytes(message);
    message[at..at + other.len()].copy_from_slice(other);
    message
}

/// Place of the value of the first attribute with these bytes as its header.
fn value_of(message: &str, header: &str) -> usize {
    message.find(header).unwrap() / 2 + 4
}

#[test]
fn an_unknown_attribute_is_ignored() {
    // CTA_USE becomes an attribute that no kernel has.
    let at = value_of(TCP, "08000b0000000001") - 2;
    let (connections, found) = read_all(&changed(TCP, at, &[0x77, 0x00]));
    assert_eq!(connections, read_all(&bytes(TCP)).0);
    assert!(found.malformed.is_none());
}

#[rstest]
#[case::truncated_message(&bytes(TCP)[..100], "length")]
#[case::truncated_header(&bytes(TCP)[..10], "length")]
#[case::length_of_zero(&changed(TCP, 0, &[0, 0, 0, 0]), "length")]
#[case::attribute_beyond_the_message(&changed(TCP, 20, &[0xff, 0x00]), "failed to parse")]
#[case::attribute_shorter_than_its_header(&changed(TCP, 20, &[0x02, 0x00]), "failed to parse")]
#[case::short_port(&changed(TCP, value_of(TCP, "06000200afc8") - 4, &[0x05]), "CTA_PROTO_SRC_PORT")]
#[case::short_number(&changed(TCP, value_of(TCP, "08000c00") - 4, &[0x07]), "the number of an entry has 3 bytes, needed 4")]
#[case::no_original(&changed(TCP, 22, &[0x77]), "no original direction")]
#[case::no_replies(&changed(TCP, 22 + 0x34, &[0x77]), "no direction of replies")]
#[case::no_status(&changed(TCP, value_of(TCP, "080003000000000e") - 2, &[0x77]), "no status")]
#[case::no_source(&changed(TCP, value_of(TCP, "080001000af40107") - 2, &[0x77]), "no source")]
#[case::no_protocol(&changed(TCP, value_of(TCP, "0500010006") - 2, &[0x77]), "no protocol")]
fn a_malformed_entry_has_a_reason(#[case] message: &[u8], #[case] words: &str) {
    let (connections, found) = read_all(message);
    assert_eq!(connections, []);
    let (count, what) = found.malformed.unwrap();
    assert_eq!(count, 1);
    assert!(what.to_string().contains(words), "{what}");
}

#[test]
fn entries_beside_a_malformed_one_are_read() {
    let broken = changed(TCP, 22, &[0x77]);
    let all = [bytes(UDP), broken.clone(), bytes(SCTP), broken, bytes(END)].concat();
    let (connections, found) = read_all(&all);
    assert_eq!(connections.len(), 2);
    assert!(found.is_last);
    assert_eq!(found.malformed.unwrap().0, 2);
}

proptest! {
    #[test]
    fn no_bytes_end_the_program(start in 0..200_usize, noise in vec(any::<u8>(), 0..64)) {
        let mut message = bytes(&[IPV6, UDP, END].concat());
        message.splice(start..start + noise.len(), noise);
        read_all(&message);
    }

    #[test]
    fn no_noise_ends_the_program(noise in vec(any::<u8>(), 0..400)) {
        read_all(&noise);
    }
}
