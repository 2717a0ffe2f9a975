//! A small healthy cluster for tests: three workers on flannel, Calico installed and without pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use super::{CheckPolicy, PERMISSIONS};
use crate::api::PolicyPreview;
use crate::facts::{Bridge, ClusterFacts, Found, HostFacts, PreviewState, ReversePathFilter, VxlanDevice};
use crate::flannel::{Ipv6Subnet, SubnetEnvironment};
use crate::foreign_rules::ForeignRules;
use crate::plugin::FlannelPlugin;
use crate::settings::{FirewallTwins, Ipv6Settings, LegacyPods, Settings, Strategy};
use engine::check::{Check, Verdict};
use engine::cluster::{Container, DaemonSet, Node};
use engine::cni::CniDirectory;
use engine::drain::{Permissions, Pod};
use engine::environment::{Environment, ValueSource};
use engine::evict::{OnBlocked, Time};
use engine::node_selection::NodeSelection;
use engine::rollout::MaxUnavailable;
use engine::sourced::{Source, Sourced};

/// Names and verdicts, in order.
pub(crate) fn verdicts(checks: &[Check]) -> Vec<(&str, Verdict)> {
    checks
        .iter()
        .map(|check| (check.name.as_str(), check.verdict))
        .collect()
}

/// A policy with default permissions.
pub(crate) fn policy() -> CheckPolicy {
    CheckPolicy {
        strategy: Strategy::Drain,
        legacy_pods: LegacyPods::Keep,
        firewall_twins: FirewallTwins::Refuse,
        watches_traffic: true,
        allow_single_node: false,
        permissions: Permissions::default(),
        on_blocked: OnBlocked::Pause,
        time: Time {
            limit: SignedDuration::from_secs(900),
            grace_period_seconds: None,
        },
        max_unavailable: Ok(MaxUnavailable::Nodes(1)),
        policy_preview: PolicyPreview::default(),
    }
}

fn sourced<T>(value: T) -> Sourced<T> {
    Sourced {
        value,
        source: Source::Default,
    }
}

/// Settings that fit [`cluster`].
pub(crate) fn settings() -> Settings {
    Settings {
        flannel_network: sourced("10.244.0.0/16".parse().unwrap()),
        flannel_daemon_set_name: sourced("kube-flannel-ds".to_owned()),
        flannel_daemon_set_namespace: sourced("kube-flannel".to_owned()),
        flannel_mtu: sourced(1450),
        flannel_ip_masquerade: sourced(true),
        flannel_subnet_length: sourced(24),
        flannel_annotation_prefix: sourced("flannel.alpha.coreos.com".to_owned()),
        flannel_vni: sourced(1),
        flannel_port: sourced(8472),
        calico_daemon_set_name: sourced("calico-node".to_owned()),
        calico_daemon_set_namespace: sourced("kube-system".to_owned()),
        ip_pool_block_size: sourced(26),
        cni_configuration_directory: sourced("/etc/cni/net.d".to_owned()),
        ipv6: None,
    }
}

/// IPv6 settings for the same cluster.
pub(crate) fn ipv6_settings() -> Ipv6Settings {
    Ipv6Settings {
        flannel_network: sourced("fd00:10:244::/56".parse().unwrap()),
        flannel_subnet_length: sourced(64),
        ip_pool_block_size: sourced(122),
    }
}

/// flannel's `DaemonSet`.
pub(crate) fn flannel() -> DaemonSet {
    DaemonSet {
        host_network: true,
        namespace: "kube-flannel".to_owned(),
        name: "kube-flannel-ds".to_owned(),
        containers: vec![Container {
            name: "kube-flannel".to_owned(),
            image: "ghcr.io/flannel-io/flannel:v0.28.4".to_owned(),
            arguments: ["/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"]
                .map(str::to_owned)
                .to_vec(),
            ..Container::default()
        }],
        config_maps: vec!["kube-flannel-cfg".to_owned()],
        desired: 3,
        ready: 3,
        rolled_out: true,
        ..DaemonSet::default()
    }
}

/// Calico's `DaemonSet`, as the manifest for this migration has it.
pub(crate) fn calico() -> DaemonSet {
    let environment = [("DATASTORE_TYPE", "kubernetes"), ("IP", "autodetect")];
    let mut node = Container {
        name: "calico-node".to_owned(),
        image: "quay.io/calico/node:v3.31.7".to_owned(),
        environment: Environment::plain(environment),
        ..Container::default()
    };
    for (variable, key) in [
        ("CALICO_NETWORKING_BACKEND", "calico_backend"),
        ("FELIX_VXLANMTU", "veth_mtu"),
    ] {
        let source = ValueSource::ConfigMapKey {
            config_map: "calico-config".to_owned(),
            key: key.to_owned(),
            optional: false,
        };
        node.environment.single.insert(variable.to_owned(), source);
    }
    let install = Container {
        name: "install-cni".to_owned(),
        image: "quay.io/calico/cni:v3.31.7".to_owned(),
        environment: Environment::plain([("CNI_CONF_NAME", "10-calico.conflist")]),
        init: true,
        ..Container::default()
    };
    DaemonSet {
        host_network: true,
        namespace: "kube-system".to_owned(),
        name: "calico-node".to_owned(),
        selection: NodeSelection {
            labels: BTreeMap::from([(
                "projectcalico.org/node-network-during-migration".to_owned(),
                "calico".to_owned(),
            )]),
            terms: None,
        },
        containers: vec![install, node],
        rolled_out: true,
        ..DaemonSet::default()
    }
}

/// Node number `index`, with flannel's annotations.
pub(crate) fn node(name: &str, index: u8) -> Node {
    let annotations = [
        ("backend-type", "vxlan".to_owned()),
        (
            "backend-data",
            format!(r#"{{"VNI":1,"VtepMAC":"aa:bb:cc:00:00:{index:02x}"}}"#),
        ),
        ("public-ip", format!("192.168.0.{index}")),
        ("kube-subnet-manager", "true".to_owned()),
    ];
    Node {
        name: name.to_owned(),
        pod_cidrs: vec![format!("10.244.{index}.0/24")],
        annotations: annotations
            .map(|(key, value)| (format!("flannel.alpha.coreos.com/{key}"), value))
            .into(),
        ready: true,
        internal_addresses: vec![format!("192.168.0.{index}").parse().unwrap()],
        allocatable_cpu_millis: 4000,
        allocatable_memory_bytes: 8 << 30,
        allocatable_pods: 110,
        operating_system: "linux".to_owned(),
        kernel_version: "6.18.0".to_owned(),
        ..Node::default()
    }
}

/// Host of node number `index`.
pub(crate) fn host(index: u8) -> HostFacts {
    let conflist =
        br#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#;
    HostFacts {
        cni: CniDirectory::read(
            "/etc/cni/net.d",
            vec![("10-flannel.conflist".to_owned(), conflist.to_vec())],
        ),
        plugin: Some(FlannelPlugin::usual("10-flannel.conflist")),
        foreign_rules: Some(ForeignRules::default()),
        runtime: None,
        lacks_nf_tables: false,
        vxlan_devices: vec![VxlanDevice {
            name: "flannel.1".to_owned(),
            vni: 1,
            port: 8472,
            mtu: 1450,
            local: Some(format!("192.168.0.{index}").parse().unwrap()),
            parent: Some("eth0".to_owned()),
            learning: false,
            mac: format!("aa:bb:cc:00:00:{index:02x}"),
            up: true,
            addresses: vec![format!("10.244.{index}.0/32").parse().unwrap()],
            routes: 2,
            block_routes: 0,
            neighbours: 2,
            forwarding_entries: 2,
        }],
        bridge: Found::Present(Bridge {
            name: "cni0".to_owned(),
            mtu: 1450,
            addresses: vec![format!("10.244.{index}.1/24").parse().unwrap()],
            ports: Vec::new(),
            answers_for_pods: false,
            answered: Vec::new(),
            open: false,
        }),
        legacy_pods: Vec::new(),
        legacy_problems: Vec::new(),
        calico: crate::facts::CalicoObjects::default(),
        direct_routes: Vec::new(),
        reverse_path_filter: ReversePathFilter {
            all: 1,
            interfaces: BTreeMap::from([("eth0".to_owned(), 1), ("flannel.1".to_owned(), 1)]),
        },
        subnet_environment: Found::Present(SubnetEnvironment {
            network: "10.244.0.0/16".parse().unwrap(),
            subnet: format!("10.244.{index}.1/24").parse().unwrap(),
            mtu: 1450,
            ip_masquerade: true,
            ipv6: None,
        }),
        flanneld_running: true,
        unread_processes: Vec::new(),
        unread_tables: Vec::new(),
        firewall: Vec::new(),
        leases: 0,
        delegates: 0,
        detected_address: Some(format!("192.168.0.{index}").parse().unwrap()),
        detected_ipv6_address: None,
        uplink: Some("eth0".to_owned()),
        bridge_nf_call_iptables: Some(true),
    }
}

/// The same cluster with pods of both address families, and settings that fit it.
pub(crate) fn dual_stack() -> (Settings, ClusterFacts) {
    let settings = Settings {
        ipv6: Some(ipv6_settings()),
        ..settings()
    };
    let mut facts = cluster();
    for (index, node) in (1_u8..).zip(facts.nodes.values_mut()) {
        node.pod_cidrs.push(format!("fd00:10:244:{index}::/64"));
        node.internal_addresses
            .push(format!("fd00:192::{index}").parse().unwrap());
        for (key, value) in [
            (
                "backend-v6-data",
                format!(r#"{{"VNI":1,"VtepMAC":"aa:bb:cc:06:00:{index:02x}"}}"#),
            ),
            ("public-ipv6", format!("fd00:192::{index}")),
        ] {
            node.annotations
                .insert(format!("flannel.alpha.coreos.com/{key}"), value);
        }
    }
    for (index, host) in (1_u8..).zip(facts.hosts.values_mut()) {
        host.vxlan_devices.push(VxlanDevice {
            name: "flannel-v6.1".to_owned(),
            mtu: 1430,
            local: Some(format!("fd00:192::{index}").parse().unwrap()),
            addresses: vec![format!("fd00:10:244:{index}::/128").parse().unwrap()],
            ..host.vxlan_devices[0].clone()
        });
        host.detected_ipv6_address = Some(format!("fd00:192::{index}").parse().unwrap());
        if let Found::Present(environment) = &mut host.subnet_environment {
            environment.ipv6 = Some(Ipv6Subnet {
                network: "fd00:10:244::/56".parse().unwrap(),
                subnet: format!("fd00:10:244:{index}::1/64").parse().unwrap(),
            });
        }
    }
    (settings, facts)
}

/// A pod of a Deployment on the pod network.
pub(crate) fn pod(name: &str, node: &str) -> Pod {
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        node: node.to_owned(),
        labels: [("app", "web")].into(),
        controller: Some(("ReplicaSet".to_owned(), "web".to_owned())),
        ready: true,
        cpu_millis: 100,
        memory_bytes: 64 << 20,
        ..Pod::default()
    }
}

/// Nodes a, b and c with hosts, flannel and Calico; no pods.
pub(crate) fn cluster() -> ClusterFacts {
    let names = [("a", 1), ("b", 2), ("c", 3)];
    let net_conf = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
    let config_map = |namespace: &str, name: &str, data: &[(&str, &str)]| {
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        ((namespace.to_owned(), name.to_owned()), data)
    };
    ClusterFacts {
        nodes: names
            .map(|(name, index)| (name.to_owned(), node(name, index)))
            .into(),
        hosts: names.map(|(name, index)| (name.to_owned(), host(index))).into(),
        host_checks: names
            .map(|(name, _)| {
                (
                    name.to_owned(),
                    vec![Check::pass("HostReadable", format!("Node {name}"), "read")],
                )
            })
            .into(),
        daemon_sets: [flannel(), calico()]
            .map(|set| ((set.namespace.clone(), set.name.clone()), set))
            .into(),
        config_maps: [
            config_map("kube-flannel", "kube-flannel-cfg", &[("net-conf.json", net_conf)]),
            config_map(
                "kube-system",
                "calico-config",
                &[("calico_backend", "vxlan"), ("veth_mtu", "0")],
            ),
        ]
        .into(),
        calico_resources: BTreeSet::from(
            [
                "blockaffinities",
                "clusterinformations",
                "felixconfigurations",
                "ipamblocks",
                "ipamconfigs",
                "ipamhandles",
                "ippools",
            ]
            .map(str::to_owned),
        ),
        policies: engine::check::policies::all_bound(),
        policy_preview: PreviewState::Known(Arc::default()),
        permissions: PERMISSIONS
            .iter()
            .map(|permission| (permission.key(), true))
            .collect(),
        ..ClusterFacts::default()
    }
}
