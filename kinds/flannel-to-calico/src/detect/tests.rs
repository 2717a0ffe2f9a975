use rstest::rstest;

use super::super::checks::fixture::{self, verdicts};
use super::super::facts::Found;
use super::*;
use engine::check::Verdict::{Fail, Unknown};
use engine::cluster::Container;

fn detected(object: &str) -> Source {
    Source::Detected(object.to_owned())
}

fn refusal(options: &Options, facts: &ClusterFacts) -> Check {
    let checks = detect(options, facts).unwrap_err();
    let [check] = checks.as_slice() else {
        panic!("{checks:?}")
    };
    check.clone()
}

fn rename(facts: &mut ClusterFacts, namespace: &str, name: &str) {
    facts
        .daemon_sets
        .remove(&("kube-flannel".to_owned(), "kube-flannel-ds".to_owned()));
    add(facts, namespace, name, 3);
}

fn add(facts: &mut ClusterFacts, namespace: &str, name: &str, desired: i32) {
    let set = DaemonSet {
        host_network: true,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        desired,
        ..fixture::flannel()
    };
    facts
        .daemon_sets
        .insert((namespace.to_owned(), name.to_owned()), set);
}

fn named(name: Option<&str>, namespace: Option<&str>) -> Options {
    Options {
        flannel_daemon_set_name: name.map(str::to_owned),
        flannel_daemon_set_namespace: namespace.map(str::to_owned),
        ..Options::default()
    }
}

#[test]
fn each_detected_setting_has_its_source() {
    let found = detect(&Options::default(), &fixture::cluster()).unwrap();
    let set = detected("DaemonSet kube-flannel/kube-flannel-ds");
    let configuration = detected("ConfigMap kube-flannel/kube-flannel-cfg: net-conf.json");
    assert_eq!(
        found.flannel_daemon_set_name,
        Sourced {
            value: "kube-flannel-ds".to_owned(),
            source: set.clone()
        }
    );
    assert_eq!(
        found.flannel_daemon_set_namespace,
        Sourced {
            value: "kube-flannel".to_owned(),
            source: set
        }
    );
    assert_eq!(found.flannel_network.source, configuration);
    assert_eq!(
        (found.flannel_vni.value, &found.flannel_vni.source),
        (1, &configuration)
    );
    assert_eq!(
        (found.flannel_port.value, &found.flannel_port.source),
        (8472, &configuration)
    );
    assert_eq!(
        found.flannel_mtu,
        Sourced {
            value: 1450,
            source: detected("subnet.env of 3 nodes")
        }
    );
    assert_eq!(
        found.flannel_ip_masquerade,
        Sourced {
            value: true,
            source: detected("subnet.env of 3 nodes")
        }
    );
    assert_eq!(
        found.flannel_subnet_length,
        Sourced {
            value: 24,
            source: detected("spec.podCIDR of 3 Nodes")
        }
    );
    assert_eq!(found.flannel_annotation_prefix.source, Source::Default);
    assert_eq!(found.calico_daemon_set_name.source, Source::Default);
    assert_eq!(
        found.ip_pool_block_size,
        Sourced {
            value: 26,
            source: Source::Default
        }
    );
    assert_eq!(found.cni_configuration_directory.value, "/etc/cni/net.d");
}

#[test]
fn the_spec_overrides_detected_values() {
    let options = Options {
        flannel_network: Some("10.245.3.0/16".parse().unwrap()),
        flannel_mtu: Some(1400),
        flannel_ip_masquerade: Some(false),
        flannel_subnet_length: Some(25),
        flannel_annotation_prefix: Some("a.b".to_owned()),
        flannel_vni: Some(7),
        flannel_port: Some(4789),
        calico_daemon_set_name: Some("node".to_owned()),
        calico_daemon_set_namespace: Some("calico".to_owned()),
        ip_pool_block_size: Some(27),
        cni_configuration_directory: Some("/opt/cni".to_owned()),
        ..named(Some("kube-flannel-ds"), Some("kube-flannel"))
    };
    let found = serde_json::to_value(detect(&options, &fixture::cluster()).unwrap()).unwrap();
    for (name, value) in found.as_object().unwrap() {
        assert_eq!(value["source"], "spec", "{name}");
    }
    // Host bits are not part of a network.
    assert_eq!(found["flannelNetwork"]["value"], "10.245.0.0/16");
    assert_eq!(found["flannelMtu"]["value"], 1400);
}

#[test]
fn an_ipv6_network_is_detected_with_its_source() {
    let mut facts = fixture::cluster();
    assert_eq!(detect(&Options::default(), &facts).unwrap().ipv6, None);
    let key = ("kube-flannel".to_owned(), "kube-flannel-cfg".to_owned());
    facts.config_maps.get_mut(&key).unwrap().insert(
        "net-conf.json".to_owned(),
        r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/56","Backend":{"Type":"vxlan"}}"#
            .to_owned(),
    );
    for (index, node) in facts.nodes.values_mut().enumerate() {
        node.pod_cidrs.push(format!("fd00:10:244:{index}::/64"));
    }
    let found = detect(&Options::default(), &facts).unwrap();
    let ipv6 = found.ipv6.clone().unwrap();
    assert_eq!(
        ipv6.flannel_network,
        Sourced {
            value: "fd00:10:244::/56".parse().unwrap(),
            source: detected("ConfigMap kube-flannel/kube-flannel-cfg: net-conf.json"),
        }
    );
    assert_eq!(
        ipv6.flannel_subnet_length,
        Sourced {
            value: 64,
            source: detected("spec.podCIDRs of 3 Nodes"),
        }
    );
    assert_eq!(ipv6.ip_pool_block_size.value, 122);
    assert_eq!(found.pod_networks().len(), 2);
    facts.nodes.get_mut("b").unwrap().pod_cidrs[1] = "fd00:10:244:8::/72".to_owned();
    let check = refusal(&Options::default(), &facts);
    assert!(check.found.contains("72 on b"), "{check:?}");
    // Without an IPv6 network of flannel, the IPv6 subnets of the Nodes are ignored.
    let key = ("kube-flannel".to_owned(), "kube-flannel-cfg".to_owned());
    facts.config_maps.get_mut(&key).unwrap().insert(
        "net-conf.json".to_owned(),
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#.to_owned(),
    );
    assert_eq!(detect(&Options::default(), &facts).unwrap().ipv6, None);
}

#[test]
fn values_come_from_net_conf_and_arguments() {
    let mut facts = fixture::cluster();
    let key = ("kube-flannel".to_owned(), "kube-flannel-ds".to_owned());
    facts.daemon_sets.get_mut(&key).unwrap().containers[0]
        .arguments
        .push("--kube-annotation-prefix=net.example.com".to_owned());
    let key = ("kube-flannel".to_owned(), "kube-flannel-cfg".to_owned());
    facts.config_maps.get_mut(&key).unwrap().insert(
        "net-conf.json".to_owned(),
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":9,"Port":4789,"MTU":1300}}"#.to_owned(),
    );
    let found = detect(&Options::default(), &facts).unwrap();
    assert_eq!((found.flannel_vni.value, found.flannel_port.value), (9, 4789));
    assert_eq!(
        found.flannel_annotation_prefix,
        Sourced {
            value: "net.example.com".to_owned(),
            source: detected("DaemonSet kube-flannel/kube-flannel-ds: --kube-annotation-prefix"),
        }
    );
    // The value of the hosts overrides the configuration.
    assert_eq!(found.flannel_mtu.value, 1450);
}

#[rstest]
#[case::both(Some("net"), Some("infra"), "infra/net", "spec", "spec")]
#[case::name(Some("net"), None, "infra/net", "spec", "detected from DaemonSet infra/net")]
#[case::namespace(None, Some("infra"), "infra/net", "detected from DaemonSet infra/net", "spec")]
fn a_daemon_set_in_the_spec_is_chosen(
    #[case] name: Option<&str>,
    #[case] namespace: Option<&str>,
    #[case] expected: &str,
    #[case] name_source: &str,
    #[case] namespace_source: &str,
) {
    let mut facts = fixture::cluster();
    rename(&mut facts, "infra", "net");
    let found = daemon_set::choose(&named(name, namespace), &facts).unwrap();
    assert_eq!(format!("{}/{}", found.1.value, found.0.value), expected);
    assert_eq!(found.0.source.to_string(), name_source);
    assert_eq!(found.1.source.to_string(), namespace_source);
}

#[test]
fn the_documented_default_is_used_where_no_daemon_set_is_recognized() {
    let mut facts = fixture::cluster();
    facts.daemon_sets.clear();
    add(&mut facts, "kube-system", "kube-flannel-ds-amd64", 3);
    let key = ("kube-system".to_owned(), "kube-flannel-ds-amd64".to_owned());
    facts.daemon_sets.get_mut(&key).unwrap().containers.clear();
    let (name, namespace) = daemon_set::choose(&Options::default(), &facts).unwrap();
    assert_eq!(
        (name.value.as_str(), &name.source),
        ("kube-flannel-ds-amd64", &Source::Default)
    );
    assert_eq!(
        (namespace.value.as_str(), &namespace.source),
        ("kube-system", &Source::Default)
    );
    // A name without a namespace selects the DaemonSet in the documented namespace, if it exists.
    let mut facts = fixture::cluster();
    add(&mut facts, "kube-system", "kube-flannel-ds", 3);
    let (_, namespace) = daemon_set::choose(&named(Some("kube-flannel-ds"), None), &facts).unwrap();
    assert_eq!(
        (namespace.value.as_str(), &namespace.source),
        ("kube-system", &Source::Default)
    );
}

#[test]
fn the_only_daemon_set_in_use_is_chosen() {
    let mut facts = fixture::cluster();
    add(&mut facts, "kube-flannel", "kube-flannel-ds-arm64", 0);
    let (name, _) = daemon_set::choose(&Options::default(), &facts).unwrap();
    assert_eq!(name.value, "kube-flannel-ds");
    // Also where the others have the documented name.
    add(&mut facts, "kube-system", "kube-flannel-ds-amd64", 0);
    let (name, _) = daemon_set::choose(&Options::default(), &facts).unwrap();
    assert_eq!(name.value, "kube-flannel-ds");
    add(&mut facts, "kube-flannel", "kube-flannel-ds-arm64", 1);
    let check = daemon_set::choose(&Options::default(), &facts).unwrap_err();
    assert_eq!(check.verdict, Fail);
    assert_eq!(
        check.found,
        "each runs flannel: kube-flannel/kube-flannel-ds (3 pods), kube-flannel/kube-flannel-ds-arm64 (1 pod)"
    );
}

// calico#6745, #7261, #8503: "no migration needed", and the Job succeeds.
#[rstest]
#[case::both(
    Some("kube-flannel-ds-amd64"),
    Some("kube-system"),
    "kube-system/kube-flannel-ds-amd64"
)]
#[case::name(Some("flannel"), None, "flannel")]
#[case::namespace(None, Some("kube-system"), "kube-system/*")]
fn a_wrong_name_is_refused_with_the_existing_names(
    #[case] name: Option<&str>,
    #[case] namespace: Option<&str>,
    #[case] wanted: &str,
) {
    let check = refusal(&named(name, namespace), &fixture::cluster());
    assert_eq!((check.name.as_str(), check.verdict), ("FlannelDaemonSet", Fail));
    assert_eq!(check.object, format!("DaemonSet {wanted}"));
    assert_eq!(
        check.found,
        "no DaemonSet of that name; flannel runs in kube-flannel/kube-flannel-ds"
    );
}

#[test]
fn a_cluster_without_flannel_is_refused() {
    let mut facts = fixture::cluster();
    facts
        .daemon_sets
        .remove(&("kube-flannel".to_owned(), "kube-flannel-ds".to_owned()));
    let check = refusal(&Options::default(), &facts);
    assert_eq!((check.name.as_str(), check.verdict), ("FlannelDaemonSet", Fail));
    assert_eq!(
        check.found,
        "no DaemonSet runs flanneld; existing DaemonSets: kube-system/calico-node"
    );
    facts.daemon_sets.clear();
    assert_eq!(
        refusal(&Options::default(), &facts).found,
        "no DaemonSet in the whole cluster"
    );
}

#[test]
fn canal_is_refused_with_its_name() {
    let mut facts = fixture::cluster();
    facts.daemon_sets.clear();
    let mut canal = DaemonSet {
        host_network: true,
        name: "canal".to_owned(),
        ..fixture::calico()
    };
    canal.containers.push(Container {
        name: "kube-flannel".to_owned(),
        ..Container::default()
    });
    facts
        .daemon_sets
        .insert(("kube-system".to_owned(), "canal".to_owned()), canal);
    let check = refusal(&Options::default(), &facts);
    assert_eq!((check.name.as_str(), check.verdict), ("Canal", Fail));
    assert!(check.found.ends_with("kube-system/canal"));
}

#[test]
fn hosts_with_different_values_are_named() {
    let mut facts = fixture::cluster();
    let Found::Present(environment) = &mut facts.hosts.get_mut("b").unwrap().subnet_environment else {
        panic!()
    };
    environment.mtu = 1400;
    let check = refusal(&Options::default(), &facts);
    assert_eq!((check.name.as_str(), check.verdict), ("SubnetEnvironment", Fail));
    assert_eq!(check.found, "FLANNEL_MTU 1400 on b; 1450 on a, c");
    // The spec decides, and the check on the hosts names the host that differs.
    let options = Options {
        flannel_mtu: Some(1450),
        ..Options::default()
    };
    assert_eq!(detect(&options, &facts).unwrap().flannel_mtu.value, 1450);
}

#[test]
fn subnets_of_different_lengths_are_named() {
    let mut facts = fixture::cluster();
    facts.nodes.get_mut("c").unwrap().pod_cidrs = vec!["10.244.3.0/25".to_owned()];
    let check = refusal(&Options::default(), &facts);
    assert_eq!((check.name.as_str(), check.verdict), ("PodCidr", Fail));
    assert_eq!(check.found, "length 24 on a, b; 25 on c");
}

#[test]
fn a_malformed_configuration_is_refused() {
    let mut facts = fixture::cluster();
    let key = ("kube-flannel".to_owned(), "kube-flannel-cfg".to_owned());
    facts
        .config_maps
        .get_mut(&key)
        .unwrap()
        .insert("net-conf.json".to_owned(), "{".to_owned());
    let check = refusal(&Options::default(), &facts);
    assert_eq!(
        (check.name.as_str(), check.verdict),
        ("NetworkConfiguration", Fail)
    );
    assert_eq!(
        check.object,
        "ConfigMap kube-flannel/kube-flannel-cfg: net-conf.json"
    );
}

#[test]
fn all_refusals_are_returned_together() {
    let mut facts = fixture::cluster();
    facts.nodes.get_mut("c").unwrap().pod_cidrs = vec!["10.244.3.0/25".to_owned()];
    let Found::Present(environment) = &mut facts.hosts.get_mut("b").unwrap().subnet_environment else {
        panic!()
    };
    environment.mtu = 1400;
    environment.ip_masquerade = false;
    let checks = detect(&Options::default(), &facts).unwrap_err();
    assert_eq!(
        verdicts(&checks),
        [
            ("SubnetEnvironment", Fail),
            ("SubnetEnvironment", Fail),
            ("PodCidr", Fail)
        ]
    );
}

#[test]
fn missing_host_facts_are_unknown() {
    let mut facts = fixture::cluster();
    facts.hosts.clear();
    let check = refusal(&Options::default(), &facts);
    assert_eq!(
        (check.name.as_str(), check.verdict),
        ("SubnetEnvironment", Unknown)
    );
    assert_eq!(
        check.found,
        "no agent has reported the file; nodes without a report: a, b, c"
    );
    let options = Options {
        flannel_mtu: Some(1450),
        flannel_ip_masquerade: Some(true),
        ..Options::default()
    };
    assert!(detect(&options, &facts).is_ok());
}

#[test]
fn a_node_on_calico_is_not_counted() {
    let mut facts = fixture::cluster();
    facts.hosts.get_mut("b").unwrap().subnet_environment = Found::Absent;
    facts
        .nodes
        .get_mut("b")
        .unwrap()
        .labels
        .insert(NETWORK_LABEL.to_owned(), "calico".to_owned());
    let found = detect(&Options::default(), &facts).unwrap();
    assert_eq!(found.flannel_mtu.source, detected("subnet.env of 2 nodes"));
}

#[test]
fn without_a_configuration_values_come_from_hosts_and_defaults() {
    let mut facts = fixture::cluster();
    facts.config_maps.clear();
    let found = detect(&Options::default(), &facts).unwrap();
    assert_eq!(found.flannel_network.source, detected("subnet.env of 3 nodes"));
    assert_eq!(
        found.flannel_vni,
        Sourced {
            value: 1,
            source: Source::Default
        }
    );
    assert_eq!(
        found.flannel_port,
        Sourced {
            value: 8472,
            source: Source::Default
        }
    );
}
