//! What probes ask and what is answered. Pure.
//!
//! An answer begins with other words than a question, so that two that answer never talk to each other; it carries the question's
//! nonce, so that nothing else can have sent it; and it has as many bytes as the question, never more.

use std::io;
use std::net::IpAddr;

use crate::host::random;

/// What a question begins with.
const ASKS: &[u8] = b"replumb-asks ";
/// What an answer begins with.
const SAYS: &[u8] = b"replumb-says ";
/// What fills either up to its size.
const FILLER: u8 = b'.';
/// Where nothing floods the pod that answers.
const QUIET: &str = "-";
/// Hexadecimal digits of a nonce.
const DIGITS: usize = 32;
/// Bytes of the smallest question: every answer has room in it.
pub const LEAST: usize = 160;
/// Bytes of a line over TCP, with its end.
pub const LINE: usize = LEAST + 1;

/// What makes a question one of its own: a number that the asking process chose by chance, and the question's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce {
    token: u64,
    /// Number of the question.
    pub number: u64,
}

/// The questions of one who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    token: u64,
}

impl Asker {
    /// Nothing outside of this process can guess its nonces.
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

    /// What comes back for one of the questions of this asker; `None` for everything else.
    pub fn read(self, bytes: &[u8]) -> Option<Answer> {
        Answer::read(bytes).filter(|answer| answer.nonce.token == self.token)
    }
}

/// A question of this many bytes, or of the fewest there are.
pub fn question(nonce: Nonce, size: usize) -> Vec<u8> {
    let mut question = ASKS.to_vec();
    question.extend(format!("{:016x}{:016x} ", nonce.token, nonce.number).into_bytes());
    question.resize(size.max(LEAST), FILLER);
    question
}

/// The answer to one datagram or line of the pod with this UID; `None` where it is no question.
pub fn answer(question: &[u8], uid: &str, flooded_by: Option<IpAddr>) -> Option<Vec<u8>> {
    let (nonce, rest) = question.strip_prefix(ASKS)?.split_at_checked(DIGITS)?;
    let is_nonce = nonce.iter().all(u8::is_ascii_hexdigit);
    let filler = rest.strip_prefix(b" ")?;
    if !is_nonce || question.len() < LEAST || filler.iter().any(|byte| *byte != FILLER) {
        return None;
    }
    let flood = flooded_by.map_or_else(|| QUIET.to_owned(), |source| source.to_string());
    let said = [SAYS, nonce, format!(" {uid} {flood} ").as_bytes()].concat();
    // An UID is not longer than that; what is, gets no answer rather than a larger one.
    (said.len() <= question.len()).then(|| {
        let mut answer = said;
        answer.resize(question.len(), FILLER);
        answer
    })
}

/// An answer that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The question's.
    pub nonce: Nonce,
    /// UID of the pod that answers.
    pub uid: String,
    /// From where that pod gets more than it answers, if it does.
    pub flooded_by: Option<IpAddr>,
    /// Its bytes.
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
        let (uid, flood) = (words.next()?, words.next()?);
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
            flooded_by,
            size: bytes.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11";

    #[test]
    fn an_answer_says_who_and_for_which_question_and_has_the_questions_size() {
        let asker = Asker::new().unwrap();
        for size in [0, LEAST, 1422, 8972] {
            for flooded_by in [
                None,
                Some("fd00:1234:5678:9abc:def0:1234:5678:9abc".parse().unwrap()),
            ] {
                let question = question(asker.nonce(u64::MAX), size);
                assert_eq!(question.len(), size.max(LEAST));
                let reply = answer(&question, UID, flooded_by).unwrap();
                assert_eq!(reply.len(), question.len(), "neither more nor less");
                let read = asker.read(&reply).unwrap();
                assert_eq!(
                    (read.nonce.number, read.uid.as_str(), read.flooded_by, read.size),
                    (u64::MAX, UID, flooded_by, question.len())
                );
                assert!(
                    Asker::new().unwrap().read(&reply).is_none(),
                    "the answer to another"
                );
            }
        }
    }

    #[test]
    fn answers_are_answered_by_none() {
        let question = question(Asker::new().unwrap().nonce(1), 0);
        let reply = answer(&question, UID, None).unwrap();
        assert_eq!(answer(&reply, UID, None), None);
    }

    #[test]
    fn what_is_no_question_has_no_answer() {
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
                answer(&bytes, UID, None),
                None,
                "{:?}",
                String::from_utf8_lossy(&bytes)
            );
        }
        let long = "u".repeat(LEAST);
        assert_eq!(answer(&whole, &long, None), None, "no room for it");
    }

    #[test]
    fn what_is_no_answer_is_not_read() {
        let asker = Asker::new().unwrap();
        let question = question(asker.nonce(7), 0);
        assert_eq!(asker.read(&question), None, "it came back as it was sent");
        let reply = answer(&question, UID, None).unwrap();
        for end in 0..reply.len() {
            // Filler may be missing; words may not.
            if let Some(read) = asker.read(&reply[..end]) {
                assert_eq!((read.uid.as_str(), read.size), (UID, end));
            }
        }
        assert_eq!(asker.read(&reply[..SAYS.len() + DIGITS + 10]), None);
    }
}
