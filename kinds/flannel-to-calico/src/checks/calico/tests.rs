use rstest::rstest;

use super::super::fixture::{self, verdicts};
use super::*;
use engine::check::Verdict::{Fail, Pass, Unknown};
use engine::cluster::IpPool;
use engine::cni::CniDirectory;

fn judge_manifests(change: impl FnOnce(&mut DaemonSet)) -> Vec<Check> {
    let mut set = fixture::calico();
    change(&mut set);
    manifests(&fixture::settings(), &fixture::cluster(), Some(&set))
}

#[test]
fn calicos_manifest_passes() {
    let checks = check(
        &fixture::settings(),
        &fixture::cluster(),
        Some(&fixture::calico()),
    );
    assert_eq!(
        verdicts(&checks),
        [("CalicoManifests", Pass), ("IpPool", Pass), ("IpamBlocks", Pass)]
    );
    assert_eq!(checks[1].object, "IPPool default-ipv4-ippool");
    assert_eq!(checks[1].found, "will be created for 10.244.0.0/16");
}

#[test]
fn missing_custom_resources_are_named() {
    let mut facts = fixture::cluster();
    facts.calico_resources.remove("ipamhandles");
    facts.calico_resources.remove("ippools");
    let checks = manifests(&fixture::settings(), &facts, Some(&fixture::calico()));
    assert_eq!(verdicts(&checks), [("CalicoManifests", Fail)]);
    assert_eq!(checks[0].found, "not served: ipamhandles, ippools");
}

#[test]
fn a_missing_daemon_set_is_refused_with_existing_ones() {
    let mut facts = fixture::cluster();
    let mut settings = fixture::settings();
    settings.calico_daemon_set_namespace.value = "calico-system".to_owned();
    let checks = manifests(&settings, &facts, None);
    assert_eq!(checks[0].object, "DaemonSet calico-system/calico-node");
    assert_eq!(
        checks[0].found,
        "not found; Calico runs in kube-system/calico-node"
    );
    facts.daemon_sets.clear();
    assert_eq!(manifests(&settings, &facts, None)[0].found, "not found");
}

#[rstest]
#[case::no_selector(|set: &mut DaemonSet| set.selection.labels.clear(), "node selector of the pod template")]
#[case::other_selector(
    |set: &mut DaemonSet| {
        set.selection.labels.insert(NETWORK_LABEL.to_owned(), "flannel".to_owned());
    },
    "node selector of the pod template")]
#[case::on_delete(|set: &mut DaemonSet| set.on_delete = true, "spec.updateStrategy.type")]
#[case::no_node(|set: &mut DaemonSet| set.containers.retain(|container| container.init), "containers")]
#[case::no_installer(|set: &mut DaemonSet| set.containers.retain(|container| !container.init), "containers")]
fn a_daemon_set_that_does_not_fit_fails(#[case] change: fn(&mut DaemonSet), #[case] part: &str) {
    let checks = judge_manifests(change);
    assert_eq!(verdicts(&checks), [("CalicoManifests", Fail)]);
    assert_eq!(
        checks[0].object,
        format!("DaemonSet kube-system/calico-node: {part}")
    );
}

#[rstest]
#[case("DATASTORE_TYPE", "etcdv3", "kubernetes")]
#[case("CALICO_NETWORKING_BACKEND", "none", "vxlan")]
#[case("FELIX_VXLANENABLED", "false", "true")]
#[case("FELIX_VXLANVNI", "4096", "1")]
#[case("FELIX_VXLANPORT", "4789", "8472")]
#[case("FELIX_VXLANMTU", "1410", "1450")]
fn an_environment_variable_that_contradicts_the_settings_fails(
    #[case] name: &str,
    #[case] value: &str,
    #[case] needed: &str,
) {
    let checks = judge_manifests(|set| {
        set.containers[1].environment.set(name, value);
    });
    assert_eq!(verdicts(&checks), [("CalicoManifests", Fail)], "{checks:?}");
    assert_eq!(
        (checks[0].found.as_str(), checks[0].needed.as_str()),
        (format!("{value:?}").as_str(), needed)
    );
}

#[test]
fn an_environment_variable_from_a_config_map_is_checked() {
    let mut facts = fixture::cluster();
    let key = ("kube-system".to_owned(), "calico-config".to_owned());
    facts
        .config_maps
        .get_mut(&key)
        .unwrap()
        .insert("veth_mtu".to_owned(), "1440".to_owned());
    let checks = manifests(&fixture::settings(), &facts, Some(&fixture::calico()));
    assert_eq!(verdicts(&checks), [("CalicoManifests", Fail)]);
    assert!(
        checks[0]
            .object
            .ends_with("environment FELIX_VXLANMTU of calico-node")
    );
}

#[rstest]
#[case("05-flannel.conflist", Fail)]
#[case("10-flannel.conflist", Pass)]
fn a_flannel_conflist_before_calicos_fails(#[case] name: &str, #[case] expected: engine::check::Verdict) {
    let mut facts = fixture::cluster();
    let conflist = br#"{"name":"cbr0","plugins":[{"type":"flannel"}]}"#;
    facts.hosts.get_mut("b").unwrap().cni =
        CniDirectory::read("/etc/cni/net.d", vec![(name.to_owned(), conflist.to_vec())]);
    let checks = manifests(&fixture::settings(), &facts, Some(&fixture::calico()));
    assert_eq!(verdicts(&checks), [("CalicoManifests", expected)]);
    if expected == Fail {
        assert_eq!(checks[0].object, "Node b: CNI configuration");
    }
}

fn existing() -> IpPool {
    IpPool {
        name: "mine".to_owned(),
        cidr: "10.244.0.0/16".parse().unwrap(),
        block_size: 26,
        vxlan_mode: "Always".to_owned(),
        ipip_mode: "Never".to_owned(),
        nat_outgoing: true,
        disabled: false,
        node_selector: "all()".to_owned(),
    }
}

fn judge_pool(found: IpPool) -> Vec<Check> {
    let mut facts = fixture::cluster();
    facts.ip_pools.insert(found.name.clone(), found);
    pool(&fixture::settings(), &facts)
}

#[test]
fn a_pool_that_fits_passes() {
    let checks = judge_pool(existing());
    assert_eq!(verdicts(&checks), [("IpPool", Pass)]);
    assert_eq!(checks[0].object, "IPPool mine");
}

#[test]
fn each_field_of_a_pool_that_does_not_fit_is_named() {
    let found = IpPool {
        vxlan_mode: "Never".to_owned(),
        ipip_mode: "Always".to_owned(),
        ..existing()
    };
    let checks = judge_pool(found);
    assert_eq!(verdicts(&checks), [("IpPool", Fail), ("IpPool", Fail)]);
    assert_eq!(
        checks[0].line(),
        "IpPool: IPPool mine: vxlanMode: found Never, needed Always. Fix: correct the pool, or delete it if no pod uses \
        it: the migration creates one"
    );
}

#[test]
fn an_overlapping_pool_fails() {
    let checks = judge_pool(IpPool {
        cidr: "10.0.0.0/8".parse().unwrap(),
        ..existing()
    });
    assert_eq!(verdicts(&checks), [("IpPool", Fail)]);
    assert_eq!(
        (checks[0].object.as_str(), checks[0].found.as_str()),
        ("IPPool mine: cidr", "10.0.0.0/8")
    );
}

#[rstest]
#[case::own("10.244.2.64/26", Some("host:b"), Pass)]
#[case::no_affinity("10.244.2.64/26", None, Pass)]
#[case::other_network("10.99.0.0/26", Some("host:x"), Pass)]
#[case::ipv6("fd00::/122", Some("host:x"), Pass)]
#[case::another_node("10.244.2.64/26", Some("host:a"), Fail)]
#[case::outside("10.244.9.0/26", Some("host:a"), Fail)]
#[case::other_size("10.244.2.0/27", Some("host:b"), Fail)]
#[case::around("10.0.0.0/8", Some("host:b"), Fail)]
fn an_existing_block_passes_only_inside_its_nodes_pod_cidr(
    #[case] block: &str,
    #[case] affinity: Option<&str>,
    #[case] expected: engine::check::Verdict,
) {
    let mut facts = fixture::cluster();
    facts
        .ipam_blocks
        .insert(block.parse().unwrap(), affinity.map(str::to_owned));
    assert_eq!(
        verdicts(&blocks(&fixture::settings(), &facts)),
        [("IpamBlocks", expected)]
    );
}

#[test]
fn a_pod_cidr_smaller_than_a_block_fails() {
    let mut facts = fixture::cluster();
    facts.nodes.get_mut("b").unwrap().pod_cidrs = vec!["10.244.2.0/27".to_owned()];
    let checks = blocks(&fixture::settings(), &facts);
    assert_eq!(verdicts(&checks), [("IpamBlocks", Fail)]);
    assert_eq!(checks[0].object, "Node b: spec.podCIDR");
}

/// Checks a dual-stack cluster with this configuration of install-cni and these variables of calico-node.
fn of_both_families(configuration: Option<&str>, environment: &[(&str, &str)]) -> Vec<Check> {
    let settings = Settings {
        ipv6: Some(fixture::ipv6_settings()),
        ..fixture::settings()
    };
    let mut set = fixture::calico();
    for container in &mut set.containers {
        if container.init {
            if let Some(text) = configuration {
                container.environment.set("CNI_NETWORK_CONFIG", text);
            }
        } else {
            for (name, value) in environment {
                container.environment.set(name, value);
            }
        }
    }
    manifests(&settings, &fixture::cluster(), Some(&set))
}

const ASSIGNS_IPV6: &str = r#"{"plugins": [{"type": "calico", "mtu": __CNI_MTU__,
    "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}, {"type": "portmap"}]}"#;

#[rstest]
#[case::assigned(Some(ASSIGNS_IPV6), &[("FELIX_IPV6SUPPORT", "true"), ("IP6", "autodetect")], Pass, "")]
#[case::one_plugin(Some(r#"{"type": "calico", "ipam": {"assign_ipv6": "true"}}"#), &[], Pass, "")]
#[case::no_support(Some(ASSIGNS_IPV6), &[("FELIX_IPV6SUPPORT", "false")], Fail, "FELIX_IPV6SUPPORT")]
#[case::no_address(Some(ASSIGNS_IPV6), &[("IP6", "none")], Fail, "IP6")]
#[case::ipv4_only(Some(r#"{"plugins": [{"type": "calico", "ipam": {"type": "calico-ipam"}}]}"#), &[], Fail, "CNI_NETWORK_CONFIG")]
#[case::missing(None, &[], Unknown, "CNI_NETWORK_CONFIG")]
#[case::malformed(Some("{"), &[], Unknown, "CNI_NETWORK_CONFIG")]
fn calico_passes_only_if_it_assigns_ipv6_addresses(
    #[case] configuration: Option<&str>,
    #[case] environment: &[(&str, &str)],
    #[case] verdict: engine::check::Verdict,
    #[case] named: &str,
) {
    let checks = of_both_families(configuration, environment);
    assert_eq!(verdicts(&checks), [("CalicoManifests", verdict)], "{checks:?}");
    assert!(checks[0].object.contains(named), "{checks:?}");
}

#[test]
fn each_address_family_has_its_own_pool_and_blocks() {
    let settings = Settings {
        ipv6: Some(fixture::ipv6_settings()),
        ..fixture::settings()
    };
    let mut facts = fixture::cluster();
    let found: Vec<String> = pool(&settings, &facts)
        .into_iter()
        .map(|check| check.object)
        .collect();
    assert_eq!(
        found,
        ["IPPool default-ipv4-ippool", "IPPool default-ipv6-ippool"]
    );
    for (index, node) in facts.nodes.values_mut().enumerate() {
        node.pod_cidrs.push(format!("fd00:10:244:{index}::/64"));
    }
    facts.ipam_blocks.insert(
        "fd00:10:244:1::40/122".parse().unwrap(),
        Some("host:b".to_owned()),
    );
    assert_eq!(verdicts(&blocks(&settings, &facts)), [("IpamBlocks", Pass)]);
    facts
        .ipam_blocks
        .insert("fd00:10:244:2::/122".parse().unwrap(), Some("host:a".to_owned()));
    assert_eq!(verdicts(&blocks(&settings, &facts)), [("IpamBlocks", Fail)]);
}
