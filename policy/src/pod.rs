//! A pod, as Calico makes an endpoint of it (`libcalico-go/lib/backend/k8s/conversion/workload_endpoint_default.go`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use engine::labels::Labels;
pub use engine::ports::ContainerPort;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;

use crate::flow::Protocol;

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The name of its workload: of its controller, or its own.
    pub workload: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its node.
    pub node: Arc<str>,
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Ports of its containers.
    pub ports: Arc<[ContainerPort]>,
    /// Its place between start and end.
    pub life: Life,
    /// The pod is in the network of its host: Calico has no endpoint for it.
    pub is_host_network: bool,
    /// The pod has a link of Calico. Before that it is a peer of others, and nothing is enforced for it.
    pub is_enforced: bool,
    /// The time in which it has its addresses.
    pub lifetime: Lifetime,
}

/// The time in which a pod has its addresses. Addresses are reused, and connections are judged with the pods of their moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Its start; `None` if the pod is older than every connection.
    pub since: Option<Timestamp>,
    /// Its end; `None` for a pod that has not ended.
    pub until: Option<Timestamp>,
}

impl Lifetime {
    /// Whether the pod has its addresses at this moment; `None` is now.
    pub(crate) fn contains(self, moment: Option<Timestamp>) -> bool {
        match moment {
            None => self.until.is_none(),
            Some(moment) => {
                self.since.is_none_or(|since| since <= moment)
                    && self.until.is_none_or(|until| moment < until)
            }
        }
    }
}

/// The place of a pod between start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It starts or runs.
    Live,
    /// It is being deleted, and keeps address and policies until its sandbox is removed.
    Terminating,
    /// It has succeeded, failed, or lost its sandbox: its address may belong to another pod.
    Finished,
}

/// Annotation of Calico's CNI plugin with the address of a pod. Empty on a terminating pod whose sandbox is gone.
const ADDRESS: &str = "cni.projectcalico.org/podIP";
/// The same, with both families.
const ADDRESSES: &str = "cni.projectcalico.org/podIPs";

impl Pod {
    /// Reads a pod of the API; `None` before it has a node. `is_enforced` is what the host says: the API does not tell flannel's
    /// bridge from a link of Calico.
    pub fn read(pod: &core::Pod, is_enforced: bool) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let node = spec.node_name.as_deref().filter(|node| !node.is_empty())?;
        let name = |text: &Option<String>| Arc::from(text.as_deref().unwrap_or_default());
        let owners = pod.metadata.owner_references.iter().flatten();
        let controller = owners
            .into_iter()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| Arc::from(owner.name.as_str()));
        let addresses = addresses(pod);
        let ipv4 = addresses.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let ipv6 = addresses.iter().find_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        });
        let labels = pod.metadata.labels.iter().flatten();
        Some(Self {
            namespace: name(&pod.metadata.namespace),
            workload: controller.unwrap_or_else(|| name(&pod.metadata.name)),
            name: name(&pod.metadata.name),
            labels: labels
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect(),
            node: Arc::from(node),
            ipv4,
            ipv6,
            ports: ports(spec),
            life: life(pod),
            is_host_network: spec.host_network == Some(true),
            is_enforced,
            lifetime: Lifetime::default(),
        })
    }

    /// Whether the pod has an endpoint in Calico that policies select.
    pub fn is_endpoint(&self) -> bool {
        self.has_endpoint() && self.lifetime.until.is_none()
    }

    /// Whether the pod has, or had, an endpoint.
    fn has_endpoint(&self) -> bool {
        !self.is_host_network && self.life != Life::Finished
    }

    /// Its addresses, also after its end: none for a pod that never had an endpoint.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let ipv4 = self.ipv4.map(IpAddr::from);
        let own = ipv4.into_iter().chain(self.ipv6.map(IpAddr::from));
        own.filter(|_| self.has_endpoint())
    }

    /// Whether a container declares this port.
    pub fn declares(&self, protocol: Protocol, number: u16) -> bool {
        let is_it = |port: &ContainerPort| (port.protocol, port.number) == (protocol, number);
        self.ports.iter().any(is_it)
    }
}

fn addresses(pod: &core::Pod) -> Vec<IpAddr> {
    let status = pod.status.as_ref();
    let annotation = |name: &str| pod.metadata.annotations.as_ref()?.get(name);
    let of_status: Vec<&str> = status
        .and_then(|status| status.pod_ips.as_deref())
        .unwrap_or_default()
        .iter()
        .map(|address| address.ip.as_str())
        .collect();
    let texts = if of_status.is_empty() {
        let single = status.and_then(|status| status.pod_ip.as_ref());
        let text = single
            .filter(|text| !text.is_empty())
            .or_else(|| annotation(ADDRESSES))
            .or_else(|| annotation(ADDRESS));
        text.map_or_else(Vec::new, |text| text.split(',').collect())
    } else {
        of_status
    };
    // The annotations have a length.
    let address = |text: &str| text.split('/').next().and_then(|text| text.parse().ok());
    texts.into_iter().filter_map(address).collect()
}

fn life(pod: &core::Pod) -> Life {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_terminating = pod.metadata.deletion_timestamp.is_some();
    let annotations = pod.metadata.annotations.as_ref();
    let has_lost_address = annotations
        .and_then(|annotations| annotations.get(ADDRESS))
        .is_some_and(String::is_empty);
    match phase {
        Some("Succeeded" | "Failed" | "Completed") => Life::Finished,
        _ if is_terminating && has_lost_address => Life::Finished,
        _ if is_terminating => Life::Terminating,
        _ => Life::Live,
    }
}

/// The ports that the containers of a pod declare, those of init containers last.
pub fn ports(spec: &core::PodSpec) -> Arc<[ContainerPort]> {
    let of = |containers: &[core::Container], is_init: bool| -> Vec<ContainerPort> {
        let ports = containers
            .iter()
            .flat_map(|container| container.ports.iter().flatten());
        ports.filter_map(|port| declared(port, is_init)).collect()
    };
    let mut ports = of(&spec.containers, false);
    ports.extend(of(spec.init_containers.as_deref().unwrap_or_default(), true));
    ports.into()
}

fn declared(port: &core::ContainerPort, is_init: bool) -> Option<ContainerPort> {
    let protocol = match port.protocol.as_deref() {
        None | Some("" | "TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => return None,
    };
    let name = port.name.as_deref().filter(|name| !name.is_empty());
    Some(ContainerPort {
        name: name.map(Arc::from),
        protocol,
        number: u16::try_from(port.container_port)
            .ok()
            .filter(|number| *number > 0)?,
        is_init,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn read(pod: Value) -> Option<Pod> {
        Pod::read(&serde_json::from_value(pod).unwrap(), true)
    }

    fn with_status(metadata: &Value, status: &Value) -> Pod {
        read(json!({"metadata": metadata, "spec": {"containers": [], "nodeName": "n1"}, "status": status}))
            .unwrap()
    }

    #[test]
    fn a_pod_without_a_node_has_no_endpoint() {
        assert_eq!(read(json!({"spec": {"containers": []}})), None);
    }

    #[test]
    fn a_pod_belongs_to_its_controller() {
        let owner = |name: &str, controller: bool| {
            let mut reference = json!({"apiVersion": "v1", "kind": "X", "uid": "1", "name": name});
            reference["controller"] = controller.into();
            reference
        };
        let metadata =
            json!({"name": "web-1", "ownerReferences": [owner("other", false), owner("web", true)]});
        assert_eq!(&*with_status(&metadata, &json!({})).workload, "web");
        assert_eq!(
            &*with_status(&json!({"name": "bare"}), &json!({})).workload,
            "bare"
        );
    }

    #[rstest]
    #[case::running(json!({}), "Running", Life::Live)]
    #[case::succeeded(json!({}), "Succeeded", Life::Finished)]
    #[case::failed(json!({}), "Failed", Life::Finished)]
    #[case::terminating(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "Running", Life::Terminating)]
    #[case::without_sandbox(
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {"cni.projectcalico.org/podIP": ""}}),
        "Running",
        Life::Finished
    )]
    fn a_finished_pod_owns_no_address(#[case] metadata: Value, #[case] phase: &str, #[case] life: Life) {
        let pod = with_status(&metadata, &json!({"phase": phase, "podIP": "10.244.1.5"}));
        assert_eq!(pod.life, life);
        assert_eq!(pod.addresses().count(), usize::from(life != Life::Finished));
    }

    #[test]
    fn addresses_come_from_the_status_and_then_from_the_annotations_of_calico() {
        let both = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]});
        let pod = with_status(&json!({}), &both);
        assert_eq!(
            (pod.ipv4, pod.ipv6),
            (Some([10, 0, 0, 1].into()), "fd00::1".parse().ok())
        );
        let annotations = json!({"annotations": {"cni.projectcalico.org/podIPs": "10.0.0.1/32,fd00::1/128"}});
        let pod = with_status(&annotations, &json!({}));
        assert_eq!(
            (pod.ipv4, pod.ipv6),
            (Some([10, 0, 0, 1].into()), "fd00::1".parse().ok())
        );
    }

    #[test]
    fn ports_of_all_containers_are_kept() {
        let ports =
            |name: &str, protocol: &str| json!([{"name": name, "containerPort": 80, "protocol": protocol}]);
        let pod = read(json!({"spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "a", "ports": ports("http", "TCP")},
                {"name": "b", "ports": ports("odd", "ICMP")},
            ],
            "initContainers": [{"name": "c", "ports": ports("dns", "UDP")}],
        }}))
        .unwrap();
        let names: Vec<(Option<&str>, bool)> = pod
            .ports
            .iter()
            .map(|port| (port.name.as_deref(), port.is_init))
            .collect();
        assert_eq!(names, [(Some("http"), false), (Some("dns"), true)]);
        assert!(pod.declares(Protocol::Udp, 80) && !pod.declares(Protocol::Sctp, 80));
    }
}
