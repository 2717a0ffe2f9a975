//! Values that several tests share.

use std::net::IpAddr;
use std::sync::Arc;

use engine::labels::Labels;
use serde_json::Value;

use crate::cluster::Node;
use crate::flow::Protocol;
use crate::pod::{ContainerPort, Life, Lifetime, Pod};
use crate::rules::Policy;

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn node(name: &str, underlay: &str, tunnel: &str) -> Node {
    Node {
        name: Arc::from(name),
        addresses: vec![address(underlay)],
        tunnels: vec![address(tunnel)],
        ..Node::default()
    }
}

/// A running pod that Calico enforces.
pub(crate) fn pod(namespace: &str, name: &str, node: &str, ipv4: &str, labels: &[(&str, &str)]) -> Pod {
    Pod {
        namespace: Arc::from(namespace),
        name: Arc::from(name),
        workload: Arc::from(name),
        labels: labels.iter().copied().collect::<Labels>(),
        node: Arc::from(node),
        ipv4: ipv4.parse().ok(),
        ipv6: None,
        ports: Arc::default(),
        life: Life::Live,
        is_host_network: false,
        is_enforced: true,
        lifetime: Lifetime::default(),
    }
}

/// The pod with one more TCP port.
pub(crate) fn declare(pod: Pod, name: &str, number: u16) -> Pod {
    let port = ContainerPort {
        name: Some(Arc::from(name)),
        protocol: Protocol::Tcp,
        number,
        is_init: false,
    };
    let ports = pod.ports.iter().cloned().chain([port]).collect();
    Pod { ports, ..pod }
}

pub(crate) fn policy(namespace: &str, name: &str, spec: &Value) -> Policy {
    let policy = serde_json::json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
    Policy::read(&serde_json::from_value(policy).unwrap())
}
