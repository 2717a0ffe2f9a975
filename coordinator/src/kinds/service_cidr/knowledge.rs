//! Reports of the agents: whether every node's kube-proxy has rules for an address, and which pods were given a source address.
//! Pure.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use engine::decision::{Wait, WaitReason};
use jiff::Timestamp;
use serde_json::Value;
use service_cidr::assignment::key;
use service_cidr::class::addresses;
use service_cidr::host::{ExpectedPorts, Question, ServicePort};

use super::answers::{Answers, unknown};
use super::lagging::Lagging;
use super::question;
use crate::since::Since;

/// Most ports in one question to the agents: the others are in the next rounds.
const MOST_PORTS: usize = 1500;
/// Most ports of one Service in a round while other Services have questions. A tenant decides how many ports its Service has.
const MOST_PORTS_OF_ONE: usize = 100;
/// kube-proxy ignores Services with one of these labels.
const NOT_KUBE_PROXYS: [&str; 2] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/headless",
];

/// Results of earlier rounds, by the UID of the Service.
pub type Confirmed = BTreeMap<String, Progress>;

/// How much of a Service all nodes are known to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of its ports.
    Whole,
    /// Some of them.
    Partial {
        /// Ports that every node knows.
        known: BTreeSet<ServicePort>,
        /// When the last round with any of its ports and all answers was asked; `None` before the first one.
        answered: Option<Timestamp>,
    },
}

/// The rules by which a Service is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RulesOf {
    /// The rules of its own address.
    Address,
    /// The rules of a load balancer at its own address: kube-proxy writes them together with those of its other addresses.
    Balancer,
}

/// Evaluates the answers, and collects the next question. The cost of a port does not grow with the number of nodes: one list is
/// made of all answers before.
pub struct Knowledge<'pass> {
    before: &'pass Confirmed,
    /// Whether there is a node.
    has_nodes: bool,
    /// The first node that cannot report, and why.
    cannot_tell: Option<(&'pass str, String)>,
    /// The ports of the current question, by the kind of rules.
    asked: HashSet<(RulesOf, &'pass ServicePort)>,
    /// When the question was asked; `None` before every node has answered.
    answered: Option<Timestamp>,
    /// For each port the first node without a rule.
    lacking: HashMap<&'pass ServicePort, &'pass str>,
    confirmed: RefCell<Confirmed>,
    needed: RefCell<Vec<Needed>>,
}

/// Ports of one Service for the next question.
struct Needed {
    by: RulesOf,
    /// When the last answered round with any of its ports was asked. A Service without one comes first.
    answered: Option<Timestamp>,
    /// Ports that not all nodes are known to know.
    ports: Vec<ServicePort>,
}

/// The results of a pass.
pub struct Known {
    /// Services that all nodes know.
    pub confirmed: Confirmed,
    /// The questions to agents.
    pub asking: Asking,
}

/// The questions to agents.
#[derive(Clone, Default)]
pub struct Asking {
    /// The ports of the next question.
    pub needed: ExpectedPorts,
    /// Whether every node has answered the current question.
    pub is_answered: bool,
}

impl<'pass> Knowledge<'pass> {
    /// An empty evaluation for this pass. `before`: results of earlier passes, `question`: the current question.
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
            let known = ports.service_ports.iter().map(|port| (RulesOf::Address, port));
            known.chain(
                ports
                    .load_balancer_ports
                    .iter()
                    .map(|port| (RulesOf::Balancer, port)),
            )
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

    /// The wait for a node without rules for this Service at its own addresses.
    pub fn missing_rules(&self, service: &Value, by: RulesOf) -> Option<Wait> {
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

    /// Describes what is missing until all nodes are known to know this port.
    fn missing(&self, by: RulesOf, port: &ServicePort) -> Option<String> {
        if !self.has_nodes {
            return None;
        }
        if !self.asked.contains(&(by, port)) {
            return Some(format!(
                "every node will be asked whether kube-proxy has rules for {port}"
            ));
        }
        if let Some((node, why)) = &self.cannot_tell {
            return Some(format!(
                "node {node} {why} whether kube-proxy has rules for {port}"
            ));
        }
        let node = self.lacking.get(port)?;
        Some(format!("node {node}: kube-proxy has no rule yet for {port}"))
    }

    /// The results, and the ports of the next question.
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

/// The ports of the next round. Each Service gets a few, first those with the oldest answer; then the others, as far as there is
/// room. So no Service waits for the ports of another one, however many.
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
            RulesOf::Address => ports.service_ports.push(port.clone()),
            RulesOf::Balancer => ports.load_balancer_ports.push(port.clone()),
        }
    }
    // The same ports have to give the same question.
    ports.service_ports.sort();
    ports.load_balancer_ports.sort();
    ports
}

/// Time for which a rollback waits for a node without a report, plus the time of one round of questions.
const PATIENCE: Duration = Duration::from_mins(2);

/// Nodes that a rollback does not wait for any more, each with its state: those that have not answered the question, and those
/// whose kube-proxy has lacked a rule for a port, for too long. `silent`: nodes without an answer, `lagging`: nodes that lack a
/// port.
pub fn nodes_given_up<'pass>(
    answers: &Answers<'pass>,
    asked: &ExpectedPorts,
    silent: &mut Since<String>,
    lagging: &mut Lagging,
) -> Vec<(&'pass str, String)> {
    let patience = PATIENCE + question::patience(answers.len());
    let lagging = lagging.update(answers, asked, patience, Instant::now());
    let lagging = lagging.into_iter().map(|(node, port)| {
        (
            node,
            format!("has had no rule of kube-proxy for {port} for minutes"),
        )
    });
    let answers = answers.iter();
    let mut found: Vec<(&str, String)> = answers
        .filter_map(|(node, answer)| Some((*node, unknown(answer.as_ref()).err()?)))
        .collect();
    silent.keep(found.iter().map(|(node, _)| (*node).to_owned()));
    found.retain(|(node, _)| silent.has_lasted(*node, patience));
    found.extend(lagging);
    found
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
mod tests;
