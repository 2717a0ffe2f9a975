//! Every Service, its endpoints, and who has which address: read at once, so that a look at a thousand Services is three requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kube::Client;
use plan::service_cidr::endpoints::OF_SERVICE_LABEL;
use serde_json::Value;

use super::objects::{all_addresses, all_services, all_slices};
use crate::write::WriteError;

/// Namespace and name.
type Name = (String, String);

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    services: BTreeMap<Name, Value>,
    slices: BTreeMap<Name, Vec<Value>>,
    holders: BTreeMap<IpAddr, String>,
}

impl Observed {
    /// Reads the cluster. `version` is the one of the API that has addresses of Services as objects.
    pub async fn read(client: &Client, version: &str) -> Result<Self, WriteError> {
        // Addresses last: a Service that has none in the first list and one in the last has been given it meanwhile, and whoever
        // writes by the older of the two is refused.
        let (services, slices) = tokio::try_join!(all_services(client), all_slices(client))?;
        let addresses = all_addresses(client, version).await?;
        let mut by_service: BTreeMap<Name, Vec<Value>> = BTreeMap::new();
        for slice in slices {
            if let Some(service) = slice["metadata"]["labels"][OF_SERVICE_LABEL].as_str() {
                let name = (text(&slice, "namespace"), service.to_owned());
                by_service.entry(name).or_default().push(slice);
            }
        }
        Ok(Self {
            services: services
                .into_iter()
                .map(|service| ((text(&service, "namespace"), text(&service, "name")), service))
                .collect(),
            slices: by_service,
            holders: addresses.iter().filter_map(holder).collect(),
        })
    }

    /// Every Service.
    pub fn services(&self) -> impl Iterator<Item = &Value> {
        self.services.values()
    }

    /// Every address that somebody has, by Kubernetes' own record.
    pub fn taken(&self) -> BTreeSet<IpAddr> {
        self.holders.keys().copied().collect()
    }

    /// A Service, if there is one.
    pub fn service(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.services.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The slices of a Service.
    pub fn slices(&self, namespace: &str, service: &str) -> &[Value] {
        let name = (namespace.to_owned(), service.to_owned());
        self.slices.get(&name).map_or(&[], Vec::as_slice)
    }

    /// Who has this address, by Kubernetes' own record: `namespace/name`; `None` when nobody has.
    pub fn holder(&self, address: &IpAddr) -> Option<&str> {
        self.holders.get(address).map(String::as_str)
    }
}

fn text(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

/// An `IPAddress`, and the Service that has it.
fn holder(object: &Value) -> Option<(IpAddr, String)> {
    let parent = &object["spec"]["parentRef"];
    let of = |field: &str| parent[field].as_str().unwrap_or_default();
    let address = text(object, "name").parse().ok()?;
    Some((address, format!("{}/{}", of("namespace"), of("name"))))
}
