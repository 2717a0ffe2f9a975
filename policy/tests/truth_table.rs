//! Rows of `truth_table.yaml`: what Calico makes of Kubernetes' `NetworkPolicy`, one case for each row.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says that it failed by a panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use policy::pod::{ContainerPort, Life, Lifetime};
use policy::settings::{DataPlane, Encapsulation, EndpointToHost, Version};
use policy::{
    AdminPolicy, Client, Cluster, Connection, Direction, Facts, Node, ObjectKind, Pod, Policy, Protocol,
    Route, Settings, State, Verdict, forecast,
};
use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(rename = "row")]
    number: usize,
    claim: String,
    #[serde(default)]
    settings: Changes,
    #[serde(default)]
    pods: BTreeMap<String, PodChanges>,
    #[serde(default)]
    policies: BTreeMap<String, Value>,
    #[serde(default)]
    admin: Vec<Value>,
    flows: Vec<Case>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Changes {
    calico: Option<f64>,
    data_plane: Option<String>,
    encapsulation: Option<String>,
    endpoint_to_host: Option<String>,
    vxlan_port: Option<u16>,
    masquerades_all: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct PodChanges {
    namespace: Option<String>,
    node: Option<String>,
    address: Option<String>,
    app: Option<String>,
    life: Option<String>,
    is_enforced: Option<bool>,
    port_of_init_container: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    from: String,
    to: String,
    port: Option<u16>,
    #[serde(default = "tcp")]
    protocol: String,
    #[serde(default)]
    via: Value,
    #[serde(default)]
    state: String,
    /// In place of those of the row.
    settings: Option<Changes>,
    policies: Option<BTreeMap<String, Value>>,
    is: String,
    because: Option<String>,
    direction: Option<Direction>,
    by: Option<Vec<String>>,
}

fn tcp() -> String {
    "TCP".to_owned()
}

fn rows() -> Vec<Row> {
    yaml_serde::from_str(include_str!("truth_table.yaml")).unwrap()
}

fn settings(changes: &Changes) -> Settings {
    let mut settings = Settings {
        pod_ranges: vec!["10.244.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()],
        masquerades_all: changes.masquerades_all,
        ..Settings::default()
    };
    if let Some(version) = changes.calico {
        let text = format!("{version:.2}");
        let (major, minor) = text.split_once('.').unwrap();
        settings.version = Version::new(major.parse().unwrap(), minor.parse().unwrap());
    }
    settings.vxlan_port = changes.vxlan_port.unwrap_or(settings.vxlan_port);
    match changes.data_plane.as_deref() {
        None | Some("Iptables") => {}
        Some("Nftables") => settings.data_plane = DataPlane::Nftables,
        Some("Ebpf") => settings.data_plane = DataPlane::Ebpf,
        Some(other) => unreachable!("data plane {other}"),
    }
    match changes.encapsulation.as_deref() {
        None | Some("Always") => {}
        Some("CrossSubnet") => settings.encapsulation = Encapsulation::CrossSubnet,
        Some("Never") => settings.encapsulation = Encapsulation::Never,
        Some(other) => unreachable!("encapsulation {other}"),
    }
    match changes.endpoint_to_host.as_deref() {
        None | Some("Accept") => {}
        Some("Drop") => settings.endpoint_to_host = EndpointToHost::Drop,
        Some("Return") => settings.endpoint_to_host = EndpointToHost::Return,
        Some(other) => unreachable!("action {other}"),
    }
    settings
}

fn node(name: &str, underlay: &str, tunnel: &str) -> Node {
    Node {
        name: Arc::from(name),
        addresses: vec![underlay.parse().unwrap()],
        tunnels: vec![tunnel.parse().unwrap()],
        others: vec!["169.254.20.10".parse().unwrap()],
        ranges: vec![format!("{tunnel}/24").parse().unwrap()],
    }
}

fn pod(namespace: &str, name: &str, node: &str, address: &str, app: &str) -> Pod {
    Pod {
        namespace: Arc::from(namespace),
        name: Arc::from(name),
        workload: Arc::from(name),
        labels: [("app", app)].into(),
        node: Arc::from(node),
        ipv4: address.parse().ok(),
        ipv6: None,
        ports: Arc::default(),
        life: Life::Live,
        is_host_network: false,
        is_enforced: true,
        lifetime: Lifetime::default(),
    }
}

fn declares(pod: Pod, name: &str, number: u16) -> Pod {
    let port = ContainerPort {
        name: Some(Arc::from(name)),
        protocol: Protocol::Tcp,
        number,
        is_init: false,
    };
    Pod {
        ports: [port].into(),
        ..pod
    }
}

fn pods(changes: &BTreeMap<String, PodChanges>) -> BTreeMap<String, Pod> {
    let web = Pod {
        ipv6: "fd00::5".parse().ok(),
        ..pod("shop", "web", "n1", "10.244.1.5", "web")
    };
    let on_host = Pod {
        is_host_network: true,
        ..pod("shop", "hn", "n2", "192.0.2.12", "web")
    };
    let known = [
        declares(web, "http", 8080),
        pod("shop", "api", "n1", "10.244.1.7", "api"),
        declares(pod("shop", "db", "n2", "10.244.2.6", "db"), "pg", 5432),
        pod("crm", "cli", "n2", "10.244.2.8", "web"),
        on_host,
    ];
    let mut pods: BTreeMap<String, Pod> = known.into_iter().map(|pod| (pod.name.to_string(), pod)).collect();
    for (name, change) in changes {
        let text = |given: &Option<String>| given.clone().unwrap_or_default();
        let pod = pods.entry(name.clone()).or_insert_with(|| {
            let address = text(&change.address);
            pod(
                &text(&change.namespace),
                name,
                &text(&change.node),
                &address,
                &text(&change.app),
            )
        });
        match change.life.as_deref() {
            None => {}
            Some("Terminating") => pod.life = Life::Terminating,
            Some("Finished") => pod.life = Life::Finished,
            Some(other) => unreachable!("life {other}"),
        }
        pod.is_enforced = change.is_enforced.unwrap_or(true);
        let is_init = change.port_of_init_container;
        pod.ports = pod
            .ports
            .iter()
            .map(|port| ContainerPort {
                is_init,
                ..port.clone()
            })
            .collect();
    }
    pods
}

fn kind(name: &str) -> ObjectKind {
    match name {
        "AdminNetworkPolicy" => ObjectKind::AdminNetworkPolicy,
        "ClusterNetworkPolicy" => ObjectKind::ClusterNetworkPolicy,
        other => unreachable!("kind {other}"),
    }
}

fn cluster(row: &Row, case: &Case) -> Cluster {
    let policies = case.policies.as_ref().unwrap_or(&row.policies);
    let policy = |(name, spec): (&String, &Value)| {
        let policy = json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
        Policy::read(&serde_json::from_value(policy).unwrap())
    };
    let admin = row
        .admin
        .iter()
        .map(|object| AdminPolicy::read(kind(object["kind"].as_str().unwrap()), object).unwrap());
    Cluster::new(Facts {
        settings: settings(case.settings.as_ref().unwrap_or(&row.settings)),
        nodes: vec![
            node("n1", "192.0.2.11", "10.244.1.0"),
            node("n2", "192.0.2.12", "10.244.2.0"),
        ],
        namespaces: [("shop", "a"), ("crm", "b")]
            .map(|(name, team)| (Arc::from(name), [("team", team)].into()))
            .into(),
        pods: pods(&row.pods).into_values().collect(),
        policies: policies.iter().map(policy).collect(),
        admin_policies: admin.collect(),
    })
}

fn connection(row: &Row, case: &Case) -> Connection {
    let pods = pods(&row.pods);
    let address = |name: &str| {
        let pod = pods.get(name).map(|pod| pod.ipv4.unwrap().into());
        pod.unwrap_or_else(|| name.parse().unwrap())
    };
    let client = match case.from.as_str() {
        "hn" => Client::Node(Arc::from("n2")),
        name @ ("n1" | "n2") => Client::Node(Arc::from(name)),
        name => Client::Address(address(name)),
    };
    let route = match &case.via {
        Value::Null => Route::Direct,
        Value::String(name) if name == "service" => Route::Service,
        Value::String(name) if name == "loadBalancer" => Route::LoadBalancer { is_local: false },
        Value::String(name) if name == "localLoadBalancer" => Route::LoadBalancer { is_local: true },
        way => Route::NodePort {
            node: Arc::from(way["nodePort"].as_str().unwrap()),
            port: 30080,
            is_local: way["isLocal"].as_bool().unwrap_or_default(),
        },
    };
    Connection {
        client,
        server: address(&case.to),
        port: case.port,
        protocol: match case.protocol.as_str() {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            "ICMP" => Protocol::Icmp,
            "IPIP" => Protocol::Ipip,
            other => unreachable!("protocol {other}"),
        },
        route,
        state: match case.state.as_str() {
            "" | "New" => State::New,
            "Established" => State::Established,
            other => unreachable!("state {other}"),
        },
    }
}

/// Whether a verdict is the expected one. What the case does not name may be anything.
fn is_as_expected(case: &Case, verdict: &Verdict) -> bool {
    let is = |reason: &str| case.because.as_deref().is_none_or(|because| because == reason);
    match verdict {
        Verdict::Allowed { why } => case.is == "allowed" && is(why.as_str()),
        Verdict::Unknown { why, .. } => case.is == "unknown" && is(why.as_str()),
        Verdict::Refused {
            direction,
            policies,
            why,
        } => {
            let by = case.by.as_ref().expect("`by` names the policies of a refusal");
            case.is == "refused"
                && is(why.as_str())
                && case.direction.is_none_or(|expected| expected == *direction)
                && policies
                    .iter()
                    .map(|policy| &*policy.name)
                    .eq(by.iter().map(|name| &**name))
        }
    }
}

#[rstest]
#[case::a_pod_without_a_policy_is_open(1)]
#[case::isolated_without_a_rule(2)]
#[case::an_empty_rule_allows_everything(3)]
#[case::a_label_of_a_peer(4)]
#[case::the_same_label_in_another_namespace(5)]
#[case::a_namespace_selector_excludes_the_own_namespace(6)]
#[case::both_selectors_of_an_item(7)]
#[case::two_items(8)]
#[case::union_of_policies(9)]
#[case::default_deny_with_an_opening(10)]
#[case::both_sides_must_allow(11)]
#[case::ingress_is_implied(12)]
#[case::egress_is_not_implied_by_an_empty_list(13)]
#[case::the_type_decides(14)]
#[case::not_in_matches_absence(15)]
#[case::own_node(16)]
#[case::host_network_is_in_no_selector(17)]
#[case::tunnel_address_of_another_node(18)]
#[case::tunnel_address_in_the_range_of_pods(19)]
#[case::probes_of_the_kubelet(20)]
#[case::webhook_of_another_node(21)]
#[case::port_of_a_service(22)]
#[case::target_port_of_a_service(23)]
#[case::named_port(24)]
#[case::unknown_name_of_a_port(25)]
#[case::named_port_of_an_init_container(26)]
#[case::names_of_ports_exist_on_pods_only(27)]
#[case::protocol_defaults_to_tcp(28)]
#[case::protocol_without_a_port(29)]
#[case::range_of_ports(30)]
#[case::sctp_is_no_tcp(31)]
#[case::ports_exclude_icmp(32)]
#[case::exception_of_a_range(33)]
#[case::exception_cuts_its_own_item(34)]
#[case::address_of_a_service(35)]
#[case::service_of_the_api_server(36)]
#[case::all_addresses_include_pods(37)]
#[case::address_of_a_load_balancer(38)]
#[case::node_local_dns(39)]
#[case::egress_before_the_own_host(40)]
#[case::itself_through_a_service(41)]
#[case::node_port(42)]
#[case::masquerade_all(43)]
#[case::finished_pod(44)]
#[case::terminating_pod(45)]
#[case::open_connection(46)]
#[case::udp_without_replies(47)]
#[case::pod_on_the_bridge_of_flannel(48)]
#[case::peer_on_the_bridge_of_flannel(49)]
#[case::families_are_separate(50)]
#[case::unparsable_range(51)]
#[case::tunnel_from_a_pod(52)]
#[case::admin_network_policy_by_version(53)]
#[case::unsupported_peer_denies_everything(54)]
#[case::load_balancer_masquerades(55)]
#[case::egress_to_nodes(56)]
#[case::node_port_of_another_node(57)]
fn row(#[case] number: usize) {
    let rows = rows();
    let row = rows.iter().find(|row| row.number == number).unwrap();
    assert!(!row.flows.is_empty());
    for (place, case) in row.flows.iter().enumerate() {
        let verdict = forecast(&cluster(row, case), &connection(row, case));
        assert!(
            is_as_expected(case, &verdict),
            "row {number} ({}), connection {place}, {} → {}: expected {}, found {verdict:?}",
            row.claim,
            case.from,
            case.to,
            case.is,
        );
    }
}

#[test]
fn rows_are_numbered_from_1_to_57() {
    let numbers: Vec<usize> = rows().iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=57).collect::<Vec<_>>());
    let claims: BTreeSet<String> = rows().into_iter().map(|row| row.claim).collect();
    assert_eq!(claims.len(), 57);
}
