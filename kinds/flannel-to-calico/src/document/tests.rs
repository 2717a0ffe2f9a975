use super::*;
use crate::checks::fixture;

#[test]
fn twins_of_other_programs_rules_are_in_the_plan_if_agents_write_them() {
    let facts = fixture::cluster();
    let actions = |firewall_twins| {
        let kind = FlannelToCalico {
            firewall_twins,
            ..by(Strategy::Drain)
        };
        let document = document(&kind, &fixture::settings(), &facts, "");
        document.nodes[0].actions[0].object.clone()
    };
    assert_eq!(actions(FirewallTwins::Write), "firewall of the host");
    assert_ne!(actions(FirewallTwins::Refuse), "firewall of the host");
}

fn by(strategy: Strategy) -> FlannelToCalico {
    FlannelToCalico {
        strategy,
        ..FlannelToCalico::default()
    }
}

fn lines(actions: &[Action]) -> Vec<String> {
    let mut lines = Vec::new();
    for action in actions {
        lines.push(format!("{} {}: {}", action.verb, action.object, action.detail));
    }
    lines
}

fn find<'lines>(lines: &'lines [String], start: &str) -> Vec<&'lines str> {
    let found = lines.iter().filter(|line| line.starts_with(start));
    found.map(String::as_str).collect()
}

#[test]
fn a_plan_for_ipv4_only_does_not_mention_ipv6() {
    for strategy in [Strategy::Drain, Strategy::InPlace] {
        let facts = fixture::cluster();
        let plan = document(&by(strategy), &fixture::settings(), &facts, "");
        let nodes = plan.nodes.iter().flat_map(|node| &node.actions);
        let all: Vec<Action> = plan
            .before_first_node()
            .chain(nodes)
            .chain(&plan.finish)
            .cloned()
            .collect();
        let text = lines(&all).join("\n");
        for word in ["v6", "V6", "8282", "/128"] {
            assert!(!text.contains(word), "{strategy:?}: {word} in\n{text}");
        }
    }
}

#[test]
fn ipam_blocks_are_created_in_the_plan_of_their_node() {
    let facts = fixture::cluster();
    let plan = document(&by(Strategy::Drain), &fixture::settings(), &facts, "");
    assert!(
        !lines(&plan.prepare)
            .iter()
            .any(|line| line.contains("IPAM blocks"))
    );
    for node in &plan.nodes {
        let start = format!("create IPAM blocks of node {}: ", node.node);
        assert_eq!(find(&lines(&node.prepare), &start).len(), 1, "{:?}", node.prepare);
    }
}

#[test]
fn in_place_renames_both_tunnels_after_the_routes_to_subnets() {
    let (settings, facts) = fixture::dual_stack();
    let plan = document(&by(Strategy::InPlace), &settings, &facts, "");
    let node = lines(&plan.nodes[0].actions);
    assert_eq!(
        find(&node, "rename host a"),
        [
            "rename host a: flannel.1 becomes vxlan.calico while it carries packets",
            "rename host a: flannel-v6.1 becomes vxlan-v6.calico while it carries packets"
        ]
    );
    let of = |part: &str| node.iter().position(|line| line.contains(part)).unwrap();
    assert!(of("table 8282") < of("flannel-v6.1 becomes"), "{node:#?}");
    assert!(of("/128") < of("flannel.1 becomes"), "{node:#?}");
    let finish = lines(&plan.finish);
    assert!(
        finish[1].starts_with("unroute 3 hosts: table 8282"),
        "{finish:#?}"
    );
    let prepare = lines(&plan.prepare);
    let felix = find(&prepare, "patch FelixConfiguration");
    assert!(felix[0].contains("vxlanMTU 1450, vxlanMTUV6 1430, ipv6Support true"));
}

#[test]
fn a_drain_with_ipv6_adds_routes_to_subnets_before_it_renames_the_tunnels() {
    let (settings, facts) = fixture::dual_stack();
    let plan = document(&by(Strategy::Drain), &settings, &facts, "");
    let node = lines(&plan.nodes[0].actions);
    let of = |part: &str| node.iter().position(|line| line.contains(part)).unwrap();
    let order = [
        "table 8282",
        "flannel-v6.1 becomes vxlan-v6.calico",
        "cni0",
        "=calico",
        "probe",
    ];
    assert!(order.map(of).is_sorted(), "{node:#?}");
    assert!(of("flannel.1 becomes vxlan.calico") < of("cni0"), "{node:#?}");
}

#[test]
fn the_soak_comes_before_the_point_of_no_return() {
    let (settings, facts) = (fixture::settings(), fixture::cluster());
    let finish = |soak_seconds| {
        let kind = FlannelToCalico {
            soak_seconds,
            ..by(Strategy::Drain)
        };
        lines(&document(&kind, &settings, &facts, "").finish)
    };
    let keep = "keep DaemonSet kube-flannel/kube-flannel-ds: for ";
    for (soak_seconds, time) in [(None, "86400 s"), (Some(600), "600 s")] {
        let finish = finish(soak_seconds);
        assert!(finish[0].starts_with(&format!("{keep}{time}")), "{finish:#?}");
        let end = finish.iter().position(|line| line.contains("point of no return"));
        assert!(end > Some(0), "{finish:#?}");
    }
    assert!(find(&finish(Some(0)), keep).is_empty());
}
