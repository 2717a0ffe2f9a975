//! Questions of probes and their answers. Pure.
//!
//! An answer begins with other words than a question, so that two pods never answer each other's answers; an answer has the
//! question's nonce, so that no other program can have sent it; and an answer has as many bytes as the question, never more.

use std::io;
use std::net::IpAddr;

use crate::host::random;

/// Start of a question.
const ASKS: &[u8] = b"replumb-asks ";
/// Start of an answer.
const SAYS: &[u8] = b"replumb-says ";
/// Fills a message up to its size.
const FILLER: u8 = b'.';
/// Stands for "no flood" in an answer.
const QUIET: &str = "-";
/// Hexadecimal digits of a nonce.
const DIGITS: usize = 32;
/// Bytes of the smallest question: every answer fits, also with two IPv6 addresses.
pub const LEAST: usize = 192;
/// Bytes of a line over TCP, with the end of line.
pub const LINE: usize = LEAST + 1;

/// Identifies a question: a random number of the asking process, and the question's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce {
    token: u64,
    /// Number of the question.
    pub number: u64,
}

/// Creates questions and reads their answers.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    token: u64,
}

impl Asker {
    /// An asker with a random token: no other process can guess its nonces.
    ///
    /// # Errors
    ///
    /// The kernel returns no random number.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            token: random::number()?,
        })
    }

    /// The nonce of this question.
    pub fn nonce(self, number: u64) -> Nonce {
        Nonce {
            token: self.token,
            number,
        }
    }

    /// The answer to one of this asker's questions; `None` for any other packet.
    pub fn read(self, bytes: &[u8]) -> Option<Answer> {
        Answer::read(bytes).filter(|answer| answer.nonce.token == self.token)
    }
}

/// A question of this many bytes, at least [`LEAST`].
pub fn question(nonce: Nonce, size: usize) -> Vec<u8> {
    let mut question = ASKS.to_vec();
    question.extend(format!("{:016x}{:016x} ", nonce.token, nonce.number).into_bytes());
    question.resize(size.max(LEAST), FILLER);
    question
}

/// The answer of the pod with this UID to one datagram or line from `source`; `None` if that is no question.
pub fn answer(question: &[u8], uid: &str, source: IpAddr, flooded_by: Option<IpAddr>) -> Option<Vec<u8>> {
    let (nonce, rest) = question.strip_prefix(ASKS)?.split_at_checked(DIGITS)?;
    let is_nonce = nonce.iter().all(u8::is_ascii_hexdigit);
    let filler = rest.strip_prefix(b" ")?;
    if !is_nonce || question.len() < LEAST || filler.iter().any(|byte| *byte != FILLER) {
        return None;
    }
    let flood = flooded_by.map_or_else(|| QUIET.to_owned(), |source| source.to_string());
    // A dual-stack socket sees IPv4 addresses inside IPv6 ones.
    let source = source.to_canonical();
    let content = [SAYS, nonce, format!(" {uid} {source} {flood} ").as_bytes()].concat();
    // A UID fits; a longer text gets no answer, since an answer is never larger than its question.
    (content.len() <= question.len()).then(|| {
        let mut answer = content;
        answer.resize(question.len(), FILLER);
        answer
    })
}

/// A valid answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Nonce of the question.
    pub nonce: Nonce,
    /// UID of the answering pod.
    pub uid: String,
    /// Address that the question came from, as the answering pod saw it.
    pub source: IpAddr,
    /// Source that sends to that pod more than it answers, if any.
    pub flooded_by: Option<IpAddr>,
    /// Size in bytes.
    pub size: usize,
}

impl Answer {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (nonce, rest) = bytes.strip_prefix(SAYS)?.split_at_checked(DIGITS)?;
        let nonce = std::str::from_utf8(nonce).ok()?;
        let (token, number) = nonce.split_at_checked(DIGITS / 2)?;
        let end = rest.iter().rposition(|byte| *byte != FILLER)?;
        let mut words = std::str::from_utf8(rest.get(..=end)?)
            .ok()?
            .split_ascii_whitespace();
        let (uid, source, flood) = (words.next()?, words.next()?, words.next()?);
        let flooded_by = if flood == QUIET {
            None
        } else {
            Some(flood.parse().ok()?)
        };
        words.next().is_none().then_some(())?;
        Some(Self {
            nonce: Nonce {
                token: u64::from_str_radix(token, 16).ok()?,
                number: u64::from_str_radix(number, 16).ok()?,
            },
            uid: uid.to_owned(),
            source: source.parse().ok()?,
            flooded_by,
            size: bytes.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11";
    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 5));

    #[test]
    fn an_answer_has_the_uid_the_nonce_and_the_size_of_the_question() {
        let asker = Asker::new().unwrap();
        for size in [0, LEAST, 1422, 8972] {
            for flooded_by in [
                None,
                Some("fd00:1234:5678:9abc:def0:1234:5678:9abc".parse().unwrap()),
            ] {
                let question = question(asker.nonce(u64::MAX), size);
                assert_eq!(question.len(), size.max(LEAST));
                let reply = answer(&question, UID, SOURCE, flooded_by).unwrap();
                assert_eq!(reply.len(), question.len(), "neither more nor less");
                let read = asker.read(&reply).unwrap();
                assert_eq!(
                    (read.nonce.number, read.uid.as_str(), read.source),
                    (u64::MAX, UID, SOURCE)
                );
                assert_eq!((read.flooded_by, read.size), (flooded_by, question.len()));
                assert!(
                    Asker::new().unwrap().read(&reply).is_none(),
                    "the answer to another asker"
                );
            }
        }
    }

    #[test]
    fn an_answer_has_room_for_two_long_addresses() {
        let asker = Asker::new().unwrap();
        let long: IpAddr = "fd00:1234:5678:9abc:def0:1234:5678:9abc".parse().unwrap();
        let reply = answer(&question(asker.nonce(u64::MAX), 0), UID, long, Some(long)).unwrap();
        let read = asker.read(&reply).unwrap();
        assert_eq!((read.source, read.flooded_by), (long, Some(long)));
        // IPv4 on a socket of both families.
        let mapped = "::ffff:10.244.1.5".parse().unwrap();
        let reply = answer(&question(asker.nonce(1), 0), UID, mapped, None).unwrap();
        assert_eq!(asker.read(&reply).unwrap().source, SOURCE);
    }

    #[test]
    fn an_answer_is_not_answered() {
        let question = question(Asker::new().unwrap().nonce(1), 0);
        let reply = answer(&question, UID, SOURCE, None).unwrap();
        assert_eq!(answer(&reply, UID, SOURCE, None), None);
    }

    #[test]
    fn a_packet_that_is_no_question_is_not_answered() {
        let whole = question(Asker::new().unwrap().nonce(1), 0);
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            bytes
        };
        for bytes in [
            Vec::new(),
            b"who".to_vec(),
            b"who 1\n".to_vec(),
            vec![0xff; 1400],
            whole[..LEAST - 1].to_vec(),
            changed(0, b'R'),
            changed(ASKS.len(), b'x'),
            changed(ASKS.len() + DIGITS, b'.'),
            changed(LEAST - 1, b'x'),
        ] {
            assert_eq!(
                answer(&bytes, UID, SOURCE, None),
                None,
                "{:?}",
                String::from_utf8_lossy(&bytes)
            );
        }
        let long = "u".repeat(LEAST);
        assert_eq!(answer(&whole, &long, SOURCE, None), None, "the UID does not fit");
    }

    #[test]
    fn a_packet_that_is_no_answer_is_not_read() {
        let asker = Asker::new().unwrap();
        let question = question(asker.nonce(7), 0);
        assert_eq!(asker.read(&question), None, "the question itself was returned");
        let reply = answer(&question, UID, SOURCE, None).unwrap();
        for end in 0..reply.len() {
            // Filler may be missing; the words before it may not.
            if let Some(read) = asker.read(&reply[..end]) {
                assert_eq!((read.uid.as_str(), read.size), (UID, end));
            }
        }
        assert_eq!(asker.read(&reply[..SAYS.len() + DIGITS + 10]), None);
    }
}
