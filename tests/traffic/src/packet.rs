//! What goes over the wire: a mark, the flow, the number of the probe, when it was sent; in an answer also when the probe
//! arrived and the answer left, and who answers.

use std::time::Duration;

use jiff::Timestamp;

/// Tells our packets from others.
const MARK: [u8; 8] = *b"replumb2";
/// The length of a request without padding.
pub const LENGTH: usize = 32;
/// The length of an answer without a name.
const ANSWER_LENGTH: usize = LENGTH + 16;

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Which flow of its sender it belongs to.
    pub flow: u64,
    /// Its number in the flow.
    pub number: u64,
}

/// When a probe was where. All nodes of a lab share one machine, and so one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Journey {
    /// The prober was about to send it.
    pub sent: Timestamp,
    /// The kernel at the other end had it.
    pub arrived: Timestamp,
    /// The other end was about to answer.
    pub answered: Timestamp,
}

impl Journey {
    /// How long the network had the probe and its answer, which was `back` in the prober's kernel. How long either process
    /// did not get to run is not in it.
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
    /// When it was where.
    pub journey: Journey,
    /// Who answers.
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

    /// The answer to a request that arrived then, to be sent at once; `None` if it is none.
    pub fn answer(request: &[u8], arrived: Timestamp, now: Timestamp, name: &str) -> Option<Vec<u8>> {
        Self::decode(request)?;
        let mut answer = request.get(..LENGTH)?.to_vec();
        for time in [arrived, now] {
            answer.extend(nanoseconds(time).to_be_bytes());
        }
        answer.extend(name.as_bytes());
        Some(answer)
    }

    /// The probe that a request or an answer belongs to.
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

/// Since 1970; a clock before that is at its beginning.
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
    fn an_answer_names_the_probe_and_who_answers() {
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
    fn strangers_get_no_answer() {
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
