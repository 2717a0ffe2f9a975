use rstest::rstest;

use super::super::fixture::{self, alone, judge, only, pod};
use super::*;
use crate::settings::Options;
use engine::check::Verdict::{self, Fail, Pass, Warn};

/// The good cluster with another range, and this many additional pods on node c.
fn to(range: &str, block_size: Option<u8>, more: u16, change: impl FnOnce(&mut ClusterFacts)) -> Vec<Check> {
    let mut facts = fixture::cluster();
    for number in 0..more {
        let address = format!("10.244.{}.{}", 64 + number / 64, number % 64);
        facts
            .pods
            .push(pod(&format!("more-{number}"), "Deployment web", "c", &address));
    }
    change(&mut facts);
    let options = Options {
        to: range.parse().unwrap(),
        block_size,
        ..fixture::options()
    };
    let settings = crate::detect::detect(&options, &facts).unwrap();
    check(&settings, &facts)
}

#[test]
fn one_block_per_node_passes() {
    let found = alone(&judge(|_| {}), CheckName::InsufficientAddresses);
    assert_eq!(
        (
            found[0].verdict,
            found[0].object.as_str(),
            found[0].found.as_str()
        ),
        (
            Pass,
            "range 10.200.0.0/16, blocks of /26",
            "needs 3 of 1024 blocks"
        )
    );
}

#[rstest]
#[case::too_small("10.200.0.0/28", Some(28), false, Fail, "needs 3 blocks, has 1")]
#[case::borrowed("10.200.0.0/25", None, false, Warn, "needs 3 blocks, has 2")]
#[case::strict("10.200.0.0/25", None, true, Fail, "needs 3 blocks, has 2")]
#[case::exactly("10.200.0.0/24", None, true, Pass, "needs 3 of 4 blocks")]
fn a_small_range_fails_or_borrows(
    #[case] range: &str,
    #[case] block_size: Option<u8>,
    #[case] strict: bool,
    #[case] expected: Verdict,
    #[case] found: &str,
) {
    let checks = to(range, block_size, 0, |facts| facts.ipam.strict_affinity = strict);
    assert_eq!(
        (checks[0].verdict, checks[0].found.as_str()),
        (expected, found),
        "{checks:?}"
    );
}

/// Node c has 3 pods, a tunnel address, and a traffic pod.
#[rstest]
#[case::fits(59, "needs 3 of 1024 blocks")]
#[case::one_more(60, "needs 4 of 1024 blocks")]
fn the_tunnel_and_the_traffic_pod_are_counted(#[case] more: u16, #[case] found: &str) {
    assert_eq!(to("10.200.0.0/16", None, more, |_| {})[0].found, found);
}

#[rstest]
#[case::default_limit(None, 20)]
#[case::configured_limit(Some(2), 2)]
fn a_node_over_the_limit_of_blocks_fails(#[case] most: Option<u64>, #[case] allowed: u64) {
    let checks = to("10.200.0.0/16", Some(32), 16, |facts| {
        facts.ipam.blocks_per_node = most;
    });
    assert_eq!(checks[0].verdict, Fail);
    assert_eq!(checks[0].found, "one node needs 21 blocks");
    assert_eq!(
        checks[0].needed,
        format!("at most {allowed} (IPAMConfig maxBlocksPerHost)")
    );
    assert_eq!(to("10.200.0.0/16", Some(32), 15, |_| {})[0].verdict, Pass);
}

#[test]
fn pods_with_host_network_are_not_counted() {
    let checks = to("10.200.0.0/16", None, 60, |facts| {
        for pod in facts.pods.iter_mut().filter(|pod| pod.name.starts_with("more-")) {
            pod.host_network = true;
        }
    });
    assert_eq!(checks[0].found, "needs 3 of 1024 blocks");
}

#[test]
fn more_nodes_than_blocks_with_strict_affinity_fail() {
    let checks = judge(|facts| {
        facts.ipam.strict_affinity = true;
        for index in 0..1025_u16 {
            let name = format!("n{index}");
            let node = engine::cluster::Node {
                name: name.clone(),
                ..facts.nodes["a"].clone()
            };
            facts.nodes.insert(name.clone(), node);
            facts.hosts.insert(name, facts.hosts["a"].clone());
        }
        let calico = fixture::calico_mut(facts);
        (calico.desired, calico.ready) = (1028, 1028);
    });
    let check = only(&checks, CheckName::InsufficientAddresses);
    assert_eq!(check.found, "needs 1028 blocks, has 1024");
}
