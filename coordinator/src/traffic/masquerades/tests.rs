use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fake_api::FakeApi;

const OLD: &str = "10.244.1.9";
const NEW: &str = "10.200.1.9";
const NODE: &str = "192.0.2.7";

/// A flow from the pod with this UID to an address of the other end.
fn flow(class: PathClass, source: &str) -> Flow {
    Flow {
        class,
        source: source.to_owned(),
        to: "Service replumb-system/replumb-traffic".to_owned(),
        address: "10.96.0.7".parse().unwrap(),
        port: 9812,
        pod_uid: None,
    }
}

fn senders() -> BTreeMap<&'static str, Sender> {
    let sender = |generation, address: &str| Sender {
        generation,
        addresses: vec![address.parse().unwrap()],
    };
    [
        ("old-a", sender(Generation::Old, OLD)),
        ("new-a", sender(Generation::New, NEW)),
        ("old-b", sender(Generation::Old, OLD)),
        ("new-b", sender(Generation::New, NEW)),
    ]
    .into()
}

/// Flows with the end of their pods, and whether their packets are masqueraded.
type Seen<'flows> = &'flows [(PathClass, &'static str, bool)];

/// The wait, where each node has these flows.
fn judge(nodes: &[(&str, Seen<'_>)]) -> Option<Wait> {
    let api = FakeApi::default();
    let mut flows = BTreeMap::new();
    for (node, seen) in nodes {
        let of_node: Vec<Flow> = seen
            .iter()
            .map(|(class, source, _)| flow(*class, source))
            .collect();
        let masquerades: Vec<Masquerade> = seen
            .iter()
            .filter(|(.., masqueraded)| *masqueraded)
            .map(|(class, source, _)| Masquerade {
                flow: flow(*class, source),
                source_seen: NODE.parse().unwrap(),
            })
            .collect();
        let reporting: Vec<&str> = seen.iter().map(|(_, source, _)| *source).collect();
        api.put(
            &format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}"),
            json!({
                "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration",
                "metadata": { "name": node, "generation": 1 },
                "spec": { "nodeName": node, "migration": "m", "flows": of_node },
                "status": { "traffic": {
                    "flows": of_node.len(), "reporting": reporting, "masquerades": masquerades, "at": "2026-03-01T10:00:00Z",
                } },
            }),
        );
        flows.insert((*node).to_owned(), of_node);
    }
    let snapshot = Snapshot::take(&api.cache(), "m", "replumb-system");
    wait(&snapshot, &senders(), &flows, None)
}

use PathClass::{NewToNew, NewToOld, OldToNew, OldToOld, PodToDns, PodToService, SameNode};

#[rstest]
#[case::nothing_is_masqueraded(&[("a", &[(PodToService, "old-a", false), (PodToService, "new-a", false)][..])], false)]
#[case::only_the_new_network(&[("a", &[(PodToService, "old-a", false), (PodToService, "new-a", true)][..])], true)]
#[case::both_networks(&[("a", &[(PodToService, "old-a", true), (PodToService, "new-a", true)][..])], false)]
#[case::only_the_old_network(&[("a", &[(PodToService, "old-a", true), (PodToService, "new-a", false)][..])], false)]
#[case::no_old_pod_anywhere(&[("a", &[(PodToService, "new-a", true)][..])], false)]
#[case::an_old_pod_of_another_node(&[
    ("a", &[(PodToService, "new-a", true)][..]),
    ("b", &[(PodToService, "old-b", false)][..]),
], true)]
#[case::the_old_pod_of_the_same_node_counts_more(&[
    ("a", &[(PodToService, "old-a", true), (PodToService, "new-a", true)][..]),
    ("b", &[(PodToService, "old-b", false)][..]),
], false)]
#[case::from_the_new_network(&[("a", &[(OldToOld, "old-a", false), (NewToOld, "new-a", true)][..])], true)]
// `-s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE`: policies of moved pods would refuse all other pods.
#[case::to_the_new_network(&[("a", &[(OldToOld, "old-a", false), (OldToNew, "old-a", true)][..])], true)]
#[case::between_the_networks_on_one_node(&[("a", &[(OldToOld, "old-a", false), (SameNode, "old-a", true)][..])], true)]
// Between nodes both networks are masqueraded, on one node neither is.
#[case::one_node_says_nothing_about_two(&[
    ("a", &[(OldToOld, "old-a", true), (SameNode, "old-a", false), (NewToNew, "new-a", true)][..]),
], false)]
#[case::a_service_says_nothing_about_pods(&[("a", &[(PodToService, "old-a", false), (NewToOld, "new-a", true)][..])], false)]
#[case::a_name_server_does_not_report(&[("a", &[(PodToDns, "old-a", false), (PodToDns, "new-a", true)][..])], false)]
fn the_new_network_must_not_be_worse_than_the_old_one(
    #[case] nodes: &[(&str, Seen<'_>)],
    #[case] expected: bool,
) {
    let found = judge(nodes);
    assert_eq!(found.is_some(), expected, "{found:?}");
    let Some(wait) = found else { return };
    assert_eq!(wait.reason, WaitReason::PodsMasqueraded);
    assert!(
        wait.message.contains(", and its packets arrive from 192.0.2.7"),
        "{}",
        wait.message
    );
}

#[test]
fn the_message_of_many_nodes_is_short() {
    let nodes: Vec<String> = (0..3_000).map(|number| format!("node-{number}")).collect();
    let seen: Seen<'_> = &[(PodToService, "old-a", false), (PodToService, "new-a", true)];
    let all: Vec<(&str, Seen<'_>)> = nodes.iter().map(|node| (node.as_str(), seen)).collect();
    let wait = judge(&all).unwrap();
    assert!(wait.message.len() < 2_048, "{}", wait.message.len());
    assert!(wait.message.contains("more"), "{}", wait.message);
}
