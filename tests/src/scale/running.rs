//! Pods that run from the start, written into etcd in the form that the API server, a scheduler and a kubelet would
//! produce. If Calico is the pod network, its records of the addresses are written, too. Pure.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use calico as records;
use engine::evict::PodName;
use flannel_to_calico::objects::{ClaimState, block_affinity};
use ipnet::{IpNet, Ipv4Net};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::ipam::{self, BLOCK_LENGTH};
use super::shape::{self, REPLICAS, Workload};
use super::size::{Kind, POD_NETWORK, Place, Size};
use crate::store::{Stored, uid};

/// The series of the UIDs: of pods, and of Calico's objects.
const PODS: u16 = 1;
const RECORDS: u16 = 2;
/// The first address of a node's range for these pods. kwok assigns addresses from the start of the range.
const FIRST_ADDRESS: u32 = 130;
/// Addresses of a block.
const BLOCK: u32 = 1 << (32 - BLOCK_LENGTH);
/// The group of Calico's objects.
const CALICO: &str = "crd.projectcalico.org";

/// An ordinary pod by its number in the cluster, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(u32);

impl Number {
    fn workload(self) -> Workload {
        Workload(self.0 / REPLICAS)
    }

    fn uid(self) -> String {
        uid(PODS, self.0.into())
    }

    fn name(self) -> PodName {
        let workload = self.workload();
        PodName {
            namespace: workload.namespace(),
            name: workload.pod_name(self.0 % REPLICAS),
            uid: self.uid(),
        }
    }

    /// The pods of one workload are on consecutive nodes, as a scheduler spreads them.
    fn place(self, size: &Size) -> Place {
        Place(self.0 % size.nodes)
    }

    fn address(self, size: &Size) -> Result<Ipv4Addr> {
        let place = self.place(size);
        let on_node = self.0 / size.nodes;
        let bits = match size.migration {
            Kind::FlannelToCalico | Kind::ServiceCidr => {
                place.pods().network().to_bits() + FIRST_ADDRESS + on_node
            }
            Kind::PodCidr => block(place, on_node / BLOCK, size)?.network().to_bits() + on_node % BLOCK,
        };
        Ok(Ipv4Addr::from_bits(bits))
    }
}

/// The block of this number on a node. Each node has its first block before any node has a second one.
fn block(place: Place, number: u32, size: &Size) -> Result<Ipv4Net> {
    let network: Ipv4Net = POD_NETWORK.parse().context("read the network of pods")?;
    let offset = (number * size.nodes + place.0) * BLOCK;
    Ok(Ipv4Net::new(
        Ipv4Addr::from_bits(network.network().to_bits() + offset),
        BLOCK_LENGTH,
    )?)
}

/// The pods of one workload. `pattern` is the first of them as the API server would create it.
pub fn pods(workload: Workload, replicas: u32, pattern: &Value, size: &Size) -> Result<Vec<Stored>> {
    let numbers = (0..replicas).map(|replica| Number(workload.0 * REPLICAS + replica));
    numbers.map(|number| pod(number, pattern, size)).collect()
}

fn pod(number: Number, pattern: &Value, size: &Size) -> Result<Stored> {
    let place = number.place(size);
    let mut pod = pattern.clone();
    pod["metadata"]["name"] = json!(number.name().name);
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    pod["spec"]["nodeName"] = json!(place.name());
    let running = shape::running(&pod["spec"], place, number.address(size)?);
    for (field, value) in running.as_object().into_iter().flatten() {
        pod["status"][field] = value.clone();
    }
    Stored::new("pods", &number.uid(), pod)
}

/// Calico's records of the addresses of a node's pods: blocks, claims and handles.
pub fn records(place: Place, size: &Size) -> Result<Vec<Stored>> {
    let numbers: Vec<Number> = (place.0..size.pods)
        .step_by(usize::try_from(size.nodes)?)
        .map(Number)
        .collect();
    let mut objects = Vec::new();
    for (number, pods) in (0_u32..).zip(numbers.chunks(usize::try_from(BLOCK)?)) {
        let range = block(place, number, size)?;
        let holders: Vec<_> = pods
            .iter()
            .map(|pod| ipam::holder(&pod.name(), &place.name()))
            .collect();
        let given = ipam::allocations(range, &Value::Null, &holders);
        let sequence = u64::try_from(Timestamp::now().as_nanosecond())?;
        let range = IpNet::from(range);
        objects.push((
            "ipamblocks",
            records::block(range, &place.name(), &given, sequence)?,
        ));
        objects.push((
            "blockaffinities",
            block_affinity(&place.name(), range, ClaimState::Confirmed),
        ));
        let handles = given
            .iter()
            .map(|given| ("ipamhandles", records::handle(&given.handle, range, 1)));
        objects.extend(handles);
    }
    // A node has fewer records than the step between two nodes: at most two for each pod.
    let first = u64::from(place.0) * 1_000;
    (first..)
        .zip(objects)
        .map(|(number, (plural, object))| {
            Stored::new(&format!("{CALICO}/{plural}"), &uid(RECORDS, number), object)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn size(migration: Kind) -> Size {
        Size {
            nodes: 3,
            pods: 300,
            ..crate::scale::size::tests::small(migration)
        }
    }

    #[test]
    fn every_pod_has_its_own_address_in_a_range_of_its_node() {
        for kind in [Kind::FlannelToCalico, Kind::PodCidr, Kind::ServiceCidr] {
            let size = size(kind);
            let addresses: BTreeSet<Ipv4Addr> = (0..size.pods)
                .map(|number| Number(number).address(&size).unwrap())
                .collect();
            assert_eq!(addresses.len(), 300, "{kind:?}");
        }
        let size = size(Kind::FlannelToCalico);
        assert!((0..300).map(Number).all(|number| {
            number
                .place(&size)
                .pods()
                .contains(&number.address(&size).unwrap())
        }));
    }

    #[test]
    fn the_records_have_the_address_of_each_pod() {
        let size = size(Kind::PodCidr);
        // 100 pods a node: two blocks, two claims, a handle each.
        let all: Vec<Vec<Stored>> = (0..3)
            .map(|number| records(Place(number), &size).unwrap())
            .collect();
        assert!(all.iter().all(|of_node| of_node.len() == 104));
        let last = Number(299);
        let range = block(last.place(&size), 1, &size).unwrap();
        assert_eq!(range.to_string(), "10.128.1.64/26");
        assert_eq!(last.address(&size).unwrap().to_string(), "10.128.1.99");
        let holder = ipam::holder(&last.name(), &last.place(&size).name());
        let name = format!("ipamblocks/{}", records::block_name(range.into()));
        let found = all[2]
            .iter()
            .find(|stored| stored.key().ends_with(&name))
            .unwrap();
        let found: Value = serde_json::from_str(found.value()).unwrap();
        let attribute = found["spec"]["allocations"][35].as_u64().unwrap();
        let attribute = usize::try_from(attribute).unwrap();
        assert_eq!(found["spec"]["attributes"][attribute]["handle_id"], holder.handle);
    }

    #[test]
    fn a_pod_is_the_created_object_with_the_status_of_a_kubelet() {
        let size = size(Kind::FlannelToCalico);
        let mut pattern = Workload(1).pod("owner", 0, "anywhere", size.pod_shape);
        pattern["metadata"]["resourceVersion"] = json!("7");
        pattern["status"] = json!({"phase": "Pending", "qosClass": "Burstable"});
        let stored = pods(Workload(1), 2, &pattern, &size).unwrap();
        let second: Value = serde_json::from_str(stored[1].value()).unwrap();
        assert_eq!(second["metadata"]["name"], Workload(1).pod_name(1));
        assert_eq!(second["metadata"]["resourceVersion"], Value::Null);
        assert_eq!(second["spec"]["nodeName"], Place(1).name());
        assert_eq!(second["status"]["qosClass"], "Burstable");
        assert_eq!(second["status"]["phase"], "Running");
        assert_eq!(second["status"]["hostIP"], Place(1).host().to_string());
        assert_eq!(second["status"]["containerStatuses"].as_array().unwrap().len(), 2);
    }
}
