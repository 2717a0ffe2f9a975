//! What goes over the wire: a mark, the flow, the number of the probe; in an answer also who answers.

/// Tells our packets from others.
const MARK: [u8; 8] = *b"replumb1";
/// The length of a request without padding, and of an answer without a name.
pub const LENGTH: usize = 24;

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Which flow of its sender it belongs to.
    pub flow: u64,
    /// Its number in the flow.
    pub number: u64,
}

impl Packet {
    /// The request.
    pub fn encode(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&MARK);
        bytes[8..16].copy_from_slice(&self.flow.to_be_bytes());
        bytes[16..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// The answer to a request; `None` if it is none.
    pub fn answer(request: &[u8], name: &str) -> Option<Vec<u8>> {
        Self::decode(request)?;
        let mut answer = request[..LENGTH].to_vec();
        answer.extend(name.as_bytes());
        Some(answer)
    }

    /// The probe that a request or an answer belongs to, and who answered.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &str)> {
        let number = |from: usize| Some(u64::from_be_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        if bytes.get(..8)? != MARK {
            return None;
        }
        let packet = Self {
            flow: number(8)?,
            number: number(16)?,
        };
        Some((packet, std::str::from_utf8(&bytes[LENGTH..]).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_probe_and_who_answers() {
        let packet = Packet {
            flow: 3,
            number: u64::MAX,
        };
        let answer = Packet::answer(&packet.encode(), "echo-1").unwrap();
        assert_eq!(Packet::decode(&answer), Some((packet, "echo-1")));
    }

    #[test]
    fn strangers_get_no_answer() {
        for bytes in [
            &b""[..],
            b"replumb1",
            b"replumb2aaaaaaaabbbbbbbb",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert_eq!(Packet::answer(bytes, "echo-1"), None);
        }
    }
}
