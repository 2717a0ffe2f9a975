//! Calico's keys, in both generations.

use ipnet::Ipv4Net;

/// v2: whether components may work. The raw text `true`; every other value means no.
pub const READY: &str = "/calico/v1/Ready";
/// v2: settings of the whole cluster, and Calico's version and type.
pub const CONFIG: &str = "/calico/v1/config";
/// v2: Felix's data of hosts: their settings, addresses and endpoints.
pub const HOSTS: &str = "/calico/v1/host";
/// v2: BIRD's data of hosts.
pub const BGP_HOSTS: &str = "/calico/bgp/v1/host";
/// v2: settings of BIRD of the whole cluster.
pub const BGP_GLOBAL: &str = "/calico/bgp/v1/global";
/// v2: pools of both families.
pub const POOLS: &str = "/calico/v1/ipam";
/// v2: profiles.
pub const PROFILES: &str = "/calico/v1/policy/profile";
/// v2: policies of the only tier.
pub const POLICIES: &str = "/calico/v1/policy/tier/default/policy";
/// Blocks of IPv4.
pub const BLOCKS: &str = "/calico/ipam/v2/assignment/ipv4/block";
/// Claims on blocks, by host.
pub const CLAIMS: &str = "/calico/ipam/v2/host";
/// Assignment rules of the whole cluster.
pub const IPAM_CONFIG: &str = "/calico/ipam/v2/config";

/// A range as a part of a key.
fn part(range: Ipv4Net) -> String {
    range.to_string().replace('/', "-")
}

/// A block.
pub fn block(range: Ipv4Net) -> String {
    format!("{BLOCKS}/{}", part(range))
}

/// The claims of one host.
pub fn claims(host: &str) -> String {
    format!("{CLAIMS}/{host}/ipv4/block")
}

/// A host's claim on a block.
pub fn claim(host: &str, range: Ipv4Net) -> String {
    format!("{}/{}", claims(host), part(range))
}

/// The host and the block of a claim; `None` if the key is not a claim on an IPv4 block.
pub fn read_claim(key: &str) -> Option<(&str, Ipv4Net)> {
    let mut parts = key.strip_prefix(CLAIMS)?.strip_prefix('/')?.split('/');
    let host = parts.next()?;
    if (parts.next(), parts.next()) != (Some("ipv4"), Some("block")) {
        return None;
    }
    let range = parts.next()?.replacen('-', "/", 1).parse().ok()?;
    parts.next().is_none().then_some((host, range))
}

/// A handle.
pub fn handle(id: &str) -> String {
    format!("/calico/ipam/v2/handle/{id}")
}

/// v2: the pool of this range.
pub fn pool(range: &str, family: u8) -> String {
    format!("{POOLS}/v{family}/pool/{}", range.replace('/', "-"))
}

/// v2: all keys of one pod.
pub fn workload(host: &str, namespace: &str, pod: &str) -> String {
    format!("{HOSTS}/{host}/workload/k8s/{namespace}.{pod}")
}

/// v3: all objects of a kind, by its plural.
pub fn resources(plural: &str) -> String {
    format!("/calico/resources/v3/projectcalico.org/{plural}")
}

/// v3: a pod's endpoint.
pub fn endpoint(host: &str, namespace: &str, pod: &str, device: &str) -> String {
    let name = endpoint_name(host, pod, device);
    format!("{}/{namespace}/{name}", resources("workloadendpoints"))
}

/// v3: the name of a pod's endpoint: every part with its dashes doubled, between dashes.
pub fn endpoint_name(host: &str, pod: &str, device: &str) -> String {
    [host, "k8s", pod, device]
        .map(|part| part.replace('-', "--"))
        .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_calico() {
        let range: Ipv4Net = "10.244.1.64/26".parse().unwrap();
        assert_eq!(
            block(range),
            "/calico/ipam/v2/assignment/ipv4/block/10.244.1.64-26"
        );
        let claim = claim("n-1", range);
        assert_eq!(claim, "/calico/ipam/v2/host/n-1/ipv4/block/10.244.1.64-26");
        assert_eq!(read_claim(&claim), Some(("n-1", range)));
        assert_eq!(read_claim("/calico/ipam/v2/host/n/ipv6/block/fd80::-122"), None);
        assert_eq!(
            endpoint("rack1-host1", "default", "frontend-5gs43", "eth0"),
            "/calico/resources/v3/projectcalico.org/workloadendpoints/default/rack1--host1-k8s-frontend--5gs43-eth0"
        );
        assert_eq!(
            pool("fd80:24e2:f998:72d6::/64", 6),
            "/calico/v1/ipam/v6/pool/fd80:24e2:f998:72d6::-64"
        );
    }
}
