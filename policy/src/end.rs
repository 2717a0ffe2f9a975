//! The ends of a connection, as a user names them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::{Cluster, Owner};

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// A pod of this workload.
    Workload {
        /// Its namespace.
        namespace: Arc<str>,
        /// The name of the workload.
        workload: Arc<str>,
    },
    /// A node, or a pod on its network.
    Node(Arc<str>),
    /// An address outside of the cluster.
    Outside,
    /// An address in a range of pods whose owner is not known.
    Unknown,
}

impl Cluster {
    /// The owner of an address, as a node sees it.
    pub fn end(&self, address: IpAddr, seen_by: &str) -> End {
        let Some(node) = self.node(seen_by) else {
            return End::Unknown;
        };
        match self.owner(address, node) {
            Owner::Pod(pod) => End::Workload {
                namespace: Arc::clone(&pod.namespace),
                workload: Arc::clone(&pod.workload),
            },
            Owner::OwnNode => End::Node(Arc::clone(&node.name)),
            Owner::OtherNode(_) => self
                .home(address, Some(node))
                .map_or(End::Unknown, |home| End::Node(Arc::clone(&home.name))),
            Owner::Outside => End::Outside,
            Owner::NoPod | Owner::Several => End::Unknown,
        }
    }
}

impl End {
    /// The name with an address of the owner, which tells addresses without a workload apart.
    pub fn with(&self, address: IpAddr) -> impl fmt::Display {
        let end = self.clone();
        fmt::from_fn(move |out| match &end {
            Self::Workload { namespace, workload } => write!(out, "{namespace}/{workload}"),
            Self::Node(name) => write!(out, "node {name}"),
            Self::Outside => write!(out, "{address} outside of the cluster"),
            Self::Unknown => write!(out, "{address}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Facts;
    use crate::fixture::{address, node, pod};
    use crate::settings::Settings;

    #[test]
    fn ends_are_workloads_nodes_and_addresses() {
        let cluster = Cluster::new(Facts {
            settings: Settings {
                pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
                ..Settings::default()
            },
            nodes: vec![
                node("n1", "192.0.2.11", "10.244.1.0"),
                node("n2", "192.0.2.12", "10.244.2.0"),
            ],
            pods: vec![pod("shop", "web", "n1", "10.244.1.5", &[])],
            ..Facts::default()
        });
        for (text, expected) in [
            ("10.244.1.5", "shop/web"),
            ("192.0.2.11", "node n1"),
            ("10.244.2.0", "node n2"),
            ("10.244.2.9", "10.244.2.9"),
            ("198.51.100.9", "198.51.100.9 outside of the cluster"),
        ] {
            let name = cluster.end(address(text), "n1").with(address(text)).to_string();
            assert_eq!(name, expected);
        }
        assert_eq!(cluster.end(address("10.244.1.5"), "gone"), End::Unknown);
    }
}
