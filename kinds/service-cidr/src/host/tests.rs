use super::*;

fn port(address: &str) -> ServicePort {
    ServicePort {
        address: address.parse().unwrap(),
        protocol: "TCP".to_owned(),
        port: 443,
    }
}

#[test]
fn a_port_is_written_with_address_and_protocol() {
    assert_eq!(port("10.96.0.1").to_string(), "10.96.0.1:443/TCP");
    assert_eq!(port("fd00:96::1").to_string(), "[fd00:96::1]:443/TCP");
}

fn facts() -> HostFacts {
    HostFacts {
        proxy_mode: Found::Present(ProxyMode::Iptables),
        missing_ports: Found::Present(Vec::new()),
        api_server: "10.96.0.1".to_owned(),
        ..HostFacts::default()
    }
}

#[test]
fn addresses_of_load_balancers_are_not_left() {
    let left = SourceAddresses {
        ranges: vec!["10.96.0.0/12".parse().unwrap()],
        excluded: vec!["10.96.3.9".parse().unwrap()],
    };
    for (address, expected) in [("10.96.0.1", true), ("10.96.3.9", false), ("172.30.0.1", false)] {
        assert_eq!(left.contains(address.parse().unwrap()), expected, "{address}");
    }
}

fn connections(sources: &[&str]) -> Found<Listed<Connection>> {
    let connection = |source: &&str| Connection {
        source: source.parse().unwrap(),
        service: port("10.96.0.1"),
    };
    Found::Present(sources.iter().map(connection).collect())
}

#[test]
fn only_the_first_and_the_last_connection_are_news() {
    let with = |found| HostFacts {
        connections: found,
        ..facts()
    };
    let (none, one) = (facts(), with(connections(&["10.244.1.5"])));
    let two = with(connections(&["10.244.1.5", "10.244.1.6"]));
    assert!(is_news(&none, &one) && is_news(&one, &none));
    assert!(!is_news(&one, &two) && !is_news(&two, &one));
    assert!(!is_news(&none, &none));
    let blind = with(Found::Malformed("not listed".to_owned()));
    assert!(is_news(&none, &blind) && is_news(&two, &blind));
}

#[test]
fn every_other_change_is_news() {
    let with_old_addresses = PodsWithSourceAddresses {
        unread: vec!["u".to_owned()],
        ..PodsWithSourceAddresses::default()
    };
    for after in [
        HostFacts {
            missing_ports: Found::Present(vec![port("10.96.0.1")]),
            ..facts()
        },
        HostFacts {
            pods_with_source_addresses: Found::Present(with_old_addresses),
            ..facts()
        },
        HostFacts {
            cluster_dns: Found::Present(vec!["10.96.0.10".parse().unwrap()]),
            ..facts()
        },
        HostFacts {
            proxy_mode: Found::Absent,
            ..facts()
        },
    ] {
        assert!(is_news(&facts(), &after), "{after:?}");
    }
}

#[test]
fn an_agent_reports_pods_of_its_own_node_only() {
    let with_old_address = |uid: &str| PodWithSourceAddress {
        pod_uid: uid.to_owned(),
        origin: AddressOrigin::Environment,
        address: "10.96.0.1".parse().unwrap(),
    };
    let with_old_addresses = PodsWithSourceAddresses {
        pods: vec![with_old_address("own"), with_old_address("of-another-node")],
        unread: vec![
            "old".to_owned(),
            "new".to_owned(),
            "old-of-another-node".to_owned(),
        ],
        unread_reason: String::new(),
    };
    let pod = |uid: &str, made: i64| Pod {
        uid: uid.to_owned(),
        made_at: Some(Timestamp::from_second(made).unwrap()),
        ..Pod::default()
    };
    let here = [pod("own", 20), pod("old", 5), pod("new", 20), pod("silent", 5)];
    let since = Timestamp::from_second(10).unwrap();
    assert_eq!(with_old_addresses.pods_to_restart(&here, since), ["own", "old"]);
}
