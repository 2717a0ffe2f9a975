//! From connections to requests for the kernel. Pure.

use std::net::IpAddr;

use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple, Protocol, Status,
    TCPFlags, Tuple as TupleAttribute,
};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};
use policy::conntrack::Tuple;
use rtnetlink::packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLA_TYPE_MASK, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL,
    NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, Nla as _,
};

use super::TrackedConnection;

/// Attributes of an entry by the kernel's numbers, which the crate leaves undecoded (`CTA_HELP`, `CTA_NAT_SRC`, `CTA_ID`,
/// `CTA_NAT_DST`, `CTA_SEQ_ADJ_ORIG`, `CTA_SEQ_ADJ_REPLY`, `CTA_ZONE`, `CTA_LABELS`).
const HELPER: u16 = 5;
const SOURCE_TRANSLATION: u16 = 6;
const ID: u16 = 12;
const DESTINATION_TRANSLATION: u16 = 13;
const ORIGINAL_SEQUENCE: u16 = 15;
const REPLY_SEQUENCE: u16 = 16;
const ZONE: u16 = 18;
const LABELS: u16 = 22;

/// Attributes of a translation: the lowest address of each family (the highest is the same if it is not given), and the ports.
const IPV4_ADDRESS: u16 = 1;
const PORTS: u16 = 3;
const IPV6_ADDRESS: u16 = 4;
/// Attribute of [`PORTS`]: the lowest port.
const PORT: u16 = 1;

/// Flag of a direction of TCP: do not check that sequence numbers are within the window. The new entry does not know the window yet.
const LIBERAL: u8 = 8;
/// The kernel's listing has no mask of flags; without one, no flag is set.
const ALL_FLAGS: u8 = u8::MAX;

/// The request for all entries of both families.
pub(super) fn listing() -> Vec<u8> {
    let get = ConntrackMessage::Get(Vec::new());
    message(NLM_F_DUMP, 0, NetfilterProtoFamily::Unspec, get)
}

/// The request for the entry of this connection.
pub(super) fn get(connection: &TrackedConnection, sequence: u32) -> Vec<u8> {
    let get = ConntrackMessage::Get(key(connection));
    message(0, sequence, family(connection), get)
}

/// The request to delete the entry of this connection, and no later one of the same addresses and ports.
pub(super) fn delete(connection: &TrackedConnection, sequence: u32) -> Vec<u8> {
    let mut attributes = key(connection);
    let id = DefaultNla::new(ID, connection.id.to_be_bytes().to_vec());
    attributes.push(ConntrackAttribute::Other(id));
    let delete = ConntrackMessage::Delete(attributes);
    message(NLM_F_ACK, sequence, family(connection), delete)
}

/// The request to create an entry as the kernel has sent it, with a fixed translation.
pub(super) fn create(
    connection: &TrackedConnection,
    attributes: &[ConntrackAttribute],
    sequence: u32,
) -> Vec<u8> {
    let new = ConntrackMessage::New(fixed(connection, attributes));
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    message(flags, sequence, family(connection), new)
}

/// The attributes of the same entry with a fixed translation. The direction of replies is the one before the translation: the
/// kernel translates it.
fn fixed(connection: &TrackedConnection, attributes: &[ConntrackAttribute]) -> Vec<ConntrackAttribute> {
    let Tuple {
        source,
        destination,
        source_port,
        destination_port,
    } = connection.original;
    let untranslated = Tuple {
        source: destination,
        destination: source,
        source_port: destination_port,
        destination_port: source_port,
    };
    let reply = connection.reply;
    let mut fixed: Vec<ConntrackAttribute> = attributes.iter().filter_map(kept).collect();
    fixed.push(ConntrackAttribute::CtaTupleReply(tuple(
        connection.protocol,
        untranslated,
    )));
    for (kind, address, port, before) in [
        (
            SOURCE_TRANSLATION,
            reply.destination,
            reply.destination_port,
            (source, source_port),
        ),
        (
            DESTINATION_TRANSLATION,
            reply.source,
            reply.source_port,
            (destination, destination_port),
        ),
    ] {
        if (address, port) != before {
            fixed.push(ConntrackAttribute::Other(translation(kind, address, port)));
        }
    }
    fixed
}

/// The attributes of the old entry that the new entry has.
fn kept(attribute: &ConntrackAttribute) -> Option<ConntrackAttribute> {
    Some(match attribute {
        ConntrackAttribute::CtaTupleOrig(_)
        | ConntrackAttribute::CtaTimeout(_)
        | ConntrackAttribute::CtaMark(_) => attribute.clone(),
        // The kernel sets the others itself, or refuses them.
        ConntrackAttribute::CtaStatus(status) => {
            ConntrackAttribute::CtaStatus(*status & (Status::Confirmed | Status::SeenReply | Status::Assured))
        }
        ConntrackAttribute::CtaProtoInfo(parts) => {
            ConntrackAttribute::CtaProtoInfo(parts.iter().map(liberal).collect())
        }
        ConntrackAttribute::Other(other) => match other.kind() & NLA_TYPE_MASK {
            HELPER | ORIGINAL_SEQUENCE | REPLY_SEQUENCE | ZONE | LABELS => attribute.clone(),
            _ => return None,
        },
        _ => return None,
    })
}

/// The state of TCP without a check of sequence numbers.
fn liberal(part: &ProtoInfo) -> ProtoInfo {
    let flags = |flags: &TCPFlags| {
        let mut flags = flags.clone();
        flags.flags |= LIBERAL;
        flags.mask = ALL_FLAGS;
        flags
    };
    match part {
        ProtoInfo::TCP(parts) => ProtoInfo::TCP(
            parts
                .iter()
                .map(|part| match part {
                    ProtoInfoTCP::OriginalFlags(of) => ProtoInfoTCP::OriginalFlags(flags(of)),
                    ProtoInfoTCP::ReplyFlags(of) => ProtoInfoTCP::ReplyFlags(flags(of)),
                    other => other.clone(),
                })
                .collect(),
        ),
        other => other.clone(),
    }
}

fn translation(kind: u16, address: IpAddr, port: u16) -> DefaultNla {
    let address = match address {
        IpAddr::V4(address) => DefaultNla::new(IPV4_ADDRESS, address.octets().to_vec()),
        IpAddr::V6(address) => DefaultNla::new(IPV6_ADDRESS, address.octets().to_vec()),
    };
    let port = DefaultNla::new(PORT, port.to_be_bytes().to_vec());
    nested(kind, &[address, nested(PORTS, &[port])])
}

fn nested(kind: u16, parts: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; parts.buffer_len()];
    parts.emit(&mut value);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}

/// The attributes by which the kernel finds an entry.
fn key(connection: &TrackedConnection) -> Vec<ConntrackAttribute> {
    let original = tuple(connection.protocol, connection.original);
    let zone = DefaultNla::new(ZONE, connection.zone.to_be_bytes().to_vec());
    let zone = (connection.zone != 0).then_some(ConntrackAttribute::Other(zone));
    let original = ConntrackAttribute::CtaTupleOrig(original);
    [original].into_iter().chain(zone).collect()
}

fn tuple(protocol: u8, tuple: Tuple) -> Vec<TupleAttribute> {
    vec![
        TupleAttribute::Ip(vec![
            IPTuple::SourceAddress(tuple.source),
            IPTuple::DestinationAddress(tuple.destination),
        ]),
        TupleAttribute::Proto(vec![
            ProtoTuple::Protocol(Protocol::from(protocol)),
            ProtoTuple::SourcePort(tuple.source_port),
            ProtoTuple::DestinationPort(tuple.destination_port),
        ]),
    ]
}

fn family(connection: &TrackedConnection) -> NetfilterProtoFamily {
    match connection.original.source {
        IpAddr::V4(_) => NetfilterProtoFamily::IPv4,
        IpAddr::V6(_) => NetfilterProtoFamily::IPv6,
    }
}

fn message(flags: u16, sequence: u32, family: NetfilterProtoFamily, request: ConntrackMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let message = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), request);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
