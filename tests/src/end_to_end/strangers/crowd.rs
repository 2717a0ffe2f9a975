//! Twenty thousand Services of one tenant, with their addresses, written into the store within seconds: by the API server it takes an
//! hour on two processors, since it counts all addresses for each one that it gives out (docs/limits.md).

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

/// How many there are.
pub const MANY: u32 = 20_000;
/// Those that are written in one transaction: two objects each.
const AT_ONCE: usize = 50;
/// The first of their addresses that is tried, counted from the start of the range.
const FIRST: u32 = 1_024;
/// The series of the UIDs: of Services, and of addresses.
const SERVICES: u16 = 3;
const ADDRESSES: u16 = 4;

/// Whether a Service is of the crowd.
pub fn is_of(name: &str) -> bool {
    name.starts_with("many-")
}

/// Makes all of them, in the range that Services have had.
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
            // The API server has given one of these addresses to another Service since: the next ones are free.
            let next = self::part(numbers, &mut free)?;
            store.create(&next).await?;
        }
    }
    Ok(())
}

fn part(numbers: &[u32], free: &mut impl Iterator<Item = Ipv4Addr>) -> Result<Vec<Stored>> {
    let mut objects = Vec::new();
    for number in numbers {
        let address = free.next().context("the range of Services has no address left")?;
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

/// kube-proxy is told to leave it alone: three of it on two processors would do nothing else.
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

/// The address as the API server allocates it.
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
    fn each_has_an_address_of_its_own_and_says_it_twice() {
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
        assert!(part(&[9], &mut free).is_err(), "no address is left");
    }
}
