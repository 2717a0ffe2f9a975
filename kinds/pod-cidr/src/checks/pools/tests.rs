use rstest::rstest;
use serde_json::json;

use super::super::fixture::{self, alone, judge, old_mut, only, pool};
use super::*;
use crate::checks::{CheckPolicy, check as every_check};
use crate::ipam::Block;
use engine::check::Verdict::{self, Fail, Pass, Warn};
use engine::kernel::{Address, BIRD, Hop, Listed, MAIN_TABLE, Route, RouteKind, Rule};

const NEW: &str = "ipv4-10-200-0-0-16";

fn add(facts: &mut ClusterFacts, pool: Pool) {
    facts.pools.insert(pool.name.clone(), pool);
}

/// Adds a pool of the new range.
fn add_new(facts: &mut ClusterFacts, change: impl FnOnce(&mut Pool)) {
    let mut new = pool("made-by-hand", "10.200.0.0/16");
    change(&mut new);
    add(facts, new);
}

fn line(check: &Check) -> (Verdict, &str, &str) {
    (check.verdict, check.object.as_str(), check.found.as_str())
}

#[rstest]
#[case::closed(|pool: &mut Pool| pool.spec["disabled"] = json!(true), "disabled", "`disabled: false`")]
#[case::canary(
    |pool: &mut Pool| pool.spec["nodeSelector"] = json!("!all()"), "open only to pods that name it", "nodeSelector all()")]
#[case::manual_assignment(
    |pool: &mut Pool| pool.spec["assignmentMode"] = json!("Manual"),
    "open only to pods that name it", "assignmentMode Automatic")]
#[case::deleted(|pool: &mut Pool| pool.terminating = true, "being deleted", "create it again")]
fn an_old_pool_that_is_not_open_fails(#[case] change: fn(&mut Pool), #[case] found: &str, #[case] fix: &str) {
    let check = only(&judge(|facts| change(old_mut(facts))), CheckName::OldPool);
    assert_eq!(line(&check), (Fail, "IPPool default-ipv4-ippool", found));
    assert!(check.fix.contains(fix), "{}", check.fix);
}

/// The new pool gets the same selector.
#[test]
fn an_old_pool_for_some_nodes_passes() {
    let checks = judge(|facts| {
        old_mut(facts).spec["nodeSelector"] = json!("zone == 'a'");
        let node = facts.nodes.get_mut("b").unwrap();
        node.labels.insert("zone".to_owned(), "a".to_owned());
    });
    let found = alone(&checks, CheckName::OldPool);
    assert_eq!(
        line(&found[0]),
        (
            Pass,
            "IPPool default-ipv4-ippool",
            "10.244.0.0/16, open to all pods on nodes with zone == 'a'"
        )
    );
}

#[test]
fn an_old_pool_that_is_not_for_pods_fails() {
    let checks = judge(|facts| old_mut(facts).spec["allowedUses"] = json!(["Tunnel"]));
    let check = only(&checks, CheckName::OldPool);
    assert_eq!(
        line(&check),
        (
            Fail,
            "IPPool default-ipv4-ippool: spec.allowedUses",
            r#"["Tunnel"]"#
        )
    );
}

#[test]
fn a_missing_new_pool_passes_and_will_be_created() {
    let found = alone(&judge(|_| {}), CheckName::NewPool);
    assert_eq!(
        line(&found[0]),
        (
            Pass,
            "IPPool ipv4-10-200-0-0-16",
            "will be created for 10.200.0.0/16, with the spec of default-ipv4-ippool"
        )
    );
}

/// An existing pool is used, however far it is open.
#[rstest]
#[case::open(|_: &mut Pool| {})]
#[case::closed(|pool: &mut Pool| pool.spec["disabled"] = json!(true))]
#[case::manual_assignment(|pool: &mut Pool| pool.spec["assignmentMode"] = json!("Manual"))]
#[case::canary(|pool: &mut Pool| pool.spec["nodeSelector"] = json!("!all()"))]
fn an_existing_pool_of_the_new_range_passes(#[case] change: fn(&mut Pool)) {
    let found = alone(&judge(|facts| add_new(facts, change)), CheckName::NewPool);
    assert_eq!(
        line(&found[0]),
        (
            Pass,
            "IPPool made-by-hand",
            "exists for 10.200.0.0/16, with the spec of default-ipv4-ippool"
        )
    );
}

#[rstest]
#[case::encapsulation(
    |pool: &mut Pool| pool.spec["vxlanMode"] = json!("CrossSubnet"), r#"vxlanMode is "CrossSubnet", needed "Always""#)]
#[case::masquerading(|pool: &mut Pool| pool.spec["natOutgoing"] = json!(false), "natOutgoing is false, needed true")]
#[case::blocks(|pool: &mut Pool| pool.spec["blockSize"] = json!(24), "blockSize is 24, needed 26")]
#[case::narrowed(|pool: &mut Pool| pool.spec["nodeSelector"] = json!("zone == 'a'"), r#"nodeSelector is "zone == 'a'", needed "all()""#)]
#[case::deleted(|pool: &mut Pool| pool.terminating = true, "being deleted")]
fn a_new_pool_with_another_spec_fails(#[case] change: fn(&mut Pool), #[case] found: &str) {
    let check = only(&judge(|facts| add_new(facts, change)), CheckName::NewPool);
    assert_eq!(line(&check), (Fail, "IPPool made-by-hand", found));
}

#[test]
fn a_pool_name_of_another_range_fails() {
    let check = only(
        &judge(|facts| add(facts, pool(NEW, "172.16.0.0/16"))),
        CheckName::NewPool,
    );
    assert_eq!(
        line(&check),
        (Fail, "IPPool ipv4-10-200-0-0-16: spec.cidr", "172.16.0.0/16")
    );
    assert!(check.fix.contains("with another name"), "{}", check.fix);
}

#[rstest]
#[case::too_large(Some(19), "19", "20 to 32 for 10.200.0.0/16")]
#[case::too_small(Some(33), "33", "20 to 32 for 10.200.0.0/16")]
fn a_block_size_outside_the_limits_fails(
    #[case] size: Option<u8>,
    #[case] found: &str,
    #[case] needed: &str,
) {
    let facts = fixture::cluster();
    let mut settings = fixture::settings(&facts);
    settings.block_size.value = size.unwrap();
    let found_checks = new_pool(&settings, &facts, facts.pools.get(fixture::OLD), None);
    assert_eq!(line(&found_checks[0]), (Fail, "spec.podCidr.blockSize", found));
    assert_eq!(found_checks[0].needed, needed);
}

/// Calico's API server makes the same check.
#[test]
fn blocks_of_another_size_in_the_new_range_fail() {
    let block = |range: &str| Block {
        range: range.parse().unwrap(),
        affinity: None,
        allocations: Vec::new(),
    };
    let checks = judge(|facts| {
        let ranges = ["10.200.1.0/24", "10.200.2.0/26", "172.16.0.0/24"];
        facts.blocks.extend(ranges.map(block));
    });
    let check = only(&checks, CheckName::NewPool);
    assert_eq!(
        line(&check),
        (
            Fail,
            "IPAMBlock 10.200.1.0/24",
            "a block of another size in 10.200.0.0/16"
        )
    );
    assert_eq!(check.needed, "blocks of /26 only");
}

#[rstest]
#[case::operator(
    |pool: &mut Pool| { pool.labels.insert("app.kubernetes.io/managed-by".to_owned(), "tigera-operator".to_owned()); },
    Fail, "app.kubernetes.io/managed-by: managed by the Tigera operator", "spec.calicoNetwork.ipPools")]
#[case::operator_by_its_writes(
    |pool: &mut Pool| pool.managers.push("tigera-operator (Update)".to_owned()),
    Fail, "field manager tigera-operator (Update): managed by the Tigera operator", "spec.calicoNetwork.ipPools")]
#[case::argo(
    |pool: &mut Pool| { pool.annotations.insert("argocd.argoproj.io/tracking-id".to_owned(), "x".to_owned()); },
    Fail, "argocd.argoproj.io/tracking-id: managed by Argo CD", "suspend Argo CD")]
#[case::owner(|pool: &mut Pool| pool.owners.push("Cluster prod".to_owned()), Fail, "Cluster prod", "owner reference")]
#[case::helm(
    |pool: &mut Pool| { pool.annotations.insert("meta.helm.sh/release-name".to_owned(), "net".to_owned()); },
    Warn, "belongs to Helm release net", "do not upgrade the release")]
fn a_pool_that_a_controller_reverts_does_not_pass(
    #[case] change: fn(&mut Pool),
    #[case] expected: Verdict,
    #[case] found: &str,
    #[case] fix: &str,
) {
    let old = only(&judge(|facts| change(old_mut(facts))), CheckName::PoolOwner);
    assert_eq!((old.verdict, old.found.as_str()), (expected, found));
    assert!(
        old.object.starts_with("IPPool default-ipv4-ippool") && old.fix.contains(fix),
        "{old:?}"
    );
    let new = only(&judge(|facts| add_new(facts, change)), CheckName::PoolOwner);
    assert!(
        new.verdict == expected && new.object.starts_with("IPPool made-by-hand"),
        "{new:?}"
    );
}

#[test]
fn the_owner_of_another_pool_does_not_matter() {
    let checks = judge(|facts| {
        let mut other = pool("other", "172.16.0.0/16");
        other.spec["disabled"] = json!(true);
        other.owners.push("Cluster prod".to_owned());
        add(facts, other);
    });
    assert_eq!(alone(&checks, CheckName::PoolOwner)[0].verdict, Pass);
}

fn route(destination: &str, protocol: u8) -> Listed<Route> {
    let route = Route {
        kind: RouteKind::Unicast,
        destination: destination.parse().unwrap(),
        hops: vec![Hop {
            gateway: Some("192.168.0.254".parse().unwrap()),
            link: Some("eth0".to_owned()),
        }],
        table: MAIN_TABLE,
        protocol,
        metric: 0,
    };
    [route].into_iter().collect()
}

fn on_b(facts: &mut ClusterFacts) -> &mut crate::host::TargetFacts {
    &mut facts.hosts.get_mut("b").unwrap().target
}

#[rstest]
#[case::pool_around(|facts: &mut ClusterFacts| add(facts, pool("other", "10.200.0.0/15")), "IPPool other: spec.cidr", "10.200.0.0/15")]
#[case::pool_within(|facts: &mut ClusterFacts| add(facts, pool("other", "10.200.7.0/24")), "IPPool other: spec.cidr", "10.200.7.0/24")]
#[case::second_pool_of_the_same_range(
    |facts: &mut ClusterFacts| {
        add(facts, pool("first", "10.200.0.0/16"));
        add(facts, pool("second", "10.200.0.0/16"));
    },
    "IPPool second: spec.cidr", "10.200.0.0/16")]
#[case::services(
    |facts: &mut ClusterFacts| facts.services.push(("ServiceCIDR more".to_owned(), "10.200.128.0/20".parse().unwrap())),
    "ServiceCIDR more", "10.200.128.0/20")]
#[case::node(
    |facts: &mut ClusterFacts| facts.nodes.get_mut("b").unwrap().internal_addresses = vec!["10.200.0.2".parse().unwrap()],
    "Node b: address", "10.200.0.2")]
#[case::docker(
    |facts: &mut ClusterFacts| on_b(facts).addresses = [Address {
        address: "10.200.0.1/16".parse().unwrap(),
        link: "docker0".to_owned(),
    }].into_iter().collect(),
    "Node b: host", "10.200.0.1/16 dev docker0")]
#[case::vpn(
    |facts: &mut ClusterFacts| on_b(facts).routes = route("10.192.0.0/10", 3),
    "Node b: host", "10.192.0.0/10 via 192.168.0.254 dev eth0")]
#[case::announced(
    |facts: &mut ClusterFacts| on_b(facts).announced = route("10.200.4.0/24", BIRD),
    "Node b: host", "10.200.4.0/24 via 192.168.0.254 dev eth0")]
#[case::rule(
    |facts: &mut ClusterFacts| on_b(facts).rules = [Rule {
        priority: 100,
        from: None,
        to: Some("10.200.0.0/16".parse().unwrap()),
        table: Some(7),
    }].into_iter().collect(),
    "Node b: host", "rule 100: from all to 10.200.0.0/16 lookup 7")]
fn a_new_range_in_use_fails(
    #[case] change: fn(&mut ClusterFacts),
    #[case] object: &str,
    #[case] found: &str,
) {
    let check = only(&judge(change), CheckName::Ranges);
    assert_eq!(line(&check), (Fail, object, found));
    assert_eq!(check.needed, "no overlap with 10.200.0.0/16");
}

/// kops#1738: both pools were accepted, and the end of the move could not be told.
#[rstest]
#[case::within("10.244.128.0/17")]
#[case::around("10.240.0.0/12")]
fn a_pool_that_overlaps_the_old_one_fails(#[case] range: &str) {
    let check = only(
        &judge(|facts| add(facts, pool("other", range))),
        CheckName::Ranges,
    );
    assert_eq!(
        (check.verdict, check.object.as_str()),
        (Fail, "IPPool other: spec.cidr")
    );
    assert_eq!(check.found, format!("{range}, which overlaps 10.244.0.0/16"));
}

/// Once the pool exists, Calico's BIRD announces blocks of it.
#[test]
fn announced_routes_pass_if_the_new_pool_exists() {
    let checks = judge(|facts| {
        on_b(facts).announced = route("10.200.4.0/26", BIRD);
        add_new(facts, |_| {});
    });
    assert_eq!(alone(&checks, CheckName::Ranges)[0].verdict, Pass);
}

#[test]
fn a_reserved_range_fails() {
    let facts = fixture::cluster();
    let mut settings = fixture::settings(&facts);
    settings.to.value = "169.254.0.0/16".parse().unwrap();
    let found = ranges(&settings, &facts);
    assert_eq!(
        line(&found[0]),
        (
            Fail,
            "spec.podCidr.to",
            "overlaps 169.254.0.0/16, which is reserved for link-local addresses"
        )
    );
}

fn service(text: &str) -> (String, IpNet) {
    ("Service default/kubernetes".to_owned(), text.parse().unwrap())
}

/// Without a `ServiceCIDR`, only the current addresses of Services are known, and a new Service may get the address of a pod.
#[rstest]
#[case::none(&[], Warn)]
#[case::addresses(&["10.96.0.1/32", "fd00:10:96::1/128"], Warn)]
#[case::range(&["10.96.0.1/32", "10.96.0.0/16"], Pass)]
#[case::other_family(&["fd00:10:96::/112"], Pass)]
fn an_unknown_range_of_services_is_a_warning(#[case] services: &[&str], #[case] expected: Verdict) {
    let checks = judge(|facts| facts.services = services.iter().map(|text| service(text)).collect());
    let found = alone(&checks, CheckName::Ranges);
    assert_eq!((found.len(), found[0].verdict), (1, expected), "{found:?}");
}

#[test]
fn an_address_of_a_service_in_the_new_range_fails() {
    let checks = judge(|facts| facts.services.push(service("10.200.0.10/32")));
    let check = only(&checks, CheckName::Ranges);
    assert_eq!(
        line(&check),
        (Fail, "Service default/kubernetes", "10.200.0.10/32")
    );
}

#[test]
fn a_missing_old_pool_is_one_finding() {
    let mut facts = fixture::cluster();
    let settings = fixture::settings(&facts);
    facts.pools.clear();
    let checks = every_check(&settings, &facts, CheckPolicy::default());
    let of_old: Vec<&Check> = checks.iter().filter(|check| check.name == "OldPool").collect();
    assert_eq!(of_old.len(), 1);
    assert_eq!((of_old[0].verdict, of_old[0].found.as_str()), (Fail, "missing"));
}
