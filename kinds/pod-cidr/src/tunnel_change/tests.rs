use serde_json::json;

use super::*;
use calico::Allocation;

fn node(name: &'static str) -> NodeTunnels<'static> {
    NodeTunnels {
        name,
        ready: true,
        removed: false,
        in_source: true,
        calico_ready: true,
        overdue: None,
        keeping: Keeping::NotYet("its agent does not keep 10.244.1.0 yet".to_owned()),
        wireguard_in_source: false,
    }
}

fn next(nodes: &[NodeTunnels<'_>], spec: &Value) -> Option<Unmet> {
    missing(nodes, PoolRole::Old, spec, "all()", 1, gets)
}

/// The new tunnel address of this node.
fn gets(node: &str) -> BTreeMap<String, TunnelAllocation> {
    let held = TunnelAllocation {
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

/// Each node gets the address that was chosen for it: no pool changes.
#[test]
fn nodes_get_chosen_addresses_one_after_the_other() {
    let nodes = ["a", "b", "c"];
    assert_eq!(exchanged(nodes.map(node), &nodes), nodes);
}

/// Without an address to choose, Calico chooses after a change of the pool.
#[test]
fn calico_chooses_one_node_after_the_other() {
    let story = exchanged([node("a"), node("b"), node("c")], &[]);
    assert_eq!(story, ["a", "round", "b", "round", "c", "round"]);
}

/// A node whose agent sends an invalid report comes last, whatever its name is, and is then named.
#[test]
fn an_unprepared_node_does_not_delay_other_nodes() {
    let odd = NodeTunnels {
        keeping: Keeping::NotYet("the report of its agent is invalid".to_owned()),
        ..node("a")
    };
    let ready = |name| NodeTunnels {
        keeping: Keeping::Done,
        ..node(name)
    };
    let spec = json!({ "nodeSelector": "all()" });
    let next = |nodes: &[NodeTunnels<'_>]| missing(nodes, PoolRole::Old, &spec, "all()", 1, gets);
    let off = |name: &str| RemovedNode {
        node: name.to_owned(),
        ends: gets(name),
    };
    let taken = next(&[odd.clone(), ready("b"), ready("c")]);
    assert_eq!(
        taken,
        Some(Unmet::Step(Step::RemoveNodes(PoolRole::Old, vec![off("b")])))
    );
    let Some(Unmet::Answer(wait)) = next(&[odd]) else {
        panic!("no wait for the unprepared node");
    };
    assert!(
        wait.message.starts_with("node a: the report of its agent"),
        "{}",
        wait.message
    );
}

/// Other nodes wait for a node in progress, and do not wait for a node that is not Ready.
#[test]
fn a_node_in_progress_delays_others_unless_it_is_not_ready() {
    let done = || NodeTunnels {
        keeping: Keeping::Done,
        ..node("b")
    };
    let off = |keeping, in_left, calico_ready| NodeTunnels {
        removed: true,
        in_source: in_left,
        keeping,
        calico_ready,
        ..node("a")
    };
    let exchanging = || Keeping::Changing("calico-node still has 10.244.1.0".to_owned());
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
        let lacks = odd.wait_of_node(false).expect("a reason to wait");
        assert!(lacks.message.contains("node a"), "{}", lacks.message);
        assert_eq!(odd.wait_of_node(true), None, "{odd:?}");
        assert_eq!(next(&[odd.clone(), done()], &spec), Some(Unmet::Answer(lacks)));
        let away = NodeTunnels { ready: false, ..odd };
        assert_eq!(away.wait_of_node(false), None);
        let Some(Unmet::Step(Step::RemoveNodes(PoolRole::Old, taken))) = next(&[away, done()], &spec) else {
            panic!("the other node is not removed");
        };
        assert_eq!(taken[0].node, "b");
    }
    // Its tunnel address stays, also once the pool is closed.
    let stays = off(Keeping::Done, true, true);
    assert!(stays.wait_of_node(false).is_some() && stays.wait_of_node(true).is_some());
    // Before its turn, no node waits for it.
    assert_eq!(done().wait_of_node(false), None);
    assert!(done().wait_of_node(true).is_some());
    assert!(
        node("a").wait_of_node(false).is_some(),
        "its agent does not keep the address"
    );
}

#[test]
fn calico_chooses_for_a_node_with_wireguard() {
    let of_wireguard = NodeTunnels {
        wireguard_in_source: true,
        ..node("a")
    };
    let story = exchanged([of_wireguard, node("b")], &["a"]);
    assert_eq!(story, ["a", "round", "b", "round"]);
}

/// Runs all steps and returns them in order: never two nodes at once, and each after the previous one is done. `given` are
/// the nodes whose tunnels get a chosen address.
fn exchanged<const COUNT: usize>(mut nodes: [NodeTunnels<'static>; COUNT], given: &[&str]) -> Vec<String> {
    let chosen = |node: &str| {
        let is_given = given.contains(&node);
        if is_given { gets(node) } else { BTreeMap::new() }
    };
    let next =
        |nodes: &[NodeTunnels<'_>], spec: &Value| missing(nodes, PoolRole::Old, spec, "all()", 1, chosen);
    let mut spec = json!({ "nodeSelector": "all()" });
    let mut story = Vec::new();
    for _ in 0..40 {
        match next(&nodes, &spec) {
            None => break,
            Some(Unmet::Step(Step::Narrow(PoolRole::Old, round))) => {
                story.push("round".to_owned());
                let change = pools::patch_narrowed(&spec, "all()", "old", round).unwrap();
                spec["nodeSelector"] = change["nodeSelector"].clone();
            }
            Some(Unmet::Step(Step::RemoveNodes(PoolRole::Old, taken))) => {
                let is_given = taken.iter().all(|off| !off.ends.is_empty());
                let names: Vec<String> = taken.into_iter().map(|off| off.node).collect();
                assert!(nodes.iter().all(|node| !node.removed
                    || (!node.in_source && node.calico_ready && node.keeping == Keeping::Done)));
                assert_eq!(names.len(), 1);
                story.push(names[0].clone());
                let node = nodes.iter_mut().find(|node| node.name == names[0]).unwrap();
                assert_eq!(node.keeping, Keeping::Done, "{}", node.name);
                node.removed = true;
                // The Node has the chosen address at once.
                node.in_source = !is_given;
                if !node.in_source {
                    node.keeping = Keeping::NotYet("its agent has not reported".to_owned());
                }
            }
            Some(Unmet::Answer(_)) => {
                // Calico reacts to the change of the pool. Felix restarts, and is Ready a moment later.
                let in_progress = nodes.iter().position(|node| node.wait_until_changed().is_some());
                let Some(place) = in_progress else {
                    // All agents got their lists at the same time.
                    for node in &mut nodes {
                        node.keeping = Keeping::Done;
                    }
                    continue;
                };
                let node = &mut nodes[place];
                node.wireguard_in_source = false;
                // The readiness is outdated until the agent has reported.
                match node.keeping {
                    _ if node.in_source => {
                        node.in_source = false;
                        node.keeping = Keeping::NotYet("its agent has not reported".to_owned());
                    }
                    Keeping::NotYet(_) => {
                        node.keeping = Keeping::Changing("calico-node still has 10.244.1.0".to_owned());
                    }
                    Keeping::Changing(_) => (node.keeping, node.calico_ready) = (Keeping::Done, false),
                    Keeping::Done => node.calico_ready = true,
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next(&nodes, &spec), None);
    story
}

const OLD: &str = "10.244.0.0/16";

fn end(kept: &str, address: &str) -> ChangedTunnelAddress {
    ChangedTunnelAddress {
        name: "IPv4VXLANTunnelAddr".to_owned(),
        old: kept.parse().unwrap(),
        new: Some(address.parse().unwrap()),
    }
}

/// A node whose tunnel has this address.
fn at(address: &str) -> TunnelAddresses {
    TunnelAddresses::from([("IPv4VXLANTunnelAddr".to_owned(), address.parse().unwrap())])
}

#[test]
fn an_agent_keeps_the_old_address_while_it_is_in_the_source_range() {
    let source = OLD.parse().unwrap();
    let mut now = at("10.244.1.0");
    now.insert("IPv6VXLANTunnelAddr".to_owned(), "fd00::1".parse().unwrap());
    let told = |before: &[ChangedTunnelAddress], now: &TunnelAddresses, source: &IpNet| {
        let ends = tunnel_ends(before, now, source, |_| false);
        assert!(covers_tunnel_addresses(&ends, now, source), "{ends:?}");
        ends
    };
    let first = told(&[], &now, &source);
    assert!(!covers_tunnel_addresses(&[], &now, &source));
    assert_eq!(first, [end("10.244.1.0", "10.244.1.0")]);
    now.extend(at("10.200.1.0"));
    assert!(!covers_tunnel_addresses(&first, &now, &source));
    let second = told(&first, &now, &source);
    assert_eq!(second, [end("10.244.1.0", "10.200.1.0")]);
    assert_eq!(told(&second, &now, &source), second);
    // In a rollback the new range is the source: addresses of the old range are no longer kept.
    assert_eq!(
        told(&second, &now, &"10.200.0.0/16".parse().unwrap()),
        [end("10.200.1.0", "10.200.1.0")]
    );
    let gone = told(&second, &TunnelAddresses::new(), &source);
    assert_eq!(gone[0].new, None);
    assert_eq!(told(&[], &TunnelAddresses::new(), &source), []);
}

/// The user rolls back, and forward again: a former tunnel address is kept until the tunnel has it again.
#[test]
fn a_former_address_of_the_target_range_is_kept_until_the_tunnel_has_it_again() {
    let (old, new): (IpNet, IpNet) = (OLD.parse().unwrap(), "10.200.0.0/16".parse().unwrap());
    let (on_old, on_new) = (at("10.244.1.0"), at("10.200.1.0"));
    let there = tunnel_ends(&[end("10.244.1.0", "10.244.1.0")], &on_new, &old, |_| true);
    assert_eq!(there, [end("10.244.1.0", "10.200.1.0")]);
    let mut returns = end("10.244.1.0", "0.0.0.0");
    returns.new = None;
    let back = tunnel_ends(&there, &on_new, &new, |_| true);
    assert_eq!(back, [end("10.200.1.0", "10.200.1.0"), returns]);
    assert_eq!(tunnel_ends(&back, &on_new, &new, |_| true), back);
    // The address has another holder.
    assert_eq!(tunnel_ends(&back, &on_new, &new, |_| false).len(), 1);
    let returned = tunnel_ends(&back, &on_old, &new, |_| true);
    assert_eq!(returned, [end("10.200.1.0", "10.244.1.0")]);
    // Calico has chosen another address of the target range: a pod may have the former one.
    let other = tunnel_ends(&back, &at("10.244.1.9"), &new, |_| true);
    assert_eq!(other, [end("10.200.1.0", "10.244.1.9")]);
    // Forward again, before anything has changed, and after.
    assert_eq!(tunnel_ends(&back, &on_new, &old, |_| true), there);
    let again = tunnel_ends(&returned, &on_old, &old, |_| true);
    assert_eq!(again.len(), 2);
    assert_eq!(again[0], end("10.244.1.0", "10.244.1.0"));
    assert_eq!(again[1].old.to_string(), "10.200.1.0");
}

/// Before v3.31.6 calico-node reacts neither to labels nor to selectors.
#[test]
fn a_calico_node_that_does_not_react_is_restarted() {
    let pod = PodName {
        namespace: "kube-system".to_owned(),
        name: "calico-node-a".to_owned(),
        uid: "1".to_owned(),
    };
    let late = NodeTunnels {
        removed: true,
        overdue: Some(pod.clone()),
        ..node("a")
    };
    let mut spec = json!({ "nodeSelector": "all()" });
    // The restart comes after the change of the selector.
    let Some(Unmet::Step(Step::Narrow(PoolRole::Old, round))) = next(&[late.clone(), node("b")], &spec)
    else {
        panic!("the pool is not narrowed");
    };
    spec["nodeSelector"] =
        pools::patch_narrowed(&spec, "all()", "old", round).unwrap()["nodeSelector"].take();
    assert_eq!(
        next(&[late.clone(), node("b")], &spec),
        Some(Unmet::Step(Step::RestartCalicoNode(pod)))
    );
    let away = NodeTunnels { ready: false, ..late };
    assert!(!matches!(
        next(&[away, node("b")], &spec),
        Some(Unmet::Step(Step::RestartCalicoNode(_)))
    ));
}

#[test]
fn a_cluster_without_tunnels_needs_no_step() {
    let nodes = [NodeTunnels {
        in_source: false,
        keeping: Keeping::Done,
        ..node("a")
    }];
    assert_eq!(next(&nodes, &json!({})), None);
}

#[test]
fn a_node_that_is_not_ready_delays_no_node() {
    let away = NodeTunnels {
        ready: false,
        ..node("b")
    };
    let done = NodeTunnels {
        removed: true,
        in_source: false,
        keeping: Keeping::Done,
        ..node("a")
    };
    assert_eq!(next(&[done, away], &json!({})), None);
}
