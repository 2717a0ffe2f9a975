//! Holders of addresses of a range in Calico's IPAM, other than pods that have to move: each with its name and its fix.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use super::calico_node::CalicoNode;
use super::ipam::{Allocation, attribute};
use engine::cluster::{Needed, NotUnderstood};
use engine::drain::Pod;
use engine::pods;

/// Values of attribute `type` for tunnel addresses.
const TUNNELS: [&str; 5] = [
    "ipipTunnelAddress",
    "vxlanTunnelAddress",
    "vxlanV6TunnelAddress",
    "wireguardTunnelAddress",
    "wireguardV6TunnelAddress",
];

/// The kind of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// A tunnel: once the pool is closed, calico-node chooses another address.
    Tunnel,
    /// Any other holder: the user has to release the address.
    Other,
}

/// Possible holders of addresses, apart from the data of Calico's IPAM.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'facts> {
    /// Every pod.
    pub pods: &'facts pods::Pods,
    /// Calico's Nodes.
    pub nodes: &'facts BTreeMap<String, CalicoNode>,
    /// The namespace of calico-node.
    pub calico: &'facts str,
}

/// Indexes of pods and nodes: a large cluster has hundreds of thousands of addresses to look up.
struct Pods<'facts> {
    /// By namespace and name.
    named: HashMap<(&'facts str, &'facts str), &'facts Pod>,
    /// Addresses of running pods without host network.
    addresses: HashSet<IpAddr>,
    /// Tunnel addresses, each with its node and kind.
    ends: HashMap<IpAddr, (&'facts str, &'facts str)>,
}

impl<'facts> Pods<'facts> {
    fn of(Cluster { pods, nodes, .. }: Cluster<'facts>) -> Self {
        let run = pods.iter().filter(|pod| !pod.host_network && !pod.finished);
        Self {
            named: pods
                .iter()
                .map(|pod| ((pod.namespace.as_str(), pod.name.as_str()), pod))
                .collect(),
            addresses: run.flat_map(|pod| pod.addresses.iter().copied()).collect(),
            ends: nodes
                .iter()
                .flat_map(|(node, found)| {
                    let ends = found.ends.iter();
                    ends.map(move |(kind, end)| (*end, (node.as_str(), kind.as_str())))
                })
                .collect(),
        }
    }
}

/// The holders of these allocations: a sentence with the object, the address and the fix for each. Running pods are not listed,
/// because they move.
pub fn holders<'facts>(
    allocations: impl IntoIterator<Item = &'facts Allocation>,
    cluster: Cluster<'_>,
) -> Vec<String> {
    listed(allocations, cluster, |_| true)
}

/// The same while the pool is open, without tunnels: their addresses are expected in it.
pub fn holders_besides_tunnels<'facts>(
    allocations: impl IntoIterator<Item = &'facts Allocation>,
    cluster: Cluster<'_>,
) -> Vec<String> {
    listed(allocations, cluster, |holder| holder != Holder::Tunnel)
}

fn listed<'facts>(
    allocations: impl IntoIterator<Item = &'facts Allocation>,
    cluster: Cluster<'_>,
    wanted: impl Fn(Holder) -> bool,
) -> Vec<String> {
    let pods = Pods::of(cluster);
    let mut words: Vec<String> = allocations
        .into_iter()
        .filter_map(|allocation| holder(allocation, &pods, cluster))
        .filter(|(holder, _)| wanted(*holder))
        .map(|(_, words)| words)
        .collect();
    words.sort();
    words
}

fn holder(allocation: &Allocation, pods: &Pods<'_>, cluster: Cluster<'_>) -> Option<(Holder, String)> {
    let address = allocation.address;
    let other = |words: String| Some((Holder::Other, words));
    if let Some(kind) = allocation.attribute(attribute::TYPE)
        && TUNNELS.contains(&kind)
    {
        let node = allocation.attribute(attribute::NODE).unwrap_or("(unknown)");
        return Some((Holder::Tunnel, tunnel(node, allocation, kind, cluster.calico)));
    }
    if let Some(service) = allocation.attribute(attribute::SERVICE) {
        return other(format!(
            "Service {service}: its load balancer has {address}: assign it an address of another pool"
        ));
    }
    let (Some(namespace), Some(name)) = (
        allocation.attribute(attribute::NAMESPACE),
        allocation.attribute(attribute::POD),
    ) else {
        return (!pods.addresses.contains(&address)).then(|| unnamed(allocation, pods, cluster));
    };
    match pods.named.get(&(namespace, name)) {
        // The pod has the address and runs, so it moves. Or it terminates and releases the address.
        Some(pod) if !pod.finished && (pod.addresses.contains(&address) || pod.deleted_at.is_some()) => None,
        // The pod may have the address.
        Some(pod)
            if !pod.finished
                && let Some(unclear) = address_not_understood(pod) =>
        {
            other(format!(
                "pod {}: {unclear}; Calico's IPAM assigned {address} to it: correct or delete the pod",
                pod.key()
            ))
        }
        // The pod starts: Calico assigns the address first, and the kubelet reports it once the pod has a network.
        Some(pod) if !pod.finished && pod.addresses.is_empty() => None,
        Some(pod) if pod.finished && pod.addresses.contains(&address) => other(format!(
            "pod {} is finished and still has {address} in Calico's IPAM: run `kubectl delete pod -n {namespace} {name}` and, \
             if the address is still in use, `calicoctl ipam release --ip={address}`",
            pod.key()
        )),
        Some(_) | None => other(format!(
            "{address} is assigned to pod {namespace}/{name}, which no longer has it: a leak. Run `calicoctl ipam release \
             --ip={address}`; `calicoctl ipam check` finds others"
        )),
    }
}

fn address_not_understood(pod: &Pod) -> Option<&NotUnderstood> {
    let mut fields = pod.not_understood.iter();
    fields.find(|field| field.needed == Needed::Address)
}

/// The message for a tunnel address.
fn tunnel(node: &str, allocation: &Allocation, kind: &str, calico: &str) -> String {
    let address = allocation.address;
    format!(
        "the tunnel of node {node} has {address} ({kind}): calico-node there has not changed it. Restart calico-node: \
         `kubectl delete pod -l k8s-app=calico-node --field-selector spec.nodeName={node} -n {calico}`"
    )
}

/// The holder of an address without attributes, as Calico wrote them before v3.2, that no pod has.
fn unnamed(allocation: &Allocation, pods: &Pods<'_>, cluster: Cluster<'_>) -> (Holder, String) {
    match pods.ends.get(&allocation.address) {
        Some((node, kind)) => (Holder::Tunnel, tunnel(node, allocation, kind, cluster.calico)),
        None => (Holder::Other, unknown_holder(allocation)),
    }
}

fn unknown_holder(allocation: &Allocation) -> String {
    let address = allocation.address;
    let handle = allocation.handle.as_deref().unwrap_or("none");
    format!(
        "{address} (handle {handle}) has an unknown holder: no pod and no tunnel. If no other program uses it, run `calicoctl \
         ipam release --ip={address}`"
    )
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rstest::rstest;

    use super::*;

    fn allocation(attributes: &[(&str, &str)]) -> Allocation {
        Allocation {
            address: "10.244.0.7".parse().unwrap(),
            handle: Some("k8s-pod-network.1".to_owned()),
            attributes: attributes
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    fn pod(address: &str) -> Pod {
        Pod {
            namespace: "default".to_owned(),
            name: "web-1".to_owned(),
            ready: true,
            addresses: vec![address.parse().unwrap()],
            ..Pod::default()
        }
    }

    static NO_PODS: pods::Pods = pods::Pods::new();

    fn unclear() -> NotUnderstood {
        NotUnderstood {
            field: "status.podIPs".to_owned(),
            found: "\"x\"".to_owned(),
            needed: Needed::Address,
        }
    }

    fn cluster<'pods>(pods: &'pods pods::Pods, calico: &'pods str) -> Cluster<'pods> {
        static NONE: BTreeMap<String, CalicoNode> = BTreeMap::new();
        Cluster {
            pods,
            nodes: &NONE,
            calico,
        }
    }

    /// Calico v2 wrote handles only.
    #[test]
    fn an_address_without_attributes_belongs_to_the_pod_or_tunnel_that_has_it() {
        let end = ("IPv4IPIPTunnelAddr".to_owned(), "10.244.0.7".parse().unwrap());
        let node = CalicoNode {
            ends: [end].into(),
            ..CalicoNode::default()
        };
        let nodes = BTreeMap::from([("a".to_owned(), node)]);
        let all = [allocation(&[])];
        let of_pod = [pod("10.244.0.7")].into();
        assert_eq!(holders(&all, cluster(&of_pod, "kube-system")), [""; 0]);
        let of_tunnel = Cluster {
            nodes: &nodes,
            ..cluster(&NO_PODS, "kube-system")
        };
        let found = holders(&all, of_tunnel);
        assert!(found[0].contains("the tunnel of node a"), "{found:?}");
        assert_eq!(holders_besides_tunnels(&all, of_tunnel), [""; 0]);
        let found = holders(&all, cluster(&[pod("10.244.0.8")].into(), "kube-system"));
        assert!(found[0].contains("an unknown holder"), "{found:?}");
    }

    const WEB: [(&str, &str); 2] = [("namespace", "default"), ("pod", "web-1")];

    #[rstest]
    #[case::runs(pod("10.244.0.7"), None)]
    #[case::terminates(Pod { deleted_at: Some(Timestamp::UNIX_EPOCH), addresses: Vec::new(), ..pod("10.244.0.7") }, None)]
    #[case::starts(Pod { ready: false, addresses: Vec::new(), ..pod("10.244.0.7") }, None)]
    #[case::unparsable_address(
        Pod { not_understood: vec![unclear()], addresses: Vec::new(), ..pod("10.244.0.7") },
        Some("status.podIPs: found \"x\", needed an IP address")
    )]
    #[case::another_unparsable_address(Pod { not_understood: vec![unclear()], ..pod("10.244.0.7") }, None)]
    #[case::has_another_address(pod("10.200.0.7"), Some("a leak"))]
    #[case::finished(Pod { finished: true, ..pod("10.244.0.7") }, Some("is finished"))]
    #[case::deleted(Pod { name: "web-2".to_owned(), ..pod("10.244.0.7") }, Some("a leak"))]
    fn a_pod_is_a_holder_if_it_does_not_run_with_the_address(#[case] pod: Pod, #[case] words: Option<&str>) {
        let found = holders(&[allocation(&WEB)], cluster(&[pod].into(), "kube-system"));
        match words {
            None => assert_eq!(found, [""; 0]),
            Some(words) => {
                assert_eq!(found.len(), 1);
                assert!(
                    found[0].contains(words) && found[0].contains("10.244.0.7"),
                    "{found:?}"
                );
            }
        }
    }

    #[rstest]
    #[case(&[("type", "vxlanTunnelAddress"), ("node", "a")], "spec.nodeName=a -n calico-system")]
    #[case(&[("service", "default/web"), ("type", "LoadBalancer")], "Service default/web")]
    #[case(&[], "handle k8s-pod-network.1")]
    fn a_holder_that_is_no_pod_is_named(#[case] attributes: &[(&str, &str)], #[case] words: &str) {
        let found = holders(&[allocation(attributes)], cluster(&NO_PODS, "calico-system"));
        assert!(found[0].contains(words), "{found:?}");
    }

    #[test]
    fn tunnels_of_an_open_pool_are_not_listed() {
        let tunnel = allocation(&[("type", "ipipTunnelAddress"), ("node", "a")]);
        let unknown = allocation(&[]);
        let all = [tunnel, unknown];
        assert_eq!(holders(&all, cluster(&NO_PODS, "kube-system")).len(), 2);
        let found = holders_besides_tunnels(&all, cluster(&NO_PODS, "kube-system"));
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("an unknown holder"), "{found:?}");
    }
}
