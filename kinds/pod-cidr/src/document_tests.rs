use std::collections::BTreeMap;

use rstest::rstest;

use super::*;
use crate::checks::fixture::{self, pod, pool, workload_mut};
use crate::mentions::Needs;

fn planned_with(change: impl FnOnce(&mut ClusterFacts), delete_bare_pods: bool) -> Document {
    let mut facts = fixture::cluster();
    change(&mut facts);
    let needed = facts.needed();
    let wishes = Wishes {
        mode: Mode::ByWorkload,
        soak_seconds: 86400,
        delete_bare_pods,
        needed: &needed,
    };
    document(&fixture::settings(&facts), &facts, &wishes)
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
fn the_whole_plan_of_a_good_cluster() {
    insta::assert_snapshot!(text(&planned(|_| {})), @r#"
    you change objects of tenants: none now
    create IPPool ipv4-10-200-0-0-16: cidr 10.200.0.0/16, blockSize 26, ipipMode Never, vxlanMode Always, natOutgoing true, nodeSelector all(), allowedUses ["Workload","Tunnel"]; disabled: nobody gets an address of it
    open IPPool ipv4-10-200-0-0-16: to pods that name it alone: disabled false, nodeSelector !all()
    create traffic pods: on every node one with an address of 10.244.0.0/16 and one with an address of 10.200.0.0/16; each path between them, to Services, DNS and the API server has to answer before anything else is done, and is watched until the end
    open IPPool ipv4-10-200-0-0-16: to every pod
    leave IPPool default-ipv4-ippool: node by node: the end of its tunnel gets an address of 10.200.0.0/16 out of the node's own block, held in Calico's IPAM and written with label replumb.dev/off-pool into the Node; where none is free Calico chooses, by a clause of nodeSelector. Its agent keeps the old address on lo until blocks are released, so that no connection ends
    close IPPool default-ipv4-ippool: disabled true: pods that have an address of it keep it
    evict the coordinator: where it is on the pod network; none now
    evict name servers: of each workload one at a time, the next when every one of it is Ready, under their budgets; 2 now: shop/dns-1, shop/dns-2
    evict admission webhooks: of each workload one at a time, the next when every one of it is Ready, under their budgets; 2 now: shop/guard-1, shop/guard-2
    evict pods of DaemonSets: as many of each at a time as its updateStrategy.rollingUpdate.maxUnavailable says, each on another node, under their budgets; 3 now: shop/log-a, shop/log-b, shop/log-c
    evict pods of Deployments: of each workload one at a time, the next when every one of it is Ready, under their budgets; 2 now: shop/web-1, shop/web-2
    evict pods of StatefulSets: the highest ordinal first, each after the one before is Ready; 2 now: shop/db-1, shop/db-0
    wait for pods of Jobs: they end by themselves; none now
    wait for pods without a controller: nobody makes them again: delete them, or set podCidr.deleteBarePods; none now
    verify range 10.244.0.0/16: twice, 30 s apart: no pod, no address in Calico's IPAM, no end of a tunnel in it
    wait IPPool default-ipv4-ippool: 86400 s, empty and closed (podCidr.soakSeconds): so long `kubectl replumb rollback --all` leads every pod back
    release blocks of 10.244.0.0/16: 3 now; each only if it is empty, guarded by its resourceVersion, with its affinity
    delete IPPool default-ipv4-ippool: the point of no return: another migration leads back from here
    verify every host: no route and no address in 10.244.0.0/16
    delete traffic pods: of this migration
    "#);
}

/// Every place that people change, and everything that others need and has one pod.
#[test]
fn what_people_do_and_what_is_scaled() {
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
    // First of all, and once every pod has moved; the second pod is there before the pools change, and goes after all.
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
            "scale Deployment shop/dns: 1 pod becomes 2 for the time of the migration: others need it",
            "scale Deployment shop/dns: 2 pods become 1 again",
        ]
    );
    assert_eq!(
        lines_with(&plan, "you change ConfigMap")[1],
        "you change ConfigMap kube-system/place: range: found 10.244.0.0/16, needed 10.200.0.0/16. Fix: write 10.200.0.0/16 (once every \
         pod has moved; the migration waits for it)"
    );
}

#[test]
fn what_a_tenant_has_to_change_is_named_and_not_waited_for() {
    let plan = planned(|facts| fixture::let_a_tenant_say(facts, &["10.244.0.0/16"]));
    let found = lines_with(&plan, "you change");
    assert_eq!(found.len(), 1);
    for words in [
        "objects of tenants: 1 now",
        "nothing waits for that",
        "NetworkPolicy shop/narrow: found 10.244.0.0/16",
    ] {
        assert!(found[0].contains(words), "{found:?}");
    }
}

#[test]
fn a_pool_that_is_there_is_used() {
    let plan = planned(|facts| {
        let new = pool("by-hand", "10.200.0.0/16");
        facts.pools.insert(new.name.clone(), new);
    });
    assert_eq!(
        lines_with(&plan, "use IPPool"),
        ["use IPPool by-hand: it is there, and as it has to be"]
    );
    assert_eq!(lines_with(&plan, "create IPPool"), [""; 0]);
}

#[test]
fn pods_that_nobody_makes_again_go_only_where_that_is_said() {
    let with_one = |facts: &mut ClusterFacts| facts.pods.push(pod("lonely", "", "a", "10.244.1.40"));
    let waits = lines_with(&planned_with(with_one, false), "pods without a controller");
    let evicts = lines_with(&planned_with(with_one, true), "pods without a controller");
    assert!(
        waits[0].starts_with("wait for ") && waits[0].ends_with("; 1 now: shop/lonely"),
        "{waits:?}"
    );
    assert!(evicts[0].starts_with("evict "), "{evicts:?}");
}

/// Pods come and go by the minute: a plan that was reviewed stays the plan.
#[rstest]
#[case::one_more(|facts: &mut ClusterFacts| facts.pods.push(pod("web-3", "Deployment web", "c", "10.244.3.40")))]
#[case::one_less(|facts: &mut ClusterFacts| facts.pods.retain(|pod| pod.name != "web-1"))]
#[case::the_first_of_its_wave(|facts: &mut ClusterFacts| facts.pods.push(pod("sum-1", "Job sum", "c", "10.244.3.40")))]
#[case::the_last_of_its_wave(|facts: &mut ClusterFacts| facts.pods.retain(|pod| !pod.name.starts_with("db-")))]
#[case::a_block(|facts: &mut ClusterFacts| facts.blocks.truncate(1))]
#[case::a_node(|facts: &mut ClusterFacts| { facts.nodes.remove("c"); })]
#[case::a_larger_workload(|facts: &mut ClusterFacts| workload_mut(facts, "Deployment dns").wanted = 3)]
#[case::a_tenants_policy(|facts: &mut ClusterFacts| fixture::let_a_tenant_say(facts, &["10.244.0.0/16"]))]
fn the_hash_stays_when_pods_come_and_go(#[case] change: fn(&mut ClusterFacts)) {
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
fn the_hash_changes_with_what_is_done(#[case] change: fn(&mut ClusterFacts)) {
    assert_ne!(planned(|_| {}).hash(), planned(change).hash());
}

#[test]
fn the_hash_changes_with_what_is_wished() {
    let facts = fixture::cluster();
    let needed = facts.needed();
    let settings = fixture::settings(&facts);
    let hash = |settings: &Settings, soak_seconds, delete_bare_pods| {
        let wishes = Wishes {
            mode: Mode::ByWorkload,
            soak_seconds,
            delete_bare_pods,
            needed: &needed,
        };
        document(settings, &facts, &wishes).hash()
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

/// First the flag that keeps the controller manager from ending over podCIDRs, and then ranges.
#[test]
fn what_kops_has_to_say() {
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
#[case::around_both(&["10.192.0.0/16", "fd00::/112"], "+ 10.192.0.0/12: kops wants one range")]
#[case::none_narrow_enough(&["172.20.0.0/16"], "+ one range around 10.200.0.0/16 and the Services' (172.20.0.0/16): there is none")]
#[case::not_said(&["10.96.0.1/32"], "+ one range around 10.200.0.0/16 and serviceClusterIPRange, which the API does not say")]
fn one_range_around_pods_and_services(#[case] services: &[&str], #[case] expected: &str) {
    let lines = kops_lines(services);
    let found = lines[3].split_once("nonMasqueradeCIDR: ").unwrap().1;
    assert!(found.starts_with(expected), "{found}");
}

#[rstest]
#[case("172.16.0.0/13", "172.24.0.0/15", Some("172.16.0.0/12"))]
#[case("10.200.0.0/16", "10.96.0.0/16", Some("10.0.0.0/8"))]
#[case("10.200.0.0/16", "172.16.0.0/16", Some("0.0.0.0/0"))]
fn the_range_around_two(#[case] one: &str, #[case] other: &str, #[case] expected: Option<&str>) {
    let around = envelope(&one.parse().unwrap(), &other.parse().unwrap());
    assert_eq!(around, expected.map(|text| text.parse().unwrap()));
}
