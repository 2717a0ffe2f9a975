//! Services that every traffic pod sends to: the API server, the name servers, and the Service of the traffic pods.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::names;
use engine::traffic::PathClass;
use k8s_openapi::api::core::v1::Service;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::context::Context;
use crate::lenient_requests;
use crate::read_error::ReadError;

/// Interval of reads: these Services rarely change.
const INTERVAL: Duration = Duration::from_mins(1);
/// The label of name servers in every distribution, by which kubelets and add-ons find them.
const NAME_SERVERS: &str = "k8s-app=kube-dns";

/// Addresses of Services from the last read.
#[derive(Debug, Default)]
pub struct Services {
    looked: Option<Instant>,
    known: Vec<ServiceAddress>,
}

/// One address of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    /// The class of the path to it.
    pub class: PathClass,
    /// The Service, as messages show it.
    pub name: String,
    /// Its cluster address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

impl Services {
    /// The addresses from the last read.
    pub fn known(&self) -> &[ServiceAddress] {
        &self.known
    }

    /// Reads the Services, if the last read is old.
    pub async fn refresh(&mut self, context: &Context) -> Result<(), ReadError> {
        if self.looked.is_some_and(|looked| looked.elapsed() < INTERVAL) {
            return Ok(());
        }
        let services = |namespace: &str| Api::<Service>::namespaced(context.client.clone(), namespace);
        let read = |name: String| move |source| ReadError::of("reading", name, source);
        let api = lenient_requests::get_opt(&services("default"), "kubernetes")
            .await
            .map_err(read("Service default/kubernetes".to_owned()))?;
        let labelled = ListParams::default().labels(NAME_SERVERS);
        let name_servers = lenient_requests::pages(&services("kube-system"), labelled, Some)
            .await
            .map_err(read(format!("Services kube-system with label {NAME_SERVERS}")))?;
        let own = lenient_requests::get_opt(&services(&context.namespace), names::TRAFFIC_SERVICE)
            .await
            .map_err(read(format!(
                "Service {}/{}",
                context.namespace,
                names::TRAFFIC_SERVICE
            )))?;
        self.known = [
            addresses(PathClass::PodToApi, api.as_ref(), "TCP"),
            addresses(PathClass::PodToService, own.as_ref(), "TCP"),
        ]
        .concat();
        for service in &name_servers {
            self.known
                .extend(addresses(PathClass::PodToDns, Some(service), "UDP"));
        }
        self.looked = Some(Instant::now());
        Ok(())
    }
}

/// Every cluster address of a Service, with its first port of this protocol.
fn addresses(class: PathClass, service: Option<&Service>, protocol: &str) -> Vec<ServiceAddress> {
    let Some((service, spec)) = service.and_then(|service| Some((service, service.spec.as_ref()?))) else {
        return Vec::new();
    };
    let name = format!(
        "Service {}/{}",
        service.namespace().unwrap_or_default(),
        service.name_any()
    );
    let port = spec
        .ports
        .iter()
        .flatten()
        .find(|port| port.protocol.as_deref().unwrap_or("TCP") == protocol)
        .and_then(|port| u16::try_from(port.port).ok());
    let Some(port) = port else {
        return Vec::new();
    };
    // A headless Service has `None` here.
    spec.cluster_ips
        .iter()
        .flatten()
        .filter_map(|address| address.parse().ok())
        .map(|address| ServiceAddress {
            class,
            name: name.clone(),
            address,
            port,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_both_families_with_the_port_of_the_protocol_are_found() {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "namespace": "kube-system", "name": "kube-dns" },
            "spec": {
                "clusterIPs": ["10.96.0.10", "fd00::a"],
                "ports": [
                    { "port": 53, "protocol": "TCP" },
                    { "port": 5353, "protocol": "UDP" },
                ],
            },
        }))
        .unwrap();
        let found = addresses(PathClass::PodToDns, Some(&service), "UDP");
        let found: Vec<(String, u16)> = found
            .iter()
            .map(|found| (found.address.to_string(), found.port))
            .collect();
        assert_eq!(
            found,
            [("10.96.0.10".to_owned(), 5353), ("fd00::a".to_owned(), 5353)]
        );
        let headless: Service = serde_json::from_value(json!({
            "metadata": { "name": "x" },
            "spec": { "clusterIPs": ["None"], "ports": [{ "port": 53 }] },
        }))
        .unwrap();
        assert_eq!(addresses(PathClass::PodToService, Some(&headless), "TCP"), []);
    }
}
