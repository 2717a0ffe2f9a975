//! What the agents know: whether every node's kube-proxy has rules for an address, and who was told one that is left. Pure.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use engine::decision::{Wait, WaitReason};
use engine::found::Found;
use engine::kernel::Listed;
use jiff::Timestamp;
use serde_json::Value;
use service_cidr::class::addresses;
use service_cidr::host::{Carriers, Connection, ExpectedPorts, HostFacts, Question, ServicePort};
use service_cidr::subjects::key;

use super::expected;
use super::lagging::Lagging;
use crate::since::Since;

/// Most ports that agents are asked about in one round: the others are asked about in the next rounds.
const MOST_PORTS: usize = 1500;
/// Most ports of one Service in a round while other Services have questions. A tenant decides how many ports its Service has.
const MOST_PORTS_OF_ONE: usize = 100;
/// Services with one of these labels are none of kube-proxy's.
const NOT_KUBE_PROXYS: [&str; 2] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/headless",
];

/// What earlier rounds found, by the UID of the Service.
pub type Confirmed = BTreeMap<String, Progress>;

/// How much of a Service every node is known to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of its ports.
    Whole,
    /// Some of them.
    Partial {
        /// Ports that every node knows.
        known: BTreeSet<ServicePort>,
        /// When the last round was asked that every node has answered, and that had any of its ports; `None` before the first one.
        answered: Option<Timestamp>,
    },
}

/// By which rules a Service is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// Those of its own address.
    Address,
    /// Those of a load balancer at its own address: they are made together with those at all its others.
    Balancer,
}

/// What one node says.
#[derive(Clone, Debug)]
pub struct Answer<'pass> {
    /// Whether it is about the ports that agents look for now.
    pub is_newest: bool,
    /// Whether it was asked who uses an address that is left.
    pub reports_users: bool,
    /// What it said to what it was asked.
    pub said: &'pass HostFacts,
}

impl<'pass> Answer<'pass> {
    /// Pods of the node that were told an address that is left; `None` where it was not asked.
    pub fn carriers(&self) -> Option<&'pass Found<Carriers>> {
        self.reports_users.then_some(&self.said.carriers)
    }

    /// Why it does not say which name servers its kubelet tells pods; `None` where it does, or was not asked.
    pub fn unknown_cluster_dns(&self) -> Option<&'pass str> {
        match &self.said.cluster_dns {
            Found::Malformed(what) => Some(what),
            Found::Present(_) | Found::Absent => None,
        }
    }

    /// Connections through the node to such an address; `None` where it was not asked.
    pub fn connections(&self) -> Option<&'pass Found<Listed<Connection>>> {
        self.reports_users.then_some(&self.said.connections)
    }
}

/// What the nodes say; `None` for one whose agent has not answered what it is asked now.
pub type Answers<'pass> = BTreeMap<&'pass str, Option<Answer<'pass>>>;

/// Asks the nodes, and remembers what has to be asked. What it costs to ask does not grow with the number of nodes: of all answers one
/// list is made before.
pub struct Knowledge<'pass> {
    before: &'pass Confirmed,
    /// Whether there is a node at all.
    has_nodes: bool,
    /// The first node that cannot tell, and why.
    cannot_tell: Option<(&'pass str, String)>,
    /// What agents look for, by the kind of rules.
    asked: HashSet<(By, &'pass ServicePort)>,
    /// When that was asked; `None` before every node has answered.
    answered: Option<Timestamp>,
    /// The first node that has no rule for a port.
    lacking: HashMap<&'pass ServicePort, &'pass str>,
    confirmed: RefCell<Confirmed>,
    needed: RefCell<Vec<Needed>>,
}

/// What agents have to be asked about one Service.
struct Needed {
    by: By,
    /// When the last round was asked that had any of its ports and is answered. One that was in none is the first.
    answered: Option<Timestamp>,
    /// Ports that not every node is known to know.
    ports: Vec<ServicePort>,
}

/// What is known after a pass.
pub struct Known {
    /// Services that every node knows.
    pub confirmed: Confirmed,
    /// What is asked of agents.
    pub asking: Asking,
}

/// What is asked of agents.
#[derive(Clone, Default)]
pub struct Asking {
    /// What they have to be asked about.
    pub needed: ExpectedPorts,
    /// Whether every node has answered what agents look for now.
    pub is_answered: bool,
}

impl<'pass> Knowledge<'pass> {
    /// Nothing has been asked yet in this pass. `before` is what earlier passes found, `question` what agents look for.
    pub fn new(
        answers: &Answers<'pass>,
        before: &'pass Confirmed,
        question: Option<&'pass Question>,
    ) -> Self {
        let mut lacking = HashMap::new();
        let mut cannot_tell = None;
        for (node, answer) in answers {
            match unknown(answer.as_ref()) {
                Ok(unknown) => {
                    for port in unknown {
                        lacking.entry(port).or_insert(*node);
                    }
                }
                Err(why) => _ = cannot_tell.get_or_insert((*node, why)),
            }
        }
        let asked = question.map(|question| &question.ports).into_iter();
        let asked = asked.flat_map(|ports| {
            let known = ports.known.iter().map(|port| (By::Address, port));
            known.chain(ports.balanced.iter().map(|port| (By::Balancer, port)))
        });
        Self {
            before,
            has_nodes: !answers.is_empty(),
            answered: question
                .filter(|_| cannot_tell.is_none())
                .map(|question| question.asked_at),
            cannot_tell,
            asked: asked.collect(),
            lacking,
            confirmed: RefCell::default(),
            needed: RefCell::default(),
        }
    }

    /// Which node has no rules yet for this Service at its own addresses.
    pub fn unknown(&self, service: &Value, by: By) -> Option<Wait> {
        let uid = service["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let labels = &service["metadata"]["labels"];
        let is_another_proxys = NOT_KUBE_PROXYS.iter().any(|label| !labels[*label].is_null());
        let before = self.before.get(&uid);
        if before == Some(&Progress::Whole) || is_another_proxys {
            self.confirmed.borrow_mut().insert(uid, Progress::Whole);
            return None;
        }
        let (mut known, mut answered) = match before {
            Some(Progress::Partial { known, answered }) => (known.clone(), *answered),
            Some(Progress::Whole) | None => (BTreeSet::new(), None),
        };
        let (mut first, mut unknown) = (None, Vec::new());
        for port in ports(service) {
            if self.asked.contains(&(by, &port)) {
                answered = answered.max(self.answered);
            }
            if known.contains(&port) {
                continue;
            }
            match self.missing(by, &port) {
                None => _ = known.insert(port),
                Some(missing) => {
                    first.get_or_insert(missing);
                    unknown.push(port);
                }
            }
        }
        let Some(what) = first else {
            self.confirmed.borrow_mut().insert(uid, Progress::Whole);
            return None;
        };
        let progress = Progress::Partial { known, answered };
        self.confirmed.borrow_mut().insert(uid, progress);
        self.needed.borrow_mut().push(Needed {
            by,
            answered,
            ports: unknown,
        });
        Some(Wait {
            reason: WaitReason::ProxyRules,
            message: format!("{what}, an address of Service {}", key(service)),
            until: None,
        })
    }

    /// What is missing until every node is known to know this port.
    fn missing(&self, by: By, port: &ServicePort) -> Option<String> {
        if !self.has_nodes {
            return None;
        }
        if !self.asked.contains(&(by, port)) {
            return Some(format!(
                "every node is asked next whether kube-proxy knows {port}"
            ));
        }
        if let Some((node, why)) = &self.cannot_tell {
            return Some(format!("node {node} {why} whether kube-proxy knows {port}"));
        }
        let node = self.lacking.get(port)?;
        Some(format!("node {node} has no rule of kube-proxy's yet for {port}"))
    }

    /// What is known now, and what agents have to be asked about.
    pub fn finish(self) -> Known {
        let needed = round(self.needed.into_inner());
        Known {
            confirmed: self.confirmed.into_inner(),
            asking: Asking {
                needed,
                is_answered: self.cannot_tell.is_none(),
            },
        }
    }
}

/// The ports of the next round. Each Service has a few, those first whose last answer is the oldest; then the rest of each, as far as there
/// is room. So no Service waits for the ports of another one, however many these are.
fn round(mut needed: Vec<Needed>) -> ExpectedPorts {
    needed.sort_by_key(|needed| needed.answered);
    let few = |needed: &Needed| needed.ports.len().min(MOST_PORTS_OF_ONE);
    let first = needed
        .iter()
        .flat_map(|needed| needed.ports[..few(needed)].iter().map(|port| (needed.by, port)));
    let rest = needed
        .iter()
        .flat_map(|needed| needed.ports[few(needed)..].iter().map(|port| (needed.by, port)));
    let mut ports = ExpectedPorts::default();
    for (by, port) in first.chain(rest).take(MOST_PORTS) {
        match by {
            By::Address => ports.known.push(port.clone()),
            By::Balancer => ports.balanced.push(port.clone()),
        }
    }
    // The same ports are the same question.
    ports.known.sort();
    ports.balanced.sort();
    ports
}

/// For so long, and for as long as a round of questions may take, a node that does not tell is waited for on the way back.
const PATIENCE: Duration = Duration::from_mins(2);

/// Nodes that the way back does not wait for any more, each with what it does: those that have not told what agents look for, and those whose
/// kube-proxies have no rule for a port, for too long. `silent` are those that have not told, `lagging` those that lack a port.
pub fn unheard<'pass>(
    answers: &Answers<'pass>,
    asked: &ExpectedPorts,
    silent: &mut Since<String>,
    lagging: &mut Lagging,
) -> Vec<(&'pass str, String)> {
    let patience = PATIENCE + expected::patience(answers.len());
    let lagging = lagging.look(answers, asked, patience, Instant::now());
    let lagging = lagging.into_iter().map(|(node, port)| {
        (
            node,
            format!("has had no rule of kube-proxy's for {port} for long, and does not say"),
        )
    });
    let answers = answers.iter();
    let mut found: Vec<(&str, String)> = answers
        .filter_map(|(node, answer)| Some((*node, unknown(answer.as_ref()).err()?)))
        .collect();
    silent.keep(found.iter().map(|(node, _)| (*node).to_owned()));
    found.retain(|(node, _)| silent.is_as_long_as(*node, patience));
    found.extend(lagging);
    found
}

/// The ports that a node has no rule for, of those that agents look for now; an error is what the node does instead of telling.
pub(super) fn unknown<'pass>(answer: Option<&Answer<'pass>>) -> Result<&'pass [ServicePort], String> {
    let Some(Answer { is_newest, said, .. }) = answer else {
        return Err("has not said".to_owned());
    };
    match &said.unknown {
        // An agent that cannot read the question answers none.
        Found::Malformed(what) => Err(format!("cannot tell ({what})")),
        Found::Present(_) | Found::Absent if !is_newest => Err("is asked".to_owned()),
        Found::Present(unknown) => Ok(unknown),
        Found::Absent => Err("has not said".to_owned()),
    }
}

/// Every port of a Service at its own addresses.
fn ports(service: &Value) -> Vec<ServicePort> {
    let addresses = addresses(&service["spec"]);
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    ports
        .filter_map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            Some((protocol, u16::try_from(port["port"].as_u64()?).ok()?))
        })
        .flat_map(|(protocol, port)| {
            addresses.iter().map(move |address| ServicePort {
                address: *address,
                protocol: protocol.clone(),
                port,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked_for(known: Vec<ServicePort>) -> ExpectedPorts {
        ExpectedPorts {
            known,
            balanced: Vec::new(),
        }
    }

    fn question(ports: &ExpectedPorts, second: i64) -> Question {
        Question {
            asked_at: Timestamp::from_second(second).unwrap(),
            ports: ports.clone(),
        }
    }

    fn facts(unknown: Found<Vec<ServicePort>>) -> HostFacts {
        HostFacts {
            unknown,
            ..HostFacts::default()
        }
    }

    fn is_whole(known: &Known) -> bool {
        known
            .confirmed
            .values()
            .all(|progress| *progress == Progress::Whole)
    }

    /// What is said of a Service, and what is known then.
    fn ask(
        service: &Value,
        by: By,
        answers: &Answers<'_>,
        before: &Confirmed,
        expected: &ExpectedPorts,
    ) -> (Option<String>, Known) {
        let question = question(expected, 1);
        let knowledge = Knowledge::new(answers, before, Some(&question));
        let wait = knowledge.unknown(service, by);
        (wait.map(|wait| wait.message), knowledge.finish())
    }

    #[test]
    fn an_address_is_known_once_every_node_said_so_and_stays_so() {
        let service = json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "u-1" },
            "spec": { "clusterIPs": ["172.30.0.5"], "ports": [{ "port": 80 }, { "port": 53, "protocol": "UDP" }] },
        });
        let all = ports(&service);
        assert_eq!(all.len(), 2);
        let nobody = Confirmed::new();
        let expected = asked_for(all.clone());
        let ask = |answers: &Answers<'_>, before: &Confirmed, expected: &ExpectedPorts| {
            ask(&service, By::Address, answers, before, expected)
        };
        let (knows, lacks) = (
            facts(Found::Present(Vec::new())),
            facts(Found::Present(vec![all[1].clone()])),
        );
        let answer = |said| {
            Some(Answer {
                is_newest: true,
                reports_users: false,
                said,
            })
        };

        let (wait, known) = ask(&Answers::from([("a", None)]), &nobody, &expected);
        assert!(wait.unwrap().starts_with("node a has not said whether"));
        assert_eq!(
            (known.asking.needed.known.len(), known.asking.is_answered),
            (2, false)
        );

        // What no agent was asked about, and what this one was not.
        let older = Answer {
            is_newest: false,
            reports_users: false,
            said: &knows,
        };
        let all_know = Answers::from([("a", answer(&knows))]);
        let (wait, known) = ask(&all_know, &nobody, &asked_for(vec![all[0].clone()]));
        assert!(wait.unwrap().starts_with("every node is asked next whether"));
        assert!(known.asking.is_answered && !is_whole(&known));
        let (wait, known) = ask(&Answers::from([("a", Some(older))]), &nobody, &expected);
        assert!(wait.unwrap().starts_with("node a is asked whether"));
        assert!(!known.asking.is_answered);

        let (wait, known) = ask(
            &Answers::from([("a", answer(&knows)), ("b", answer(&lacks))]),
            &nobody,
            &expected,
        );
        assert_eq!(
            wait.unwrap(),
            "node b has no rule of kube-proxy's yet for 172.30.0.5:53/UDP, an address of Service shop/web"
        );
        assert!(known.asking.is_answered && !is_whole(&known));

        let (wait, known) = ask(&all_know, &nobody, &expected);
        assert_eq!((wait, is_whole(&known)), (None, true));
        let (wait, known) = ask(&Answers::from([("a", None)]), &known.confirmed, &expected);
        assert_eq!((wait, known.asking.needed), (None, ExpectedPorts::default()));

        let blind = facts(Found::Malformed("iptables-save: no such program".to_owned()));
        let (wait, known) = ask(&Answers::from([("a", answer(&blind))]), &nobody, &expected);
        assert!(wait.unwrap().contains("cannot tell (iptables-save"));
        assert!(!known.asking.is_answered);
    }

    #[test]
    fn an_address_is_not_known_as_a_load_balancers_because_it_is_known() {
        let service = json!({
            "metadata": { "namespace": "shop", "name": "web-replumb-bridge", "uid": "u-2" },
            "spec": { "clusterIPs": ["172.30.255.9"], "ports": [{ "port": 80 }] },
        });
        let knows = facts(Found::Present(Vec::new()));
        let mut expected = asked_for(ports(&service));
        let said = |expected: &ExpectedPorts| {
            let answer = Answer {
                is_newest: true,
                reports_users: false,
                said: &knows,
            };
            let answers = Answers::from([("a", Some(answer))]);
            ask(&service, By::Balancer, &answers, &Confirmed::new(), expected)
        };
        let (wait, known) = said(&expected);
        assert!(wait.unwrap().contains("is asked next"));
        assert_eq!(known.asking.needed.balanced, ports(&service));
        expected.balanced = known.asking.needed.balanced;
        assert_eq!(said(&expected).0, None);
    }
    /// A Service of which kube-proxy knows each port on every node, once agents are asked about it.
    fn service(name: &str, address: &str, ports: u16) -> Value {
        let ports: Vec<Value> = (1..=ports).map(|port| json!({ "port": port })).collect();
        json!({
            "metadata": { "namespace": "shop", "name": name, "uid": name },
            "spec": { "clusterIPs": [address], "ports": ports },
        })
    }

    /// In which round each of these Services, of which the later ones are balanced, is known.
    fn rounds(services: &[(Value, By)], most: usize) -> BTreeMap<String, usize> {
        let knows = facts(Found::Present(Vec::new()));
        let (mut confirmed, mut asked) = (Confirmed::new(), None);
        let mut done = BTreeMap::new();
        for number in 0..most {
            let answer = Answer {
                is_newest: true,
                reports_users: false,
                said: &knows,
            };
            let answers = Answers::from([("a", Some(answer))]);
            let knowledge = Knowledge::new(&answers, &confirmed, asked.as_ref());
            for (service, by) in services {
                if knowledge.unknown(service, *by).is_none() {
                    done.entry(key(service)).or_insert(number);
                }
            }
            let known = knowledge.finish();
            let ports = known.asking.needed;
            assert!(ports.known.len() + ports.balanced.len() <= MOST_PORTS);
            asked = Some(question(&ports, i64::try_from(number).unwrap()));
            confirmed = known.confirmed;
        }
        done
    }

    #[test]
    fn a_service_with_many_ports_keeps_no_other_from_being_asked_about() {
        let mut services = vec![(service("flood", "172.30.0.9", 20_000), By::Address)];
        for name in ["a", "b", "c"] {
            services.push((service(name, "172.30.0.5", 2), By::Balancer));
        }
        let done = rounds(&services, 20);
        for name in ["shop/a", "shop/b", "shop/c"] {
            assert_eq!(done[name], 1, "{name}");
        }
        // All of the room that the others leave.
        assert_eq!(done["shop/flood"], 14);
    }

    #[test]
    fn many_services_with_many_ports_take_turns_with_all_others() {
        let large = |number: u8| {
            (
                service(&format!("flood-{number}"), &format!("172.30.1.{number}"), 1000),
                By::Address,
            )
        };
        let small = |number: u8| {
            (
                service(&format!("web-{number}"), &format!("172.30.0.{number}"), 1),
                By::Balancer,
            )
        };
        let services: Vec<(Value, By)> = (1..=60).map(large).chain((1..=20).map(small)).collect();
        let done = rounds(&services, 60);
        assert_eq!(done.len(), 80, "each ends");
        let last = (1..=20).map(|number| done[&format!("shop/web-{number}")]).max();
        assert!(last.is_some_and(|round| round <= 5), "{last:?}");
    }

    /// What a node does not learn is asked again when the others had their turn.
    #[test]
    fn ports_that_a_node_does_not_learn_take_no_room_of_others() {
        let stuck: Vec<Value> = (1..=20)
            .map(|number| service(&format!("stuck-{number}"), &format!("172.30.1.{number}"), 100))
            .collect();
        let web = service("web", "172.30.0.5", 1);
        let all_stuck: Vec<ServicePort> = stuck.iter().flat_map(ports).collect();
        let lacks = facts(Found::Present(all_stuck));
        let (mut confirmed, mut asked) = (Confirmed::new(), None);
        let mut known_in = None;
        for number in 0..4 {
            let answer = Answer {
                is_newest: true,
                reports_users: false,
                said: &lacks,
            };
            let answers = Answers::from([("a", Some(answer))]);
            let knowledge = Knowledge::new(&answers, &confirmed, asked.as_ref());
            for service in &stuck {
                assert!(knowledge.unknown(service, By::Address).is_some());
            }
            if knowledge.unknown(&web, By::Address).is_none() {
                known_in.get_or_insert(number);
            }
            let known = knowledge.finish();
            asked = Some(question(&known.asking.needed, number));
            confirmed = known.confirmed;
        }
        assert_eq!(known_in, Some(2));
    }
}
