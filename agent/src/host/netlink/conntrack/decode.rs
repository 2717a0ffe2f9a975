//! From a datagram of the kernel to connections. Pure.

use std::fmt;
use std::io;
use std::net::IpAddr;

use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Status, Tuple as TupleAttribute,
};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner};
use policy::conntrack::Tuple;
use rtnetlink::packet_core::{
    DefaultNla, NLA_TYPE_MASK, NLM_F_DUMP_INTR, NetlinkBuffer, NetlinkMessage, NetlinkPayload, Nla,
};

use super::TrackedConnection;

/// Attributes that the crate leaves undecoded, by the kernel's numbers (`CTA_ID`, `CTA_ZONE`).
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Messages of a datagram begin at multiples of this.
const ALIGNMENT: usize = 4;

/// What is wrong with an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct MalformedEntry(String);

#[cfg(test)]
impl From<&str> for MalformedEntry {
    fn from(what: &str) -> Self {
        Self(what.to_owned())
    }
}

impl fmt::Display for MalformedEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// What a datagram says beside its connections.
#[derive(Debug, Default)]
pub(super) struct Datagram {
    /// The listing ends with this datagram.
    pub(super) is_last: bool,
    /// The kernel says that the listing may miss entries.
    pub(super) is_interrupted: bool,
    /// The kernel's error.
    pub(super) refused: Option<io::Error>,
    /// Number of entries that could not be decoded, and what is wrong with the first one.
    pub(super) malformed: Option<(usize, MalformedEntry)>,
}

impl Datagram {
    fn add_malformed(&mut self, what: String) {
        let (count, _) = self.malformed.get_or_insert((0, MalformedEntry(what)));
        *count += 1;
    }

    /// An error code of the kernel, which is negative; 0 is none.
    fn set_error(&mut self, code: i32) {
        if code != 0 {
            self.refused = Some(io::Error::from_raw_os_error(code.wrapping_abs()));
        }
    }
}

/// Reads a datagram and gives each connection to `each`.
pub(super) fn datagram(mut bytes: &[u8], each: &mut impl FnMut(TrackedConnection)) -> Datagram {
    let mut found = Datagram::default();
    while !bytes.is_empty() && !found.is_last {
        let (length, flags) = match NetlinkBuffer::new_checked(bytes) {
            Ok(header) => (header.length() as usize, header.flags()),
            Err(error) => {
                found.add_malformed(error.to_string());
                return found;
            }
        };
        found.is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
        match NetlinkMessage::<NetfilterMessage>::deserialize(&bytes[..length]) {
            Ok(message) => read(message.payload, &mut found, each),
            Err(error) => found.add_malformed(error.to_string()),
        }
        bytes = bytes
            .get(length.next_multiple_of(ALIGNMENT)..)
            .unwrap_or_default();
    }
    found
}

fn read(
    payload: NetlinkPayload<NetfilterMessage>,
    found: &mut Datagram,
    each: &mut impl FnMut(TrackedConnection),
) {
    match payload {
        NetlinkPayload::Done(done) => {
            found.is_last = true;
            found.set_error(done.code);
        }
        NetlinkPayload::Error(error) => found.set_error(error.raw_code()),
        NetlinkPayload::Overrun(_) => found.is_interrupted = true,
        NetlinkPayload::InnerMessage(NetfilterMessage {
            inner:
                NetfilterMessageInner::Conntrack(
                    ConntrackMessage::New(attributes) | ConntrackMessage::Delete(attributes),
                ),
            ..
        }) => match connection(&attributes) {
            Ok(connection) => each(connection),
            Err(error) => found.add_malformed(error),
        },
        // Neither an entry nor the end: nothing of what was asked for.
        _ => {}
    }
}

/// The answer to a request about one entry.
#[derive(Debug)]
pub(super) enum Answer {
    /// The attributes of the entry.
    Entry(Vec<ConntrackAttribute>),
    /// The request was carried out.
    Done,
    /// The kernel's error.
    Refused(io::Error),
}

/// Reads the answer to the request with this number; `None` for a message about another request.
pub(super) fn answer(bytes: &[u8], sequence: u32) -> Result<Option<Answer>, MalformedEntry> {
    let message = NetlinkMessage::<NetfilterMessage>::deserialize(bytes)
        .map_err(|error| MalformedEntry(error.to_string()))?;
    if message.header.sequence_number != sequence {
        return Ok(None);
    }
    Ok(match message.payload {
        NetlinkPayload::Error(error) if error.raw_code() == 0 => Some(Answer::Done),
        NetlinkPayload::Error(error) => Some(Answer::Refused(io::Error::from_raw_os_error(
            error.raw_code().wrapping_abs(),
        ))),
        NetlinkPayload::InnerMessage(NetfilterMessage {
            inner: NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)),
            ..
        }) => Some(Answer::Entry(attributes)),
        _ => None,
    })
}

pub(super) fn connection(attributes: &[ConntrackAttribute]) -> Result<TrackedConnection, String> {
    let (mut original, mut reply) = (None, None);
    let (mut id, mut zone, mut is_replied) = (0, 0, None);
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(parts) => original = Some(tuple(parts)?),
            ConntrackAttribute::CtaTupleReply(parts) => reply = Some(tuple(parts)?),
            ConntrackAttribute::CtaStatus(status) => is_replied = Some(status.contains(Status::SeenReply)),
            ConntrackAttribute::Other(other) => match other.kind() & NLA_TYPE_MASK {
                ID => id = u32::from_be_bytes(value("number", other)?),
                ZONE => zone = u16::from_be_bytes(value("zone", other)?),
                _ => {}
            },
            _ => {}
        }
    }
    let missing = |what: &str| format!("an entry has no {what}");
    let (protocol, original) = original.ok_or_else(|| missing("original direction"))?;
    let (_, reply) = reply.ok_or_else(|| missing("direction of replies"))?;
    Ok(TrackedConnection {
        id,
        zone,
        protocol,
        original,
        reply,
        is_replied: is_replied.ok_or_else(|| missing("status"))?,
    })
}

/// The protocol, and addresses and ports of one direction.
fn tuple(parts: &[TupleAttribute]) -> Result<(u8, Tuple), String> {
    let (mut source, mut destination) = (None::<IpAddr>, None::<IpAddr>);
    let (mut protocol, mut source_port, mut destination_port) = (None, 0, 0);
    for part in parts {
        match part {
            TupleAttribute::Ip(addresses) => {
                for address in addresses {
                    match address {
                        IPTuple::SourceAddress(address) => source = Some(*address),
                        IPTuple::DestinationAddress(address) => destination = Some(*address),
                        _ => {}
                    }
                }
            }
            TupleAttribute::Proto(values) => {
                for value in values {
                    match value {
                        ProtoTuple::Protocol(number) => protocol = Some(u8::from(*number)),
                        ProtoTuple::SourcePort(port) => source_port = *port,
                        ProtoTuple::DestinationPort(port) => destination_port = *port,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let missing = |what: &str| format!("a direction of an entry has no {what}");
    let tuple = Tuple {
        source: source.ok_or_else(|| missing("source"))?,
        destination: destination.ok_or_else(|| missing("destination"))?,
        source_port,
        destination_port,
    };
    Ok((protocol.ok_or_else(|| missing("protocol"))?, tuple))
}

/// The value of an attribute of a fixed length.
fn value<const LENGTH: usize>(what: &str, attribute: &DefaultNla) -> Result<[u8; LENGTH], String> {
    let mut value = [0; LENGTH];
    let found = attribute.value_len();
    if found != LENGTH {
        return Err(format!(
            "the {what} of an entry has {found} bytes, needed {LENGTH}"
        ));
    }
    attribute.emit_value(&mut value);
    Ok(value)
}

#[cfg(test)]
mod tests;
