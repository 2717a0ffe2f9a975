//! Selection of the entries of the kernel's tables that overlap the target ranges.

use ipnet::IpNet;

use super::TargetFacts;
use calico::kernel::overlapping;
use engine::kernel::{Route, Tables};

/// The link on which kube-proxy in mode ipvs has the addresses of all Services.
pub const IPVS_LINK: &str = "kube-ipvs0";

/// Selects these entries, without default routes and without entries of kube-proxy. Calico's routes are included: pods in the
/// range are a conflict, whatever their network.
pub fn in_target(target: &[IpNet], tables: &Tables) -> TargetFacts {
    // Entries of kube-proxy are removed before the list is truncated: in mode ipvs each Service has an address.
    let found = overlapping(target, tables, is_kube_proxys, |link| link == IPVS_LINK);
    TargetFacts {
        routes: found.routes.into_iter().collect(),
        addresses: found.addresses,
        rules: found.rules,
    }
}

fn is_kube_proxys(route: &Route) -> bool {
    !route.hops.is_empty()
        && route
            .hops
            .iter()
            .all(|hop| hop.link.as_deref() == Some(IPVS_LINK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::kernel::{Device, FELIX, Hop, KERNEL, MAIN_TABLE, RouteKind, Rule};

    fn device(name: &str, addresses: impl IntoIterator<Item = String>) -> Device {
        Device {
            name: name.to_owned(),
            mtu: 1500,
            up: true,
            addresses: addresses.into_iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn route(kind: RouteKind, destination: &str, link: &str, protocol: u8) -> Route {
        Route {
            kind,
            destination: destination.parse().unwrap(),
            hops: vec![Hop {
                gateway: None,
                link: Some(link.to_owned()),
            }],
            table: MAIN_TABLE,
            protocol,
            metric: 0,
        }
    }

    fn ranges(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn overlapping_entries_are_listed_once() {
        let rule = Rule {
            priority: 900,
            from: None,
            to: Some("172.30.0.0/16".parse().unwrap()),
            table: Some(77),
        };
        let tables = Tables {
            devices: vec![
                device("eth0", ["192.0.2.11/24".to_owned()]),
                device("docker0", ["172.30.128.1/24".to_owned()]),
            ],
            routes: vec![
                route(RouteKind::Unicast, "0.0.0.0/0", "eth0", 3),
                route(RouteKind::Unicast, "172.16.0.0/12", "tun0", 3),
                // Routes of Calico, for a pool that overlaps.
                route(RouteKind::Blackhole, "172.30.4.0/26", "lo", FELIX),
                route(RouteKind::Unicast, "172.30.4.9/32", "cali1", 3),
                route(RouteKind::Unicast, "fd00:30::/112", "eth0", 3),
                // This route follows from the address.
                route(RouteKind::Unicast, "172.30.128.0/24", "docker0", KERNEL),
                route(RouteKind::Unicast, "10.96.0.0/12", "tun0", 3),
            ],
            rules: vec![rule.clone()],
        };
        // One route overlaps two ranges, and is listed once.
        let found = in_target(
            &ranges(&["172.30.0.0/16", "172.31.0.0/16", "fd00:30::/108"]),
            &tables,
        );
        let destinations: Vec<String> = found
            .routes
            .items
            .iter()
            .map(|route| route.destination.to_string())
            .collect();
        assert_eq!(
            destinations,
            ["172.16.0.0/12", "fd00:30::/112", "172.30.4.0/26", "172.30.4.9/32"],
            "foreign routes first"
        );
        assert_eq!(found.addresses.words(""), ["172.30.128.1/24 dev docker0"]);
        assert_eq!(found.rules.items, [rule]);
    }

    #[test]
    fn addresses_of_kube_proxy_in_mode_ipvs_hide_no_other() {
        let many = || (0..100_u32).map(|number| format!("172.30.0.{number}/32"));
        let tables = Tables {
            devices: vec![
                device(IPVS_LINK, many()),
                device("zz0", ["172.30.9.1/24".to_owned()]),
            ],
            routes: many()
                .map(|address| route(RouteKind::Local, &address, IPVS_LINK, KERNEL))
                .collect(),
            rules: Vec::new(),
        };
        let found = in_target(&ranges(&["172.30.0.0/16"]), &tables);
        assert_eq!(found.addresses.words("addresses"), ["172.30.9.1/24 dev zz0"]);
        assert!(found.routes.is_empty() && found.rules.is_empty());
        assert_eq!(in_target(&[], &tables), TargetFacts::default());
    }
}
