//! The targets: the ready endpoints of a Service in the API.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::{reflector, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

/// Time between two attempts when the API does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// One pod that gets probes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The pod's name.
    pub name: String,
    /// The address and port.
    pub address: SocketAddr,
    /// The node.
    pub node: Option<String>,
}

/// The known targets.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The pods that are ready now.
    pub targets: BTreeSet<Target>,
    /// Why the list may be old.
    pub problem: Option<String>,
}

/// Updates `known` for ever. The last state is kept while the API is unavailable.
pub async fn follow(
    client: Client,
    namespace: String,
    service: String,
    port: u16,
    known: watch::Sender<Known>,
) {
    let slices: Api<EndpointSlice> = Api::namespaced(client, &namespace);
    let selector = format!("kubernetes.io/service-name={service}");
    let (reader, writer) = reflector::store();
    let events = reflector(
        writer,
        watcher(slices, watcher::Config::default().labels(&selector)),
    );
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            // Between the beginning and the end of a list the store still has the state before.
            Ok(_) => {
                let targets = reader
                    .state()
                    .iter()
                    .flat_map(|slice| ready(slice, port))
                    .collect();
                known.send_if_modified(|known| {
                    let changed = known.targets != targets;
                    *known = Known {
                        targets,
                        problem: None,
                    };
                    changed
                });
            }
            Err(error) => {
                let problem = format!("watch the endpoints of service {namespace}/{service}: {error}");
                known.send_if_modified(|known| {
                    known.problem = Some(problem);
                    false
                });
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The pods of a slice that are ready and not terminating.
fn ready(slice: &EndpointSlice, port: u16) -> Vec<Target> {
    let is_ready = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| {
        endpoint
            .conditions
            .as_ref()
            .is_some_and(|conditions| conditions.ready == Some(true) && conditions.terminating != Some(true))
    };
    let mut targets = Vec::new();
    for endpoint in slice.endpoints.iter().filter(is_ready) {
        let name = endpoint.target_ref.as_ref().and_then(|pod| pod.name.clone());
        let address = endpoint
            .addresses
            .first()
            .and_then(|address| address.parse::<IpAddr>().ok());
        if let (Some(name), Some(address)) = (name, address) {
            targets.push(Target {
                name,
                address: SocketAddr::new(address, port),
                node: endpoint.node_name.clone(),
            });
        }
    }
    targets
}

/// The Service's addresses, one of each of its families; waits until there is one.
pub async fn service_addresses(client: Client, namespace: &str, service: &str, port: u16) -> Vec<SocketAddr> {
    let services: Api<Service> = Api::namespaced(client, namespace);
    loop {
        match attempt(&services, service).await {
            Ok(addresses) => {
                return addresses
                    .into_iter()
                    .map(|address| SocketAddr::new(address, port))
                    .collect();
            }
            Err(error) => eprintln!("service {namespace}/{service}: {error:#}"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn attempt(services: &Api<Service>, name: &str) -> Result<Vec<IpAddr>> {
    let service = services.get(name).await.context("read it")?;
    let addresses = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    if addresses.is_empty() {
        bail!("the Service has no address");
    }
    if addresses == ["None"] {
        // A headless Service has only its pods.
        return Ok(Vec::new());
    }
    let parse = |address: &String| {
        address
            .parse()
            .with_context(|| format!("the address {address:?} is not valid"))
    };
    addresses.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ready_pods_that_do_not_terminate_get_probes() {
        let endpoint = |name: &str, address: &str, ready: bool, terminating: bool| {
            serde_json::json!({
                "addresses": [address], "nodeName": "n1", "targetRef": {"kind": "Pod", "name": name},
                "conditions": {"ready": ready, "serving": true, "terminating": terminating},
            })
        };
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "addressType": "IPv4", "metadata": {"name": "echo-1"},
            "endpoints": [
                endpoint("a", "10.0.0.1", true, false), endpoint("b", "10.0.0.2", false, false),
                endpoint("c", "10.0.0.3", true, true),
                {"addresses": ["10.0.0.4"], "conditions": {}},
            ],
        }))
        .unwrap();
        let expected = Target {
            name: "a".into(),
            address: "10.0.0.1:7000".parse().unwrap(),
            node: Some("n1".into()),
        };
        assert_eq!(ready(&slice, 7000), [expected]);
    }
}
