//! Who has an address of a range in Calico's IPAM besides pods that have to move: each named, each with its way out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use super::calico_node::CalicoNode;
use super::ipam::{Allocation, attribute};
use engine::cluster::{Needed, NotUnderstood};
use engine::drain::Pod;
use engine::pods;

/// Of the ends of tunnels: values of attribute `type`.
const TUNNELS: [&str; 5] = [
    "ipipTunnelAddress",
    "vxlanTunnelAddress",
    "vxlanV6TunnelAddress",
    "wireguardTunnelAddress",
    "wireguardV6TunnelAddress",
];

/// Who keeps an address of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// The end of a tunnel: once the pool is closed, calico-node takes another one by itself.
    Tunnel,
    /// Anybody else: nothing goes on before somebody does something.
    Other,
}

/// Who may have an address, but for what Calico's IPAM says.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'facts> {
    /// Every pod.
    pub pods: &'facts pods::Pods,
    /// Nodes as Calico has them.
    pub nodes: &'facts BTreeMap<String, CalicoNode>,
    /// The namespace of calico-node.
    pub calico: &'facts str,
}

/// Pods and nodes by what is asked of them for each address: a large cluster has hundreds of thousands of all.
struct Pods<'facts> {
    /// By namespace and name.
    named: HashMap<(&'facts str, &'facts str), &'facts Pod>,
    /// Addresses of those that run, but for those of their hosts.
    addresses: HashSet<IpAddr>,
    /// Ends of tunnels: the node and the kind of each.
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

/// What keeps an address of the range: a sentence with the object, the address and what a person does about it. Addresses of
/// pods that run are none: those move.
pub fn holders<'facts>(
    allocations: impl IntoIterator<Item = &'facts Allocation>,
    cluster: Cluster<'_>,
) -> Vec<String> {
    listed(allocations, cluster, |_| true)
}

/// The same while the pool is open: ends of tunnels are in it as they should be.
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
    if let Some(kind) = allocation.says(attribute::TYPE)
        && TUNNELS.contains(&kind)
    {
        let node = allocation.says(attribute::NODE).unwrap_or("of an unknown name");
        return Some((Holder::Tunnel, tunnel(node, allocation, kind, cluster.calico)));
    }
    if let Some(service) = allocation.says(attribute::SERVICE) {
        return other(format!(
            "Service {service} has {address} as the address of its load balancer: give it one of another pool first"
        ));
    }
    let (Some(namespace), Some(name)) = (
        allocation.says(attribute::NAMESPACE),
        allocation.says(attribute::POD),
    ) else {
        return (!pods.addresses.contains(&address)).then(|| unnamed(allocation, pods, cluster));
    };
    match pods.named.get(&(namespace, name)) {
        // It has the address and runs: it moves. Or it is on its way, and gives the address back.
        Some(pod) if !pod.finished && (pod.addresses.contains(&address) || pod.deleted_at.is_some()) => None,
        // It may have the address.
        Some(pod)
            if !pod.finished
                && let Some(unclear) = address_not_understood(pod) =>
        {
            other(format!(
                "pod {}: {unclear}: Calico's IPAM gave {address} to it; correct the pod or delete it",
                pod.key()
            ))
        }
        // It starts: Calico gives the address first, and the kubelet tells of it once the pod's network is there.
        Some(pod) if !pod.finished && pod.addresses.is_empty() => None,
        Some(pod) if pod.finished && pod.addresses.contains(&address) => other(format!(
            "pod {} is finished, and Calico's IPAM has not got {address} back: `kubectl delete pod -n {namespace} {name}`, and if that \
             does not free it, `calicoctl ipam release --ip={address}`",
            pod.key()
        )),
        Some(_) | None => other(format!(
            "{address} was given to pod {namespace}/{name}, which does not have it any more: a leak. `calicoctl ipam release \
             --ip={address}` frees it; `calicoctl ipam check` finds others"
        )),
    }
}

fn address_not_understood(pod: &Pod) -> Option<&NotUnderstood> {
    let mut fields = pod.not_understood.iter();
    fields.find(|field| field.needed == Needed::Address)
}

/// What a tunnel's end has.
fn tunnel(node: &str, allocation: &Allocation, kind: &str, calico: &str) -> String {
    let address = allocation.address;
    format!(
        "the tunnel of node {node} has {address} ({kind}): calico-node there has not taken another one. Delete its pod, it is made \
         again: `kubectl delete pod -l k8s-app=calico-node --field-selector spec.nodeName={node} -n {calico}`"
    )
}

/// Whose an address is of which nothing is written, as Calico wrote none before v3.2, and which no pod has.
fn unnamed(allocation: &Allocation, pods: &Pods<'_>, cluster: Cluster<'_>) -> (Holder, String) {
    match pods.ends.get(&allocation.address) {
        Some((node, kind)) => (Holder::Tunnel, tunnel(node, allocation, kind, cluster.calico)),
        None => (Holder::Other, nobody(allocation)),
    }
}

fn nobody(allocation: &Allocation) -> String {
    let address = allocation.address;
    let handle = allocation.handle.as_deref().unwrap_or("none");
    format!(
        "nobody knows who has {address} (handle {handle}): no pod has it, and no tunnel. Ask whoever wrote that; `calicoctl ipam release \
         --ip={address}` frees it"
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

    /// These pods, and no node.
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

    /// As Calico v2 wrote them, which knew handles alone.
    #[test]
    fn an_address_of_which_nothing_is_written_is_of_who_has_it() {
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
        assert!(found[0].contains("nobody knows"), "{found:?}");
    }

    const WEB: [(&str, &str); 2] = [("namespace", "default"), ("pod", "web-1")];

    #[rstest]
    #[case::it_runs(pod("10.244.0.7"), None)]
    #[case::it_terminates(Pod { deleted_at: Some(Timestamp::UNIX_EPOCH), addresses: Vec::new(), ..pod("10.244.0.7") }, None)]
    #[case::it_starts(Pod { ready: false, addresses: Vec::new(), ..pod("10.244.0.7") }, None)]
    #[case::its_address_is_not_understood(
        Pod { not_understood: vec![unclear()], addresses: Vec::new(), ..pod("10.244.0.7") },
        Some("status.podIPs: found \"x\", needed an IP address")
    )]
    #[case::another_of_its_addresses_is_not_understood(Pod { not_understood: vec![unclear()], ..pod("10.244.0.7") }, None)]
    #[case::it_has_another(pod("10.200.0.7"), Some("a leak"))]
    #[case::it_is_finished(Pod { finished: true, ..pod("10.244.0.7") }, Some("is finished"))]
    #[case::it_is_gone(Pod { name: "web-2".to_owned(), ..pod("10.244.0.7") }, Some("a leak"))]
    fn of_a_pod(#[case] pod: Pod, #[case] words: Option<&str>) {
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
    fn of_anybody_else(#[case] attributes: &[(&str, &str)], #[case] words: &str) {
        let found = holders(&[allocation(attributes)], cluster(&NO_PODS, "calico-system"));
        assert!(found[0].contains(words), "{found:?}");
    }

    #[test]
    fn while_the_pool_is_open_tunnels_are_in_it() {
        let tunnel = allocation(&[("type", "ipipTunnelAddress"), ("node", "a")]);
        let unknown = allocation(&[]);
        let all = [tunnel, unknown];
        assert_eq!(holders(&all, cluster(&NO_PODS, "kube-system")).len(), 2);
        let found = holders_besides_tunnels(&all, cluster(&NO_PODS, "kube-system"));
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("nobody knows"), "{found:?}");
    }
}
