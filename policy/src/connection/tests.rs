use rstest::rstest;

use super::*;
use crate::cluster::Facts;
use crate::fixture::{address, node, pod};
use crate::settings::{MasqueradesOutgoing, Settings};

fn cluster(settings: Settings) -> Cluster {
    let with_name_server = |node: Node| Node {
        others: vec![address("169.254.20.10")],
        ..node
    };
    Cluster::new(Facts {
        settings,
        nodes: vec![
            with_name_server(node("n1", "192.0.2.11", "10.244.1.0")),
            with_name_server(node("n2", "192.0.2.12", "10.244.2.0")),
        ],
        pods: vec![
            pod("shop", "web", "n1", "10.244.1.5", &[]),
            pod("shop", "db", "n2", "10.244.2.6", &[]),
        ],
        ..Facts::default()
    })
}

fn to(client: Client, server: &str, route: Route) -> Connection {
    Connection {
        client,
        server: address(server),
        port: Some(8080),
        protocol: Protocol::Tcp,
        route,
        state: State::New,
    }
}

fn node_port(node: &str) -> Route {
    Route::NodePort {
        node: node.into(),
        port: 30080,
        is_local: false,
    }
}

/// Node, source, destination and port of each flow.
fn seen(settings: Settings, connection: &Connection) -> Vec<(String, String, String, u16)> {
    let flows = connection.flows(&cluster(settings)).unwrap();
    let parts = |flow: &Flow| {
        let (source, destination) = (flow.source.to_string(), flow.destination.to_string());
        (flow.node.to_string(), source, destination, flow.port.unwrap())
    };
    flows.iter().map(parts).collect()
}

fn web() -> Client {
    Client::Address(address("10.244.1.5"))
}

fn outside() -> Client {
    Client::Address(address("198.51.100.9"))
}

fn host(name: &str) -> Client {
    Client::Node(name.into())
}

const DB: &str = "10.244.2.6";
const WEB: &str = "10.244.1.5";

#[rstest]
#[case::between_nodes(web(), DB, Route::Direct, &[("n1", WEB, DB), ("n2", WEB, DB)])]
#[case::of_a_service(web(), DB, Route::Service, &[("n1", WEB, DB), ("n2", WEB, DB)])]
#[case::on_one_node(outside(), DB, Route::Direct, &[("n2", "198.51.100.9", DB)])]
#[case::of_a_host(host("n1"), DB, Route::Direct, &[("n1", "10.244.1.0", DB), ("n2", "10.244.1.0", DB)])]
#[case::to_the_outside(web(), "198.51.100.9", Route::Direct, &[("n1", WEB, "198.51.100.9")])]
#[case::to_the_own_name_server(web(), "169.254.20.10", Route::Direct, &[("n1", WEB, "169.254.20.10")])]
#[case::between_strangers(outside(), "203.0.113.1", Route::Direct, &[])]
#[case::entry_with_the_server(outside(), DB, node_port("n2"), &[("n2", "198.51.100.9", DB)])]
#[case::another_entry(outside(), DB, node_port("n1"), &[("n1", "198.51.100.9", DB), ("n2", "10.244.1.0", DB)])]
fn each_node_on_the_way_sees_the_connection(
    #[case] client: Client,
    #[case] server: &str,
    #[case] route: Route,
    #[case] expected: &[(&str, &str, &str)],
) {
    let expected: Vec<(String, String, String, u16)> = expected
        .iter()
        .map(|(node, source, destination)| {
            (
                (*node).to_owned(),
                (*source).to_owned(),
                (*destination).to_owned(),
                8080,
            )
        })
        .collect();
    assert_eq!(seen(Settings::default(), &to(client, server, route)), expected);
}

#[test]
fn a_pod_that_asks_a_node_port_of_another_node_is_masqueraded() {
    let connection = to(web(), DB, node_port("n2"));
    let sees = |settings| -> Vec<(String, u16)> {
        let flows = seen(settings, &connection);
        flows
            .into_iter()
            .map(|(_, source, _, port)| (source, port))
            .collect()
    };
    let first = (WEB.to_owned(), 30080);
    let masqueraded = ("192.0.2.11".to_owned(), 8080);
    assert_eq!(sees(Settings::default()), [first.clone(), masqueraded.clone()]);
    let with = |ipv4, ipv6| Settings {
        masquerades_outgoing: MasqueradesOutgoing { ipv4, ipv6 },
        ..Settings::default()
    };
    assert_eq!(sees(with(true, false)), [first.clone(), masqueraded]);
    assert_eq!(sees(with(false, true)), [first, (WEB.to_owned(), 8080)]);
}

#[rstest]
#[case::never(Encapsulation::Never, "192.0.2.11")]
#[case::between_subnets(Encapsulation::CrossSubnet, "192.0.2.11")]
#[case::always(Encapsulation::Always, "10.244.1.0")]
fn a_host_has_the_address_of_the_encapsulation(#[case] encapsulation: Encapsulation, #[case] source: &str) {
    let settings = Settings {
        encapsulation,
        ..Settings::default()
    };
    let flows = seen(settings, &to(host("n1"), DB, Route::Direct));
    assert!(flows.iter().all(|(_, found, ..)| found == source), "{flows:?}");
}

#[test]
fn a_node_that_is_missing_leaves_the_way_unknown() {
    for connection in [
        to(host("n9"), DB, Route::Direct),
        to(outside(), DB, node_port("n9")),
    ] {
        let expected = Verdict::Unknown {
            why: UnknownReason::NodeMissing,
            objects: Vec::new(),
        };
        assert_eq!(forecast(&cluster(Settings::default()), &connection), expected);
    }
}
