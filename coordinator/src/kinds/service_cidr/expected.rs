//! The ports that every node's agent looks for at the moment. A record of the Migration has them, which every agent watches: a round of
//! questions is one write, however many nodes there are and however long the list is.

use std::time::{Duration, Instant};

use api::record::{self, Holds};
use api::{Migration, MigrationRecordSpec};
use jiff::Timestamp;
use kube::ResourceExt;
use service_cidr::host::{ExpectedPorts, ExpectedPortsIn, Question};

/// For so long, and for [`PATIENCE_A_NODE`] more a node, a round of questions waits for its answers before another one takes its place.
const PATIENCE: Duration = Duration::from_secs(5);
/// A round is one write or two by each agent.
const PATIENCE_A_NODE: Duration = Duration::from_millis(50);

/// How long a round of questions of so many nodes waits for its answers.
pub fn patience(nodes: usize) -> Duration {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    PATIENCE_A_NODE.saturating_mul(nodes).saturating_add(PATIENCE)
}

/// The round of questions that is under way.
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
    /// Goes on with the round that an earlier coordinator began. Does nothing once a round is known.
    pub fn resume<'record>(&mut self, mut records: impl Iterator<Item = &'record MigrationRecordSpec>) {
        if self.0.is_none() {
            let question = records.next().and_then(|record| record.expected_ports.clone());
            self.0 = question.map(|question| Round::of(question, Instant::now()));
        }
    }

    /// What agents are asked; `None` before the first round.
    pub fn question(&self) -> Option<&Question> {
        self.0.as_ref().map(|round| &round.question)
    }

    /// What agents look for.
    pub fn ports(&self) -> &ExpectedPorts {
        static NONE: ExpectedPorts = ExpectedPorts {
            known: Vec::new(),
            balanced: Vec::new(),
        };
        self.question().map_or(&NONE, |question| &question.ports)
    }

    /// Whether an answer with this digest is to this round. Where nothing is asked, every answer is as good.
    pub fn is_of(&self, digest: Option<&str>) -> bool {
        self.0.as_ref().map_or(digest.is_none(), |round| {
            round.question.ports.is_empty() || digest == Some(round.digest.as_str())
        })
    }

    /// Where agents find the question; `None` before the first round.
    pub fn place(&self, migration: &Migration) -> Option<ExpectedPortsIn> {
        self.0.as_ref().map(|_| ExpectedPortsIn {
            record: record::name(&migration.uid().unwrap_or_default(), Holds::ExpectedPorts, 0),
        })
    }

    /// Begins a round with what is needed, unless this one has it all. A round that not every node has answered goes on for a while: each
    /// one costs a write of every agent. `nodes` is how many there are. Returns whether a round has waited in vain for so long; then it waits
    /// as long again.
    pub fn need(&mut self, needed: ExpectedPorts, is_answered: bool, nodes: usize, now: Instant) -> bool {
        let patience = patience(nodes);
        let waits_for = |round: &Round| now.saturating_duration_since(round.began);
        let is_late = self.0.as_ref().is_some_and(|round| waits_for(round) >= patience);
        if !self.ports().covers(&needed) && (is_answered || is_late || self.ports().is_empty()) {
            self.begin(needed, now);
        }
        let is_in_vain = is_late && !is_answered;
        if is_in_vain && let Some(round) = &mut self.0 {
            round.began = now;
        }
        is_in_vain
    }

    /// Asks nothing but this from now on.
    pub fn only(&mut self, needed: ExpectedPorts, now: Instant) {
        if *self.ports() != needed {
            self.begin(needed, now);
        }
    }

    fn begin(&mut self, ports: ExpectedPorts, now: Instant) {
        let question = Question {
            asked_at: Timestamp::now(),
            ports,
        };
        self.0 = Some(Round::of(question, now));
    }
}

#[cfg(test)]
mod tests {
    use service_cidr::host::ServicePort;

    use super::*;

    fn ports(numbers: &[u16]) -> ExpectedPorts {
        let port = |port: &u16| ServicePort {
            address: "172.30.0.5".parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: *port,
        };
        ExpectedPorts {
            known: numbers.iter().map(port).collect(),
            balanced: Vec::new(),
        }
    }

    #[test]
    fn an_answer_alone_is_no_reason_to_ask_every_node() {
        let (mut expected, now) = (Expected::default(), Instant::now());
        for (needed, found) in [
            (&[80, 81][..], &[80, 81][..]),
            (&[81], &[80, 81]),
            (&[], &[80, 81]),
            // What was answered goes.
            (&[82], &[82]),
        ] {
            expected.need(ports(needed), true, 3, now);
            assert_eq!(*expected.ports(), ports(found), "{needed:?}");
        }
    }

    #[test]
    fn a_round_is_answered_before_the_next_one_begins_or_has_waited_for_long() {
        let (mut expected, start) = (Expected::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(!expected.need(ports(&[80]), false, 100, at(0)), "the first one");
        assert!(!expected.need(ports(&[81]), false, 100, at(9)));
        assert_eq!(*expected.ports(), ports(&[80]));
        assert!(
            expected.need(ports(&[81]), false, 100, at(10)),
            "5 s and 5 s for the nodes"
        );
        assert_eq!(*expected.ports(), ports(&[81]));
        assert!(!expected.need(ports(&[82]), false, 100, at(11)), "it waits anew");
        assert!(
            expected.need(ports(&[81]), false, 100, at(20)),
            "of the same ports"
        );
        assert!(!expected.need(ports(&[81]), false, 100, at(21)), "and waits anew");
        assert!(!expected.need(ports(&[82]), true, 100, at(22)));
        assert_eq!(*expected.ports(), ports(&[82]));
        assert!(!expected.need(ports(&[82]), true, 100, at(100)), "it is answered");
    }

    #[test]
    fn a_coordinator_that_starts_goes_on_with_the_round_that_is_written() {
        let question = Question {
            asked_at: Timestamp::UNIX_EPOCH,
            ports: ports(&[80, 81]),
        };
        let digest = question.digest();
        let record = MigrationRecordSpec {
            migration: "m".to_owned(),
            holds: Holds::ExpectedPorts,
            part: 0,
            actions: Vec::new(),
            services: Vec::new(),
            expected_ports: Some(question),
            key: String::new(),
            text: String::new(),
        };
        let mut expected = Expected::default();
        assert!(expected.is_of(None) && !expected.is_of(Some(&digest)));
        expected.resume([&record].into_iter());
        assert!(expected.is_of(Some(&digest)) && !expected.is_of(None));
        expected.need(ports(&[81]), false, 3, Instant::now());
        assert_eq!(*expected.ports(), ports(&[80, 81]), "nothing is written for it");
    }

    #[test]
    fn the_same_ports_asked_again_are_another_question() {
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
