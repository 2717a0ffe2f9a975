use rstest::rstest;

use super::*;

const HOST: &str = "192.0.2.7";
const BRIDGE: &str = "10.244.1.1";
const SERVICE: &str = "10.96.0.10";
const CLIENT: &str = "10.244.1.2";
const SERVER: &str = "10.244.1.3";

fn tuple(source: (&str, u16), destination: (&str, u16)) -> Tuple {
    Tuple {
        source: source.0.parse().unwrap(),
        destination: destination.0.parse().unwrap(),
        source_port: source.1,
        destination_port: destination.1,
    }
}

#[rstest]
#[case::the_host_to_a_service(6, (HOST, 4000), (SERVICE, 80), (SERVER, 8080), (BRIDGE, 4000), true)]
#[case::only_the_port_of_the_client(6, (HOST, 4000), (SERVICE, 80), (SERVER, 8080), (HOST, 4001), true)]
#[case::from_an_address_that_stays(6, (HOST, 4000), (SERVICE, 80), (SERVER, 8080), (HOST, 4000), true)]
#[case::a_pod_to_itself(17, (SERVER, 4000), (SERVICE, 53), (SERVER, 53), (BRIDGE, 4000), true)]
#[case::sctp(132, (HOST, 4000), (SERVICE, 80), (SERVER, 8080), (BRIDGE, 4000), true)]
#[case::the_host_to_a_pod(6, (HOST, 4000), (SERVER, 8080), (SERVER, 8080), (HOST, 4000), false)]
#[case::a_pod_to_a_service(6, (CLIENT, 4000), (SERVICE, 80), (SERVER, 8080), (CLIENT, 4000), false)]
#[case::a_protocol_without_ports(1, (HOST, 0), (SERVICE, 0), (SERVER, 0), (BRIDGE, 0), false)]
fn connections_with_a_translated_source_depend_on_a_link(
    #[case] protocol: u8,
    #[case] client: (&str, u16),
    #[case] destination: (&str, u16),
    #[case] server: (&str, u16),
    #[case] client_of_server: (&str, u16),
    #[case] expected: bool,
) {
    let connection = TrackedConnection {
        id: 1,
        zone: 0,
        protocol,
        original: tuple(client, destination),
        reply: tuple(server, client_of_server),
        is_replied: true,
    };
    let own = [HOST.parse().unwrap(), BRIDGE.parse().unwrap()];
    assert_eq!(depends_on_link(&connection, &own), expected);
}
