//! The connections that are tried: from each client to each pod, and by Services, node ports, name servers and the API server.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use policy::{Client, Connection, Protocol, Route, State};
use serde::Serialize;
use traffic::ask::{Means, Question};

use super::facts::{Objects, underlay};
use super::fleet::{self, OfPod, TCP, UDP, VXLAN};
use crate::cluster::control_plane::{DNS_SERVICE, KUBERNETES_SERVICE, PORT};

/// Type of `ICMPv6` of an echo request.
const ECHO_REQUEST: u8 = 128;
/// The port of DNS.
const DNS: u16 = 53;

/// A class of connections: what is asked, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// TCP to the address of a pod.
    Tcp,
    /// UDP to the address of a pod.
    Udp,
    /// ICMP echo to the address of a pod.
    Icmp,
    /// UDP to Felix' VXLAN port at the address of a pod.
    VxlanPort,
    /// Through the address of a Service.
    Service,
    /// Through the address of a load balancer, which kube-proxy keeps in the cluster.
    LoadBalancer,
    /// Through a node port.
    NodePort,
    /// To a name server, at its own address and through its Service.
    NameServer,
    /// To the API server, which is outside of the cluster's nodes, and through its Service.
    ApiServer,
}

impl Class {
    /// The words in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP to a pod",
            Self::Udp => "UDP to a pod",
            Self::Icmp => "ICMP to a pod",
            Self::VxlanPort => "UDP to a pod, port of VXLAN",
            Self::Service => "Service",
            Self::LoadBalancer => "load balancer",
            Self::NodePort => "node port",
            Self::NameServer => "name server",
            Self::ApiServer => "API server",
        }
    }
}

/// A client.
#[derive(Clone, Debug)]
pub struct Source {
    /// `namespace/name` of its pod, or the name of its machine.
    pub name: String,
    /// Its node, if it is in the network of a node.
    node: Option<Arc<str>>,
    /// Its addresses.
    addresses: Vec<IpAddr>,
    /// Whether it is no part of the cluster.
    is_outside: bool,
}

impl Source {
    /// A pod.
    pub fn pod(pod: &Pod) -> Self {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        Self {
            name: fleet::name_of(pod),
            node: node.filter(|_| fleet::is_on_host(pod)).map(Arc::from),
            addresses: fleet::addresses(pod),
            is_outside: false,
        }
    }

    /// A machine outside of the cluster.
    pub fn outside(name: &str, addresses: Vec<IpAddr>) -> Self {
        Self {
            name: name.to_owned(),
            node: None,
            addresses,
            is_outside: true,
        }
    }

    /// The client of a connection to this address; `None` if the client has no address of its family.
    fn client(&self, server: IpAddr) -> Option<Client> {
        let own = self
            .addresses
            .iter()
            .find(|own| own.is_ipv4() == server.is_ipv4())?;
        Some(match &self.node {
            Some(node) => Client::Node(Arc::clone(node)),
            None => Client::Address(*own),
        })
    }
}

/// A connection to try.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Its class.
    pub class: Class,
    /// `namespace/name` of the client, or the name of its machine.
    pub client: String,
    /// Whether the client is a pod.
    pub is_from_pod: bool,
    /// The server in words: a pod, or what it is reached through.
    pub server: String,
    /// The pods of which one answers; empty for a server that is no pod.
    pub pods: Vec<String>,
    /// What is asked.
    pub question: Question,
    /// The connection as the preview knows it, one for each server of which one answers.
    pub planned: Vec<Connection>,
    /// The name that the server must give.
    pub name: Option<String>,
}

/// The servers.
#[derive(Clone, Debug)]
pub struct Targets {
    pods: Vec<Pod>,
    name_servers: Vec<Pod>,
    services: Vec<OfPod>,
    /// Nodes with their addresses.
    nodes: Vec<(Arc<str>, Vec<IpAddr>)>,
    api_server: IpAddr,
}

/// One server, and how it is asked.
struct Goal {
    class: Class,
    words: String,
    means: Means,
    /// Address and port that are asked.
    asked: SocketAddr,
    /// The servers of which one answers: name of the pod, address, port.
    servers: Vec<(Option<String>, IpAddr, Option<u16>)>,
    protocol: Protocol,
    route: Route,
    name: Option<String>,
}

impl Targets {
    /// The servers in these objects.
    pub fn new(objects: &Objects, measured: Vec<Pod>, services: Vec<OfPod>, api_server: IpAddr) -> Self {
        let is_name_server = |pod: &&Pod| {
            let labels = pod.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get("k8s-app"))
                .is_some_and(|app| app == "kube-dns")
        };
        let nodes = objects.nodes.iter();
        Self {
            pods: measured,
            name_servers: objects.pods.iter().filter(is_name_server).cloned().collect(),
            services,
            nodes: nodes
                .map(|node| (Arc::from(node.name_any().as_str()), underlay(node)))
                .collect(),
            api_server,
        }
    }

    /// The connections of a client.
    pub fn trials(&self, source: &Source) -> Result<Vec<Trial>> {
        let goals = if source.is_outside {
            self.node_ports()?
        } else {
            let mut goals = self.direct(source);
            goals.extend(self.through_services()?);
            goals.extend(self.node_ports()?);
            goals.extend(self.to_name_servers());
            goals.extend(self.to_api_server());
            goals
        };
        Ok(goals.into_iter().filter_map(|goal| trial(source, goal)).collect())
    }

    fn direct(&self, source: &Source) -> Vec<Goal> {
        let mut goals = Vec::new();
        for pod in &self.pods {
            let name = fleet::name_of(pod);
            for address in fleet::addresses(pod) {
                let goal = |class, means, protocol, port: Option<u16>| Goal {
                    class,
                    words: name.clone(),
                    means,
                    asked: SocketAddr::new(address, port.unwrap_or_default()),
                    servers: vec![(Some(name.clone()), address, port)],
                    protocol,
                    route: Route::Direct,
                    name: port.map(|_| name.clone()),
                };
                let tcp = |port| goal(Class::Tcp, Means::Tcp, Protocol::Tcp, Some(port));
                goals.extend(TCP.map(tcp));
                goals.push(goal(Class::Udp, Means::Udp, Protocol::Udp, Some(UDP)));
                let echo = if address.is_ipv4() {
                    Protocol::Icmp
                } else {
                    Protocol::Icmpv6(ECHO_REQUEST)
                };
                goals.push(goal(Class::Icmp, Means::Ping, echo, None));
                // Between hosts the port carries the tunnel itself.
                if source.node.is_none() && !fleet::is_on_host(pod) {
                    goals.push(goal(Class::VxlanPort, Means::Udp, Protocol::Udp, Some(VXLAN)));
                }
            }
        }
        goals
    }

    fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods
            .iter()
            .find(|pod| fleet::name_of(pod) == name)
            .with_context(|| format!("pod {name} is not among the measured ones"))
    }

    /// Each port of each Service, at each of its addresses.
    fn through_services(&self) -> Result<Vec<Goal>> {
        let mut goals = Vec::new();
        for OfPod { service, pod } in &self.services {
            let server = self.pod(pod)?;
            for address in service_addresses(service) {
                let (class, route) = if fleet::is_of_load_balancer(address) {
                    let is_local = is_local(service);
                    (Class::LoadBalancer, Route::LoadBalancer { is_local })
                } else {
                    (Class::Service, Route::Service)
                };
                for port in ports(service, server)? {
                    let words = format!("Service {} at {}", service_name(service), port.number);
                    goals.extend(port.goal(class, words, address, port.number, server, route.clone()));
                }
            }
        }
        Ok(goals)
    }

    /// Each node port: of a Service with `externalTrafficPolicy: Local` at the node of its pod alone, since others drop it.
    fn node_ports(&self) -> Result<Vec<Goal>> {
        let mut goals = Vec::new();
        for OfPod { service, pod } in &self.services {
            let server = self.pod(pod)?;
            let home = server.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let is_local = is_local(service);
            for port in ports(service, server)? {
                let Some(node_port) = port.node_port else { continue };
                let asked = self
                    .nodes
                    .iter()
                    .filter(|(name, _)| !is_local || home == Some(name));
                for (node, addresses) in asked {
                    for address in addresses {
                        let route = Route::NodePort {
                            node: Arc::clone(node),
                            port: node_port,
                            is_local,
                        };
                        let words = format!("node port of {pod} at {node}");
                        goals.extend(port.goal(Class::NodePort, words, *address, node_port, server, route));
                    }
                }
            }
        }
        Ok(goals)
    }

    fn to_name_servers(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        let at = |pod: &Pod| {
            let name = fleet::name_of(pod);
            let address = fleet::addresses(pod).into_iter().find(IpAddr::is_ipv4)?;
            Some((Some(name), address, Some(DNS)))
        };
        let servers: Vec<_> = self.name_servers.iter().filter_map(at).collect();
        let mut add = |words: String, asked: IpAddr, servers: Vec<_>, route: Route| {
            for (means, protocol) in [(Means::Dns, Protocol::Udp), (Means::Connect, Protocol::Tcp)] {
                goals.push(Goal {
                    class: Class::NameServer,
                    words: words.clone(),
                    means,
                    asked: SocketAddr::new(asked, DNS),
                    servers: servers.clone(),
                    protocol,
                    route: route.clone(),
                    name: None,
                });
            }
        };
        for server in &servers {
            let words = server.0.clone().unwrap_or_default();
            add(words, server.1, vec![server.clone()], Route::Direct);
        }
        add(
            "Service kube-system/kube-dns".to_owned(),
            DNS_SERVICE.into(),
            servers,
            Route::Service,
        );
        goals
    }

    fn to_api_server(&self) -> Vec<Goal> {
        let goal = |words: &str, asked: SocketAddr, route| Goal {
            class: Class::ApiServer,
            words: words.to_owned(),
            means: Means::Connect,
            asked,
            servers: vec![(None, self.api_server, Some(PORT))],
            protocol: Protocol::Tcp,
            route,
            name: None,
        };
        let through = SocketAddr::new(KUBERNETES_SERVICE.into(), 443);
        vec![
            goal(
                "the API server",
                SocketAddr::new(self.api_server, PORT),
                Route::Direct,
            ),
            goal("Service default/kubernetes", through, Route::Service),
        ]
    }
}

fn trial(source: &Source, goal: Goal) -> Option<Trial> {
    let client = source.client(goal.asked.ip())?;
    let planned = goal.servers.iter().map(|(_, address, port)| Connection {
        client: client.clone(),
        server: *address,
        port: *port,
        protocol: goal.protocol,
        route: goal.route.clone(),
        state: State::New,
    });
    Some(Trial {
        class: goal.class,
        client: source.name.clone(),
        is_from_pod: !source.is_outside,
        server: goal.words,
        planned: planned.collect(),
        pods: goal.servers.into_iter().filter_map(|(pod, ..)| pod).collect(),
        question: Question {
            means: goal.means,
            server: goal.asked,
        },
        name: goal.name,
    })
}

/// A port of a Service, with the port of its pod.
struct ServicePort {
    number: u16,
    node_port: Option<u16>,
    target: u16,
    protocol: Protocol,
}

impl ServicePort {
    /// The goal behind this address and port; `None` if the pod has no address of its family.
    fn goal(
        &self,
        class: Class,
        words: String,
        asked: IpAddr,
        port: u16,
        server: &Pod,
        route: Route,
    ) -> Option<Goal> {
        let addresses = fleet::addresses(server);
        let address = addresses
            .into_iter()
            .find(|own| own.is_ipv4() == asked.is_ipv4())?;
        let name = fleet::name_of(server);
        Some(Goal {
            class,
            words,
            means: if self.protocol == Protocol::Udp {
                Means::Udp
            } else {
                Means::Tcp
            },
            asked: SocketAddr::new(asked, port),
            servers: vec![(Some(name.clone()), address, Some(self.target))],
            protocol: self.protocol,
            route,
            name: Some(name),
        })
    }
}

fn service_name(service: &Service) -> String {
    format!(
        "{}/{}",
        service.namespace().unwrap_or_default(),
        service.name_any()
    )
}

/// Whether connections from outside reach pods of the same node alone.
fn is_local(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local")
}

fn service_addresses(service: &Service) -> Vec<IpAddr> {
    let own = service
        .spec
        .iter()
        .flat_map(|spec| spec.cluster_ips.iter().flatten());
    let status = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let balancers = status.iter().flat_map(|status| status.ingress.iter().flatten());
    let balancers = balancers.filter_map(|ingress| ingress.ip.as_ref());
    own.chain(balancers)
        .filter_map(|text| text.parse().ok())
        .collect()
}

fn ports(service: &Service, pod: &Pod) -> Result<Vec<ServicePort>> {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    let number = |number: i32| u16::try_from(number).with_context(|| format!("port {number}"));
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let declared: Vec<_> = containers
        .flat_map(|container| container.ports.iter().flatten())
        .collect();
    let all = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    all.map(|port| {
        let target = match &port.target_port {
            Some(IntOrString::Int(target)) => *target,
            Some(IntOrString::String(name)) => declared
                .iter()
                .find(|declared| declared.name.as_deref() == Some(name.as_str()))
                .map(|declared| declared.container_port)
                .with_context(|| format!("Service {}: no port {name} in its pod", service_name(service)))?,
            None => port.port,
        };
        Ok(ServicePort {
            number: number(port.port)?,
            node_port: port.node_port.map(number).transpose()?,
            target: number(target)?,
            protocol: match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                _ => Protocol::Tcp,
            },
        })
    })
    .collect()
}
