//! What verdicts on connections depend on beside pods and policies: the settings that Calico will have, and the nodes.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;

use crate::facts::{ClusterFacts, HostFacts};
use crate::objects::tunnel_address;
use crate::settings::{Settings, defaults};
use crate::version::Version;
use calico::{ConfigMaps, calico_node, variable};
use engine::cluster::{self, DaemonSet};
use policy::settings::{DataPlane, Encapsulation, EndpointToHost, MasqueradesOutgoing, TunnelsFromPods};
use policy::{Node, settings};

/// The settings of Calico's `DaemonSet` and of `FelixConfiguration` `default`, as Felix reads them: an environment variable wins.
pub struct FelixSettings<'facts> {
    set: Option<&'facts DaemonSet>,
    config_maps: &'facts ConfigMaps,
    /// `spec` of the `FelixConfiguration`; null without one.
    spec: &'facts Value,
}

impl<'facts> FelixSettings<'facts> {
    /// The settings of Calico's `DaemonSet` among the facts. `spec` is that of the `FelixConfiguration`, null without one.
    pub fn new(settings: &Settings, facts: &'facts ClusterFacts, spec: &'facts Value) -> Self {
        let key = (
            settings.calico_daemon_set_namespace.value.clone(),
            settings.calico_daemon_set_name.value.clone(),
        );
        Self {
            set: facts.daemon_sets.get(&key),
            config_maps: &facts.config_maps,
            spec,
        }
    }

    /// The value of a field such as `bpfEnabled`, as text. The variable of the environment is `FELIX_` with the name in capitals.
    fn value(&self, field: &str) -> Option<String> {
        let name = format!("FELIX_{}", field.to_ascii_uppercase());
        let container = self.set.and_then(|set| Some((set, calico_node(set)?)));
        let of_environment = container
            .and_then(|(set, container)| variable(self.config_maps, set, container, &name).known())
            .filter(|value| !value.is_empty());
        match (of_environment, &self.spec[field]) {
            (Some(value), _) => Some(value.to_owned()),
            (None, Value::String(value)) => Some(value.clone()),
            (None, Value::Bool(value)) => Some(value.to_string()),
            (None, _) => None,
        }
    }

    fn is(&self, field: &str, expected: &str) -> bool {
        self.value(field)
            .is_some_and(|value| value.eq_ignore_ascii_case(expected))
    }

    /// The version of Calico, by the tag of its image.
    pub fn version(&self) -> Option<settings::Version> {
        let container = self.set.and_then(calico_node)?;
        let (major, minor) = Version::of_image(&container.image)?.release()?;
        Some(settings::Version::new(major, minor))
    }

    fn data_plane(&self) -> DataPlane {
        if self.is("bpfEnabled", "true") {
            DataPlane::Ebpf
        } else if self.is("nftablesMode", "Enabled") {
            DataPlane::Nftables
        } else {
            DataPlane::Iptables
        }
    }

    /// Felix' own default is `Drop`; Calico's manifests set `ACCEPT`.
    fn endpoint_to_host(&self) -> EndpointToHost {
        if self.is("defaultEndpointToHostAction", "Accept") {
            EndpointToHost::Accept
        } else if self.is("defaultEndpointToHostAction", "Return") {
            EndpointToHost::Return
        } else {
            EndpointToHost::Drop
        }
    }

    /// The settings under which connections are judged. The pool and the port of the tunnel are those that the migration writes.
    pub fn of_policies(&self, settings: &Settings) -> settings::Settings {
        settings::Settings {
            version: self.version().unwrap_or(settings::Settings::default().version),
            data_plane: self.data_plane(),
            encapsulation: Encapsulation::Always,
            endpoint_to_host: self.endpoint_to_host(),
            vxlan_port: settings.flannel_port.value,
            tunnels_from_pods: TunnelsFromPods {
                vxlan: self.is("allowVXLANPacketsFromWorkloads", "true"),
                ipip: self.is("allowIPIPPacketsFromWorkloads", "true"),
            },
            masquerades_all: false,
            masquerades_outgoing: MasqueradesOutgoing::both(settings.flannel_ip_masquerade.value),
            pod_ranges: settings
                .pod_networks()
                .iter()
                .map(|network| network.range)
                .collect(),
        }
    }
}

/// The nodes with the addresses that they have now and under Calico.
pub fn nodes(facts: &ClusterFacts) -> Vec<Node> {
    let nodes = facts.nodes.values();
    nodes
        .map(|node| of_node(node, facts.hosts.get(&node.name)))
        .collect()
}

fn of_node(node: &cluster::Node, host: Option<&HostFacts>) -> Node {
    let ranges: Vec<IpNet> = node
        .pod_cidrs
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect();
    let tunnels: Vec<IpAddr> = ranges.iter().map(|range| tunnel_address(*range)).collect();
    let devices = host.into_iter().flat_map(|host| &host.vxlan_devices);
    let bridge = host.and_then(|host| host.bridge.present());
    let of_links = devices
        .flat_map(|device| &device.addresses)
        .chain(bridge.into_iter().flat_map(|bridge| &bridge.addresses));
    let mut others: Vec<IpAddr> = of_links.map(IpNet::addr).collect();
    // flannel's bridge has the first address of the range, also where it was not read.
    others.extend(ranges.iter().filter_map(|range| range.hosts().next()));
    others.sort_unstable();
    others.dedup();
    Node {
        name: Arc::from(node.name.as_str()),
        addresses: node.internal_addresses.clone(),
        tunnels,
        others,
        ranges,
    }
}

/// The ports of tunnels between nodes: flannel's, which the migration gives to Calico, and the default of each.
pub fn tunnel_ports(settings: &Settings) -> Vec<u16> {
    vec![settings.flannel_port.value, defaults::FLANNEL_PORT, 4789]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::checks::fixture;

    fn with(variables: &[(&str, &str)], image: &str) -> ClusterFacts {
        let mut facts = fixture::cluster();
        let set = facts
            .daemon_sets
            .get_mut(&("kube-system".to_owned(), "calico-node".to_owned()))
            .unwrap();
        let node = set
            .containers
            .iter_mut()
            .find(|container| !container.init)
            .unwrap();
        image.clone_into(&mut node.image);
        for (name, value) in variables {
            node.environment.set(name, value);
        }
        facts
    }

    #[test]
    fn settings_of_felix_come_from_the_environment_and_then_from_its_configuration() {
        let settings = fixture::settings();
        let spec = json!({ "defaultEndpointToHostAction": "Return", "nftablesMode": "Enabled", "allowVXLANPacketsFromWorkloads": true });
        let image = "quay.io/calico/node:v3.31.7";
        let facts = with(&[("FELIX_DEFAULTENDPOINTTOHOSTACTION", "ACCEPT")], image);
        let found = FelixSettings::new(&settings, &facts, &spec).of_policies(&settings);
        assert_eq!(found.endpoint_to_host, EndpointToHost::Accept);
        assert_eq!(found.data_plane, DataPlane::Nftables);
        assert_eq!(found.version, settings::Version::new(3, 31));
        assert!(found.tunnels_from_pods.vxlan && !found.tunnels_from_pods.ipip);
        assert_eq!(
            (found.vxlan_port, found.pod_ranges),
            (8472, vec!["10.244.0.0/16".parse().unwrap()])
        );

        let facts = with(&[], "localhost/node:latest");
        let felix = FelixSettings::new(&settings, &facts, &Value::Null);
        assert_eq!(felix.version(), None);
        assert_eq!(
            felix.of_policies(&settings).endpoint_to_host,
            EndpointToHost::Drop
        );
        let felix = FelixSettings::new(&settings, &facts, &spec);
        assert_eq!(
            felix.of_policies(&settings).endpoint_to_host,
            EndpointToHost::Return
        );
    }

    #[test]
    fn nodes_have_the_addresses_of_both_networks() {
        let (_, mut facts) = fixture::dual_stack();
        facts.hosts.remove("b");
        let found = nodes(&facts);
        let texts =
            |addresses: &[IpAddr]| -> Vec<String> { addresses.iter().map(ToString::to_string).collect() };
        let a = &found[0];
        assert_eq!(&*a.name, "a");
        assert_eq!(texts(&a.addresses), ["192.168.0.1", "fd00:192::1"]);
        assert_eq!(texts(&a.tunnels), ["10.244.1.0", "fd00:10:244:1::"]);
        assert!(
            texts(&a.others).contains(&"10.244.1.1".to_owned()),
            "{:?}",
            a.others
        );
        // Its agent has not reported the bridge.
        assert!(texts(&found[1].others).contains(&"10.244.2.1".to_owned()));
    }
}
