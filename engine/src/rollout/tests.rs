use proptest::prelude::*;
use rstest::rstest;

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn rules(limit: u32) -> Rules {
    Rules {
        max_unavailable: MaxUnavailable::Nodes(limit),
        canary_nodes: 0,
        canary_soak: SignedDuration::ZERO,
        interval: SignedDuration::ZERO,
        paused: false,
        hold: None,
        clean_since: None,
    }
}

fn node(name: &str, standing: NodeProgress) -> RolloutNode<'_> {
    RolloutNode {
        name,
        standing,
        ready: true,
        on_old: true,
        is_backing_off: false,
        tries: 0,
    }
}

#[rstest]
#[case("1", Some(1))]
#[case("3", Some(3))]
#[case("10%", Some(1))]
#[case("25%", Some(2))]
#[case("100%", Some(5))]
#[case("0", None)]
#[case("0%", None)]
#[case("101%", None)]
#[case("-1", None)]
#[case("two", None)]
fn max_unavailable_is_resolved_for_five_nodes(#[case] text: &str, #[case] limit: Option<usize>) {
    assert_eq!(MaxUnavailable::parse(text).ok().map(|max| max.resolve(5)), limit);
}

#[test]
fn a_node_that_is_not_ready_counts_against_the_limit() {
    let mut nodes = [node("a", NodeProgress::Waiting), node("b", NodeProgress::Waiting)];
    nodes[1].ready = false;
    assert_eq!(admit(&nodes, &rules(1), NOW).start, Vec::<&str>::new());
    assert_eq!(admit(&nodes, &rules(2), NOW).start, ["a"]);
}

#[test]
fn a_waiting_node_names_the_nodes_in_progress() {
    let nodes = [
        node("a", NodeProgress::Working),
        node("b", NodeProgress::Waiting),
        node("c", NodeProgress::Waiting),
    ];
    // A node that starts now is in progress, too.
    let message = admit(&nodes, &rules(2), NOW).held.unwrap().message;
    assert_eq!(
        message,
        "node c waits for its turn: maxUnavailable is 2; in progress or NotReady: a, b"
    );
}

#[test]
fn canaries_start_alone_and_soak() {
    let canary = Rules {
        canary_nodes: 1,
        canary_soak: SignedDuration::from_secs(60),
        ..rules(3)
    };
    let fresh = [node("a", NodeProgress::Waiting), node("b", NodeProgress::Waiting)];
    assert_eq!(admit(&fresh, &canary, NOW).start, ["a"]);
    let soaking = [
        node("a", NodeProgress::Done(NOW)),
        node("b", NodeProgress::Waiting),
    ];
    let held = admit(&soaking, &canary, NOW).held.unwrap();
    assert_eq!(held.reason, WaitReason::CanarySoak);
    assert_eq!(
        admit(&soaking, &canary, NOW + SignedDuration::from_secs(60)).start,
        ["b"]
    );
}

#[test]
fn a_halted_node_stops_new_starts() {
    let nodes = [node("a", NodeProgress::Halted), node("b", NodeProgress::Waiting)];
    let admission = admit(&nodes, &rules(2), NOW);
    assert!(admission.start.is_empty());
    assert_eq!(admission.held.unwrap().message, "node a is halted");
}

#[test]
fn a_node_that_fell_back_stops_new_starts() {
    let nodes = [
        node("a", NodeProgress::FellBack),
        node("b", NodeProgress::Waiting),
    ];
    assert!(admit(&nodes, &rules(2), NOW).start.is_empty());
}

#[test]
fn a_skipped_node_comes_after_all_others() {
    let nodes = [node("a", NodeProgress::Skipped), node("b", NodeProgress::Waiting)];
    assert_eq!(admit(&nodes, &rules(2), NOW).start, ["b"]);
    let nodes = [node("a", NodeProgress::Skipped), node("b", NodeProgress::Working)];
    assert!(admit(&nodes, &rules(2), NOW).start.is_empty());
    let nodes = [
        node("a", NodeProgress::Skipped),
        node("b", NodeProgress::Done(NOW)),
    ];
    assert_eq!(admit(&nodes, &rules(2), NOW).start, ["a"]);
}

#[test]
fn a_released_node_takes_no_slot_and_is_tried_again() {
    let mut nodes = [
        node("a", NodeProgress::Skipped),
        node("b", NodeProgress::Skipped),
        node("c", NodeProgress::Waiting),
    ];
    nodes[0].is_backing_off = true;
    nodes[2].is_backing_off = true;
    assert_eq!(admit(&nodes, &rules(1), NOW).start, ["b"]);
    nodes[1].is_backing_off = true;
    let admission = admit(&nodes, &rules(1), NOW);
    assert_eq!((admission.start, admission.held), (Vec::new(), None));
    (nodes[0].is_backing_off, nodes[1].is_backing_off) = (false, false);
    assert_eq!(admit(&nodes, &rules(1), NOW).start, ["a"]);
    (nodes[0].tries, nodes[1].tries) = (2, 1);
    assert_eq!(admit(&nodes, &rules(1), NOW).start, ["b"]);
}

#[test]
fn a_kept_node_does_not_start_and_is_named() {
    let nodes = [
        node("a", NodeProgress::KeptOnOld),
        node("b", NodeProgress::Done(NOW)),
    ];
    let admission = admit(&nodes, &rules(1), NOW);
    assert!(admission.start.is_empty());
    let message = admission.held.unwrap().message;
    assert_eq!(message, "kept on the old network by rollbackNodes: a");
}

fn standing() -> impl Strategy<Value = NodeProgress> {
    prop_oneof![
        Just(NodeProgress::Waiting),
        Just(NodeProgress::Skipped),
        Just(NodeProgress::Working),
        Just(NodeProgress::Returning),
        Just(NodeProgress::KeptOnOld),
        Just(NodeProgress::Done(NOW)),
    ]
}

proptest! {
    /// R9: in any state, nodes that start now never exceed the limit.
    #[test]
    fn started_nodes_never_exceed_the_limit(
        nodes in proptest::collection::vec((standing(), any::<bool>(), any::<bool>()), 1..12),
        limit in 1u32..6,
    ) {
        let names: Vec<String> = (0..nodes.len()).map(|index| format!("n{index}")).collect();
        let nodes: Vec<RolloutNode<'_>> = nodes.iter().zip(&names)
            .map(|((standing, ready, rests), name)| RolloutNode {
                name, standing: *standing, ready: *ready, on_old: true, is_backing_off: *rests, tries: 0,
            })
            .collect();
        let before = nodes.iter().filter(|node| is_unavailable(node)).count();
        let admission = admit(&nodes, &rules(limit), NOW);
        prop_assert!(admission.start.is_empty() || before + admission.start.len() <= limit as usize);
        for name in &admission.start {
            let node = nodes.iter().find(|node| &node.name == name).unwrap();
            prop_assert!(node.ready && !node.is_backing_off);
        }
    }
}
