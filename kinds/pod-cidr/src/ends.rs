//! Ends of tunnels, node by node.
//!
//! When a pool is closed, every calico-node takes another address for the end of its tunnel at the same moment, Felix starts anew
//! on all of them, and for about a second no node reaches another (docs/limits.md). So Nodes are taken off the pool that is left
//! one after the other, each once its agent keeps the old address ([`super::host::changes`]), with the address that its tunnel gets
//! ([`super::choice`]), and the pool is closed once no end of a tunnel is in it. Where there is none to give Calico chooses: then the
//! pool has to say which Nodes are off it, and a calico-node that does not look again is started again.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::calico_node::Ends;
use super::decide::{Missing, Off, Step, Which};
use super::host::{HostFacts, LOOPBACK, TunnelEnd};
use super::pools::{self, Openness};
use super::tunnel::Held;
use engine::decision::{Wait, WaitReason};
use engine::evict::PodName;

/// What the agent of a node is told of its tunnels' ends: which addresses it keeps, and which ones Calico has chosen instead.
///
/// `before` is what it was told last: an address that was left is on no Node any more. One of the range that is led to now is kept as
/// long as `comes_back` says so, until the tunnel has it again ([`super::returns`]).
pub fn told(
    before: &[TunnelEnd],
    now: &Ends,
    left: &IpNet,
    comes_back: impl Fn(&TunnelEnd) -> bool,
) -> Vec<TunnelEnd> {
    let is_left = |end: &&TunnelEnd| left.contains(&IpAddr::V4(end.kept));
    let is_there = |end: &&TunnelEnd| now.get(end.name.as_str()) == Some(&IpAddr::V4(end.kept));
    // A tunnel that Calico has given another one there will not get its own: a pod may.
    let waits = |end: &&TunnelEnd| now.get(end.name.as_str()).is_none_or(|now| left.contains(now));
    let returning: Vec<TunnelEnd> = before
        .iter()
        .filter(|end| !is_left(end) && !is_there(end) && waits(end) && comes_back(end))
        .map(|end| TunnelEnd {
            address: None,
            ..end.clone()
        })
        .collect();
    let mut ends: BTreeMap<&str, TunnelEnd> = before
        .iter()
        .filter(is_left)
        .map(|end| {
            let address = None;
            (
                end.name.as_str(),
                TunnelEnd {
                    address,
                    ..end.clone()
                },
            )
        })
        .collect();
    for (name, address) in now {
        let IpAddr::V4(chosen) = *address else {
            continue;
        };
        if left.contains(address) {
            let end = TunnelEnd {
                name: name.clone(),
                kept: chosen,
                address: Some(chosen),
            };
            ends.insert(name, end);
        } else if let Some(end) = ends.get_mut(name.as_str()) {
            end.address = Some(chosen);
        }
    }
    ends.into_values().chain(returning).collect()
}

/// Whether an agent that is told this knows of every end of its node's tunnels that is in the range that is left, and of the
/// address that Calico has chosen instead.
pub fn is_told(told: &[TunnelEnd], now: &Ends, left: &IpNet) -> bool {
    now.iter().all(|(name, address)| {
        let IpAddr::V4(address) = *address else {
            return true;
        };
        let mut of_tunnel = told
            .iter()
            .filter(|end| end.name == **name && left.contains(&IpAddr::V4(end.kept)));
        if left.contains(&IpAddr::V4(address)) {
            of_tunnel.any(|end| end.kept == address)
        } else {
            of_tunnel.all(|end| end.address == Some(address))
        }
    })
}

/// What an agent does about the addresses that its node leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// It keeps them all, or there is none; Calico has taken them off its links, or has not been asked to.
    Done,
    /// It does not yet, or nobody knows.
    NotYet(String),
    /// Calico has chosen others, and has the old ones on its links still.
    Exchanging(String),
}

/// What an agent does about the ends in the range that is left, by its own words; `None` where it has not answered to what it was
/// told last.
pub fn keeping(ends: &[TunnelEnd], left: &IpNet, facts: Option<&HostFacts>) -> Keeping {
    let mut ends = ends
        .iter()
        .filter(|end| left.contains(&IpAddr::V4(end.kept)))
        .peekable();
    if ends.peek().is_none() {
        return Keeping::Done;
    }
    let Some(facts) = facts else {
        return Keeping::NotYet("its agent has not answered".to_owned());
    };
    for end in ends {
        let on = |link: &dyn Fn(&str) -> bool| {
            let mut addresses = facts.in_old.addresses.first.iter();
            addresses.any(|found| found.address.addr() == IpAddr::V4(end.kept) && link(&found.link))
        };
        if !on(&|link| link == LOOPBACK) {
            return Keeping::NotYet(format!("its agent does not keep {} yet", end.kept));
        }
        if end.address != Some(end.kept) && on(&|link| link != LOOPBACK) {
            return Keeping::Exchanging(format!(
                "calico-node has {} on the link of its tunnel still",
                end.kept
            ));
        }
    }
    Keeping::Done
}

/// Addresses in this range that an agent keeps, by its own words.
pub fn kept(facts: &HostFacts, range: &IpNet) -> Vec<IpNet> {
    let (old, new) = (&facts.in_old.addresses, &facts.in_new.addresses);
    old.first
        .iter()
        .chain(&new.first)
        .filter(|found| found.link == LOOPBACK && range.contains(&found.address))
        .map(|found| found.address)
        .collect()
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about one node"
)]
pub struct NodeEnd<'facts> {
    /// Name of the Node.
    pub name: &'facts str,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it was taken off the pool that is left.
    pub off: bool,
    /// Whether the end of a tunnel of it is in the range that is left.
    pub in_left: bool,
    /// Whether its calico-node is Ready.
    pub calico_ready: bool,
    /// The pod of calico-node that has had time to take another address since the node was taken off, and has not.
    pub overdue: Option<PodName>,
    /// What its agent does about the address that it leaves.
    pub keeping: Keeping,
    /// Whether `WireGuard` has an address in the range that is left: Calico alone exchanges that.
    pub wireguard_in_left: bool,
}

impl NodeEnd<'_> {
    /// Why the next node has to wait for this one, which was taken off; `None` when it is done.
    fn on_its_way(&self) -> Option<Wait> {
        if !self.off || !self.ready {
            return None;
        }
        let node = self.name;
        let wait = |reason, message| {
            Some(Wait {
                reason,
                message,
                until: None,
            })
        };
        if self.in_left {
            return Some(self.exchanges());
        }
        match &self.keeping {
            // It starts anew once it has seen the other address: its readiness is an old one until then, and until its agent has
            // looked nobody knows which.
            Keeping::Exchanging(words) => {
                wait(WaitReason::CalicoNodeNotReady, format!("node {node}: {words}"))
            }
            Keeping::NotYet(words) => wait(WaitReason::AgentWorking, format!("node {node}: {words}")),
            Keeping::Done if !self.calico_ready => {
                let message = format!(
                    "calico-node on node {node} is not Ready again after it has taken another address for the end of its tunnel"
                );
                wait(WaitReason::CalicoNodeNotReady, message)
            }
            Keeping::Done => None,
        }
    }

    /// What its agent does not do yet about the end of its tunnel, before it is taken off.
    fn unprepared(&self) -> Option<Wait> {
        let is_to_go = self.ready && self.in_left && !self.off;
        match &self.keeping {
            Keeping::NotYet(words) | Keeping::Exchanging(words) if is_to_go => Some(Wait {
                reason: WaitReason::AgentWorking,
                message: format!(
                    "node {}: {words}; without it connections of the host end when Calico takes another address for the end of its tunnel",
                    self.name
                ),
                until: None,
            }),
            Keeping::NotYet(_) | Keeping::Exchanging(_) | Keeping::Done => None,
        }
    }

    /// What others wait for that this node lacks; `None` where it lacks nothing, is away, or waits for its turn. Once the pool that is left
    /// `is_closed`, that is another end of its tunnel alone.
    pub fn lacks(&self, is_closed: bool) -> Option<Wait> {
        if !is_closed {
            return self.on_its_way().or_else(|| self.unprepared());
        }
        (self.ready && self.in_left).then(|| self.exchanges())
    }

    fn exchanges(&self) -> Wait {
        Wait {
            reason: WaitReason::CalicoNodeNotReady,
            message: format!(
                "calico-node on node {} takes another address for the end of its tunnel",
                self.name
            ),
            until: None,
        }
    }
}

/// What is missing until no end of a tunnel is in the range that is left; `None` when none is, but those of nodes that are away.
///
/// `spec` is the pool that is left, `base` what it selects when it is open to everybody, `at_once` how many nodes may be on their
/// way at the same time, and `gets` what the tunnels of a node get in the range that is led to, by the last part of the annotation's key
/// ([`super::choice`]).
pub fn missing(
    nodes: &[NodeEnd<'_>],
    which: Which,
    spec: &Value,
    base: &str,
    at_once: usize,
    gets: impl Fn(&str) -> BTreeMap<String, Held>,
) -> Option<Missing> {
    // A node that is away takes another address when it is back: the pool is closed by then.
    let is_to_go = |node: &&NodeEnd<'_>| node.ready && node.in_left && !node.off;
    let to_go: Vec<&NodeEnd<'_>> = nodes.iter().filter(is_to_go).collect();
    let on_their_way: Vec<Wait> = nodes.iter().filter_map(NodeEnd::on_its_way).collect();
    if to_go.is_empty() && on_their_way.is_empty() {
        return None;
    }
    if let Some(round) = round(nodes) {
        let is_narrowed = Openness::of(spec) == Openness::Narrowed;
        if !is_narrowed || pools::narrowing(spec, base, which.mark(), round).is_some() {
            return Some(Missing::Step(Step::Narrow(which, round)));
        }
    }
    let is_overdue = |node: &NodeEnd<'_>| {
        node.overdue
            .clone()
            .filter(|_| node.ready && node.off && node.in_left)
    };
    if let Some(pod) = nodes.iter().find_map(is_overdue) {
        return Some(Missing::Step(Step::RestartCalicoNode(pod)));
    }
    let seats = at_once.max(1).saturating_sub(on_their_way.len());
    let prepared = to_go.iter().filter(|node| node.keeping == Keeping::Done);
    let next: Vec<Off> = prepared
        .take(seats)
        .map(|node| Off {
            node: node.name.to_owned(),
            ends: gets(node.name),
        })
        .collect();
    if !next.is_empty() {
        return Some(Missing::Step(Step::TakeOff(which, next)));
    }
    let mut waits = on_their_way
        .into_iter()
        .chain(to_go.into_iter().filter_map(NodeEnd::unprepared));
    waits.next().map(Missing::Answer)
}

/// A number for the set of Nodes that were taken off and for which Calico has to choose: another one for another set; `None` where there
/// is none. A pool that changes wakes every calico-node of the cluster.
fn round(nodes: &[NodeEnd<'_>]) -> Option<u32> {
    let mut names: Vec<&str> = nodes
        .iter()
        .filter(|node| node.off && (node.in_left || node.wireguard_in_left))
        .map(|node| node.name)
        .collect();
    names.sort_unstable();
    let digest = Sha256::digest(names.join(" ").as_bytes());
    (!names.is_empty()).then(|| u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use calico::Allocation;

    fn node(name: &'static str) -> NodeEnd<'static> {
        NodeEnd {
            name,
            ready: true,
            off: false,
            in_left: true,
            calico_ready: true,
            overdue: None,
            keeping: Keeping::NotYet("its agent does not keep 10.244.1.0 yet".to_owned()),
            wireguard_in_left: false,
        }
    }

    fn next(nodes: &[NodeEnd<'_>], spec: &Value) -> Option<Missing> {
        missing(nodes, Which::Old, spec, "all()", 1, gets)
    }

    /// What the tunnel of this node gets.
    fn gets(node: &str) -> BTreeMap<String, Held> {
        let held = Held {
            node: node.to_owned(),
            block: "10.200.1.0/26".parse().unwrap(),
            allocation: Allocation {
                address: "10.200.1.63".parse().unwrap(),
                handle: format!("vxlan-tunnel-addr-{node}"),
                attributes: BTreeMap::new(),
            },
        };
        BTreeMap::from([("IPv4VXLANTunnelAddr".to_owned(), held)])
    }

    /// Each node gets what was chosen for it: nobody has to look at pools, and none changes.
    #[test]
    fn one_after_the_other_until_none_is_left() {
        let nodes = ["a", "b", "c"];
        assert_eq!(exchanged(nodes.map(node), &nodes), nodes);
    }

    /// Where there is nothing to choose from, Calico does, once the pool says so.
    #[test]
    fn one_after_the_other_by_calicos_choice() {
        let story = exchanged([node("a"), node("b"), node("c")], &[]);
        assert_eq!(story, ["a", "round", "b", "round", "c", "round"]);
    }

    /// A node whose agent says nonsense goes last, whatever its name is, and is named then.
    #[test]
    fn one_that_cannot_go_keeps_no_other_one_from_going() {
        let odd = NodeEnd {
            keeping: Keeping::NotYet("what its agent reports is not understood".to_owned()),
            ..node("a")
        };
        let ready = |name| NodeEnd {
            keeping: Keeping::Done,
            ..node(name)
        };
        let spec = json!({ "nodeSelector": "all()" });
        let next = |nodes: &[NodeEnd<'_>]| missing(nodes, Which::Old, &spec, "all()", 1, gets);
        let off = |name: &str| Off {
            node: name.to_owned(),
            ends: gets(name),
        };
        let taken = next(&[odd.clone(), ready("b"), ready("c")]);
        assert_eq!(
            taken,
            Some(Missing::Step(Step::TakeOff(Which::Old, vec![off("b")])))
        );
        let Some(Missing::Answer(wait)) = next(&[odd]) else {
            panic!("it is waited for");
        };
        assert!(
            wait.message.starts_with("node a: what its agent reports"),
            "{}",
            wait.message
        );
    }

    /// What a node lacks is waited for, and where it counts as away nothing waits for it.
    #[test]
    fn what_one_node_lacks_holds_others_until_it_counts_as_away() {
        let done = || NodeEnd {
            keeping: Keeping::Done,
            ..node("b")
        };
        let off = |keeping, in_left, calico_ready| NodeEnd {
            off: true,
            in_left,
            keeping,
            calico_ready,
            ..node("a")
        };
        let exchanging = || Keeping::Exchanging("calico-node has 10.244.1.0 still".to_owned());
        let spec = json!({ "nodeSelector": "all()" });
        for odd in [
            off(exchanging(), false, true),
            off(Keeping::Done, false, false),
            off(
                Keeping::NotYet("its agent has not answered".to_owned()),
                false,
                true,
            ),
        ] {
            let lacks = odd.lacks(false).expect("it lacks something");
            assert!(lacks.message.contains("node a"), "{}", lacks.message);
            assert_eq!(odd.lacks(true), None, "{odd:?}");
            assert_eq!(next(&[odd.clone(), done()], &spec), Some(Missing::Answer(lacks)));
            let away = NodeEnd { ready: false, ..odd };
            assert_eq!(away.lacks(false), None);
            let Some(Missing::Step(Step::TakeOff(Which::Old, taken))) = next(&[away, done()], &spec) else {
                panic!("the other one goes");
            };
            assert_eq!(taken[0].node, "b");
        }
        // Its end stays, and so it does once the pool is closed.
        let stays = off(Keeping::Done, true, true);
        assert!(stays.lacks(false).is_some() && stays.lacks(true).is_some());
        // It waits for its turn, and lacks nothing before.
        assert_eq!(done().lacks(false), None);
        assert!(done().lacks(true).is_some());
        assert!(
            node("a").lacks(false).is_some(),
            "its agent does not keep the address"
        );
    }

    #[test]
    fn wireguard_is_exchanged_by_calico() {
        let of_wireguard = NodeEnd {
            wireguard_in_left: true,
            ..node("a")
        };
        let story = exchanged([of_wireguard, node("b")], &["a"]);
        assert_eq!(story, ["a", "round", "b", "round"]);
    }

    /// Nodes as they are made to be: never two at once, and each after the one before is well again. What is done, in order; `given` are
    /// those whose tunnels get an address.
    fn exchanged<const COUNT: usize>(mut nodes: [NodeEnd<'static>; COUNT], given: &[&str]) -> Vec<String> {
        let chosen = |node: &str| {
            let is_given = given.contains(&node);
            if is_given { gets(node) } else { BTreeMap::new() }
        };
        let next = |nodes: &[NodeEnd<'_>], spec: &Value| missing(nodes, Which::Old, spec, "all()", 1, chosen);
        let mut spec = json!({ "nodeSelector": "all()" });
        let mut story = Vec::new();
        for _ in 0..40 {
            match next(&nodes, &spec) {
                None => break,
                Some(Missing::Step(Step::Narrow(Which::Old, round))) => {
                    story.push("round".to_owned());
                    let change = pools::narrowing(&spec, "all()", "old", round).unwrap();
                    spec["nodeSelector"] = change["nodeSelector"].clone();
                }
                Some(Missing::Step(Step::TakeOff(Which::Old, taken))) => {
                    let is_given = taken.iter().all(|off| !off.ends.is_empty());
                    let names: Vec<String> = taken.into_iter().map(|off| off.node).collect();
                    assert!(nodes.iter().all(|node| !node.off
                        || (!node.in_left && node.calico_ready && node.keeping == Keeping::Done)));
                    assert_eq!(names.len(), 1);
                    story.push(names[0].clone());
                    let node = nodes.iter_mut().find(|node| node.name == names[0]).unwrap();
                    assert_eq!(node.keeping, Keeping::Done, "{}", node.name);
                    node.off = true;
                    // The Node says at once what it was given.
                    node.in_left = !is_given;
                    if !node.in_left {
                        node.keeping = Keeping::NotYet("its agent is told of it".to_owned());
                    }
                }
                Some(Missing::Answer(_)) => {
                    // Calico looks once the pool has changed; its Felix starts anew, and is Ready a moment later.
                    let on_its_way = nodes.iter().position(|node| node.on_its_way().is_some());
                    let Some(place) = on_its_way else {
                        // Every agent was told at the same time.
                        for node in &mut nodes {
                            node.keeping = Keeping::Done;
                        }
                        continue;
                    };
                    let node = &mut nodes[place];
                    node.wireguard_in_left = false;
                    // Its readiness is the one from before until its agent has seen more.
                    match node.keeping {
                        _ if node.in_left => {
                            node.in_left = false;
                            node.keeping = Keeping::NotYet("its agent is told of it".to_owned());
                        }
                        Keeping::NotYet(_) => {
                            node.keeping = Keeping::Exchanging("calico-node has 10.244.1.0 still".to_owned());
                        }
                        Keeping::Exchanging(_) => (node.keeping, node.calico_ready) = (Keeping::Done, false),
                        Keeping::Done => node.calico_ready = true,
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(next(&nodes, &spec), None);
        story
    }

    const LEFT: &str = "10.244.0.0/16";

    fn end(kept: &str, address: &str) -> TunnelEnd {
        TunnelEnd {
            name: "IPv4VXLANTunnelAddr".to_owned(),
            kept: kept.parse().unwrap(),
            address: Some(address.parse().unwrap()),
        }
    }

    /// The tunnel has this address.
    fn at(address: &str) -> Ends {
        Ends::from([("IPv4VXLANTunnelAddr".to_owned(), address.parse().unwrap())])
    }

    #[test]
    fn an_agent_is_told_what_it_keeps_until_nobody_asks() {
        let left = LEFT.parse().unwrap();
        let mut now = at("10.244.1.0");
        now.insert("IPv6VXLANTunnelAddr".to_owned(), "fd00::1".parse().unwrap());
        let told = |before: &[TunnelEnd], now: &Ends, left: &IpNet| {
            let ends = told(before, now, left, |_| false);
            assert!(is_told(&ends, now, left), "{ends:?}");
            ends
        };
        let first = told(&[], &now, &left);
        assert!(!is_told(&[], &now, &left));
        assert_eq!(first, [end("10.244.1.0", "10.244.1.0")]);
        now.extend(at("10.200.1.0"));
        assert!(!is_told(&first, &now, &left));
        let second = told(&first, &now, &left);
        assert_eq!(second, [end("10.244.1.0", "10.200.1.0")]);
        assert_eq!(told(&second, &now, &left), second);
        // On the way back the other range is left: what was kept of the old one is not asked for any more.
        assert_eq!(
            told(&second, &now, &"10.200.0.0/16".parse().unwrap()),
            [end("10.200.1.0", "10.200.1.0")]
        );
        let gone = told(&second, &Ends::new(), &left);
        assert_eq!(gone[0].address, None);
        assert_eq!(told(&[], &Ends::new(), &left), []);
    }

    /// Somebody turns around, once and again: what a tunnel had is kept until it has it again.
    #[test]
    fn an_address_of_the_range_that_is_led_to_is_kept_until_the_tunnel_has_it_again() {
        let (old, new): (IpNet, IpNet) = (LEFT.parse().unwrap(), "10.200.0.0/16".parse().unwrap());
        let (on_old, on_new) = (at("10.244.1.0"), at("10.200.1.0"));
        let there = told(&[end("10.244.1.0", "10.244.1.0")], &on_new, &old, |_| true);
        assert_eq!(there, [end("10.244.1.0", "10.200.1.0")]);
        let mut returns = end("10.244.1.0", "0.0.0.0");
        returns.address = None;
        let back = told(&there, &on_new, &new, |_| true);
        assert_eq!(back, [end("10.200.1.0", "10.200.1.0"), returns]);
        assert_eq!(told(&back, &on_new, &new, |_| true), back);
        // Somebody else has it by now.
        assert_eq!(told(&back, &on_new, &new, |_| false).len(), 1);
        let returned = told(&back, &on_old, &new, |_| true);
        assert_eq!(returned, [end("10.200.1.0", "10.244.1.0")]);
        // Calico has given it another one there: its own is anybody's by now.
        let other = told(&back, &at("10.244.1.9"), &new, |_| true);
        assert_eq!(other, [end("10.200.1.0", "10.244.1.9")]);
        // There again, before anything has changed, and after.
        assert_eq!(told(&back, &on_new, &old, |_| true), there);
        let again = told(&returned, &on_old, &old, |_| true);
        assert_eq!(again.len(), 2);
        assert_eq!(again[0], end("10.244.1.0", "10.244.1.0"));
        assert_eq!(again[1].kept.to_string(), "10.200.1.0");
    }

    /// Before v3.31.6 neither labels nor selectors make calico-node look again.
    #[test]
    fn a_calico_node_that_does_not_look_again_is_started_again() {
        let pod = PodName {
            namespace: "kube-system".to_owned(),
            name: "calico-node-a".to_owned(),
            uid: "1".to_owned(),
        };
        let late = NodeEnd {
            off: true,
            overdue: Some(pod.clone()),
            ..node("a")
        };
        let mut spec = json!({ "nodeSelector": "all()" });
        // Not before it can have seen the selector.
        let Some(Missing::Step(Step::Narrow(Which::Old, round))) = next(&[late.clone(), node("b")], &spec)
        else {
            panic!("it is not narrowed");
        };
        spec["nodeSelector"] = pools::narrowing(&spec, "all()", "old", round).unwrap()["nodeSelector"].take();
        assert_eq!(
            next(&[late.clone(), node("b")], &spec),
            Some(Missing::Step(Step::RestartCalicoNode(pod)))
        );
        let away = NodeEnd { ready: false, ..late };
        assert!(!matches!(
            next(&[away, node("b")], &spec),
            Some(Missing::Step(Step::RestartCalicoNode(_)))
        ));
    }

    #[test]
    fn a_cluster_without_tunnels_has_none_to_move() {
        let nodes = [NodeEnd {
            in_left: false,
            keeping: Keeping::Done,
            ..node("a")
        }];
        assert_eq!(next(&nodes, &json!({})), None);
    }

    #[test]
    fn a_node_that_is_away_keeps_nobody_waiting() {
        let away = NodeEnd {
            ready: false,
            ..node("b")
        };
        let done = NodeEnd {
            off: true,
            in_left: false,
            keeping: Keeping::Done,
            ..node("a")
        };
        assert_eq!(next(&[done, away], &json!({})), None);
    }
}
