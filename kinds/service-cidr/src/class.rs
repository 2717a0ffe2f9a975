//! The class of each Service: most change their addresses, some stay as they are, some cannot change.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

/// Value of `clusterIP` of a Service without an address.
const NONE: &str = "None";

/// The addresses of a Service, in the order of its spec.
pub fn addresses(spec: &Value) -> Vec<IpAddr> {
    let said = spec["clusterIPs"].as_array();
    let said = said.map_or_else(|| vec![&spec["clusterIP"]], |all| all.iter().collect());
    said.into_iter()
        .filter_map(|address| address.as_str()?.parse().ok())
        .collect()
}

/// The kind of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Service with a cluster IP, and perhaps node ports.
    Plain,
    /// A Service of type `LoadBalancer`.
    LoadBalancer,
    /// A headless Service.
    Headless,
    /// A Service of type `ExternalName`.
    Name,
}

impl Kind {
    /// The kind of a Service of this spec.
    pub(super) fn of(spec: &Value) -> Self {
        match spec["type"].as_str() {
            Some("ExternalName") => Self::Name,
            _ if is_headless(spec) => Self::Headless,
            Some("LoadBalancer") => Self::LoadBalancer,
            Some(_) | None => Self::Plain,
        }
    }
}

/// The class of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// The Service changes these addresses.
    Moves(Vec<IpAddr>),
    /// The Service keeps these addresses: its load balancer would be deleted with them, and the cloud may not create an equal
    /// one.
    LoadBalancer(Vec<IpAddr>),
    /// The Service has no address, and must not get one.
    Headless,
    /// The Service is of type `ExternalName`.
    ExternalName,
    /// The Service has no address of a source range.
    Elsewhere,
}

impl Class {
    /// The class of a Service of this kind and these addresses, for these source ranges.
    pub(super) fn new(kind: Kind, addresses: &[IpAddr], source: &[IpNet]) -> Self {
        let found = || -> Vec<IpAddr> {
            let is_in_source = |address: &&IpAddr| source.iter().any(|range| range.contains(*address));
            addresses.iter().filter(is_in_source).copied().collect()
        };
        match (kind, found()) {
            (Kind::Name, _) => Self::ExternalName,
            (Kind::Headless, _) => Self::Headless,
            (Kind::Plain | Kind::LoadBalancer, found) if found.is_empty() => Self::Elsewhere,
            (Kind::Plain, found) => Self::Moves(found),
            (Kind::LoadBalancer, found) => Self::LoadBalancer(found),
        }
    }

    /// The class of a Service with this spec, for these source ranges.
    pub fn of(spec: &Value, source: &[IpNet]) -> Self {
        Self::new(Kind::of(spec), &addresses(spec), source)
    }
}

/// Whether a Service with this spec has no address.
pub(super) fn is_headless(spec: &Value) -> bool {
    spec["clusterIP"].as_str() == Some(NONE)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn found(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[rstest]
    #[case::cluster_ip(
        json!({"type": "ClusterIP", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"]}),
        Class::Moves(found(&["10.96.0.5"]))
    )]
    #[case::without_a_list(json!({"clusterIP": "10.96.0.5"}), Class::Moves(found(&["10.96.0.5"])))]
    #[case::node_port(json!({"type": "NodePort", "clusterIPs": ["10.96.0.5"]}), Class::Moves(found(&["10.96.0.5"])))]
    #[case::one_family_of_two(
        json!({"type": "ClusterIP", "clusterIPs": ["fd00:96::5", "10.96.0.5"]}), Class::Moves(found(&["10.96.0.5"]))
    )]
    #[case::load_balancer(
        json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.5"]}), Class::LoadBalancer(found(&["10.96.0.5"]))
    )]
    #[case::load_balancer_of_the_new_range(json!({"type": "LoadBalancer", "clusterIPs": ["172.30.0.5"]}), Class::Elsewhere)]
    #[case::headless(json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}), Class::Headless)]
    #[case::name(json!({"type": "ExternalName", "externalName": "example.org"}), Class::ExternalName)]
    #[case::new_range(json!({"type": "ClusterIP", "clusterIPs": ["172.30.0.5"]}), Class::Elsewhere)]
    fn the_class_depends_on_type_and_addresses(#[case] spec: Value, #[case] expected: Class) {
        assert_eq!(Class::of(&spec, &["10.96.0.0/12".parse().unwrap()]), expected);
    }
}
