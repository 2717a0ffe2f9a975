use rstest::rstest;

use super::*;
use crate::host::{HostFacts, TargetFacts};
use engine::check::worst;
use engine::found::Found;
use engine::local_traffic::LocalTraffic;

fn ranges(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn facts(default: &[&str]) -> ClusterFacts {
    ClusterFacts {
        api_version: Some("v1".to_owned()),
        ranges: vec![ServiceCidr {
            name: DEFAULT.to_owned(),
            ranges: ranges(default),
            ready: true,
            terminating: false,
        }],
        corefiles: vec![(
            "ConfigMap kube-system/coredns".to_owned(),
            ".:53 {\n kubernetes k8s.example.org in-addr.arpa {\n }\n}".to_owned(),
        )],
        ..ClusterFacts::default()
    }
}

#[test]
fn detected_settings_have_their_sources() {
    let settings = detect(
        &ranges(&["172.30.0.0/16"]),
        &facts(&["10.96.0.0/12", "fd00:96::/112"]),
    )
    .unwrap();
    assert_eq!(settings.from.value, ranges(&["10.96.0.0/12", "fd00:96::/112"]));
    assert_eq!(
        settings.from.source.to_string(),
        "detected from ServiceCIDR kubernetes"
    );
    assert_eq!(settings.domain.value, "k8s.example.org");
    assert_eq!(
        settings.defaults().new,
        ranges(&["172.30.0.0/16", "fd00:96::/112"])
    );
}

#[rstest]
#[case::no_range(&[], "spec.serviceCidr.to: found no range")]
#[case::host_bits(&["172.30.0.1/16"], "spec.serviceCidr.to[0]: found 172.30.0.1/16, whose address has host bits")]
#[case::two_of_a_family(&["172.30.0.0/16", "172.31.0.0/16"], "spec.serviceCidr.to[1]: found 172.31.0.0/16, and 172.30.0.0/16 of the same family")]
#[case::unused_family(&["fd00:30::/112"], "of a family that the cluster does not have")]
#[case::the_same(&["10.96.0.0/12"], "which ServiceCIDR kubernetes has already")]
#[case::within(&["10.96.0.0/16"], "which overlaps 10.96.0.0/12")]
#[case::around(&["10.0.0.0/8"], "which overlaps 10.96.0.0/12")]
fn ranges_that_do_not_fit_are_refused(#[case] to: &[&str], #[case] words: &str) {
    let found = detect(&ranges(to), &facts(&["10.96.0.0/12"])).unwrap_err();
    assert!(found[0].line().contains(words), "{}", found[0].line());
    assert_eq!(worst(&found), Verdict::Fail);
}

#[test]
fn a_too_large_ipv6_range_is_refused() {
    let found = detect(&ranges(&["fd00:30::/48"]), &facts(&["fd00:96::/112"])).unwrap_err();
    assert!(
        found[0].line().contains("needed a prefix of 64"),
        "{}",
        found[0].line()
    );
}

#[rstest]
#[case::no_range(|facts: &mut ClusterFacts| facts.ranges.clear(), Verdict::Fail, "an API server creates it")]
#[case::old_kubernetes(
    |facts: &mut ClusterFacts| { facts.ranges.clear(); facts.api_version = None; }, Verdict::Fail, "needed Kubernetes 1.33"
)]
#[case::no_corefile(|facts: &mut ClusterFacts| facts.corefiles.clear(), Verdict::Unknown, "no Corefile")]
#[case::no_domain(
    |facts: &mut ClusterFacts| facts.corefiles[0].1 = ".:53 {}".to_owned(), Verdict::Unknown,
    "no domain in plugin kubernetes of ConfigMap kube-system/coredns"
)]
fn missing_prerequisites_are_named(
    #[case] change: impl FnOnce(&mut ClusterFacts),
    #[case] verdict: Verdict,
    #[case] words: &str,
) {
    let mut facts = facts(&["10.96.0.0/12"]);
    change(&mut facts);
    let found = detect(&ranges(&["172.30.0.0/16"]), &facts).unwrap_err();
    assert!(found[0].line().contains(words), "{}", found[0].line());
    assert_eq!(worst(&found), verdict);
}

#[rstest]
#[case::all_ranges(Found::Present(LocalTraffic { ranges: ranges(&["10.244.0.0/16"]), links: Vec::new() }), BridgePolicy::Local)]
#[case::by_links(Found::Present(LocalTraffic { ranges: Vec::new(), links: vec!["cali+".to_owned()] }), BridgePolicy::Local)]
#[case::some_ranges(Found::Present(LocalTraffic { ranges: ranges(&["10.244.0.0/24"]), links: Vec::new() }), BridgePolicy::Cluster)]
#[case::not_recognized(Found::Present(LocalTraffic::default()), BridgePolicy::Cluster)]
#[case::unknown(Found::Absent, BridgePolicy::Cluster)]
fn the_bridge_policy_is_local_if_every_proxy_recognizes_pods(
    #[case] local_traffic: Found<LocalTraffic>,
    #[case] expected: BridgePolicy,
) {
    let host = |local_traffic| HostFacts {
        proxy_mode: Found::Absent,
        missing_ports: Found::Absent,
        local_traffic,
        cluster_dns: Found::Absent,
        api_server: String::new(),
        target: TargetFacts::default(),
        expected_digest: None,
        pods_with_source_addresses: Found::Absent,
        connections: Found::Absent,
    };
    let known = Found::Present(LocalTraffic {
        ranges: ranges(&["10.244.0.0/16"]),
        links: Vec::new(),
    });
    let node = |name: &str| {
        (
            name.to_owned(),
            Node {
                name: name.to_owned(),
                ..Node::default()
            },
        )
    };
    let mut facts = facts(&["10.96.0.0/12"]);
    facts.nodes = ["a", "b"].map(node).into();
    facts.pod_ranges = vec![("Node a".to_owned(), ranges(&["10.244.7.0/24"])[0])];
    facts.hosts = [
        ("a".to_owned(), host(known)),
        ("b".to_owned(), host(local_traffic)),
    ]
    .into();
    let policy = |facts: &ClusterFacts| detect(&ranges(&["172.30.0.0/16"]), facts).unwrap().bridge_policy;
    assert_eq!(policy(&facts).value, expected);
    if expected == BridgePolicy::Cluster {
        assert_eq!(
            policy(&facts).source.to_string(),
            "detected from kube-proxy of Node b"
        );
    }
    facts.hosts.remove("a");
    assert_eq!(
        policy(&facts).value,
        BridgePolicy::Cluster,
        "node a has not reported"
    );
}
