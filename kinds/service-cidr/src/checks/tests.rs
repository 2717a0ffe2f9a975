use std::collections::{BTreeMap, BTreeSet};

use rstest::rstest;
use serde_json::json;

use super::fixture::{self, cluster, host_mut, judge, judge_with, only, pod, policy, service, settings_to};
use super::*;
use crate::facts::{Mention, Quota, Room};
use crate::host::ProxyMode;
use crate::ranges::ServiceCidr;
use engine::check::worst;
use engine::cluster::{Malformed, Needed, NotUnderstood};
use engine::drain::{Budget, Pod, Selector};
use engine::found::Found;
use engine::kernel::{Address, Listed};
use engine::local_traffic::LocalTraffic;
use engine::owner::Owner;

#[test]
fn a_good_cluster_passes_every_check_once() {
    let checks = judge(|_| {});
    assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
    let mut found: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, every_name());
}

fn every_name() -> Vec<&'static str> {
    CheckName::ALL.iter().map(|name| name.as_str()).collect()
}

#[test]
fn check_names_are_unique_and_sorted() {
    let names: BTreeSet<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    let sorted: Vec<&str> = names.into_iter().collect();
    assert_eq!(sorted, every_name());
}

#[test]
fn a_cluster_without_facts_is_refused() {
    let settings = fixture::settings(&cluster());
    let checks = check(&settings, &ClusterFacts::default(), &policy());
    for (name, expected) in [
        ("AgentMissing", Verdict::Unknown),
        ("ApiServerFlags", Verdict::Unknown),
        ("ApiVersion", Verdict::Fail),
        ("Permissions", Verdict::Unknown),
    ] {
        let of_name: Vec<Check> = checks
            .iter()
            .filter(|check| check.name == name)
            .cloned()
            .collect();
        assert_eq!(worst(&of_name), expected, "{name}");
    }
}

type Change = fn(&mut ClusterFacts);

/// Each cluster has one defect, which is reported with the check, the object and the value found.
#[rstest]
#[case::agent(CheckName::AgentMissing, Verdict::Fail, "Node b", "no report of an agent", |facts: &mut ClusterFacts| {
    facts.hosts.remove("b");
})]
#[case::flag(CheckName::ApiServerFlags, Verdict::Fail, "API server 192.168.0.100", "10.97.0.0/16", |facts: &mut ClusterFacts| {
    server(facts).ranges = Ok(vec!["10.97.0.0/16".parse().unwrap()]);
})]
#[case::flag_unknown(CheckName::ApiServerFlags, Verdict::Unknown, "API server 192.168.0.100", "403", |facts: &mut ClusterFacts| {
    server(facts).ranges = Err("/flagz: 403".to_owned());
})]
#[case::certificate(CheckName::ApiServerFlags, Verdict::Warn, "API server 192.168.0.100", "is not for 172.31.0.1", |facts: &mut ClusterFacts| {
    server(facts).addresses = Ok(vec!["10.96.0.1".parse().unwrap()]);
})]
#[case::no_api_server(CheckName::ApiServerFlags, Verdict::Unknown, "default/kubernetes", "none", |facts: &mut ClusterFacts| {
    facts.api_servers.clear();
})]
#[case::bare_pod(CheckName::BarePods, Verdict::Warn, "Pod shop/alone", "has no controller", |facts: &mut ClusterFacts| {
    facts.pods.push(Pod { controller: None, ..pod("alone") });
})]
#[case::budget(CheckName::DisruptionBudgets, Verdict::Fail, "shop/never", "0 disruptions allowed, 2 of 2", |facts: &mut ClusterFacts| {
    facts.budgets.push(Budget {
        namespace: "shop".to_owned(),
        name: "never".to_owned(),
        selector: Some(Selector::default()),
        disruptions_allowed: 0,
        current_healthy: 2,
        desired_healthy: 2,
        expected_pods: 2,
        always_allows_unhealthy: false,
    });
})]
#[case::empty_dir(CheckName::EmptyDir, Verdict::Fail, "Pod shop/cache", "scratch", |facts: &mut ClusterFacts| {
    facts.pods.push(Pod { empty_dirs: vec!["scratch".to_owned()], ..pod("cache") });
})]
#[case::static_pod(CheckName::StaticPods, Verdict::Warn, "Pod shop/kube-apiserver-a", "static pod", |facts: &mut ClusterFacts| {
    facts.pods.push(Pod { mirror: true, ..pod("kube-apiserver-a") });
})]
#[case::ipvs(CheckName::KubeProxy, Verdict::Fail, "Node b", "mode ipvs", |facts: &mut ClusterFacts| {
    host_mut(facts).proxy_mode = Found::Present(ProxyMode::Ipvs);
})]
#[case::another_proxy(CheckName::KubeProxy, Verdict::Unknown, "Node b", "no rules of kube-proxy", |facts: &mut ClusterFacts| {
    host_mut(facts).proxy_mode = Found::Absent;
})]
#[case::pods_not_read(CheckName::PodsTold, Verdict::Unknown, "Node b", "no capability SYS_PTRACE", |facts: &mut ClusterFacts| {
    let what = "could not read pods' environments: the agent's pod has no capability SYS_PTRACE".to_owned();
    host_mut(facts).pods_with_source_addresses = Found::Malformed(what);
})]
#[case::two_modes(CheckName::KubeProxy, Verdict::Unknown, "Node b", "at once", |facts: &mut ClusterFacts| {
    host_mut(facts).proxy_mode = Found::Malformed("rules in iptables and nftables at once".to_owned());
})]
#[case::pods_unknown(CheckName::KubeProxy, Verdict::Warn, "Node b", "recognizes only pods of 10.0.0.0/24", |facts: &mut ClusterFacts| {
    let ranges = vec!["10.0.0.0/24".parse().unwrap()];
    host_mut(facts).local_traffic = Found::Present(LocalTraffic { ranges, links: Vec::new() });
})]
#[case::malformed(CheckName::MalformedObjects, Verdict::Unknown, "ServiceCIDR odd", "no ranges", |facts: &mut ClusterFacts| {
    facts.malformed.push(Malformed { object: "ServiceCIDR odd".to_owned(), problem: "no ranges".to_owned() });
})]
#[case::mention(CheckName::HardcodedAddresses, Verdict::Warn, "ConfigMap kube-system/place", "10.96.0.10", |facts: &mut ClusterFacts| {
    facts.mentions.push(Mention {
        object: "ConfigMap kube-system/place: clusterDNS".to_owned(),
        owner: Owner::Cluster,
        addresses: vec!["10.96.0.10/32".parse().unwrap()],
        more: 0,
        fix: "write {new}.".to_owned(),
    });
})]
#[case::of_a_tenant(CheckName::HardcodedAddresses, Verdict::Warn, "Deployment shop/web", "10.96.0.1", |facts: &mut ClusterFacts| {
    facts.mentions.push(Mention {
        object: "Deployment shop/web: its pod template".to_owned(),
        owner: Owner::Tenant("shop".to_owned()),
        addresses: vec!["10.96.0.1/32".parse().unwrap()],
        more: 0,
        fix: "write {new}.".to_owned(),
    });
})]
#[case::lameduck(CheckName::NameServers, Verdict::Warn, "ConfigMap kube-system/coredns", "0s", |facts: &mut ClusterFacts| {
    facts.corefiles[0].1 = ".:53 {\n kubernetes cluster.local {\n }\n}".to_owned();
})]
#[case::own_path(CheckName::OwnPath, Verdict::Fail, "the coordinator's Deployment", "10.96.0.1", |facts: &mut ClusterFacts| {
    facts.own_path = "10.96.0.1".to_owned();
})]
#[case::agents_path(CheckName::OwnPath, Verdict::Fail, "agent of Node b", "10.96.0.1", |facts: &mut ClusterFacts| {
    host_mut(facts).api_server = "10.96.0.1".to_owned();
})]
#[case::permission(CheckName::Permissions, Verdict::Fail, "services/status", "denied", |facts: &mut ClusterFacts| {
    let key = PERMISSIONS.iter().find(|it| it.key().contains("services/status")).unwrap().key();
    facts.permissions.insert(key, false);
})]
#[case::nodes(CheckName::Ranges, Verdict::Fail, "spec.serviceCidr.to[0]", "172.31.7.7 of Node b", |facts: &mut ClusterFacts| {
    facts.nodes.get_mut("b").unwrap().internal_addresses.push("172.31.7.7".parse().unwrap());
})]
#[case::pods(CheckName::Ranges, Verdict::Fail, "spec.serviceCidr.to[0]", "172.31.8.0/24 of Node b", |facts: &mut ClusterFacts| {
    facts.pod_ranges.push(("Node b".to_owned(), "172.31.8.0/24".parse().unwrap()));
    for host in facts.hosts.values_mut() {
        host.local_traffic = Found::Present(LocalTraffic { ranges: Vec::new(), links: vec!["cni0".to_owned()] });
    }
})]
#[case::another_service_cidr(CheckName::Ranges, Verdict::Fail, "spec.serviceCidr.to[0]", "172.31.64.0/20 of ServiceCIDR more", |facts: &mut ClusterFacts| {
    let ranges = vec!["172.31.64.0/20".parse().unwrap()];
    facts.ranges.push(ServiceCidr { name: "more".to_owned(), ranges, ready: true, terminating: false });
})]
#[case::link(CheckName::Ranges, Verdict::Fail, "Node b", "docker0", |facts: &mut ClusterFacts| {
    let link = Address { address: "172.31.9.1/24".parse().unwrap(), link: "docker0".to_owned() };
    host_mut(facts).target.addresses = Listed { items: vec![link], remaining: 0 };
})]
#[case::refused(CheckName::Services, Verdict::Fail, "Service shop/web", "denied by policy no-names", |facts: &mut ClusterFacts| {
    facts.refused.push(("Service shop/web".to_owned(), "denied by policy no-names".to_owned()));
})]
#[case::too_many_load_balancers(CheckName::LoadBalancers, Verdict::Fail, "of type LoadBalancer", "4001 addresses", |facts: &mut ClusterFacts| {
    facts.services.extend((0..4000).map(|number| {
        let (name, address) = (format!("crowd/many-{number}"), format!("10.96.{}.{}", 100 + number / 250, number % 250 + 1));
        fixture::service(&name, &address, &json!({ "type": "LoadBalancer" }))
    }));
})]
fn a_defect_is_reported_by_its_check(
    #[case] name: CheckName,
    #[case] verdict: Verdict,
    #[case] object: &str,
    #[case] found: &str,
    #[case] change: Change,
) {
    let check = only(&judge(change), name);
    assert_eq!(check.verdict, verdict, "{check:#?}");
    assert!(check.object.contains(object), "{check:#?}");
    assert!(check.found.contains(found), "{check:#?}");
}

fn server(facts: &mut ClusterFacts) -> &mut crate::facts::ApiServer {
    facts.api_servers.values_mut().next().unwrap()
}

/// The user may have restarted some of the API servers before.
#[test]
fn an_api_server_with_the_new_flag_passes() {
    let checks = judge(|facts| server(facts).ranges = Ok(vec![fixture::TO.parse().unwrap()]));
    assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
}

#[test]
fn options_of_the_user_are_checked() {
    let order = CheckPolicy {
        order: vec!["shop/web".to_owned(), "shop/wbe".to_owned()],
        ..policy()
    };
    let check = only(&judge_with(|_| {}, &order), CheckName::Services);
    assert_eq!(
        (check.object.as_str(), check.found.as_str()),
        ("spec.serviceCidr.order[1]", "shop/wbe")
    );

    let lost = CheckPolicy {
        keep_load_balancers: false,
        ..policy()
    };
    let check = only(&judge_with(|_| {}, &lost), CheckName::LoadBalancers);
    assert_eq!(
        (check.object.as_str(), check.found.as_str()),
        ("Service shop/front", "10.96.200.9")
    );

    let blind = CheckPolicy {
        is_unwatched: true,
        ..policy()
    };
    assert_eq!(
        only(&judge_with(|_| {}, &blind), CheckName::TrafficGate).verdict,
        Verdict::Warn
    );

    let deleting = CheckPolicy {
        delete_bare_pods: true,
        ..policy()
    };
    let alone = |facts: &mut ClusterFacts| {
        facts.pods.push(Pod {
            controller: None,
            ..pod("alone")
        });
    };
    let check = only(&judge_with(alone, &deleting), CheckName::BarePods);
    assert!(check.found.contains("is deleted"), "{check:#?}");
}

#[test]
fn a_reserved_range_fails() {
    let facts = cluster();
    let settings = settings_to("169.254.0.0/16", &facts);
    let checks = check(&settings, &facts, &policy());
    let ranges = checks.iter().find(|check| check.name == "Ranges").unwrap();
    assert_eq!(ranges.verdict, Verdict::Fail);
}

#[test]
fn a_range_needs_addresses_for_services_and_their_helpers() {
    let mut facts = cluster();
    server(&mut facts).addresses = Ok(vec!["10.96.0.1".parse().unwrap(), "172.31.0.1".parse().unwrap()]);
    let verdict = |to: &str| {
        let checks = check(&settings_to(to, &facts), &facts, &policy());
        only(&checks, CheckName::InsufficientAddresses)
    };
    // 5 Services, and 10 at once with 4 helpers each.
    let check = verdict("172.31.0.0/27");
    assert_eq!(check.found, "30 addresses");
    assert!(check.needed.starts_with("45: 5 Services"), "{check:#?}");
    assert!(
        !verdict("172.31.0.0/30").found.is_empty(),
        "too few for the Services"
    );
}

fn quota(rooms: &[(&str, u64, u64)]) -> Quota {
    let rooms = rooms.iter().map(|&(resource, hard, used)| {
        let room = Room { hard, used };
        (resource.to_owned(), room)
    });
    Quota {
        namespace: "shop".to_owned(),
        name: "small".to_owned(),
        rooms: rooms.collect::<BTreeMap<_, _>>(),
        not_understood: Vec::new(),
    }
}

/// In namespace shop 3 Services move, one of them with node ports: 3 helpers stay, 3 are removed after the exchange, 4 are
/// bridges.
#[rstest]
#[case::none_allowed("services.loadbalancers", 0, 0, Some("set it to 4"))]
#[case::some("services.loadbalancers", 4, 1, Some("set it to 5"))]
#[case::enough("services.loadbalancers", 5, 1, None)]
#[case::services("services", 15, 6, Some("set it to 16"))]
#[case::enough_services("services", 16, 6, None)]
#[case::counted("count/services", 15, 6, Some("set it to 16"))]
#[case::node_ports("services.nodeports", 0, 0, None)]
fn a_quota_without_room_for_helpers_fails(
    #[case] resource: &str,
    #[case] hard: u64,
    #[case] used: u64,
    #[case] fix: Option<&str>,
) {
    let checks = judge(|facts| facts.quotas.push(quota(&[(resource, hard, used)])));
    let Some(fix) = fix else {
        assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
        return;
    };
    let check = only(&checks, CheckName::Quotas);
    assert_eq!(check.verdict, Verdict::Fail);
    assert!(check.object.contains("shop/small"), "{check:#?}");
    assert!(check.found.contains(&format!("{used} of {hard}")), "{check:#?}");
    assert!(check.fix.contains(fix), "{check:#?}");
}

#[rstest]
#[case::largest("services", u64::MAX, u64::MAX, Verdict::Fail)]
#[case::more_than_allowed("services", 0, u64::MAX, Verdict::Fail)]
#[case::unlimited("services", u64::MAX, 0, Verdict::Pass)]
fn quotas_with_extreme_values_are_checked(
    #[case] resource: &str,
    #[case] hard: u64,
    #[case] used: u64,
    #[case] verdict: Verdict,
) {
    let checks = judge(|facts| facts.quotas.push(quota(&[(resource, hard, used)])));
    assert_eq!(worst(&checks), verdict, "{checks:#?}");
}

#[rstest]
#[case::namespace_with_moving_services("shop", Verdict::Warn)]
#[case::another_namespace("quiet", Verdict::Pass)]
fn an_unparsable_quota_is_a_warning_if_its_namespace_gets_helpers(
    #[case] namespace: &str,
    #[case] verdict: Verdict,
) {
    let field = NotUnderstood {
        field: "spec.hard.services".to_owned(),
        found: "\"many\"".to_owned(),
        needed: Needed::Quantity,
    };
    let odd = Quota {
        namespace: namespace.to_owned(),
        not_understood: vec![field],
        ..quota(&[])
    };
    let checks = judge(|facts| facts.quotas.push(odd));
    assert_eq!(worst(&checks), verdict, "{checks:#?}");
}

#[test]
fn fewer_services_at_once_need_less_of_a_quota() {
    let one = CheckPolicy {
        services_at_once: 1,
        ..policy()
    };
    let with = |facts: &mut ClusterFacts| facts.quotas.push(quota(&[("services.loadbalancers", 2, 0)]));
    assert_eq!(worst(&judge_with(with, &one)), Verdict::Pass);
    only(&judge_with(with, &policy()), CheckName::Quotas);
}

#[test]
fn a_quota_of_a_namespace_without_moving_services_passes() {
    let elsewhere = Quota {
        namespace: "quiet".to_owned(),
        ..quota(&[("services", 0, 0)])
    };
    let checks = judge(|facts| {
        facts.quotas.push(elsewhere);
        facts
            .services
            .push(service("quiet/peers", "None", &json!({ "ports": [] })));
    });
    assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
}

/// hcloud-k8s#383: kube-apiserver does not start with more than 20 host bits before 1.34, and kubeadm refuses them in any version.
#[rstest]
#[case::old("10.32.0.0/11", Some((1, 33)), false, "at most 20 host bits (/12) for an API server of 1.33")]
#[case::unknown("10.32.0.0/11", None, false, "whose version is not known")]
#[case::kubeadm("10.32.0.0/11", Some((1, 36)), true, "which kubeadm accepts")]
#[case::new("10.32.0.0/11", Some((1, 34)), false, "")]
#[case::small("10.32.0.0/12", Some((1, 30)), true, "")]
fn a_range_that_the_api_server_refuses_fails(
    #[case] to: &str,
    #[case] version: Option<(u32, u32)>,
    #[case] kubeadm: bool,
    #[case] needed: &str,
) {
    let mut facts = cluster();
    facts.server_version = version;
    // The cluster of the tests has pods in this range.
    facts.pod_ranges.clear();
    facts.mentions.clear();
    if kubeadm {
        facts.mentions.push(Mention {
            object: "ConfigMap kube-system/kubeadm-config: networking.serviceSubnet".to_owned(),
            owner: Owner::Cluster,
            addresses: Vec::new(),
            more: 0,
            fix: String::new(),
        });
    }
    let checks = check(&settings_to(to, &facts), &facts, &policy());
    let of_ranges: Vec<&Check> = checks.iter().filter(|check| check.name == "Ranges").collect();
    assert_eq!(
        of_ranges.iter().all(|check| check.verdict == Verdict::Pass),
        needed.is_empty(),
        "{of_ranges:?}"
    );
    assert!(of_ranges[0].needed.contains(needed), "{of_ranges:?}");
}
