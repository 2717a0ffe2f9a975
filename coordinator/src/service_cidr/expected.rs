//! The ports that every node's agent looks for at the moment. A record of the Migration has the list once, and each `NodeMigration` its
//! digest: a round of questions costs each node one small write, however long the list is.

use std::time::{Duration, Instant};

use api::record::{self, Holds};
use api::{Migration, MigrationRecordSpec};
use kube::ResourceExt;
use plan::service_cidr::host::{ExpectedPorts, ExpectedPortsIn};

/// For so long, and for [`PATIENCE_A_NODE`] more a node, a round of questions waits for its answers before another one takes its place.
const PATIENCE: Duration = Duration::from_secs(5);
/// A round is one write a node by the coordinator and one by its agent.
const PATIENCE_A_NODE: Duration = Duration::from_millis(50);

/// The round of questions that is under way.
#[derive(Debug, Default)]
pub struct Expected {
    ports: ExpectedPorts,
    digest: String,
    /// When it began; `None` before the first one.
    began: Option<Instant>,
}

impl Expected {
    /// Goes on with the round that an earlier coordinator began. Does nothing once a round is known.
    pub fn resume<'record>(&mut self, mut records: impl Iterator<Item = &'record MigrationRecordSpec>) {
        if self.began.is_none()
            && let Some(ports) = records.next().and_then(|record| record.expected_ports.as_ref())
        {
            self.begin(ports.clone(), Instant::now());
        }
    }

    /// What agents look for.
    pub fn ports(&self) -> &ExpectedPorts {
        &self.ports
    }

    /// Whether an answer with this digest is to this round. An agent that knows of no records says no digest.
    pub fn is_of(&self, digest: Option<&str>) -> bool {
        digest.map_or(self.ports.is_empty(), |digest| digest == self.digest)
    }

    /// The name of this round for agents; `None` where there is no question.
    pub fn name(&self, migration: &Migration) -> Option<ExpectedPortsIn> {
        (!self.ports.is_empty()).then(|| ExpectedPortsIn {
            record: record::name(&migration.uid().unwrap_or_default(), Holds::ExpectedPorts, 0),
            digest: self.digest.clone(),
        })
    }

    /// Begins a round with what is needed, unless this one has it all. A round that not every node has answered goes on for a while: each
    /// one costs a write to every node. `nodes` is how many there are. Returns whether a round has waited in vain for so long; it waits anew
    /// then.
    pub fn need(&mut self, needed: ExpectedPorts, is_answered: bool, nodes: usize, now: Instant) -> bool {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let patience = PATIENCE_A_NODE.saturating_mul(nodes).saturating_add(PATIENCE);
        let is_late = self
            .began
            .is_some_and(|began| now.saturating_duration_since(began) >= patience);
        if !self.ports.covers(&needed) && (is_answered || is_late || self.ports.is_empty()) {
            self.begin(needed, now);
        }
        let is_in_vain = is_late && !is_answered;
        if is_in_vain {
            self.began = Some(now);
        }
        is_in_vain
    }

    /// Asks nothing but this from now on.
    pub fn only(&mut self, needed: ExpectedPorts, now: Instant) {
        if self.ports != needed {
            self.begin(needed, now);
        }
    }

    fn begin(&mut self, ports: ExpectedPorts, now: Instant) {
        self.digest = ports.digest();
        self.ports = ports;
        self.began = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use plan::service_cidr::host::ServicePort;

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
    fn an_answer_alone_is_no_reason_to_write_to_every_node() {
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
        let record = MigrationRecordSpec {
            migration: "m".to_owned(),
            holds: Holds::ExpectedPorts,
            part: 0,
            actions: Vec::new(),
            services: Vec::new(),
            expected_ports: Some(ports(&[80, 81])),
            key: String::new(),
            text: String::new(),
        };
        let digest = ports(&[80, 81]).digest();
        let mut expected = Expected::default();
        assert!(expected.is_of(None) && !expected.is_of(Some(&digest)));
        expected.resume([&record].into_iter());
        assert!(expected.is_of(Some(&digest)) && !expected.is_of(None));
        expected.need(ports(&[81]), false, 3, Instant::now());
        assert_eq!(*expected.ports(), ports(&[80, 81]), "nothing is written for it");
    }
}
