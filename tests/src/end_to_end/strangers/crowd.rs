//! Twenty thousand Services of one tenant, with their addresses, written into etcd within seconds: through the API server this
//! takes an hour on two processors, because the API server counts all addresses at each allocation (docs/limits.md).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::objects::NAMESPACE;
use crate::cluster::Cluster;
use crate::cluster::control_plane::SERVICE_NETWORK;
use crate::store::{Stored, uid};

/// Number of Services.
pub const MANY: u32 = 20_000;
/// Number of Services per transaction: two objects each.
const AT_ONCE: usize = 50;
/// Offset in the range of the first address that is tried.
const FIRST: u32 = 1_024;
/// The series of UIDs of Services, and of addresses.
const SERVICES: u16 = 3;
const ADDRESSES: u16 = 4;

/// Whether a Service belongs to the crowd.
pub fn is_of(name: &str) -> bool {
    name.starts_with("many-")
}

/// Creates all of them, in the source range.
pub async fn make(cluster: &Cluster) -> Result<()> {
    let store = cluster.store().await;
    let addresses: Api<IPAddress> = Api::all(cluster.api().client());
    let used = addresses.list_metadata(&ListParams::default()).await;
    let used: BTreeSet<String> = used
        .context("list IPAddresses")?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let range: Ipv4Net = SERVICE_NETWORK.parse().context("read the range of Services")?;
    let mut free = (range.network().to_bits() + FIRST..range.broadcast().to_bits())
        .map(Ipv4Addr::from_bits)
        .filter(|address| !used.contains(&address.to_string()));
    let numbers: Vec<u32> = (0..MANY).collect();
    for numbers in numbers.chunks(AT_ONCE) {
        let part = part(numbers, &mut free)?;
        if !store.create_together(&part).await? {
            // The API server has allocated one of these addresses meanwhile: the next ones are free.
            let next = self::part(numbers, &mut free)?;
            store.create(&next).await?;
        }
    }
    Ok(())
}

fn part(numbers: &[u32], free: &mut impl Iterator<Item = Ipv4Addr>) -> Result<Vec<Stored>> {
    let mut objects = Vec::new();
    for number in numbers {
        let address = free.next().context("the Service range has no free address")?;
        let name = format!("many-{number}");
        let of = |series| uid(series, u64::from(*number));
        objects.push(Stored::new(
            "services/specs",
            &of(SERVICES),
            service(&name, address),
        )?);
        objects.push(Stored::new(
            "ipaddresses",
            &of(ADDRESSES),
            allocation(&name, address),
        )?);
    }
    Ok(objects)
}

/// A Service that kube-proxy ignores: three kube-proxies on two processors would do nothing else.
fn service(name: &str, address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {"service.kubernetes.io/service-proxy-name": "none"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        },
        "status": {"loadBalancer": {}},
    })
}

/// The `IPAddress` object that the API server would create.
fn allocation(service: &str, address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {
            "name": address,
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": NAMESPACE, "name": service}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_its_own_address_in_both_fields() {
        let mut free = [[10, 96, 4, 0], [10, 96, 4, 1]].map(Ipv4Addr::from).into_iter();
        let objects = part(&[7, 8], &mut free).unwrap();
        let keys: Vec<&str> = objects.iter().map(Stored::key).collect();
        assert_eq!(
            keys,
            [
                "/registry/services/specs/stranger/many-7",
                "/registry/ipaddresses/10.96.4.0",
                "/registry/services/specs/stranger/many-8",
                "/registry/ipaddresses/10.96.4.1",
            ]
        );
        let value = |index: usize| serde_json::from_str::<Value>(objects[index].value()).unwrap();
        assert_eq!(value(2)["spec"]["clusterIPs"], json!(["10.96.4.1"]));
        assert_eq!(value(3)["spec"]["parentRef"]["name"], "many-8");
        assert!(part(&[9], &mut free).is_err(), "no address is free");
    }
}
