use super::*;

fn tuple(source: &str, destination: &str) -> Tuple {
    Tuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        source_port: 4000,
        destination_port: 80,
    }
}

fn connection(original: (&str, &str), reply: (&str, &str)) -> TrackedConnection {
    TrackedConnection {
        id: 1,
        zone: 0,
        protocol: 6,
        original: tuple(original.0, original.1),
        reply: tuple(reply.0, reply.1),
        is_replied: true,
    }
}

fn change() -> Change {
    Change {
        own: Vec::new(),
        links: vec!["cni0".to_owned()],
        source: ["fe80::1", "10.244.1.1", "fd00::1"]
            .map(|address| address.parse().unwrap())
            .to_vec(),
        destinations: ["10.244.1.2/32", "10.244.1.3/32", "fd00::2/128"]
            .map(|network| network.parse().unwrap())
            .to_vec(),
    }
}

#[test]
fn both_directions_of_a_connection_are_held_back() {
    let text = holding(&[connection(
        ("192.0.2.7", "10.96.0.10"),
        ("10.244.1.2", "10.244.1.1"),
    )]);
    let elements = "ipv4 { 192.0.2.7 . 4000 . 10.96.0.10 . 80, 10.244.1.2 . 4000 . 10.244.1.1 . 80 }";
    assert!(text.contains(elements), "{text}");
    assert!(!text.contains("ipv6"), "{text}");
    for hook in ["prerouting", "output"] {
        let rule = format!("{hook} ip saddr . tcp sport . ip daddr . tcp dport @ipv4 drop");
        assert!(text.contains(&rule), "{text}");
    }
}

#[test]
fn each_family_is_translated_to_an_address_of_its_own() {
    let text = translating(&change(), &[0x4000].into());
    for rule in [
        "ip replumb postrouting oifname { \"cni0\" } ip daddr { 10.244.1.2/32, 10.244.1.3/32 } meta mark & 0x4000 == 0x4000",
        "ip6 replumb postrouting oifname { \"cni0\" } ip6 daddr { fd00::2/128 } meta mark & 0x4000 == 0x4000",
        "meta mark set meta mark & 0xffffbfff snat to 10.244.1.1",
        "meta mark set meta mark & 0xffffbfff snat to fd00::1",
    ] {
        assert!(text.contains(rule), "{text}");
    }
}

#[test]
fn nothing_is_translated_without_a_mark_or_an_address() {
    assert_eq!(translating(&change(), &BTreeSet::new()), removal());
    let link_local = Change {
        source: vec!["fe80::1".parse().unwrap()],
        ..change()
    };
    assert_eq!(translating(&link_local, &[0x4000].into()), removal());
}
