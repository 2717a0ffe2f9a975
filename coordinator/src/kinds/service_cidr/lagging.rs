//! Nodes that answer, and whose kube-proxies have no rule for a port for long: the way back does not wait for them. Lost at a restart of ours:
//! then the time counts again. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use service_cidr::host::{ExpectedPorts, ServicePort};

use super::knowledge::{Answers, unknown};

/// So many ports of a node are followed at most: rules come for all ports or for none.
const MOST: usize = 8;

/// Every node that lacks a rule for a port.
#[derive(Debug, Default)]
pub struct Lagging(BTreeMap<String, Node>);

#[derive(Debug, Default)]
struct Node {
    lacks: BTreeMap<ServicePort, Lag>,
    /// The port for which the way back goes on without the node, until the node lacks nothing.
    given_up: Option<ServicePort>,
}

#[derive(Clone, Copy, Debug)]
struct Lag {
    since: Instant,
    /// When the node was last seen to lack the port. Agents are not asked about it in every round.
    seen: Instant,
}

impl Node {
    /// Takes in that the node lacks these ports of those that it was `asked` about.
    fn answered(&mut self, lacks: &[ServicePort], asked: &ExpectedPorts, patience: Duration, now: Instant) {
        let is_asked = |port: &ServicePort| asked.known.contains(port) || asked.balanced.contains(port);
        self.lacks.retain(|port, lag| {
            let is_recent = now.saturating_duration_since(lag.seen) < patience;
            lacks.contains(port) || (is_recent && !is_asked(port))
        });
        for port in lacks {
            let has_room = self.lacks.len() < MOST;
            if let Some(lag) = self.lacks.get_mut(port) {
                lag.seen = now;
            } else if has_room {
                let lag = Lag {
                    since: now,
                    seen: now,
                };
                self.lacks.insert(port.clone(), lag);
            }
        }
        let is_long = |lag: &Lag| lag.seen == now && now.saturating_duration_since(lag.since) >= patience;
        if self.given_up.is_none() {
            let longest = self.lacks.iter().find(|(_, lag)| is_long(lag));
            self.given_up = longest.map(|(port, _)| port.clone());
        }
    }
}

impl Lagging {
    /// Takes in what the nodes have answered to what they were `asked`. Returns the nodes that have lacked a port for longer than `patience`, each
    /// with the port, and stays with that until such a node lacks nothing.
    pub fn look<'pass>(
        &mut self,
        answers: &Answers<'pass>,
        asked: &ExpectedPorts,
        patience: Duration,
        now: Instant,
    ) -> Vec<(&'pass str, ServicePort)> {
        self.0.retain(|node, _| answers.contains_key(node.as_str()));
        let mut given_up = Vec::new();
        for (name, answer) in answers {
            // One that does not tell is another matter.
            match unknown(answer.as_ref()) {
                Ok([]) if !asked.is_empty() => _ = self.0.remove(*name),
                Ok(lacks) if !lacks.is_empty() => {
                    let node = self.0.entry((*name).to_owned()).or_default();
                    node.answered(lacks, asked, patience, now);
                }
                Ok(_) | Err(_) => {}
            }
            if let Some(port) = self.0.get(*name).and_then(|node| node.given_up.clone()) {
                given_up.push((*name, port));
            }
        }
        given_up
    }

    /// Every node has lacked its ports for so much longer.
    #[cfg(test)]
    pub(crate) fn age(&mut self, time: Duration) {
        for lag in self.0.values_mut().flat_map(|node| node.lacks.values_mut()) {
            lag.since = lag.since.checked_sub(time).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::found::Found;
    use service_cidr::host::HostFacts;

    use super::super::knowledge::Answer;
    use super::*;

    const PATIENCE: Duration = Duration::from_mins(2);

    fn port(number: u16) -> ServicePort {
        ServicePort {
            address: "10.96.0.5".parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: number,
        }
    }

    fn asked(numbers: &[u16]) -> ExpectedPorts {
        ExpectedPorts {
            known: numbers.iter().map(|number| port(*number)).collect(),
            balanced: Vec::new(),
        }
    }

    /// Node a lacks these ports of those that it was asked about, at this second. Returns the port for which it is given up.
    fn look(
        lagging: &mut Lagging,
        start: Instant,
        second: u64,
        asked_about: &[u16],
        lacks: &[u16],
    ) -> Option<u16> {
        let said = HostFacts {
            unknown: Found::Present(lacks.iter().map(|number| port(*number)).collect()),
            ..HostFacts::default()
        };
        let answer = Answer {
            is_newest: true,
            reports_users: false,
            said: &said,
        };
        let answers = Answers::from([("a", Some(answer)), ("silent", None)]);
        let now = start + Duration::from_secs(second);
        let found = lagging.look(&answers, &asked(asked_about), PATIENCE, now);
        found.first().map(|(node, port)| {
            assert_eq!(*node, "a");
            port.port
        })
    }

    #[test]
    fn a_node_is_given_up_that_lacks_the_same_port_for_long_and_until_it_lacks_none() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        let mut at = |second, asked: &[u16], lacks: &[u16]| look(&mut lagging, start, second, asked, lacks);
        assert_eq!(at(0, &[80, 81], &[80]), None);
        assert_eq!(at(119, &[80], &[80]), None);
        assert_eq!(at(120, &[80], &[80]), Some(80));
        // Nothing is asked any more, or about other ports alone.
        assert_eq!(at(121, &[], &[]), Some(80));
        assert_eq!(at(122, &[90], &[90]), Some(80));
        assert_eq!(at(123, &[90], &[]), None, "it has caught up");
        assert_eq!(at(500, &[90], &[90]), None, "the time counts from here");
    }

    #[test]
    fn a_busy_node_that_learns_one_port_after_the_other_is_waited_for() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        for round in 0..100_u16 {
            let asked = [round, round + 1];
            let found = look(&mut lagging, start, u64::from(round) * 10, &asked, &[round + 1]);
            assert_eq!(found, None, "round {round}");
        }
    }

    #[test]
    fn rounds_between_that_do_not_ask_about_the_port_change_nothing() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        let mut at = |second, asked: &[u16], lacks: &[u16]| look(&mut lagging, start, second, asked, lacks);
        assert_eq!(at(0, &[80], &[80]), None);
        assert_eq!(at(60, &[90], &[90]), None);
        assert_eq!(at(130, &[80, 90], &[80, 90]), Some(80));
    }

    #[test]
    fn ports_that_are_asked_about_no_more_make_room_for_others() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        let gone: Vec<u16> = (1..=9).collect();
        assert_eq!(look(&mut lagging, start, 0, &gone, &gone), None);
        for second in [60, 119] {
            assert_eq!(look(&mut lagging, start, second, &[90], &[90]), None, "{second}");
        }
        assert_eq!(
            look(&mut lagging, start, 120, &[90], &[90]),
            None,
            "there is room now"
        );
        assert_eq!(look(&mut lagging, start, 240, &[90], &[90]), Some(90));
    }

    /// The question that the way there has left is answered once more, and never asked again.
    #[test]
    fn another_question_begins_its_own_time() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        assert_eq!(look(&mut lagging, start, 0, &[70], &[70]), None);
        assert_eq!(look(&mut lagging, start, 1, &[80], &[80]), None);
        assert_eq!(look(&mut lagging, start, 121, &[80], &[80]), Some(80));
    }
}
