//! The format on the wire: a magic number, the flow, the number of the probe, the time of sending; an answer also has
//! the arrival time of the probe, the time of the answer, and the sender's name.

use std::time::Duration;

use jiff::Timestamp;

/// Distinguishes the packets of the lab from others.
const MARK: [u8; 8] = *b"replumb2";
/// The length of a request without padding.
pub const LENGTH: usize = 32;
/// The length of a probe over a connection, and of its answer: more than two full segments of the path in either direction.
pub const FRAME: usize = 4096;
/// The length of an answer without a name.
const ANSWER_LENGTH: usize = LENGTH + 16;

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender's flow.
    pub flow: u64,
    /// The number in the flow.
    pub number: u64,
}

/// The times of a probe at each place. All nodes of a lab share one machine, and so one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Journey {
    /// The prober was about to send the probe.
    pub sent: Timestamp,
    /// The kernel at the other end received it.
    pub arrived: Timestamp,
    /// The other end was about to answer.
    pub answered: Timestamp,
}

impl Journey {
    /// Time of the probe and its answer in the network; the answer arrived in the prober's kernel at `back`. Times in
    /// which either process did not run are not included.
    pub fn in_the_network(&self, back: Timestamp) -> Duration {
        let part =
            |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
        part(self.sent, self.arrived) + part(self.answered, back)
    }
}

/// An answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'bytes> {
    /// The probe.
    pub packet: Packet,
    /// Times of the probe.
    pub journey: Journey,
    /// Name of the sender.
    pub name: &'bytes str,
}

impl Packet {
    /// The request, to be sent at once.
    pub fn encode(self, now: Timestamp) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&MARK);
        bytes[8..16].copy_from_slice(&self.flow.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_be_bytes());
        bytes[24..].copy_from_slice(&nanoseconds(now).to_be_bytes());
        bytes
    }

    /// The request in a frame that fills packets, for a connection.
    pub fn frame(self, now: Timestamp) -> Box<[u8; FRAME]> {
        let mut bytes = Box::new([0; FRAME]);
        bytes[..LENGTH].copy_from_slice(&self.encode(now));
        bytes
    }

    /// The answer to a request that arrived at this time, to be sent at once; `None` if the packet is not a request.
    pub fn answer(request: &[u8], arrived: Timestamp, now: Timestamp, name: &str) -> Option<Vec<u8>> {
        Self::decode(request)?;
        let mut answer = request.get(..LENGTH)?.to_vec();
        for time in [arrived, now] {
            answer.extend(nanoseconds(time).to_be_bytes());
        }
        answer.extend(name.as_bytes());
        Some(answer)
    }

    /// The probe of a request or an answer.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < LENGTH || bytes.get(..8)? != MARK {
            return None;
        }
        Some(Self {
            flow: number(bytes, 8)?,
            number: number(bytes, 16)?,
        })
    }

    /// An answer.
    pub fn decode_answer(bytes: &[u8]) -> Option<Answer<'_>> {
        let time = |from: usize| Timestamp::from_nanosecond(number(bytes, from)?.into()).ok();
        Some(Answer {
            packet: Self::decode(bytes)?,
            journey: Journey {
                sent: time(24)?,
                arrived: time(LENGTH)?,
                answered: time(LENGTH + 8)?,
            },
            name: std::str::from_utf8(bytes.get(ANSWER_LENGTH..)?).ok()?,
        })
    }
}

fn number(bytes: &[u8], from: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(from..from + 8)?.try_into().ok()?))
}

/// Time since 1970; an earlier clock counts as 1970.
fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + milliseconds).unwrap()
    }

    #[test]
    fn an_answer_has_the_probe_and_the_name_of_its_sender() {
        let packet = Packet {
            flow: 3,
            number: u64::MAX,
        };
        let bytes = Packet::answer(&packet.encode(at(0)), at(1), at(40), "echo-1").unwrap();
        let answer = Packet::decode_answer(&bytes).unwrap();
        assert_eq!((answer.packet, answer.name), (packet, "echo-1"));
        assert_eq!(Packet::decode(&bytes), Some(packet));
        assert_eq!(
            answer.journey.in_the_network(at(42)),
            Duration::from_millis(3),
            "not the 39 ms for which the other end did not run"
        );
        assert_eq!(answer.journey.in_the_network(at(39)), Duration::from_millis(1));
    }

    #[test]
    fn unknown_packets_get_no_answer() {
        for bytes in [
            &b""[..],
            b"replumb2",
            b"replumb1aaaaaaaabbbbbbbbcccccccc",
            b"GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
        ] {
            assert_eq!(Packet::answer(bytes, at(0), at(0), "echo-1"), None);
        }
        assert_eq!(
            Packet::decode_answer(&Packet { flow: 1, number: 2 }.encode(at(0))),
            None
        );
    }
}
