//! What the agents know: whether every node's kube-proxy has rules for an address, and who was told one that is left. Pure.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use plan::decision::{Wait, WaitReason};
use plan::found::Found;
use plan::service_cidr::host::{HostFacts, HostSettings, ServicePort};
use plan::service_cidr::side::Side;
use serde_json::Value;

/// Most ports that agents are asked about at the same time: what is behind them is asked about next.
const MOST_PORTS: usize = 500;
/// Services with one of these labels are none of kube-proxy's.
const NOT_KUBE_PROXYS: [&str; 2] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/headless",
];

/// What was known at some look of a Service's address: by `namespace/name`.
pub type Confirmed = BTreeSet<(String, Side)>;

/// What one node says.
#[derive(Clone, Debug)]
pub struct Answer<'pass> {
    /// What its agent was asked, as far as it has seen it.
    pub asked: &'pass HostSettings,
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
    ports: RefCell<BTreeSet<ServicePort>>,
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

    /// Which node has no rules yet for this address of this Service.
    pub fn unknown(&self, name: &str, service: &Value, side: Side, addresses: &[IpAddr]) -> Option<Wait> {
        let key = (name.to_owned(), side);
        let labels = &service["metadata"]["labels"];
        let is_another_proxys = NOT_KUBE_PROXYS.iter().any(|label| !labels[*label].is_null());
        if self.before.contains(&key) || is_another_proxys {
            self.confirmed.borrow_mut().insert(key);
            return None;
        }
        let ports = ports(service, addresses);
        self.ports.borrow_mut().extend(ports.iter().cloned());
        let missing = self.answers.iter().find_map(|(node, answer)| {
            let (of, what) = missing(answer.as_ref(), &ports)?;
            Some(Wait {
                reason: WaitReason::ProxyRules,
                message: format!("node {node} {what} {of}, an address of Service {name}"),
                until: None,
            })
        });
        if missing.is_none() {
            self.confirmed.borrow_mut().insert(key);
        }
        missing
    }

    /// What is known now, and what agents have to be asked about.
    pub fn finish(self) -> (Confirmed, Vec<ServicePort>) {
        let ports = self.ports.into_inner().into_iter().take(MOST_PORTS).collect();
        (self.confirmed.into_inner(), ports)
    }
}

/// The first port that a node does not know, and in which way.
fn missing<'ports>(
    answer: Option<&Answer<'_>>,
    ports: &'ports [ServicePort],
) -> Option<(&'ports ServicePort, String)> {
    ports.iter().find_map(|port| {
        let Some(Answer { asked, said }) = answer else {
            return Some((port, "has not said whether kube-proxy knows".to_owned()));
        };
        if !asked.known.contains(port) {
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

/// Every port of a Service at these addresses.
fn ports(service: &Value, addresses: &[IpAddr]) -> Vec<ServicePort> {
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

    fn settings(known: Vec<ServicePort>) -> HostSettings {
        HostSettings {
            left: Vec::new(),
            target: Vec::new(),
            known,
        }
    }

    fn facts(unknown: Found<Vec<ServicePort>>) -> HostFacts {
        HostFacts {
            proxy_mode: Found::Absent,
            unknown,
            cluster_dns: Found::Absent,
            api_server: String::new(),
            in_target: plan::service_cidr::host::InTarget::default(),
            carriers: Found::Absent,
            connections: Found::Absent,
        }
    }

    #[test]
    fn an_address_is_known_once_every_node_said_so_and_stays_so() {
        let service = json!({ "spec": { "ports": [{ "port": 80 }, { "port": 53, "protocol": "UDP" }] } });
        let address: [IpAddr; 1] = ["172.30.0.5".parse().unwrap()];
        let all = ports(&service, &address);
        assert_eq!(all.len(), 2);
        let nobody = Confirmed::new();
        let ask = |answers: &Answers<'_>, before: &Confirmed| {
            let knowledge = Knowledge::new(answers, before);
            let wait = knowledge.unknown("shop/web", &service, Side::New, &address);
            (wait.map(|wait| wait.message), knowledge.finish())
        };
        let asked = settings(all.clone());
        let (knows, lacks) = (
            facts(Found::Present(Vec::new())),
            facts(Found::Present(vec![all[1].clone()])),
        );
        let answer = |said| Some(Answer { asked: &asked, said });

        let (wait, (_, to_ask)) = ask(&Answers::from([("a", None)]), &nobody);
        assert!(wait.unwrap().contains("has not said"));
        assert_eq!(to_ask.len(), 2);

        let other = settings(Vec::new());
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
        assert_eq!((wait, to_ask.len()), (None, 0));

        let blind = facts(Found::Malformed("iptables-save: no such program".to_owned()));
        let (wait, _) = ask(&Answers::from([("a", answer(&blind))]), &nobody);
        assert!(wait.unwrap().contains("cannot tell (iptables-save"));
    }
}
