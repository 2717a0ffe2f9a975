//! The ports that every node's agent checks at the moment. A record of the Migration has them, and every agent watches it: a
//! round of questions is one write, regardless of the number of nodes and the length of the list.

use std::time::{Duration, Instant};

use api::record::{self, RecordContent};
use api::{Migration, MigrationRecordSpec};
use kube::ResourceExt;
use service_cidr::host::{ExpectedPorts, ExpectedPortsReference, Question};

use crate::clock;

/// Time for which a round of questions waits for its answers before another takes its place, plus [`PATIENCE_A_NODE`] for each
/// node.
const PATIENCE: Duration = Duration::from_secs(5);
/// A round is one or two writes of each agent.
const PATIENCE_A_NODE: Duration = Duration::from_millis(50);

/// Time for which a round of questions waits for its answers, by the number of nodes.
pub fn patience(nodes: usize) -> Duration {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    PATIENCE_A_NODE.saturating_mul(nodes).saturating_add(PATIENCE)
}

/// The current round of questions.
#[derive(Debug, Default)]
pub struct Expected(Option<Round>);

#[derive(Debug)]
struct Round {
    question: Question,
    digest: String,
    began: Instant,
}

impl Round {
    fn of(question: Question, now: Instant) -> Self {
        Self {
            digest: question.digest(),
            question,
            began: now,
        }
    }
}

impl Expected {
    /// Continues the round of an earlier coordinator. Does nothing once a round is known.
    pub fn resume<'record>(&mut self, mut records: impl Iterator<Item = &'record MigrationRecordSpec>) {
        if self.0.is_none() {
            let question = records.next().and_then(|record| record.expected_ports.clone());
            self.0 = question.map(|question| Round::of(question, Instant::now()));
        }
    }

    /// The current question; `None` before the first round.
    pub fn question(&self) -> Option<&Question> {
        self.0.as_ref().map(|round| &round.question)
    }

    /// The ports that agents check.
    pub fn ports(&self) -> &ExpectedPorts {
        static NONE: ExpectedPorts = ExpectedPorts {
            service_ports: Vec::new(),
            load_balancer_ports: Vec::new(),
        };
        self.question().map_or(&NONE, |question| &question.ports)
    }

    /// Whether an answer with this digest belongs to this round. For an empty question every answer does.
    pub fn is_of(&self, digest: Option<&str>) -> bool {
        self.0.as_ref().map_or(digest.is_none(), |round| {
            round.question.ports.is_empty() || digest == Some(round.digest.as_str())
        })
    }

    /// The record with the question; `None` before the first round.
    pub fn place(&self, migration: &Migration) -> Option<ExpectedPortsReference> {
        self.0.as_ref().map(|_| ExpectedPortsReference {
            record: record::name(
                &migration.uid().unwrap_or_default(),
                RecordContent::ExpectedPorts,
                0,
            ),
        })
    }

    /// Starts a round with the needed ports, unless the current round has them all. A round without all answers continues for a
    /// while, because each one costs a write of every agent. `nodes`: number of nodes. Returns whether the round has waited too
    /// long; it then waits as long again.
    pub fn need(&mut self, needed: ExpectedPorts, is_answered: bool, nodes: usize, now: Instant) -> bool {
        let patience = patience(nodes);
        let waits_for = |round: &Round| now.saturating_duration_since(round.began);
        let is_late = self.0.as_ref().is_some_and(|round| waits_for(round) >= patience);
        if !self.ports().covers(&needed) && (is_answered || is_late || self.ports().is_empty()) {
            self.begin(needed, now);
        }
        let is_overdue = is_late && !is_answered;
        if is_overdue && let Some(round) = &mut self.0 {
            round.began = now;
        }
        is_overdue
    }

    /// Makes these ports the only ones of the question.
    pub fn only(&mut self, needed: ExpectedPorts, now: Instant) {
        if *self.ports() != needed {
            self.begin(needed, now);
        }
    }

    fn begin(&mut self, ports: ExpectedPorts, now: Instant) {
        let question = Question {
            asked_at: clock::now(),
            ports,
        };
        self.0 = Some(Round::of(question, now));
    }
}

#[cfg(test)]
mod tests {
    use api::record::Content;
    use jiff::Timestamp;
    use service_cidr::host::ServicePort;

    use super::*;

    fn ports(numbers: &[u16]) -> ExpectedPorts {
        let port = |port: &u16| ServicePort {
            address: "172.30.0.5".parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: *port,
        };
        ExpectedPorts {
            service_ports: numbers.iter().map(port).collect(),
            load_balancer_ports: Vec::new(),
        }
    }

    #[test]
    fn an_answered_port_starts_no_round() {
        let (mut expected, now) = (Expected::default(), Instant::now());
        for (needed, found) in [
            (&[80, 81][..], &[80, 81][..]),
            (&[81], &[80, 81]),
            (&[], &[80, 81]),
            // Answered ports are dropped.
            (&[82], &[82]),
        ] {
            expected.need(ports(needed), true, 3, now);
            assert_eq!(*expected.ports(), ports(found), "{needed:?}");
        }
    }

    #[test]
    fn the_next_round_starts_after_all_answers_or_a_long_wait() {
        let (mut expected, start) = (Expected::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(!expected.need(ports(&[80]), false, 100, at(0)), "the first round");
        assert!(!expected.need(ports(&[81]), false, 100, at(9)));
        assert_eq!(*expected.ports(), ports(&[80]));
        assert!(
            expected.need(ports(&[81]), false, 100, at(10)),
            "5 s and 5 s for the nodes"
        );
        assert_eq!(*expected.ports(), ports(&[81]));
        assert!(
            !expected.need(ports(&[82]), false, 100, at(11)),
            "the wait starts again"
        );
        assert!(
            expected.need(ports(&[81]), false, 100, at(20)),
            "for the same ports"
        );
        assert!(
            !expected.need(ports(&[81]), false, 100, at(21)),
            "and the wait starts again"
        );
        assert!(!expected.need(ports(&[82]), true, 100, at(22)));
        assert_eq!(*expected.ports(), ports(&[82]));
        assert!(
            !expected.need(ports(&[82]), true, 100, at(100)),
            "the round is answered"
        );
    }

    #[test]
    fn a_new_coordinator_continues_the_recorded_round() {
        let question = Question {
            asked_at: Timestamp::UNIX_EPOCH,
            ports: ports(&[80, 81]),
        };
        let digest = question.digest();
        let record = MigrationRecordSpec::new(
            "m".to_owned(),
            RecordContent::ExpectedPorts,
            0,
            Content::ExpectedPorts(question),
        );
        let mut expected = Expected::default();
        assert!(expected.is_of(None) && !expected.is_of(Some(&digest)));
        expected.resume([&record].into_iter());
        assert!(expected.is_of(Some(&digest)) && !expected.is_of(None));
        expected.need(ports(&[81]), false, 3, Instant::now());
        assert_eq!(*expected.ports(), ports(&[80, 81]), "no other round starts");
    }

    #[test]
    fn the_same_ports_in_another_round_are_another_question() {
        let (mut expected, now) = (Expected::default(), Instant::now());
        let mut digests = Vec::new();
        for numbers in [&[80][..], &[81], &[80]] {
            expected.only(ports(numbers), now);
            let digest = expected.question().unwrap().digest();
            assert!(expected.is_of(Some(&digest)));
            assert!(
                digests
                    .iter()
                    .all(|earlier: &String| !expected.is_of(Some(earlier)))
            );
            digests.push(digest);
        }
        expected.only(ports(&[]), now);
        assert!(expected.is_of(Some(&digests[0])) && expected.is_of(None));
    }
}
