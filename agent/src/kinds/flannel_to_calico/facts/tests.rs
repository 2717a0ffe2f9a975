use super::*;
use crate::host::snapshot::{Address, MAIN_TABLE, Route, Vxlan};

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        mtu: 1500,
        mac: String::new(),
        up: true,
        loopback: name == "lo",
        controller: None,
        kind: String::new(),
        vxlan: None,
        hairpin: None,
    }
}

fn route(destination: &str, gateway: Option<&str>, link: u32) -> Route {
    Route {
        destination: destination.parse().unwrap(),
        hops: vec![(gateway.map(|text| text.parse().unwrap()), Some(link))],
        protocol: 3,
        scope: 0,
        on_link: false,
        source: None,
        metric: 0,
        table: MAIN_TABLE,
    }
}

/// A host on flannel: loopback, uplink, tunnel, bridge with one pod.
fn host() -> Snapshot {
    let mut tunnel = link(3, "flannel.1");
    tunnel.vxlan = Some(Vxlan {
        vni: 1,
        port: 8472,
        parent: Some(2),
        ..Vxlan::default()
    });
    let mut bridge = link(4, "cni0");
    bridge.kind = "bridge".to_owned();
    let mut pod = link(5, "veth1234");
    pod.controller = Some(4);
    let address = |link: u32, text: &str| Address {
        link,
        address: text.parse().unwrap(),
        label: String::new(),
    };
    Snapshot {
        links: vec![link(1, "lo"), link(2, "eth0"), tunnel, bridge, pod],
        addresses: vec![
            address(1, "127.0.0.1/8"),
            address(2, "192.0.2.11/24"),
            address(3, "10.244.1.0/32"),
            address(4, "10.244.1.1/24"),
            address(4, "fe80::1/64"),
        ],
        routes: vec![
            route("0.0.0.0/0", Some("192.0.2.1"), 2),
            route("10.244.2.0/24", Some("10.244.2.0"), 3),
            route("10.244.1.0/24", None, 4),
        ],
        ..Snapshot::default()
    }
}

#[test]
fn the_tunnel_has_its_parent_and_the_number_of_routes() {
    let devices = vxlan_devices(&host());
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].parent.as_deref(), Some("eth0"));
    assert_eq!((devices[0].vni, devices[0].port, devices[0].routes), (1, 8472, 1));
}

#[test]
fn the_bridge_has_its_ports_and_no_link_local_address() {
    let found = bridge(&host(), false, &LinkParameters::default());
    let bridge = found.present().unwrap();
    assert_eq!(bridge.ports, ["veth1234"]);
    assert_eq!(bridge.addresses, ["10.244.1.1/24".parse::<IpNet>().unwrap()]);
}

#[test]
fn a_link_cni0_that_is_no_bridge_is_malformed() {
    let mut host = host();
    host.links[3].kind = "dummy".to_owned();
    assert!(
        matches!(bridge(&host, false, &LinkParameters::default()), Found::Malformed(problem) if problem.contains("dummy"))
    );
}

#[test]
fn a_route_without_the_tunnel_is_direct() {
    let networks = ["10.244.0.0/16", "fd00:10:244::/56"].map(|network| network.parse().unwrap());
    let mut host = host();
    assert_eq!(direct_routes(&host, &networks), []);
    host.routes.push(route("10.244.3.0/24", Some("192.0.2.13"), 2));
    // A route to another network is not flannel's DirectRouting.
    host.routes.push(route("10.96.0.0/12", Some("192.0.2.14"), 2));
    let found = direct_routes(&host, &networks);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].destination.to_string(), "10.244.3.0/24");
    assert_eq!(found[0].link, "eth0");
    for number in 0..200 {
        let to = format!("10.244.{number}.0/24");
        host.routes.push(route(&to, Some("192.0.2.13"), 2));
    }
    assert_eq!(direct_routes(&host, &networks).len(), 20, "the report is bounded");
}

#[test]
fn calico_detects_the_address_of_the_last_interface() {
    let mut host = host();
    assert_eq!(
        detected_address(&host, Family::Ipv4),
        Some(("192.0.2.11".parse().unwrap(), "eth0".to_owned()))
    );
    host.links.push(link(9, "eth1"));
    host.addresses.push(Address {
        link: 9,
        address: "169.254.1.1/16".parse().unwrap(),
        label: String::new(),
    });
    assert_eq!(
        detected_address(&host, Family::Ipv4).unwrap().1,
        "eth0",
        "a link-local address is skipped"
    );
    host.addresses.push(Address {
        link: 9,
        address: "198.51.100.7/24".parse().unwrap(),
        label: String::new(),
    });
    assert_eq!(detected_address(&host, Family::Ipv4).unwrap().1, "eth1");
    assert_eq!(
        uplink(&host).as_deref(),
        Some("eth0"),
        "the uplink follows the default route"
    );
}
