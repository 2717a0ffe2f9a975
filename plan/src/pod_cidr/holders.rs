//! Who has an address of a range in Calico's IPAM besides pods that have to move: each named, each with its way out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::drain::Pod;

/// Attributes of an allocation that Calico writes (libcalico-go, `lib/backend/model/block.go`).
mod attribute {
    pub const POD: &str = "pod";
    pub const NAMESPACE: &str = "namespace";
    pub const NODE: &str = "node";
    pub const SERVICE: &str = "service";
    pub const TYPE: &str = "type";
    /// Of the ends of tunnels: the value of `type`.
    pub const TUNNELS: [&str; 5] = [
        "ipipTunnelAddress",
        "vxlanTunnelAddress",
        "vxlanV6TunnelAddress",
        "wireguardTunnelAddress",
        "wireguardV6TunnelAddress",
    ];
}

/// One address that Calico's IPAM has given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The address.
    pub address: IpAddr,
    /// Its handle: whoever releases it needs it.
    pub handle: Option<String>,
    /// What was written beside it.
    pub attributes: BTreeMap<String, String>,
}

impl Allocation {
    fn says(&self, key: &str) -> Option<&str> {
        self.attributes
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

/// Who keeps an address of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// The end of a tunnel: once the pool is closed, calico-node takes another one by itself.
    Tunnel,
    /// Anybody else: nothing goes on before somebody does something.
    Other,
}

/// What keeps an address of the range: a sentence with the object, the address and what a person does about it. Addresses of
/// pods that run are none: those move.
pub fn holders(allocations: &[Allocation], pods: &[Pod], calico: &str) -> Vec<String> {
    listed(allocations, pods, calico, |_| true)
}

/// The same while the pool is open: ends of tunnels are in it as they should be.
pub fn holders_besides_tunnels(allocations: &[Allocation], pods: &[Pod], calico: &str) -> Vec<String> {
    listed(allocations, pods, calico, |holder| holder != Holder::Tunnel)
}

fn listed(
    allocations: &[Allocation],
    pods: &[Pod],
    calico: &str,
    wanted: impl Fn(Holder) -> bool,
) -> Vec<String> {
    let mut words: Vec<String> = allocations
        .iter()
        .filter_map(|allocation| holder(allocation, pods, calico))
        .filter(|(holder, _)| wanted(*holder))
        .map(|(_, words)| words)
        .collect();
    words.sort();
    words
}

fn holder(allocation: &Allocation, pods: &[Pod], calico: &str) -> Option<(Holder, String)> {
    let address = allocation.address;
    let other = |words: String| Some((Holder::Other, words));
    if let Some(kind) = allocation.says(attribute::TYPE)
        && attribute::TUNNELS.contains(&kind)
    {
        let node = allocation.says(attribute::NODE).unwrap_or("of an unknown name");
        let words = format!(
            "the tunnel of node {node} has {address} ({kind}): calico-node there has not taken another one. Delete its pod, it is made \
             again: `kubectl delete pod -l k8s-app=calico-node --field-selector spec.nodeName={node} -n {calico}`"
        );
        return Some((Holder::Tunnel, words));
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
        let handle = allocation.handle.as_deref().unwrap_or("none");
        return other(format!(
            "nobody knows who has {address} (handle {handle}): ask whoever wrote that; `calicoctl ipam release --ip={address}` frees it"
        ));
    };
    let of_that_name = pods
        .iter()
        .find(|pod| pod.namespace == namespace && pod.name == name);
    match of_that_name {
        // It has the address and runs: it moves. Or it is on its way, and gives the address back.
        Some(pod) if !pod.finished && (pod.addresses.contains(&address) || pod.deleted_at.is_some()) => None,
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

    const WEB: [(&str, &str); 2] = [("namespace", "default"), ("pod", "web-1")];

    #[rstest]
    #[case::it_runs(pod("10.244.0.7"), None)]
    #[case::it_terminates(Pod { deleted_at: Some(Timestamp::UNIX_EPOCH), addresses: Vec::new(), ..pod("10.244.0.7") }, None)]
    #[case::it_starts(Pod { ready: false, addresses: Vec::new(), ..pod("10.244.0.7") }, None)]
    #[case::it_has_another(pod("10.200.0.7"), Some("a leak"))]
    #[case::it_is_finished(Pod { finished: true, ..pod("10.244.0.7") }, Some("is finished"))]
    #[case::it_is_gone(Pod { name: "web-2".to_owned(), ..pod("10.244.0.7") }, Some("a leak"))]
    fn of_a_pod(#[case] pod: Pod, #[case] words: Option<&str>) {
        let found = holders(&[allocation(&WEB)], &[pod], "kube-system");
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
        let found = holders(&[allocation(attributes)], &[], "calico-system");
        assert!(found[0].contains(words), "{found:?}");
    }

    #[test]
    fn while_the_pool_is_open_tunnels_are_in_it() {
        let tunnel = allocation(&[("type", "ipipTunnelAddress"), ("node", "a")]);
        let unknown = allocation(&[]);
        let all = [tunnel, unknown];
        assert_eq!(holders(&all, &[], "kube-system").len(), 2);
        let found = holders_besides_tunnels(&all, &[], "kube-system");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("nobody knows"), "{found:?}");
    }
}
