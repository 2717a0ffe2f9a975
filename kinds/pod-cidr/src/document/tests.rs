use std::collections::BTreeMap;

use rstest::rstest;

use super::*;
use crate::checks::fixture::{self, pod, pool, workload_mut};
use crate::hardcoded_range::Needs;

fn planned_with(change: impl FnOnce(&mut ClusterFacts), delete_bare_pods: bool) -> Document {
    let mut facts = fixture::cluster();
    change(&mut facts);
    let needed = facts.needed();
    let options = Options {
        mode: Mode::ByWorkload,
        soak_seconds: 86400,
        delete_bare_pods,
        needed: &needed,
    };
    document(&fixture::settings(&facts), &facts, &options)
}

fn planned(change: impl FnOnce(&mut ClusterFacts)) -> Document {
    planned_with(change, false)
}

fn text(document: &Document) -> String {
    let Document {
        prepare,
        nodes,
        finish,
    } = document;
    assert!(nodes.is_empty());
    let lines: Vec<String> = prepare
        .iter()
        .chain(finish)
        .map(|action| format!("{} {}: {}", action.verb, action.object, action.detail))
        .collect();
    lines.join("\n")
}

fn lines_with(document: &Document, word: &str) -> Vec<String> {
    let text = text(document);
    let found = text.lines().filter(|line| line.contains(word));
    found.map(str::to_owned).collect()
}

#[test]
fn the_plan_of_a_good_cluster() {
    insta::assert_snapshot!(text(&planned(|_| {})), @r#"
    you change objects of tenants: none now
    create IPPool ipv4-10-200-0-0-16: cidr 10.200.0.0/16, blockSize 26, ipipMode Never, vxlanMode Always, natOutgoing true, nodeSelector all(), allowedUses ["Workload","Tunnel"]; disabled, so no pod gets an address of it
    open IPPool ipv4-10-200-0-0-16: to pods that name it only: disabled false, nodeSelector !all()
    create traffic pods: on every node, one with an address of 10.244.0.0/16 and one with an address of 10.200.0.0/16; each path between them, to Services, DNS and the API server has to answer before the next step, and is watched until the end
    open IPPool ipv4-10-200-0-0-16: to all pods
    leave IPPool default-ipv4-ippool: node by node: its tunnel gets an address of 10.200.0.0/16 from a block of the node, allocated in Calico's IPAM and written with label replumb.dev/off-pool to the Node; if none is free, Calico chooses, through a clause in nodeSelector. The agent keeps the old address on lo until blocks are released, so that no connection breaks
    close IPPool default-ipv4-ippool: disabled true: pods with an address of it keep that address
    evict the coordinator: if on the pod network; none now
    evict name servers: one per workload at a time, the next one when all its pods are Ready, within their PodDisruptionBudgets; 2 now: shop/dns-1, shop/dns-2
    evict admission webhooks: one per workload at a time, the next one when all its pods are Ready, within their PodDisruptionBudgets; 2 now: shop/guard-1, shop/guard-2
    evict pods of DaemonSets: per DaemonSet as many at a time as its updateStrategy.rollingUpdate.maxUnavailable, each on another node, within their PodDisruptionBudgets; 3 now: shop/log-a, shop/log-b, shop/log-c
    evict pods of Deployments: one per workload at a time, the next one when all its pods are Ready, within their PodDisruptionBudgets; 2 now: shop/web-1, shop/web-2
    evict pods of StatefulSets: the highest ordinal first, each after the previous one is Ready; 2 now: shop/db-1, shop/db-0
    wait for pods of Jobs: not evicted, they run to completion; none now
    wait for pods without a controller: no controller replaces them: delete them, or set podCidr.deleteBarePods; none now
    verify range 10.244.0.0/16: two observations, 30 s apart: no pod, no allocation of Calico's IPAM and no tunnel address in it
    wait IPPool default-ipv4-ippool: 86400 s, empty and closed (podCidr.soakSeconds): until then `kubectl replumb rollback --all` moves every pod back
    release blocks of 10.244.0.0/16: 3 now; each with its affinity, only if it is empty, guarded by its resourceVersion
    delete IPPool default-ipv4-ippool: the point of no return: from here on, only another Migration moves pods back
    verify every host: no route and no address in 10.244.0.0/16
    delete traffic pods: of this migration
    "#);
}

/// Changes that the user makes, and Deployments with a single pod that other pods need.
#[test]
fn the_plan_lists_changes_by_the_user_and_scaled_deployments_in_order() {
    let plan = planned(|facts| {
        fixture::say(facts, &["10.244.0.0/16"], Needs::BothThenNew);
        workload_mut(facts, "Deployment dns").wanted = 1;
    });
    let verbs: Vec<String> = plan
        .prepare
        .iter()
        .chain(&plan.finish)
        .map(|action| format!("{} {}", action.verb, action.object))
        .collect();
    let of = |line: &str| {
        let places: Vec<usize> = (0..verbs.len()).filter(|index| verbs[*index] == line).collect();
        assert!(!places.is_empty(), "no {line} in {verbs:#?}");
        places
    };
    // The user changes come first, and again once every pod has moved. The second replica exists from before the pools change
    // to the end.
    let changes = of("you change ConfigMap kube-system/place: range");
    let scales = of("scale Deployment shop/dns");
    let closes = of("close IPPool default-ipv4-ippool");
    let last = of("evict pods of StatefulSets");
    let goes = of("delete IPPool default-ipv4-ippool");
    assert_eq!(changes[0], 0, "{verbs:#?}");
    assert!(changes[0] < scales[0] && scales[0] < closes[0], "{verbs:#?}");
    assert!(
        last[0] < changes[1] && changes[1] < goes[0] && goes[0] < scales[1],
        "{verbs:#?}"
    );
    assert_eq!(
        lines_with(&plan, "scale "),
        [
            "scale Deployment shop/dns: from 1 to 2 replicas during the migration, because other pods need it",
            "scale Deployment shop/dns: from 2 to 1 replica",
        ]
    );
    assert_eq!(
        lines_with(&plan, "you change ConfigMap")[1],
        "you change ConfigMap kube-system/place: range: found 10.244.0.0/16, needed 10.200.0.0/16. Fix: write 10.200.0.0/16 \
         (once every pod has moved; the migration waits for it)"
    );
}

#[test]
fn a_change_by_a_tenant_is_listed_and_not_waited_for() {
    let plan = planned(|facts| fixture::let_a_tenant_say(facts, &["10.244.0.0/16"]));
    let found = lines_with(&plan, "you change");
    assert_eq!(found.len(), 1);
    for words in [
        "objects of tenants: 1 now",
        "the migration does not wait for this change",
        "NetworkPolicy shop/narrow: found 10.244.0.0/16",
    ] {
        assert!(found[0].contains(words), "{found:?}");
    }
}

#[test]
fn an_existing_new_pool_is_used() {
    let plan = planned(|facts| {
        let new = pool("by-hand", "10.200.0.0/16");
        facts.pools.insert(new.name.clone(), new);
    });
    assert_eq!(
        lines_with(&plan, "use IPPool"),
        ["use IPPool by-hand: existing pool with the needed spec"]
    );
    assert_eq!(lines_with(&plan, "create IPPool"), [""; 0]);
}

#[test]
fn pods_without_a_controller_are_evicted_only_with_delete_bare_pods() {
    let with_one = |facts: &mut ClusterFacts| facts.pods.push(pod("lonely", "", "a", "10.244.1.40"));
    let waits = lines_with(&planned_with(with_one, false), "pods without a controller");
    let evicts = lines_with(&planned_with(with_one, true), "pods without a controller");
    assert!(
        waits[0].starts_with("wait for ") && waits[0].ends_with("; 1 now: shop/lonely"),
        "{waits:?}"
    );
    assert!(evicts[0].starts_with("evict "), "{evicts:?}");
}

/// Pods change by the minute, and must not change a reviewed plan.
#[rstest]
#[case::one_more(|facts: &mut ClusterFacts| facts.pods.push(pod("web-3", "Deployment web", "c", "10.244.3.40")))]
#[case::one_less(|facts: &mut ClusterFacts| facts.pods.retain(|pod| pod.name != "web-1"))]
#[case::the_first_of_its_wave(|facts: &mut ClusterFacts| facts.pods.push(pod("sum-1", "Job sum", "c", "10.244.3.40")))]
#[case::the_last_of_its_wave(|facts: &mut ClusterFacts| facts.pods.retain(|pod| !pod.name.starts_with("db-")))]
#[case::a_block(|facts: &mut ClusterFacts| facts.blocks.truncate(1))]
#[case::a_node(|facts: &mut ClusterFacts| { facts.nodes.remove("c"); })]
#[case::a_larger_workload(|facts: &mut ClusterFacts| workload_mut(facts, "Deployment dns").wanted = 3)]
#[case::a_tenants_policy(|facts: &mut ClusterFacts| fixture::let_a_tenant_say(facts, &["10.244.0.0/16"]))]
fn the_hash_does_not_depend_on_pods(#[case] change: fn(&mut ClusterFacts)) {
    let (before, after) = (planned(|_| {}), planned(change));
    assert_eq!(before.hash(), after.hash(), "{}", text(&after));
}

#[rstest]
#[case::encapsulation(|facts: &mut ClusterFacts| fixture::old_mut(facts).spec["vxlanMode"] = "CrossSubnet".into())]
#[case::old_pools_name(|facts: &mut ClusterFacts| {
    let old = facts.pools.remove(fixture::OLD).unwrap();
    facts.pools.insert("other".to_owned(), crate::facts::Pool { name: "other".to_owned(), ..old });
})]
#[case::new_pool(|facts: &mut ClusterFacts| {
    let new = pool("by-hand", "10.200.0.0/16");
    facts.pools.insert(new.name.clone(), new);
})]
#[case::mention_before(|facts: &mut ClusterFacts| fixture::say(facts, &["10.244.0.0/16"], Needs::Both))]
#[case::mention_after(|facts: &mut ClusterFacts| fixture::say(facts, &["10.244.0.0/16"], Needs::New))]
#[case::name_server_to_scale(|facts: &mut ClusterFacts| workload_mut(facts, "Deployment dns").wanted = 1)]
#[case::kops(|facts: &mut ClusterFacts| {
    facts.nodes.get_mut("a").unwrap().labels = BTreeMap::from([(KOPS_LABEL.to_owned(), "nodes".to_owned())]);
})]
fn the_hash_changes_with_the_actions(#[case] change: fn(&mut ClusterFacts)) {
    assert_ne!(planned(|_| {}).hash(), planned(change).hash());
}

#[test]
fn the_hash_changes_with_the_spec() {
    let facts = fixture::cluster();
    let needed = facts.needed();
    let settings = fixture::settings(&facts);
    let hash = |settings: &Settings, soak_seconds, delete_bare_pods| {
        let options = Options {
            mode: Mode::ByWorkload,
            soak_seconds,
            delete_bare_pods,
            needed: &needed,
        };
        document(settings, &facts, &options).hash()
    };
    let first = hash(&settings, 60, false);
    assert_ne!(first, hash(&settings, 61, false));
    assert_ne!(first, hash(&settings, 60, true));
    let mut other = settings.clone();
    other.to.value = "10.201.0.0/16".parse().unwrap();
    assert_ne!(first, hash(&other, 60, false));
    let mut other = settings;
    other.block_size.value = 27;
    assert_ne!(first, hash(&other, 60, false));
}

fn kops_lines(services: &[&str]) -> Vec<String> {
    let plan = planned(|facts| {
        facts.nodes.get_mut("a").unwrap().labels =
            BTreeMap::from([(KOPS_LABEL.to_owned(), "nodes".to_owned())]);
        facts.services = services
            .iter()
            .map(|text| ("ServiceCIDR kubernetes".to_owned(), text.parse().unwrap()))
            .collect();
    });
    lines_with(&plan, "kops cluster spec")
}

/// The flag that prevents the exit of the controller manager comes first, then the ranges.
#[test]
fn changes_of_the_kops_spec_are_listed_in_order() {
    let lines = kops_lines(&["10.192.0.0/16"]);
    let fields: Vec<&str> = lines
        .iter()
        .filter_map(|line| {
            line.strip_prefix("you change kops cluster spec: ")?
                .split(':')
                .next()
        })
        .collect();
    assert_eq!(
        fields,
        [
            "kubeControllerManager.allocateNodeCIDRs",
            "kubeControllerManager.clusterCIDR",
            "podCIDR",
            "nonMasqueradeCIDR"
        ]
    );
    assert!(
        lines[1].ends_with(": - 10.244.0.0/16  + 10.200.0.0/16"),
        "{lines:?}"
    );
    assert_eq!(lines_with(&planned(|_| {}), "kops"), [""; 0]);
}

#[rstest]
#[case::around_both(&["10.192.0.0/16", "fd00::/112"], "+ 10.192.0.0/12: kops needs one range")]
#[case::none_narrow_enough(
    &["172.20.0.0/16"], "+ one range that contains 10.200.0.0/16 and the range of Services (172.20.0.0/16): none is")]
#[case::unknown(&["10.96.0.1/32"], "+ one range that contains 10.200.0.0/16 and serviceClusterIPRange, which is unknown here")]
fn kops_needs_one_range_for_pods_and_services(#[case] services: &[&str], #[case] expected: &str) {
    let lines = kops_lines(services);
    let found = lines[3].split_once("nonMasqueradeCIDR: ").unwrap().1;
    assert!(found.starts_with(expected), "{found}");
}

#[rstest]
#[case("172.16.0.0/13", "172.24.0.0/15", Some("172.16.0.0/12"))]
#[case("10.200.0.0/16", "10.96.0.0/16", Some("10.0.0.0/8"))]
#[case("10.200.0.0/16", "172.16.0.0/16", Some("0.0.0.0/0"))]
fn the_envelope_is_the_narrowest_range_around_two(
    #[case] one: &str,
    #[case] other: &str,
    #[case] expected: Option<&str>,
) {
    let around = envelope(&one.parse().unwrap(), &other.parse().unwrap());
    assert_eq!(around, expected.map(|text| text.parse().unwrap()));
}
