//! What the agents know: whether every node's kube-proxy has rules for an address, and who was told one that is left. Pure.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use plan::decision::{Wait, WaitReason};
use plan::found::Found;
use plan::service_cidr::class::addresses;
use plan::service_cidr::host::{Asked, HostFacts, ServicePort};
use plan::service_cidr::subjects::key;
use serde_json::Value;

/// Most ports that agents are asked about at the same time: what is behind them is asked about next.
const MOST_PORTS: usize = 500;
/// Services with one of these labels are none of kube-proxy's.
const NOT_KUBE_PROXYS: [&str; 2] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/headless",
];

/// Services of which every node was known to know at some look: their UIDs.
pub type Confirmed = BTreeSet<String>;

/// By which rules a Service is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Those of its own address.
    Address,
    /// Those of a load balancer at its own address: they are made together with those at all its others.
    Balancer,
}

/// What one node says.
#[derive(Clone, Debug)]
pub struct Answer<'pass> {
    /// What its agent was asked, as far as it has seen it.
    pub asked: &'pass Asked,
    /// What it said to that.
    pub said: &'pass HostFacts,
}

/// What the nodes say; `None` for one whose agent has not answered what it is asked now.
pub type Answers<'pass> = BTreeMap<&'pass str, Option<Answer<'pass>>>;

/// Asks the nodes, and remembers what has to be asked.
pub struct Knowledge<'pass> {
    answers: &'pass Answers<'pass>,
    before: &'pass Confirmed,
    confirmed: RefCell<Confirmed>,
    ports: RefCell<BTreeSet<(By, ServicePort)>>,
}

impl<'pass> Knowledge<'pass> {
    /// Nothing has been asked yet in this pass. `before` is what earlier passes found.
    pub fn new(answers: &'pass Answers<'pass>, before: &'pass Confirmed) -> Self {
        Self {
            answers,
            before,
            confirmed: RefCell::default(),
            ports: RefCell::default(),
        }
    }

    /// Which node has no rules yet for this Service at its own addresses.
    pub fn unknown(&self, service: &Value, by: By) -> Option<Wait> {
        let uid = service["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let labels = &service["metadata"]["labels"];
        let is_another_proxys = NOT_KUBE_PROXYS.iter().any(|label| !labels[*label].is_null());
        if self.before.contains(&uid) || is_another_proxys {
            self.confirmed.borrow_mut().insert(uid);
            return None;
        }
        let ports = ports(service);
        self.ports
            .borrow_mut()
            .extend(ports.iter().map(|port| (by, port.clone())));
        let missing = self.answers.iter().find_map(|(node, answer)| {
            let (of, what) = missing(answer.as_ref(), by, &ports)?;
            Some(Wait {
                reason: WaitReason::ProxyRules,
                message: format!("node {node} {what} {of}, an address of Service {}", key(service)),
                until: None,
            })
        });
        if missing.is_none() {
            self.confirmed.borrow_mut().insert(uid);
        }
        missing
    }

    /// What is known now, and what agents have to be asked about by each kind of rules.
    pub fn finish(self) -> (Confirmed, Asked) {
        let mut asked = Asked::default();
        for (by, port) in self.ports.into_inner().into_iter().take(MOST_PORTS) {
            match by {
                By::Address => asked.known.push(port),
                By::Balancer => asked.balanced.push(port),
            }
        }
        (self.confirmed.into_inner(), asked)
    }
}

/// The first port that a node does not know, and in which way.
fn missing<'ports>(
    answer: Option<&Answer<'_>>,
    by: By,
    ports: &'ports [ServicePort],
) -> Option<(&'ports ServicePort, String)> {
    ports.iter().find_map(|port| {
        let Some(Answer { asked, said }) = answer else {
            return Some((port, "has not said whether kube-proxy knows".to_owned()));
        };
        let asked = match by {
            By::Address => &asked.known,
            By::Balancer => &asked.balanced,
        };
        if !asked.contains(port) {
            return Some((port, "is asked whether kube-proxy knows".to_owned()));
        }
        match &said.unknown {
            Found::Absent => Some((port, "has not said whether kube-proxy knows".to_owned())),
            Found::Present(unknown) if unknown.contains(port) => {
                Some((port, "has no rule of kube-proxy's yet for".to_owned()))
            }
            Found::Present(_) => None,
            Found::Malformed(what) => Some((port, format!("cannot tell ({what}) whether kube-proxy knows"))),
        }
    })
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

    fn asked_for(known: Vec<ServicePort>) -> Asked {
        Asked {
            known,
            balanced: Vec::new(),
        }
    }

    fn facts(unknown: Found<Vec<ServicePort>>) -> HostFacts {
        HostFacts {
            unknown,
            ..HostFacts::default()
        }
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
        let ask = |answers: &Answers<'_>, before: &Confirmed| {
            let knowledge = Knowledge::new(answers, before);
            let wait = knowledge.unknown(&service, By::Address);
            (wait.map(|wait| wait.message), knowledge.finish())
        };
        let asked = asked_for(all.clone());
        let (knows, lacks) = (
            facts(Found::Present(Vec::new())),
            facts(Found::Present(vec![all[1].clone()])),
        );
        let answer = |said| Some(Answer { asked: &asked, said });

        let (wait, (_, to_ask)) = ask(&Answers::from([("a", None)]), &nobody);
        assert!(wait.unwrap().contains("has not said"));
        assert_eq!(to_ask.known.len(), 2);

        let other = Asked::default();
        let not_asked = Some(Answer {
            asked: &other,
            said: &knows,
        });
        let (wait, _) = ask(&Answers::from([("a", not_asked)]), &nobody);
        assert!(wait.unwrap().contains("is asked"));

        let (wait, (confirmed, _)) = ask(
            &Answers::from([("a", answer(&knows)), ("b", answer(&lacks))]),
            &nobody,
        );
        assert_eq!(
            wait.unwrap(),
            "node b has no rule of kube-proxy's yet for 172.30.0.5:53/UDP, an address of Service shop/web"
        );
        assert!(confirmed.is_empty());

        let (wait, (confirmed, _)) = ask(&Answers::from([("a", answer(&knows))]), &nobody);
        assert_eq!((wait, confirmed.len()), (None, 1));
        let (wait, (_, to_ask)) = ask(&Answers::from([("a", None)]), &confirmed);
        assert_eq!((wait, to_ask), (None, Asked::default()));

        let blind = facts(Found::Malformed("iptables-save: no such program".to_owned()));
        let (wait, _) = ask(&Answers::from([("a", answer(&blind))]), &nobody);
        assert!(wait.unwrap().contains("cannot tell (iptables-save"));
    }

    #[test]
    fn an_address_is_not_known_as_a_load_balancers_because_it_is_known() {
        let service = json!({
            "metadata": { "namespace": "shop", "name": "web-replumb-bridge", "uid": "u-2" },
            "spec": { "clusterIPs": ["172.30.255.9"], "ports": [{ "port": 80 }] },
        });
        let knows = facts(Found::Present(Vec::new()));
        let nobody = Confirmed::new();
        let mut asked = asked_for(ports(&service));
        let said = |asked: &Asked| {
            let answers = Answers::from([("a", Some(Answer { asked, said: &knows }))]);
            let knowledge = Knowledge::new(&answers, &nobody);
            let wait = knowledge.unknown(&service, By::Balancer).map(|wait| wait.message);
            (wait, knowledge.finish().1)
        };
        let (wait, to_ask) = said(&asked);
        assert!(wait.unwrap().contains("is asked"));
        assert_eq!(to_ask.balanced, ports(&service));
        asked.balanced = to_ask.balanced;
        assert_eq!(said(&asked).0, None);
    }
}
