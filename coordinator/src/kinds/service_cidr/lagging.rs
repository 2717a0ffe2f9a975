//! Nodes that answer, and whose kube-proxy has had no rule for a port for a long time: a rollback does not wait for them. Lost at
//! a restart of the coordinator: then the time starts again. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use service_cidr::host::{ExpectedPorts, ServicePort};

use super::answers::{Answers, unknown};

/// Most ports of a node that are tracked: kube-proxy writes its rules for all ports at once.
const MOST: usize = 8;

/// Every node that lacks a rule for a port.
#[derive(Debug, Default)]
pub struct Lagging(BTreeMap<String, Node>);

#[derive(Debug, Default)]
struct Node {
    lacks: BTreeMap<ServicePort, Lag>,
    /// The port for which a rollback continues without the node, until the node lacks nothing.
    given_up: Option<ServicePort>,
}

#[derive(Clone, Copy, Debug)]
struct Lag {
    since: Instant,
    /// Time at which the node was last seen to lack the port. Agents are not asked about it in every round.
    seen: Instant,
}

impl Node {
    /// Records that the node lacks these ports of the `asked` ones.
    fn answered(&mut self, lacks: &[ServicePort], asked: &ExpectedPorts, patience: Duration, now: Instant) {
        let is_asked = |port: &ServicePort| {
            asked.service_ports.contains(port) || asked.load_balancer_ports.contains(port)
        };
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
    /// Records the nodes' answers to the `asked` ports. Returns the nodes that have lacked a port for longer than `patience`,
    /// each with the port. Such a node is returned until it lacks nothing.
    pub fn update<'pass>(
        &mut self,
        answers: &Answers<'pass>,
        asked: &ExpectedPorts,
        patience: Duration,
        now: Instant,
    ) -> Vec<(&'pass str, ServicePort)> {
        self.0.retain(|node, _| answers.contains_key(node.as_str()));
        let mut given_up = Vec::new();
        for (name, answer) in answers {
            // A node that does not report is handled elsewhere.
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

    /// Lets every node have lacked its ports for this much longer.
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

    use super::super::answers::Answer;
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
            service_ports: numbers.iter().map(|number| port(*number)).collect(),
            load_balancer_ports: Vec::new(),
        }
    }

    /// Lets node a lack these of the asked ports, at this second. Returns the port for which it is given up.
    fn look(
        lagging: &mut Lagging,
        start: Instant,
        second: u64,
        asked_about: &[u16],
        lacks: &[u16],
    ) -> Option<u16> {
        let said = HostFacts {
            missing_ports: Found::Present(lacks.iter().map(|number| port(*number)).collect()),
            ..HostFacts::default()
        };
        let answer = Answer {
            is_newest: true,
            reports_users: false,
            said: &said,
        };
        let answers = Answers::from([("a", Some(answer)), ("silent", None)]);
        let now = start + Duration::from_secs(second);
        let found = lagging.update(&answers, &asked(asked_about), PATIENCE, now);
        found.first().map(|(node, port)| {
            assert_eq!(*node, "a");
            port.port
        })
    }

    #[test]
    fn a_node_that_lacks_a_port_for_long_is_given_up_until_it_lacks_none() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        let mut at = |second, asked: &[u16], lacks: &[u16]| look(&mut lagging, start, second, asked, lacks);
        assert_eq!(at(0, &[80, 81], &[80]), None);
        assert_eq!(at(119, &[80], &[80]), None);
        assert_eq!(at(120, &[80], &[80]), Some(80));
        // The next rounds are empty, or ask about other ports only.
        assert_eq!(at(121, &[], &[]), Some(80));
        assert_eq!(at(122, &[90], &[90]), Some(80));
        assert_eq!(at(123, &[90], &[]), None, "the node lacks nothing");
        assert_eq!(at(500, &[90], &[90]), None, "the time starts again");
    }

    #[test]
    fn a_node_that_learns_each_port_in_time_is_never_given_up() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        for round in 0..100_u16 {
            let asked = [round, round + 1];
            let found = look(&mut lagging, start, u64::from(round) * 10, &asked, &[round + 1]);
            assert_eq!(found, None, "round {round}");
        }
    }

    #[test]
    fn rounds_about_other_ports_keep_the_time() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        let mut at = |second, asked: &[u16], lacks: &[u16]| look(&mut lagging, start, second, asked, lacks);
        assert_eq!(at(0, &[80], &[80]), None);
        assert_eq!(at(60, &[90], &[90]), None);
        assert_eq!(at(130, &[80, 90], &[80, 90]), Some(80));
    }

    #[test]
    fn ports_without_a_question_make_room_for_others() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        let gone: Vec<u16> = (1..=9).collect();
        assert_eq!(look(&mut lagging, start, 0, &gone, &gone), None);
        for second in [60, 119] {
            assert_eq!(look(&mut lagging, start, second, &[90], &[90]), None, "{second}");
        }
        assert_eq!(
            look(&mut lagging, start, 120, &[90], &[90]),
            None,
            "the port is tracked from now on"
        );
        assert_eq!(look(&mut lagging, start, 240, &[90], &[90]), Some(90));
    }

    /// The last question of the way forward is answered once more, and never asked again.
    #[test]
    fn the_time_starts_again_with_another_question() {
        let (mut lagging, start) = (Lagging::default(), Instant::now());
        assert_eq!(look(&mut lagging, start, 0, &[70], &[70]), None);
        assert_eq!(look(&mut lagging, start, 1, &[80], &[80]), None);
        assert_eq!(look(&mut lagging, start, 121, &[80], &[80]), Some(80));
    }
}
