//! Workload endpoints: Calico's record of a pod's network.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::Result;
use serde_json::{Value, json};

use super::store::{Entry, Store};
use super::{keys, resource};
use crate::version::Generation;

/// Place of a pod.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// The host.
    pub host: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub pod: &'a str,
    /// The device in the pod.
    pub device: &'a str,
}

/// Contents of an endpoint.
#[derive(Debug, Clone)]
pub struct Endpoint<'a> {
    /// The place of the pod.
    pub place: Place<'a>,
    /// The sandbox.
    pub container: &'a str,
    /// The device on the host.
    pub host_device: &'a str,
    /// The hardware address in the pod.
    pub mac: &'a str,
    /// The address.
    pub address: Ipv4Addr,
    /// The pod's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The service account.
    pub account: &'a str,
}

/// The fields of an endpoint that Felix needs and that a DEL compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The sandbox.
    pub container: String,
    /// The host.
    pub host: String,
    /// The device on the host.
    pub host_device: String,
    /// The addresses.
    pub addresses: Vec<Ipv4Addr>,
}

impl Place<'_> {
    fn key(&self, generation: Generation) -> String {
        let Self {
            host,
            namespace,
            pod,
            device,
        } = self;
        match generation {
            Generation::V2 => format!("{}/endpoint/{device}", keys::workload(host, namespace, pod)),
            Generation::V3 => keys::endpoint(host, namespace, pod, device),
        }
    }

    /// The stored endpoint.
    pub async fn get(&self, store: &Store) -> Result<Option<(Entry, Found)>> {
        match store.get(&self.key(store.generation)).await? {
            Some(entry) => {
                let found = found(store.generation, &entry)?;
                Ok(Some((entry, found)))
            }
            None => Ok(None),
        }
    }

    /// Deletes the endpoint that was read; `false` if it was written since.
    pub async fn delete(&self, store: &Store, entry: &Entry) -> Result<bool> {
        if !store.delete(entry).await? {
            return Ok(false);
        }
        let workload = keys::workload(self.host, self.namespace, self.pod);
        // As in Calico v2: empty directories are deleted, the innermost first.
        let _ = store.delete_empty(&format!("{workload}/endpoint")).await?
            && store.delete_empty(&workload).await?;
        Ok(true)
    }
}

impl Endpoint<'_> {
    /// Writes the endpoint, replacing an existing one.
    pub async fn put(&self, store: &Store) -> Result<()> {
        let key = self.place.key(store.generation);
        let value = match store.generation {
            Generation::V2 => self.of_v2(),
            Generation::V3 => self.of_v3(store.get(&key).await?.as_ref())?,
        };
        store.put(&key, &value.to_string()).await
    }

    fn of_v2(&self) -> Value {
        let mut labels = self.labels.clone();
        labels.insert("calico/k8s_ns".to_owned(), self.place.namespace.to_owned());
        json!({
            "state": "active",
            "name": self.host_device,
            "active_instance_id": self.container,
            "mac": self.mac,
            "profile_ids": [format!("k8s_ns.{}", self.place.namespace)],
            "ipv4_nets": [format!("{}/32", self.address)],
            "ipv6_nets": [],
            "labels": labels,
        })
    }

    fn of_v3(&self, before: Option<&Entry>) -> Result<Value> {
        let Place {
            host,
            namespace,
            pod,
            device,
        } = &self.place;
        let mut labels = self.labels.clone();
        for (label, value) in [
            ("projectcalico.org/namespace", *namespace),
            ("projectcalico.org/orchestrator", "k8s"),
            ("projectcalico.org/serviceaccount", self.account),
        ] {
            labels.insert(label.to_owned(), value.to_owned());
        }
        let metadata = json!({
            "name": keys::endpoint_name(host, pod, device), "namespace": namespace, "labels": labels,
        });
        let spec = json!({
            "orchestrator": "k8s",
            "node": host,
            "containerID": self.container,
            "pod": pod,
            "endpoint": device,
            "ipNetworks": [format!("{}/32", self.address)],
            "profiles": [format!("kns.{namespace}"), format!("ksa.{namespace}.{}", self.account)],
            "interfaceName": self.host_device,
            "mac": self.mac,
        });
        let mut object = resource::object("WorkloadEndpoint", metadata, &spec)?;
        // An update keeps the UID.
        if let Some(entry) = before {
            let old = resource::parse(entry)?;
            for field in ["uid", "creationTimestamp"] {
                if let Some(value) = old["metadata"].get(field) {
                    object["metadata"][field] = value.clone();
                }
            }
        }
        Ok(object)
    }
}

/// The endpoints of one host.
pub async fn of_host(store: &Store, host: &str) -> Result<Vec<Found>> {
    let directory = match store.generation {
        Generation::V2 => format!("{}/{host}/workload", keys::HOSTS),
        Generation::V3 => keys::resources("workloadendpoints"),
    };
    let entries = store.list(&directory).await?;
    let all: Result<Vec<Found>> = entries
        .iter()
        .map(|entry| found(store.generation, entry))
        .collect();
    let mut all = all?;
    all.retain(|endpoint| store.generation == Generation::V2 || endpoint.host == host);
    Ok(all)
}

fn found(generation: Generation, entry: &Entry) -> Result<Found> {
    let value = resource::parse(entry)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (fields, container, device, ranges) = match generation {
        Generation::V2 => (&value, "active_instance_id", "name", "ipv4_nets"),
        Generation::V3 => (&value["spec"], "containerID", "interfaceName", "ipNetworks"),
    };
    let addresses = fields[ranges].as_array().into_iter().flatten();
    Ok(Found {
        container: text(&fields[container]),
        host: text(&fields["node"]),
        host_device: text(&fields[device]),
        addresses: addresses
            .filter_map(|range| range.as_str()?.split('/').next()?.parse().ok())
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_is_written_to_the_key_of_its_generation_and_deleted() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let endpoint = Endpoint {
            place: Place {
                host: "n-1",
                namespace: "default",
                pod: "web-0",
                device: "eth0",
            },
            container: "abc",
            host_device: "cali1",
            mac: "ca:fe:1d:52:bb:e9",
            address: "10.244.1.5".parse().unwrap(),
            labels: &labels,
            account: "default",
        };
        for (generation, key) in [
            (
                Generation::V2,
                "/calico/v1/host/n-1/workload/k8s/default.web-0/endpoint/eth0",
            ),
            (
                Generation::V3,
                "/calico/resources/v3/projectcalico.org/workloadendpoints/default/n--1-k8s-web--0-eth0",
            ),
        ] {
            let store = Store::in_memory(generation);
            endpoint.put(&store).await.unwrap();
            let (entry, found) = endpoint.place.get(&store).await.unwrap().unwrap();
            assert_eq!((entry.key.as_str(), found.container.as_str()), (key, "abc"));
            assert_eq!(of_host(&store, "n-1").await.unwrap(), [found]);
            let first = resource::parse(&entry).unwrap();
            endpoint.put(&store).await.unwrap();
            assert!(
                !endpoint.place.delete(&store, &entry).await.unwrap(),
                "the endpoint was written since"
            );
            let (entry, _) = endpoint.place.get(&store).await.unwrap().unwrap();
            assert_eq!(
                resource::parse(&entry).unwrap(),
                first,
                "a second write keeps the UID"
            );
            assert!(endpoint.place.delete(&store, &entry).await.unwrap());
            assert!(endpoint.place.get(&store).await.unwrap().is_none());
        }
    }

    #[test]
    fn an_endpoint_of_v2_has_the_names_of_v2() {
        let labels = BTreeMap::new();
        let endpoint = Endpoint {
            place: Place {
                host: "h",
                namespace: "ns",
                pod: "p",
                device: "eth0",
            },
            container: "c",
            host_device: "cali1",
            mac: "m",
            address: "10.0.0.1".parse().unwrap(),
            labels: &labels,
            account: "default",
        };
        assert_eq!(
            endpoint.of_v2(),
            json!({
                "state": "active", "name": "cali1", "active_instance_id": "c", "mac": "m", "profile_ids": ["k8s_ns.ns"],
                "ipv4_nets": ["10.0.0.1/32"], "ipv6_nets": [], "labels": { "calico/k8s_ns": "ns" },
            })
        );
    }
}
