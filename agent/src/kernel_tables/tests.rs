use engine::kernel::{BIRD, FELIX, KERNEL, Rule};

use super::*;
use crate::host::netlink;
use crate::host::snapshot::{Address, MAIN_TABLE};

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        mtu: 1450,
        mac: String::new(),
        up: true,
        loopback: false,
        controller: None,
        kind: String::new(),
        vxlan: None,
        hairpin: None,
    }
}

fn raw(destination: &str, hops: &[(Option<&str>, Option<u32>)]) -> Route {
    Route {
        destination: destination.parse().unwrap(),
        hops: hops
            .iter()
            .map(|(gateway, link)| (gateway.map(|text| text.parse().unwrap()), *link))
            .collect(),
        protocol: BIRD,
        scope: 0,
        on_link: true,
        source: None,
        metric: 1024,
        table: MAIN_TABLE,
    }
}

#[test]
fn links_are_shown_by_name() {
    let address = |link, text: &str| Address {
        link,
        address: text.parse().unwrap(),
        label: String::new(),
    };
    let rule = Rule {
        priority: 7,
        from: None,
        to: None,
        table: Some(254),
    };
    let seen = Tables {
        links: vec![link(1, "lo"), link(9, "vxlan.calico")],
        addresses: vec![
            address(9, "10.244.1.0/32"),
            address(9, "fe80::1/64"),
            address(1, "127.0.0.1/8"),
        ],
        routes: vec![
            (
                RouteKind::Unicast,
                raw(
                    "10.244.2.0/26",
                    &[(Some("10.244.2.0"), Some(9)), (None, Some(44))],
                ),
            ),
            (RouteKind::Blackhole, raw("fd00::/64", &[(None, Some(1))])),
        ],
        rules: vec![rule.clone()],
    };
    let named = tables(&seen);
    assert_eq!(named.devices[1].name, "vxlan.calico");
    assert_eq!(named.devices[1].mtu, 1450);
    assert_eq!(
        named.devices[1].addresses,
        ["10.244.1.0/32".parse::<IpNet>().unwrap()]
    );
    assert_eq!(
        named.routes[0].to_string(),
        "10.244.2.0/26 nexthop via 10.244.2.0 dev vxlan.calico nexthop dev if44"
    );
    assert_eq!((named.routes[0].protocol, named.routes[0].metric), (BIRD, 1024));
    assert_eq!(named.routes[1].to_string(), "blackhole fd00::/64");
    assert_eq!(named.rules, [rule]);
}

#[test]
fn route_protocol_numbers_are_the_same_in_engine_and_netlink() {
    assert_eq!((FELIX, KERNEL), (netlink::FELIX, netlink::KERNEL));
}
