//! An entry as a kernel (6.18) has sent it: a client of the host, to a Service, from another port.

use data_encoding::HEXLOWER;
use netlink_packet_netfilter::NetfilterMessageInner;

use super::*;

fn connection(protocol: u8) -> TrackedConnection {
    let tuple = |source: &str, source_port, destination: &str, destination_port| Tuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        source_port,
        destination_port,
    };
    TrackedConnection {
        id: 0x0102_0304,
        zone: 5,
        protocol,
        original: tuple("192.0.2.7", 40000, "10.96.0.10", 80),
        reply: tuple("10.244.1.2", 8080, "10.244.1.1", 50000),
        is_replied: true,
    }
}

/// The attributes of the only message.
fn attributes(bytes: &[u8]) -> (NetlinkHeader, Vec<ConntrackAttribute>) {
    let message = NetlinkMessage::<NetfilterMessage>::deserialize(bytes).unwrap();
    let NetlinkPayload::InnerMessage(NetfilterMessage {
        inner: NetfilterMessageInner::Conntrack(request),
        ..
    }) = message.payload
    else {
        panic!("{message:?}");
    };
    match request {
        ConntrackMessage::New(attributes) | ConntrackMessage::Delete(attributes) => {
            (message.header, attributes)
        }
        other => panic!("{other:?}"),
    }
}

fn hex(attributes: &[ConntrackAttribute], kind: u16) -> Option<String> {
    let is_kind = |attribute: &&ConntrackAttribute| attribute.kind() & NLA_TYPE_MASK == kind;
    let attribute = attributes.iter().find(is_kind)?;
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    Some(HEXLOWER.encode(&value))
}

#[test]
fn the_listing_asks_for_all_entries_of_both_families() {
    // Length 20, IPCTNL_MSG_CT_GET of NFNL_SUBSYS_CTNETLINK, NLM_F_REQUEST | NLM_F_DUMP, AF_UNSPEC.
    assert_eq!(
        HEXLOWER.encode(&listing()),
        "1400000001010103000000000000000000000000"
    );
}

#[test]
fn a_deletion_names_the_entry_and_no_later_one() {
    let (header, attributes) = attributes(&delete(&connection(6), 7));
    assert_eq!(
        (header.sequence_number, header.flags),
        (7, NLM_F_REQUEST | NLM_F_ACK)
    );
    assert_eq!(hex(&attributes, ID).unwrap(), "01020304");
    assert_eq!(hex(&attributes, ZONE).unwrap(), "0005");
}

#[test]
fn a_new_entry_has_the_state_of_the_old_one_and_a_fixed_translation() {
    let flags = |flags| TCPFlags::parse(&[flags, 0]).unwrap();
    let old = [
        ConntrackAttribute::CtaTupleOrig(tuple(6, connection(6).original)),
        ConntrackAttribute::CtaTupleReply(tuple(6, connection(6).reply)),
        ConntrackAttribute::CtaStatus(
            Status::Confirmed | Status::SeenReply | Status::Assured | Status::NatMask | Status::NatDoneMask,
        ),
        ConntrackAttribute::CtaTimeout(431_999),
        ConntrackAttribute::CtaMark(9),
        ConntrackAttribute::CtaProtoInfo(vec![ProtoInfo::TCP(vec![
            ProtoInfoTCP::State(3),
            ProtoInfoTCP::OriginalWindowScale(7),
            ProtoInfoTCP::OriginalFlags(flags(0x23)),
            ProtoInfoTCP::ReplyFlags(flags(0x03)),
        ])]),
        ConntrackAttribute::Other(DefaultNla::new(ID, vec![1, 2, 3, 4])),
        ConntrackAttribute::Other(DefaultNla::new(LABELS, vec![0xff; 16])),
    ];
    let (header, new) = attributes(&create(&connection(6), &old, 8));
    let expected = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    assert_eq!((header.sequence_number, header.flags), (8, expected));
    for kept in [&old[0], &old[3], &old[4], &old[7]] {
        assert!(new.contains(kept), "{kept:?}");
    }
    // The direction of replies is not translated yet.
    let untranslated = Tuple {
        source: "10.96.0.10".parse().unwrap(),
        destination: "192.0.2.7".parse().unwrap(),
        source_port: 80,
        destination_port: 40000,
    };
    assert!(new.contains(&ConntrackAttribute::CtaTupleReply(tuple(6, untranslated))));
    let status = Status::Confirmed | Status::SeenReply | Status::Assured;
    assert!(new.contains(&ConntrackAttribute::CtaStatus(status)));
    // State, window scale, and the flags with LIBERAL and a mask.
    let state = [
        "0500010003000000",
        "0500020007000000",
        "060004002bff0000",
        "060005000bff0000",
    ]
    .concat();
    let tcp = hex(&new, 4).unwrap();
    assert!(tcp.ends_with(&state), "{tcp}");
    // 10.244.1.1:50000 and 10.244.1.2:8080.
    assert_eq!(
        hex(&new, SOURCE_TRANSLATION).unwrap(),
        "080001000af401010c00038006000100c3500000"
    );
    assert_eq!(
        hex(&new, DESTINATION_TRANSLATION).unwrap(),
        "080001000af401020c000380060001001f900000"
    );
    assert_eq!(hex(&new, ID), None, "the kernel chooses the number");
}

#[test]
fn a_direction_that_is_not_translated_stays_so() {
    let untranslated = TrackedConnection {
        reply: Tuple {
            destination: "192.0.2.7".parse().unwrap(),
            destination_port: 40000,
            ..connection(17).reply
        },
        ..connection(17)
    };
    let (_, new) = attributes(&create(&untranslated, &[], 9));
    assert_eq!(hex(&new, SOURCE_TRANSLATION), None);
    assert!(hex(&new, DESTINATION_TRANSLATION).is_some());
}
