//! What is done with each Service: most of them move, some are left alone, some cannot.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::entry::Kind;

/// Value of `clusterIP` of a Service without an address.
const NONE: &str = "None";

/// The addresses of a Service, in the order in which it says them.
pub fn addresses(spec: &Value) -> Vec<IpAddr> {
    let said = spec["clusterIPs"].as_array();
    let said = said.map_or_else(|| vec![&spec["clusterIP"]], |all| all.iter().collect());
    said.into_iter()
        .filter_map(|address| address.as_str()?.parse().ok())
        .collect()
}

/// What is done with a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// These addresses of it are exchanged.
    Moves(Vec<IpAddr>),
    /// It keeps these addresses: its load balancer would be deleted with them, and a cloud may make no second one like it.
    LoadBalancer(Vec<IpAddr>),
    /// It has no address, and must not get one.
    Headless,
    /// It is a name.
    ExternalName,
    /// No address of it is of a range that is left.
    Elsewhere,
}

impl Class {
    /// What is done with a Service of this kind and these addresses while these ranges are left.
    pub(super) fn new(kind: Kind, addresses: &[IpAddr], left: &[IpNet]) -> Self {
        let found = || -> Vec<IpAddr> {
            let is_left = |address: &&IpAddr| left.iter().any(|range| range.contains(*address));
            addresses.iter().filter(is_left).copied().collect()
        };
        match (kind, found()) {
            (Kind::Name, _) => Self::ExternalName,
            (Kind::Headless, _) => Self::Headless,
            (Kind::Plain | Kind::LoadBalancer, found) if found.is_empty() => Self::Elsewhere,
            (Kind::Plain, found) => Self::Moves(found),
            (Kind::LoadBalancer, found) => Self::LoadBalancer(found),
        }
    }

    /// What is done with a Service of this spec while these ranges are left.
    pub fn of(spec: &Value, left: &[IpNet]) -> Self {
        Self::new(Kind::of(spec), &addresses(spec), left)
    }
}

/// Whether a Service of this spec has no address of its own.
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
    fn what_is_done_with_a_service(#[case] spec: Value, #[case] expected: Class) {
        assert_eq!(Class::of(&spec, &["10.96.0.0/12".parse().unwrap()]), expected);
    }
}
