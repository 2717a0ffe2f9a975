use rstest::rstest;

use super::*;
use crate::checks::fixture::{self, OLD, pool};

fn refused(options: &Options, facts: &ClusterFacts) -> Vec<Check> {
    let checks = detect(options, facts).unwrap_err();
    for check in &checks {
        assert!(!check.verdict.allows(), "{check:?}");
        assert!(!check.needed.is_empty() && !check.fix.is_empty(), "{check:?}");
    }
    checks
}

fn options(from: &str, to: &str) -> Options {
    Options {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        ..fixture::options()
    }
}

#[test]
fn detected_settings_have_their_sources() {
    let settings = detect(&fixture::options(), &fixture::cluster()).unwrap();
    let of = |source: &Source| source.to_string();
    assert_eq!(
        (settings.from.value.to_string(), of(&settings.from.source)),
        ("10.244.0.0/16".to_owned(), "spec".to_owned())
    );
    assert_eq!(
        (settings.to.value.to_string(), of(&settings.to.source)),
        ("10.200.0.0/16".to_owned(), "spec".to_owned())
    );
    assert_eq!(
        (settings.old_pool.value.as_str(), of(&settings.old_pool.source)),
        (OLD, "detected from IPPool default-ipv4-ippool".to_owned())
    );
    assert_eq!(
        (settings.new_pool.value.as_str(), of(&settings.new_pool.source)),
        ("ipv4-10-200-0-0-16", "default".to_owned())
    );
    assert_eq!(
        (settings.block_size.value, of(&settings.block_size.source)),
        (26, "detected from IPPool default-ipv4-ippool".to_owned())
    );
    assert_eq!(
        (
            settings.calico_daemon_set_namespace.value.as_str(),
            settings.calico_daemon_set_name.value.as_str()
        ),
        ("kube-system", "calico-node")
    );
}

#[test]
fn spec_and_cluster_take_precedence_over_defaults() {
    let mut facts = fixture::cluster();
    let new = pool("by-hand", "10.200.0.0/16");
    facts.pools.insert(new.name.clone(), new);
    let calico = facts.daemon_sets.pop_first().unwrap().1;
    let calico = engine::cluster::DaemonSet {
        namespace: "calico-system".to_owned(),
        ..calico
    };
    facts
        .daemon_sets
        .insert((calico.namespace.clone(), calico.name.clone()), calico);
    let options = Options {
        block_size: Some(27),
        family: Some(Family::Ipv4),
        ..fixture::options()
    };
    let settings = detect(&options, &facts).unwrap();
    assert_eq!(settings.block_size.value, 27);
    assert_eq!(settings.block_size.source, Source::Spec);
    assert_eq!(settings.new_pool.value, "by-hand");
    assert_eq!(settings.calico_daemon_set_namespace.value, "calico-system");
}

#[rstest]
#[case::same(
    "10.244.0.0/16",
    "10.244.0.0/16",
    "the same as",
    "migrate to another range and back"
)]
#[case::other_family(
    "10.244.0.0/16",
    "fd00::/48",
    "of another family",
    "one migration per address family"
)]
#[case::within("10.244.0.0/16", "10.244.128.0/17", "within spec.podCidr.from", "in two hops")]
#[case::around("10.244.0.0/16", "10.0.0.0/8", "which contains", "in two hops")]
fn ranges_that_do_not_fit_together_are_refused(
    #[case] from: &str,
    #[case] to: &str,
    #[case] found: &str,
    #[case] fix: &str,
) {
    let checks = refused(&options(from, to), &fixture::cluster());
    assert_eq!(checks.len(), 1);
    assert_eq!(
        (checks[0].name.as_str(), checks[0].object.as_str()),
        ("Ranges", "spec.podCidr.to")
    );
    assert!(
        checks[0].found.starts_with(to) && checks[0].found.contains(found),
        "{:?}",
        checks[0]
    );
    assert!(checks[0].fix.contains(fix), "{:?}", checks[0]);
}

#[test]
fn a_wrong_family_is_refused() {
    let options = Options {
        family: Some(Family::Ipv6),
        ..fixture::options()
    };
    let checks = refused(&options, &fixture::cluster());
    assert_eq!(
        (
            checks[0].object.as_str(),
            checks[0].found.as_str(),
            checks[0].needed.as_str()
        ),
        ("spec.podCidr.family", "IPv6", "IPv4")
    );
}

/// A part of a pool's range is no pool.
#[test]
fn a_missing_old_pool_is_refused_with_the_existing_pools() {
    let mut facts = fixture::cluster();
    let other = pool("other", "172.16.0.0/16");
    facts.pools.insert(other.name.clone(), other);
    let checks = refused(&options("10.244.0.0/17", "10.200.0.0/16"), &facts);
    assert_eq!(checks.len(), 1);
    assert_eq!(
        (
            checks[0].name.as_str(),
            checks[0].object.as_str(),
            checks[0].found.as_str()
        ),
        (
            "OldPool",
            "IPPool of 10.244.0.0/17",
            "IPPools default-ipv4-ippool (10.244.0.0/16), other (172.16.0.0/16)"
        )
    );
    assert!(checks[0].fix.contains("spec.podCidr.from"), "{:?}", checks[0]);
}

#[test]
fn a_cluster_without_pools_is_refused() {
    let facts = ClusterFacts {
        pools: std::collections::BTreeMap::new(),
        ..fixture::cluster()
    };
    let checks = refused(&fixture::options(), &facts);
    assert_eq!(checks[0].found, "no IPPool");
    assert!(checks[0].fix.contains("etcd"), "{:?}", checks[0]);
}

#[test]
fn two_pools_of_one_range_are_refused() {
    let mut facts = fixture::cluster();
    let twin = pool("twin", "10.244.0.0/16");
    facts.pools.insert(twin.name.clone(), twin);
    let checks = refused(&fixture::options(), &facts);
    assert_eq!(
        checks[0].found,
        "2 IPPools: default-ipv4-ippool (10.244.0.0/16), twin (10.244.0.0/16)"
    );
}

#[test]
fn an_unparsable_pool_is_named_if_the_old_pool_is_missing() {
    let mut facts = fixture::cluster();
    facts.pools.clear();
    for object in ["IPPool default-ipv4-ippool", "Pod shop/web-1"] {
        facts.malformed.push(Malformed {
            object: object.to_owned(),
            problem: "spec.cidr: found 1, needed a network such as 10.244.0.0/16".to_owned(),
        });
    }
    let checks = refused(&fixture::options(), &facts);
    let objects: Vec<&str> = checks.iter().map(|check| check.object.as_str()).collect();
    assert_eq!(
        objects,
        ["IPPool of 10.244.0.0/16", "object IPPool default-ipv4-ippool"]
    );
}
