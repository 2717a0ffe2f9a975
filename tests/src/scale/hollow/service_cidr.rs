//! Simulates the hosts' knowledge of Services: each kube-proxy has rules for every Service in the API, and each
//! kubelet gives new pods the settings of its configuration. An agent reports only the requested facts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use api::MigrationRecord;
use engine::found::Found;
use engine::local_traffic::LocalTraffic;
use ipnet::{IpNet, Ipv4Net};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use service_cidr::host::{
    AddressOrigin, HostFacts, HostSettings, MOST_CARRIERS, PodWithSourceAddress, PodsWithSourceAddresses,
    ProxyMode, Question, ServicePort, SourceAddresses, TargetFacts,
};

use super::pods::{PodOnHost, Pods};
use crate::scale::shape::KUBELET_CONFIGURATION;

/// Namespace and name.
type Name = (String, String);

/// The Services and the name server, as every host knows them.
#[derive(Clone, Debug, Default)]
pub struct Known {
    rules: BTreeMap<Name, Rules>,
    /// The Service of each address.
    by_address: BTreeMap<IpAddr, Name>,
    name_server: Option<IpAddr>,
    /// The contents of the record of expected ports. Each real agent watches it separately.
    expected: Option<Question>,
}

/// The rules of kube-proxy for one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rules {
    addresses: Vec<IpAddr>,
    /// External addresses of the Service.
    balanced: Vec<IpAddr>,
    /// Protocol and port.
    ports: Vec<(String, u16)>,
}

impl Known {
    /// Reads the present state.
    pub async fn read(client: &Client) -> Result<Self> {
        let mut known = Self::default();
        let services: Api<Service> = Api::all(client.clone());
        let services = services
            .list(&ListParams::default())
            .await
            .context("list Services")?;
        services.iter().for_each(|service| known.see(service));
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
        let map = maps
            .get_opt(KUBELET_CONFIGURATION)
            .await
            .with_context(|| format!("read ConfigMap kube-system/{KUBELET_CONFIGURATION}"))?;
        if let Some(map) = map {
            known.configure(&map);
        }
        Ok(known)
    }

    /// Adds or updates a Service.
    pub fn see(&mut self, service: &Service) {
        self.forget(service);
        let name = name(service);
        let rules = rules(service);
        for address in &rules.addresses {
            self.by_address.insert(*address, name.clone());
        }
        self.rules.insert(name, rules);
    }

    /// Removes a Service.
    pub fn forget(&mut self, service: &Service) {
        let name = name(service);
        let Some(rules) = self.rules.remove(&name) else {
            return;
        };
        for address in rules.addresses {
            if self.by_address.get(&address) == Some(&name) {
                self.by_address.remove(&address);
            }
        }
    }

    /// A record has changed.
    pub fn see_record(&mut self, record: &MigrationRecord) {
        if let Some(question) = &record.spec.expected_ports {
            self.expected = Some(question.clone());
        }
    }

    /// The question that these settings name. There is one Migration, and so one record.
    pub fn question(&self, settings: &HostSettings) -> Option<&Question> {
        settings.expected_ports.as_ref()?;
        self.expected.as_ref()
    }

    /// Sets the kubelets' configuration.
    pub fn configure(&mut self, map: &ConfigMap) {
        let text = map.data.as_ref().and_then(|data| data.get("kubelet"));
        let configuration = text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        self.name_server =
            configuration.and_then(|configuration| configuration["clusterDNS"][0].as_str()?.parse().ok());
    }

    /// The address of Service `default/kubernetes`, which the kubelet writes into the environment of new pods.
    pub fn api_server(&self) -> Option<IpAddr> {
        let name = ("default".to_owned(), "kubernetes".to_owned());
        self.rules.get(&name)?.addresses.first().copied()
    }

    /// The address of the name servers, which the kubelet writes into the `resolv.conf` of new pods.
    pub fn name_server(&self) -> Option<IpAddr> {
        self.name_server
    }

    fn rules_at(&self, port: &ServicePort) -> Option<&Rules> {
        let rules = self.rules.get(self.by_address.get(&port.address)?)?;
        let mut ports = rules.ports.iter();
        ports
            .any(|(protocol, number)| *protocol == port.protocol && *number == port.port)
            .then_some(rules)
    }
}

fn name(service: &Service) -> Name {
    (service.namespace().unwrap_or_default(), service.name_any())
}

fn rules(service: &Service) -> Rules {
    let Some(spec) = &service.spec else {
        return Rules::default();
    };
    let addresses = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect();
    let ingress = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some((protocol, u16::try_from(port.port).ok()?))
    });
    Rules {
        addresses: addresses(spec.cluster_ips.as_deref().unwrap_or_default()),
        balanced: ingress
            .into_iter()
            .flatten()
            .filter_map(|ingress| ingress.ip.as_ref()?.parse().ok())
            .collect(),
        ports: ports.collect(),
    }
}

/// The facts that an agent reads on its host. `question` is the content of the record that the settings name, if
/// known. No connection uses an old address, and the new range is free.
pub fn facts(
    settings: &HostSettings,
    question: Option<&Question>,
    known: &Known,
    pods: &Pods,
    network: Ipv4Net,
) -> HostFacts {
    let left = &settings.source;
    let has_rules = |port: &&ServicePort| known.rules_at(port).is_some();
    let is_balanced = |port: &&ServicePort| {
        let rules = known.rules_at(port);
        rules.is_some_and(|rules| rules.balanced.contains(&port.address))
    };
    let unknown = question.map(|Question { ports, .. }| {
        let unknown = ports.service_ports.iter().filter(|port| !has_rules(port));
        unknown
            .chain(ports.load_balancer_ports.iter().filter(|port| !is_balanced(port)))
            .cloned()
            .collect()
    });
    let is_unknown = settings.expected_ports.is_some() && question.is_none();
    HostFacts {
        proxy_mode: Found::Present(ProxyMode::Iptables),
        missing_ports: if is_unknown {
            Found::Malformed("the record has not been read yet".to_owned())
        } else {
            Found::Present(unknown.unwrap_or_default())
        },
        expected_digest: question.map(Question::digest),
        local_traffic: Found::Present(LocalTraffic {
            ranges: vec![IpNet::V4(network)],
            links: Vec::new(),
        }),
        cluster_dns: known
            .name_server
            .map_or(Found::Absent, |address| Found::Present(vec![address])),
        // Hollow agents reach the API server there.
        api_server: Ipv4Addr::LOCALHOST.to_string(),
        target: TargetFacts::default(),
        pods_with_source_addresses: if settings.report_users {
            with_old_addresses(pods, left)
        } else {
            Found::Present(PodsWithSourceAddresses::default())
        },
        connections: Found::Absent,
    }
}

/// Pods that have received an old address.
fn with_old_addresses(pods: &Pods, left: &SourceAddresses) -> Found<PodsWithSourceAddresses> {
    let told = |(uid, pod): (&String, &PodOnHost)| {
        let by = [
            (AddressOrigin::Environment, pod.told.environment),
            (AddressOrigin::Resolver, pod.told.resolver),
        ];
        by.map(|(told_by, address)| {
            address
                .filter(|address| left.contains(*address))
                .map(|address| PodWithSourceAddress {
                    pod_uid: uid.clone(),
                    origin: told_by,
                    address,
                })
        })
    };
    let pods: Vec<PodWithSourceAddress> = pods.iter().flat_map(told).flatten().take(MOST_CARRIERS).collect();
    if pods.is_empty() {
        return Found::Absent;
    }
    Found::Present(PodsWithSourceAddresses {
        pods,
        ..PodsWithSourceAddresses::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use service_cidr::host::{ExpectedPorts, ExpectedPortsReference};

    use super::super::pods::{Role, Told};
    use super::*;
    use crate::scale::shape;

    fn service(name: &str, address: &str, ingress: &Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"clusterIPs": [address], "ports": [{"port": 443, "protocol": "TCP"}]},
            "status": {"loadBalancer": {"ingress": ingress}},
        }))
        .unwrap()
    }

    fn port(address: &str) -> ServicePort {
        ServicePort {
            address: address.parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: 443,
        }
    }

    fn asked(known: &[&str], balanced: &[&str]) -> Question {
        let ports = |addresses: &[&str]| addresses.iter().map(|address| port(address)).collect();
        Question {
            asked_at: jiff::Timestamp::UNIX_EPOCH,
            ports: ExpectedPorts {
                service_ports: ports(known),
                load_balancer_ports: ports(balanced),
            },
        }
    }

    fn settings() -> HostSettings {
        HostSettings {
            source: SourceAddresses {
                ranges: vec!["10.96.0.0/16".parse().unwrap()],
                excluded: Vec::new(),
            },
            report_users: true,
            expected_ports: Some(ExpectedPortsReference {
                record: "m-1-expected-ports-0".to_owned(),
            }),
            ..HostSettings::default()
        }
    }

    fn network() -> Ipv4Net {
        crate::scale::POD_NETWORK.parse().unwrap()
    }

    #[test]
    fn kube_proxy_has_rules_for_the_services_of_the_api() {
        let mut known = Known::default();
        known.see(&service("kubernetes", "10.96.0.1", &json!([])));
        known.see(&service("bridge", "10.96.0.9", &json!([{"ip": "10.96.0.9"}])));
        let unknown = |known: &Known, asked: &Question| {
            facts(&settings(), Some(asked), known, &Pods::new(), network()).missing_ports
        };
        let other = facts(&settings(), None, &known, &Pods::new(), network()).missing_ports;
        assert!(matches!(other, Found::Malformed(_)), "{other:?}");
        let both = ["10.96.0.1", "10.96.0.9"];
        assert_eq!(unknown(&known, &asked(&both, &[])), Found::Present(Vec::new()));
        assert_eq!(
            unknown(&known, &asked(&[], &both)),
            Found::Present(vec![port("10.96.0.1")])
        );
        // The Service has another address now, and another Service has the old one.
        known.see(&service("kubernetes", "172.31.0.1", &json!([])));
        known.see(&service("old", "10.96.0.1", &json!([])));
        known.forget(&service("bridge", "10.96.0.9", &json!([])));
        assert_eq!(
            unknown(&known, &asked(&["10.96.0.1", "172.31.0.1", "10.96.0.9"], &[])),
            Found::Present(vec![port("10.96.0.9")])
        );
    }

    #[test]
    fn a_pod_keeps_the_settings_of_its_start() {
        let mut known = Known::default();
        known.see(&service("kubernetes", "10.96.0.1", &json!([])));
        let map = shape::kubelet_configuration(Ipv4Addr::new(10, 96, 0, 10));
        known.configure(&serde_json::from_value(map).unwrap());
        let pod = |known: &Known| PodOnHost {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            role: Role::OnHost,
            told: Told {
                environment: known.api_server(),
                resolver: known.name_server(),
            },
        };
        let old = pod(&known);
        known.see(&service("kubernetes", "172.31.0.1", &json!([])));
        let map = shape::kubelet_configuration(Ipv4Addr::new(172, 31, 0, 10));
        known.configure(&serde_json::from_value(map).unwrap());
        let pods = Pods::from([("a".to_owned(), old), ("b".to_owned(), pod(&known))]);
        let found = facts(&settings(), None, &known, &pods, network());
        let Found::Present(with_old_addresses) = found.pods_with_source_addresses else {
            panic!("a pod has received an old address");
        };
        let with_old_addresses: Vec<(&str, AddressOrigin)> = with_old_addresses
            .pods
            .iter()
            .map(|with_old_address| (with_old_address.pod_uid.as_str(), with_old_address.origin))
            .collect();
        assert_eq!(
            with_old_addresses,
            [("a", AddressOrigin::Environment), ("a", AddressOrigin::Resolver)]
        );
        assert_eq!(
            found.cluster_dns,
            Found::Present(vec!["172.31.0.10".parse().unwrap()])
        );
    }
}
