use rstest::rstest;

use super::*;
use crate::hardcoded_range::{follow_up, widen};
use engine::local_traffic::LocalTraffic;

const OLD: &str = "10.244.0.0/16";
const NEW: &str = "10.200.0.0/16";
const BOTH: &str = "10.192.0.0/10";

fn range(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn host(local_traffic: Found<LocalTraffic>) -> HostFacts {
    HostFacts {
        local_traffic,
        ..HostFacts::default()
    }
}

fn by_ranges(ranges: &[&str]) -> HostFacts {
    host(Found::Present(LocalTraffic {
        ranges: ranges.iter().map(|text| range(text)).collect(),
        links: Vec::new(),
    }))
}

fn configured(ranges: &[&str]) -> RangeUse {
    RangeUse {
        object: "ConfigMap kube-system/kube-proxy".to_owned(),
        ..of_rules(ranges.iter().map(|text| range(text)).collect(), &["-".to_owned()])
    }
}

/// The messages of stage Widen.
fn waits(mentions: &[RangeUse], hosts: &[(&str, HostFacts)]) -> Vec<String> {
    let hosts = hosts.iter().map(|(node, host)| (*node, host));
    widen(
        &with_rules(mentions, hosts, &range(OLD), &range(NEW)),
        &range(OLD),
        &range(NEW),
    )
}

#[rstest]
#[case::the_old_range(&[OLD], true)]
#[case::a_part_of_the_old_range_by_node(&["10.244.1.0/24"], true)]
#[case::around_both(&[BOTH], false)]
#[case::the_old_range_and_the_other_family(&[OLD, "fd00:244::/56"], true)]
#[case::around_both_and_the_other_family(&[BOTH, "fd00:244::/56"], false)]
#[case::only_the_other_family(&["fd00:244::/56"], false)]
#[case::another_range(&["192.168.0.0/16"], false)]
#[case::no_range(&[], false)]
fn rules_without_the_new_range_must_change(#[case] ranges: &[&str], #[case] expected: bool) {
    let found = waits(&[], &[("a", by_ranges(ranges))]);
    assert_eq!(!found.is_empty(), expected, "{found:?}");
    assert_eq!(
        must_change(&by_ranges(ranges), &range(OLD), &range(NEW)),
        expected
    );
    if expected {
        assert!(
            found[0].starts_with("rules of kube-proxy on node a: found 10.244."),
            "{found:?}"
        );
    }
}

#[test]
fn rules_by_links_or_unknown_rules_have_no_range() {
    let by_links = host(Found::Present(LocalTraffic {
        ranges: Vec::new(),
        links: vec!["cali+".to_owned()],
    }));
    let unreadable = host(Found::Malformed("nft: not found".to_owned()));
    let hosts = [("a", by_links), ("b", host(Found::Absent)), ("c", unreadable)];
    assert_eq!(waits(&[], &hosts), [""; 0]);
    let asked = hosts.iter().map(|(node, host)| (*node, Some(host)));
    let found = unknown(asked.chain([("d", None)]));
    let found: Vec<(&str, &str)> = found
        .iter()
        .map(|(node, found)| (node.as_str(), found.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            ("b", "no rules of kube-proxy"),
            ("c", "nft: not found"),
            ("d", "no report of its agent"),
        ]
    );
}

#[test]
fn rules_that_cannot_be_read_are_named_and_absent_ones_are_not() {
    let unread = |problem: &str| host(Found::Malformed(problem.to_owned()));
    let hosts = [
        ("a", host(Found::Absent)),
        ("b", unread("rules in nftables and iptables at once")),
        ("c", by_ranges(&[OLD])),
        ("d", unread("nft was killed")),
    ];
    let all = || hosts.iter().map(|(node, host)| (*node, host));
    let found = unreadable(all()).unwrap();
    assert!(
        found.starts_with("rules of kube-proxy on node b: found rules in nftables and iptables at once, and 1 other node like it"),
        "{found}"
    );
    assert_eq!(
        unreadable(all().filter(|(node, _)| ["a", "c"].contains(node))),
        None
    );
}

/// One fault has one message: first the configuration, and once that is right, the nodes that do not have it yet.
#[test]
fn rules_follow_the_configuration_and_are_named_once_they_differ() {
    let hosts = [
        ("a", by_ranges(&[OLD])),
        ("b", by_ranges(&[OLD])),
        ("c", by_ranges(&[BOTH])),
    ];
    let found = waits(&[configured(&[OLD])], &hosts);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("ConfigMap kube-system/kube-proxy"),
        "{found:?}"
    );
    let found = waits(&[configured(&[BOTH])], &hosts);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("rules of kube-proxy on nodes a, b: found 10.244.0.0/16"),
        "{found:?}"
    );
    assert!(found[0].contains("restart kube-proxy there"), "{found:?}");
    assert_eq!(waits(&[configured(&[BOTH])], &hosts[2..]), [""; 0]);
    // kube-proxy does not start with two ranges of one family: its former rules stay.
    let found = waits(&[configured(&[OLD, NEW])], &hosts[..1]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("rules of kube-proxy on node a"), "{found:?}");
    let dual = waits(&[configured(&[BOTH, "fd00:244::/56"])], &hosts[2..]);
    assert_eq!(dual, [""; 0]);
}

#[test]
fn five_thousand_nodes_with_a_range_each_give_one_message() {
    let hosts: Vec<(String, HostFacts)> = (0..5_000_u32)
        .map(|number| {
            let own = format!("10.244.{}.0/24", number % 256);
            (format!("node-{number:04}"), by_ranges(&[&own]))
        })
        .collect();
    let all = || hosts.iter().map(|(node, host)| (node.as_str(), host));
    let mentions = with_rules(&[], all(), &range(OLD), &range(NEW));
    assert_eq!(mentions.len(), 1);
    let found = widen(&mentions, &range(OLD), &range(NEW));
    assert!(
        found[0].contains("and 4990 more: found 10.244.0.0/24"),
        "{found:?}"
    );
}

/// Also in the direction back, and before the old pool is deleted.
#[test]
fn each_node_gets_the_answer_of_its_own_rules() {
    let hosts = [
        ("old", by_ranges(&[OLD])),
        ("new", by_ranges(&[NEW])),
        ("both", by_ranges(&[BOTH])),
        ("each", by_ranges(&[OLD, NEW])),
    ];
    let all = || hosts.iter().map(|(node, host)| (*node, host));
    let mentions = with_rules(&[], all(), &range(OLD), &range(NEW));
    let of = |messages: Vec<String>| -> Vec<String> {
        let words = messages.iter().map(|message| message.split(':').next().unwrap());
        words
            .map(|words| words.rsplit("rules of kube-proxy on ").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(of(widen(&mentions, &range(OLD), &range(NEW))), ["node old"]);
    assert_eq!(of(widen(&mentions, &range(NEW), &range(OLD))), ["node new"]);
    let mut after = of(follow_up(&mentions, &range(OLD), &range(NEW)));
    after.sort();
    assert_eq!(after, ["node each", "node old"]);
}
