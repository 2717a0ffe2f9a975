use rstest::rstest;

use super::*;
use engine::cni::Contents;
use engine::kernel::{BIRD, FELIX, Hop, KERNEL, MAIN_TABLE, RouteKind, Tables};

fn settings(from: &str, to: &str) -> HostSettings {
    HostSettings {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        mtu: None,
        cni_configuration_directory: None,
        tunnel_addresses: Vec::new(),
    }
}

fn device(name: &str, addresses: &[&str]) -> Device {
    Device {
        name: name.to_owned(),
        mtu: 1500,
        up: true,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    }
}

/// `10.244.3.0/26 via 10.244.3.1 dev vxlan.calico`, `blackhole 10.244.1.0/26`: as `ip route` takes them.
fn route(protocol: u8, words: &str) -> Route {
    let mut words: Vec<&str> = words.split(' ').collect();
    let kind = match words[0] {
        "local" => RouteKind::Local,
        "blackhole" => RouteKind::Blackhole,
        "unreachable" => RouteKind::Unreachable,
        "throw" => RouteKind::Throw,
        _ => {
            words.insert(0, "unicast");
            RouteKind::Unicast
        }
    };
    let after = |word: &str| {
        let place = words.iter().position(|found| *found == word)?;
        Some(words[place + 1])
    };
    let hop = Hop {
        gateway: after("via").map(|gateway| gateway.parse().unwrap()),
        link: after("dev").map(str::to_owned),
    };
    Route {
        kind,
        destination: words[1].parse().unwrap(),
        hops: if kind.discards() { Vec::new() } else { vec![hop] },
        table: match after("table") {
            Some("local") => 255,
            Some(number) => number.parse().unwrap(),
            None => MAIN_TABLE,
        },
        protocol,
        metric: after("metric").map_or(0, |metric| metric.parse().unwrap()),
    }
}

/// Protocol of routes without a known owner.
const BOOT: u8 = 3;

/// A node with Calico, two pods in the old range, and a LAN.
fn host() -> Tables {
    Tables {
        devices: vec![
            device("lo", &["127.0.0.1/8"]),
            device("eth0", &["192.0.2.11/24"]),
            device("vxlan.calico", &["10.244.1.0/32"]),
            device("cali1", &[]),
            device("cali2", &[]),
            device("ppp0", &["198.51.100.1/32"]),
        ],
        routes: vec![
            route(BOOT, "0.0.0.0/0 via 192.0.2.1 dev eth0"),
            route(KERNEL, "192.0.2.0/24 dev eth0"),
            route(KERNEL, "local 10.244.1.0/32 dev vxlan.calico table local"),
            route(FELIX, "10.244.2.0/26 via 10.244.2.0 dev vxlan.calico"),
            route(FELIX, "10.244.3.0/26 via 192.0.2.13 dev eth0"),
            route(FELIX, "blackhole 10.244.1.0/26"),
            route(BOOT, "10.244.1.6/32 dev cali2"),
            route(BOOT, "10.244.1.5/32 dev cali1"),
        ],
        rules: Vec::new(),
    }
}

fn observe(tables: &Tables) -> HostFacts {
    let settings = settings("10.244.0.0/16", "10.200.0.0/16");
    facts(&settings, Found::Absent, Found::Absent, tables)
}

fn words<T: ToString>(listed: &Listed<T>) -> Vec<String> {
    listed.items.iter().map(ToString::to_string).collect()
}

#[test]
fn entries_of_the_old_range_are_sorted_into_lists() {
    let facts = observe(&host());
    assert_eq!(
        words(&facts.source.pods),
        ["10.244.1.5/32 dev cali1", "10.244.1.6/32 dev cali2"]
    );
    assert_eq!(
        words(&facts.source.blocks),
        [
            "10.244.2.0/26 via 10.244.2.0 dev vxlan.calico",
            "10.244.3.0/26 via 192.0.2.13 dev eth0"
        ]
    );
    assert_eq!(words(&facts.source.discards), ["blackhole 10.244.1.0/26"]);
    assert_eq!(
        words(&facts.source.addresses),
        ["10.244.1.0/32 dev vxlan.calico"],
        "without its route in table local"
    );
    assert_eq!((remaining(&facts).len(), facts.source.count()), (6, 6));
    assert_eq!(foreign(&facts), [""; 0]);
    assert_eq!(
        facts.tunnel_addresses().collect::<Vec<_>>(),
        [("vxlan.calico", "10.244.1.0/32".parse().unwrap())]
    );
    assert_eq!(facts.uplink.unwrap().name, "eth0");
}

#[test]
fn no_entry_remains_for_an_unused_range() {
    let mut host = host();
    host.routes
        .retain(|route| !route.destination.to_string().starts_with("10.244."));
    host.devices[2].addresses = vec!["10.200.1.0/32".parse().unwrap()];
    // Routes to other networks, not within the range.
    host.routes.push(route(BOOT, "10.0.0.0/8 via 192.0.2.9 dev eth0"));
    host.routes
        .push(route(BOOT, "10.245.0.0/16 via 192.0.2.9 dev eth0"));
    assert_eq!(remaining(&observe(&host)), [""; 0]);
}

#[rstest]
#[case(BOOT, "10.244.9.0/24 dev wireguard.cali table 1", "blocks")]
#[case(FELIX, "throw 10.244.1.0/26 table 1", "discards")]
#[case(BIRD, "unreachable 10.244.1.64/26", "discards")]
#[case(BIRD, "10.244.4.0/26 via 192.0.2.14 dev tunl0", "blocks")]
#[case(BOOT, "10.244.1.7/32 via 10.244.1.6 dev cali2", "blocks")]
#[case(BOOT, "10.244.5.5/32 dev vxlan.calico", "blocks")]
#[case(BOOT, "10.244.1.64/26 dev cali2", "blocks")]
#[case(BOOT, "local 10.244.9.9/32 dev lo table local", "blocks")]
#[case(KERNEL, "10.244.9.9/32 dev ppp0", "blocks")]
fn a_route_of_any_table_and_kind_is_listed(#[case] protocol: u8, #[case] text: &str, #[case] list: &str) {
    let mut host = host();
    host.routes.push(route(protocol, text));
    let facts = observe(&host);
    let found = match list {
        "blocks" => &facts.source.blocks,
        _ => &facts.source.discards,
    };
    assert!(words(found).contains(&text.to_owned()), "{found:?}");
    assert!(remaining(&facts).contains(&text.to_owned()));
    assert_eq!(remaining(&facts).len(), 7);
}

#[rstest]
#[case::vpn(BOOT, "10.200.7.0/24 via 192.0.2.9 dev eth0", true)]
#[case::wider_than_the_range(BOOT, "10.0.0.0/8 via 192.0.2.9 dev eth0", true)]
#[case::same_range(16, "10.200.0.0/16 dev wg0 table 51820", true)]
#[case::other_end_of_a_cable(KERNEL, "10.200.0.2/32 dev ppp0", true)]
#[case::foreign_blackhole(BOOT, "blackhole 10.200.0.0/16", true)]
#[case::default_route(BOOT, "0.0.0.0/0 via 192.0.2.9 dev eth0 metric 50", false)]
#[case::another_range(BOOT, "10.201.0.0/16 via 192.0.2.9 dev eth0", false)]
#[case::another_family(BOOT, "fd00::/8 dev eth0", false)]
#[case::calicos_block(BOOT, "10.200.2.0/26 via 10.200.2.0 dev vxlan.calico", false)]
#[case::calicos_block_without_tunnel(FELIX, "10.200.2.0/26 via 192.0.2.12 dev eth0", false)]
#[case::calicos_blackhole(FELIX, "blackhole 10.200.1.0/26", false)]
#[case::calicos_pod(BOOT, "10.200.1.5/32 dev cali1", false)]
#[case::calicos_wireguard(BOOT, "10.200.2.0/26 dev wireguard.cali table 1", false)]
#[case::not_quite_calicos_link(BOOT, "10.200.2.0/26 dev tunl01", true)]
fn foreign_routes_in_the_new_range_are_listed(
    #[case] protocol: u8,
    #[case] text: &str,
    #[case] is_foreign: bool,
) {
    let mut host = host();
    host.routes.push(route(protocol, text));
    let found = foreign(&observe(&host));
    let wanted: Vec<&str> = if is_foreign { vec![text] } else { Vec::new() };
    assert_eq!(found, wanted);
    assert_eq!(announced(&observe(&host)), [""; 0]);
}

#[test]
fn a_route_with_one_foreign_nexthop_is_foreign() {
    let mut host = host();
    let mut both = route(BOOT, "10.200.2.0/26 dev vxlan.calico");
    both.hops.push(Hop {
        gateway: Some("192.0.2.9".parse().unwrap()),
        link: Some("eth0".to_owned()),
    });
    host.routes.push(both);
    assert_eq!(
        foreign(&observe(&host)),
        ["10.200.2.0/26 nexthop dev vxlan.calico nexthop via 192.0.2.9 dev eth0"]
    );
}

#[test]
fn routes_of_bird_are_announced_and_not_foreign() {
    let mut host = host();
    let announcements = ["blackhole 10.200.1.0/26", "10.200.2.0/26 via 192.0.2.12 dev eth0"];
    host.routes.extend(announcements.map(|text| route(BIRD, text)));
    let facts = observe(&host);
    assert_eq!(announced(&facts), announcements);
    assert_eq!(foreign(&facts), [""; 0]);
    // A block cannot be wider than its pool.
    host.routes
        .push(route(BIRD, "10.192.0.0/11 via 192.0.2.1 dev eth0"));
    let facts = observe(&host);
    assert_eq!(announced(&facts), announcements);
    assert_eq!(foreign(&facts), ["10.192.0.0/11 via 192.0.2.1 dev eth0"]);
}

#[rstest]
#[case::bridge("docker0", "10.200.0.1/24", true)]
#[case::wider_than_the_range("eth1", "10.1.2.3/8", true)]
#[case::tunnel("vxlan.calico", "10.200.1.0/32", false)]
#[case::another_range("docker0", "10.201.0.1/24", false)]
fn foreign_addresses_in_the_new_range_are_listed(
    #[case] link: &str,
    #[case] address: &str,
    #[case] is_foreign: bool,
) {
    let mut host = host();
    host.devices.push(device(link, &[address]));
    let network: IpNet = address.parse::<IpNet>().unwrap().trunc();
    // The kernel's own routes for the address add nothing.
    let own = ["local", ""].map(|kind| match kind {
        "" => route(KERNEL, &format!("{network} dev {link}")),
        _ => route(
            KERNEL,
            &format!(
                "local {}/32 dev {link} table local",
                address.split('/').next().unwrap()
            ),
        ),
    });
    host.routes.extend(own);
    let wanted: Vec<String> = is_foreign
        .then(|| format!("{address} dev {link}"))
        .into_iter()
        .collect();
    assert_eq!(foreign(&observe(&host)), wanted);
}

#[test]
fn rules_of_a_range_are_listed_and_not_waited_for() {
    let rule = |priority, from: Option<&str>, to: Option<&str>| Rule {
        priority,
        from: from.map(|net| net.parse().unwrap()),
        to: to.map(|net| net.parse().unwrap()),
        table: Some(100),
    };
    let mut host = host();
    host.rules = vec![
        rule(32766, None, None),
        rule(900, Some("10.244.0.0/16"), None),
        rule(800, None, Some("10.200.0.0/16")),
        rule(700, Some("192.0.2.0/24"), Some("198.51.100.0/24")),
    ];
    let facts = observe(&host);
    assert_eq!(
        words(&facts.source.rules),
        ["rule 900: from 10.244.0.0/16 lookup 100"]
    );
    assert_eq!(
        foreign(&facts),
        ["rule 800: from all to 10.200.0.0/16 lookup 100"]
    );
    assert_eq!(remaining(&facts), remaining(&observe(&self::host())));
}

#[test]
fn lists_are_bounded_and_start_with_foreign_entries() {
    let mut host = host();
    for number in 0..100 {
        host.routes.push(route(
            FELIX,
            &format!("10.244.{}.0/26 via 192.0.2.12 dev eth0", 100 + number),
        ));
        host.routes
            .push(route(BOOT, &format!("10.200.{number}.0/24 dev tun0")));
    }
    host.routes
        .push(route(BOOT, "10.244.250.0/24 via 192.0.2.9 dev eth0"));
    let facts = observe(&host);
    assert_eq!(
        (facts.source.blocks.items.len(), facts.source.blocks.remaining),
        (20, 83)
    );
    assert_eq!(
        words(&facts.source.blocks)[0],
        "10.244.250.0/24 via 192.0.2.9 dev eth0"
    );
    assert!(remaining(&facts).contains(&"83 more routes".to_owned()));
    assert_eq!(foreign(&facts).last().unwrap(), "80 more routes");
    assert_eq!(facts.source.count(), 107);
}

#[test]
fn entries_of_a_new_range_within_the_old_one_do_not_remain() {
    let mut host = host();
    host.routes.push(route(BOOT, "10.244.128.5/32 dev cali1"));
    let nested = facts(
        &settings("10.244.0.0/16", "10.244.128.0/17"),
        Found::Absent,
        Found::Absent,
        &host,
    );
    assert_eq!(remaining(&nested), remaining(&observe(&self::host())));
    assert_eq!(foreign(&nested), [""; 0]);
}

#[test]
fn ipv6_ranges_are_supported() {
    let mut host = host();
    host.devices
        .push(device("vxlan-v6.calico", &["fd00:10:244:1::/128"]));
    host.routes.extend([
        route(BOOT, "::/0 via fe80::1 dev eth0"),
        route(KERNEL, "fe80::/64 dev eth0"),
        route(BOOT, "fd00:10:244:1::5/128 dev cali1 metric 1024"),
        route(BOOT, "fd00:10:200::/64 dev tun0"),
    ]);
    let facts = facts(
        &settings("fd00:10:244::/48", "fd00:10:200::/48"),
        Found::Absent,
        Found::Absent,
        &host,
    );
    assert_eq!(
        remaining(&facts),
        [
            "fd00:10:244:1::/128 dev vxlan-v6.calico",
            "fd00:10:244:1::5/128 dev cali1"
        ]
    );
    assert_eq!(foreign(&facts), ["fd00:10:200::/64 dev tun0"]);
    assert_eq!(facts.uplink.unwrap().name, "eth0");
}

#[test]
fn the_uplink_is_the_link_of_the_best_default_route() {
    let mut host = host();
    host.routes[0].metric = 100;
    for name in ["eth1", "eth2", "eth3"] {
        host.devices.push(device(name, &[]));
    }
    host.routes.extend([
        route(BOOT, "0.0.0.0/0 via 203.0.113.1 dev eth1 metric 50"),
        route(BOOT, "0.0.0.0/0 via 203.0.113.2 dev eth2 table 77 metric 1"),
        route(BOOT, "::/0 via fe80::1 dev eth3 metric 1"),
    ]);
    assert_eq!(observe(&host).uplink.unwrap().name, "eth1");
    host.routes.retain(|route| route.destination.prefix_len() > 0);
    assert_eq!(observe(&host).uplink, None);
}

#[test]
fn the_route_of_a_traffic_pod_does_not_delay_the_uncordon() {
    let mut host = host();
    let ours = |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect();
    let found = |host: &Tables, addresses: &[&str]| route_to_pod(&observe(host), &ours(addresses));
    assert_eq!(found(&host, &[]).unwrap(), "10.244.1.5/32 dev cali1");
    assert_eq!(found(&host, &["10.244.1.5"]).unwrap(), "10.244.1.6/32 dev cali2");
    assert_eq!(found(&host, &["10.244.1.5", "10.244.1.6"]), None);
    for number in 10..35 {
        host.routes
            .push(route(BOOT, &format!("10.244.1.{number}/32 dev cali{number}")));
    }
    let listed: Vec<String> = observe(&host)
        .source
        .pods
        .items
        .iter()
        .map(|route| route.destination.addr().to_string())
        .collect();
    let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
    assert_eq!(found(&host, &listed).unwrap(), "7 more routes to pods");
}

#[test]
fn a_list_that_becomes_empty_is_news() {
    let mut host = host();
    let two = observe(&host);
    host.routes.push(route(BOOT, "10.244.1.99/32 dev cali99"));
    let three = observe(&host);
    assert_ne!(three, two);
    assert!(!is_news(&three, &two), "two other pods remain");
    host.routes.pop();
    let last = host.routes.pop().unwrap();
    let one = observe(&host);
    assert!(is_news(&two, &one), "the remaining one may be the traffic pod");
    host.routes.pop();
    let none = observe(&host);
    assert!(is_news(&one, &none));
    host.routes.push(last);
    assert!(is_news(&none, &observe(&host)));

    let mut other = one.clone();
    other.conflist = Found::Malformed("no JSON".to_owned());
    assert!(is_news(&one, &other));
    let mut foreign = one.clone();
    foreign.target.routes = [route(BOOT, "10.200.0.0/24 dev tun0")].into_iter().collect();
    assert!(is_news(&one, &foreign));
    let mut tunnel = one.clone();
    tunnel.tunnels[0].addresses.push("10.200.1.0/32".parse().unwrap());
    assert!(is_news(&one, &tunnel));
}

#[test]
fn facts_survive_serialization() {
    let mut host = host();
    host.routes.extend([
        route(BOOT, "10.200.0.0/24 dev tun0 metric 7"),
        route(BOOT, "10.244.9.0/24 dev wireguard.cali table 1"),
    ]);
    let facts = observe(&host);
    let wire = serde_json::to_value(&facts).unwrap();
    assert_eq!(serde_json::from_value::<HostFacts>(wire.clone()).unwrap(), facts);
    assert_eq!(
        wire["source"]["discards"],
        serde_json::json!({
            "items": [{ "kind": "Blackhole", "destination": "10.244.1.0/26", "protocol": 80 }]
        })
    );
    let settings = settings("10.244.0.0/16", "10.200.0.0/16");
    assert_eq!(
        serde_json::to_value(&settings).unwrap(),
        serde_json::json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16" })
    );
}

fn file(name: &str, text: &str) -> (String, Contents) {
    (name.to_owned(), Ok(text.as_bytes().to_vec()))
}

fn with(conflist: Found<Conflist>) -> HostFacts {
    facts(
        &settings("10.244.0.0/16", "10.200.0.0/16"),
        conflist,
        Found::Absent,
        &Tables::default(),
    )
}

const IPV4: &str = "10.0.0.0/8";
const IPV6: &str = "fd00::/8";

#[test]
fn the_first_file_determines_the_ipam_plugin() {
    let files = [
        file("99-loopback.conf", r#"{"name": "lo", "type": "loopback"}"#),
        file(
            "10-calico.conflist",
            r#"{"name": "k8s-pod-network", "plugins": [
                {"type": "calico", "ipam": {"type": "calico-ipam", "ipv4_pools": ["old", "10.9.0.0/16"], "ipv6_pools": []}},
                {"type": "portmap", "ipam": {"type": "host-local"}}]}"#,
        ),
    ];
    let facts = with(conflist("/etc/cni/net.d", &files));
    let found = facts.conflist.present().unwrap();
    assert_eq!(found.path, "/etc/cni/net.d/10-calico.conflist");
    assert_eq!(
        (found.network.as_deref(), found.plugin.as_str()),
        (Some("k8s-pod-network"), "calico")
    );
    assert!(found.ipv6_pools.is_absent(), "an empty list pins to nothing");
    assert_eq!(facts.ipam(), Ok("calico-ipam"));
    assert_eq!(
        facts.pins(&IPV4.parse().unwrap()).unwrap(),
        ["old", "10.9.0.0/16"]
    );
    assert_eq!(facts.pins(&IPV6.parse().unwrap()).unwrap(), [""; 0]);
}

#[rstest]
#[case::chain_of_one(
    "1.conf",
    r#"{"name": "n", "type": "calico", "IPAM": {"Type": "host-local"}}"#,
    Ok("host-local")
)]
#[case::no_ipam(
    "1.conflist",
    r#"{"name": "n", "plugins": [{"type": "multus"}]}"#,
    Err("/net.d/1.conflist: plugin multus has no IPAM plugin")
)]
#[case::null(
    "1.conflist",
    r#"{"name": "n", "plugins": [{"type": "calico", "ipam": {"type": null}}]}"#,
    Err("has no IPAM plugin")
)]
#[case::another_kind(
    "1.conflist",
    r#"{"name": "n", "plugins": [{"type": "calico", "ipam": {"type": 7}}]}"#,
    Err("/net.d/1.conflist: ipam.type: found a number, needed a string")
)]
#[case::broken(
    "1.conflist",
    r#"{"name": "n", "plugins": ["#,
    Err("/net.d/1.conflist: not JSON")
)]
#[case::no_configuration_file("1.bak", "{}", Err("no CNI configuration"))]
fn the_ipam_plugin_is_read_from_the_configuration(
    #[case] name: &str,
    #[case] text: &str,
    #[case] expected: Result<&str, &str>,
) {
    // Not every runtime uses the next file after one that cannot be parsed.
    let second = file(
        "2.bak",
        r#"{"name": "n", "type": "calico", "ipam": {"type": "calico-ipam"}}"#,
    );
    let facts = with(conflist("/net.d", &[second, file(name, text)]));
    match (facts.ipam(), expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected),
        (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
        (found, expected) => panic!("{found:?}, not {expected:?}"),
    }
}

#[rstest]
#[case(
    r#""10.9.0.0/16""#,
    "ipam.ipv4_pools: found a string, needed a list of strings"
)]
#[case("[7]", "ipam.ipv4_pools: found a list, needed a list of strings")]
fn unparsable_pins_are_an_error(#[case] value: &str, #[case] problem: &str) {
    let text = format!(
        r#"{{"name": "n", "plugins": [{{"type": "calico", "ipam": {{"type": "calico-ipam", "ipv4_pools": {value}}}}}]}}"#
    );
    let facts = with(conflist("/net.d", &[file("1.conflist", &text)]));
    assert_eq!(facts.ipam(), Ok("calico-ipam"));
    let said = facts.pins(&IPV4.parse().unwrap()).unwrap_err();
    assert!(said.contains(problem), "{said}");
    assert_eq!(facts.pins(&IPV6.parse().unwrap()).unwrap(), [""; 0]);
}
