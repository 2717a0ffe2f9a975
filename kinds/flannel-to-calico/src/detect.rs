//! Detection of settings: from the spec, else from the cluster, else the default.
//!
//! If flannel is not found, the result is a refusal that names what was found, never "nothing to do".

mod daemon_set;
mod outside;
mod recognise;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::check_name::CheckName;
use super::facts::ClusterFacts;
use super::node::NetworkLabel;
use super::settings::{Ipv6Settings, Options, Settings, defaults};
use crate::flannel::{NetworkConfiguration, ParseError, SubnetEnvironment};
use engine::check::{Check, Verdict};
use engine::cluster::{self, DaemonSet, Node};
use engine::sourced::{Source, Sourced};
use engine::words::{lines, names, number};

pub use recognise::{argument, flanneld, has_switch, is_of_a_network, looks_like_canal, looks_like_flannel};

/// The label that names the network of a node.
pub(super) const NETWORK_LABEL: &str = "projectcalico.org/node-network-during-migration";
/// Key of flannel's configuration in its `ConfigMap`.
const NETWORK_CONFIGURATION: &str = "net-conf.json";

/// Merges the spec, the facts about the cluster and the defaults. Returns failed checks if flannel was not found, if facts
/// contradict each other, or if a value without a default is unknown.
///
/// # Errors
///
/// The `DaemonSet` of flannel is not found, facts contradict each other, or no node has reported a value that has no default.
pub fn detect(options: &Options, facts: &ClusterFacts) -> Result<Settings, Vec<Check>> {
    let (name, namespace) = daemon_set::choose(options, facts).map_err(|check| vec![*check])?;
    let flannel = facts
        .daemon_sets
        .get(&(namespace.value.clone(), name.value.clone()));
    let mut gathered = Gathered::default();
    let configuration = match flannel {
        Some(set) => gathered.keep(network_configuration(set, facts)),
        None => None,
    };
    let network = gathered.value(options.flannel_network, || {
        match read(configuration.as_ref(), |configuration| {
            Some(configuration.network)
        }) {
            Some(found) => Ok(Some(found)),
            None => agreed_environment(facts, "FLANNEL_NETWORK", |environment| Some(environment.network)),
        }
    });
    let mtu = gathered.value(options.flannel_mtu, || {
        let of_hosts = agreed_environment(facts, "FLANNEL_MTU", |environment| Some(environment.mtu))?;
        Ok(of_hosts.or_else(|| read(configuration.as_ref(), |configuration| configuration.mtu)))
    });
    let masquerade = gathered.value(options.flannel_ip_masquerade, || {
        agreed_environment(facts, "FLANNEL_IPMASQ", |environment| {
            Some(environment.ip_masquerade)
        })
    });
    let subnet_length = gathered.value(options.flannel_subnet_length, || {
        agreed_subnet_length(facts, &LENGTHS)
    });
    let ipv6 = detect_ipv6(&mut gathered, configuration.as_ref(), facts);
    let prefix = flannel
        .and_then(flanneld)
        .and_then(|container| argument(container, "kube-annotation-prefix"));
    let flannel_object = format!("DaemonSet {}/{}", namespace.value, name.value);
    let (Some(network), Some(mtu), Some(masquerade), []) =
        (network, mtu, masquerade, gathered.refusals.as_slice())
    else {
        return Err(gathered.refusals_or(&flannel_object, facts));
    };
    let text = |spec: &Option<String>, default: &str| Sourced::choose(spec.clone(), None, default.to_owned());
    Ok(Settings {
        flannel_network: Sourced {
            value: network.value.trunc(),
            source: network.source,
        },
        flannel_daemon_set_name: name,
        flannel_daemon_set_namespace: namespace,
        flannel_mtu: mtu,
        flannel_ip_masquerade: masquerade,
        flannel_subnet_length: subnet_length.unwrap_or_else(|| default(defaults::FLANNEL_SUBNET_LENGTH)),
        flannel_annotation_prefix: Sourced::choose(
            options.flannel_annotation_prefix.clone(),
            prefix.map(|prefix| (prefix, format!("{flannel_object}: --kube-annotation-prefix"))),
            defaults::FLANNEL_ANNOTATION_PREFIX.to_owned(),
        ),
        flannel_vni: Sourced::choose(
            options.flannel_vni,
            read(configuration.as_ref(), |configuration| Some(configuration.vni)),
            defaults::FLANNEL_VNI,
        ),
        flannel_port: Sourced::choose(
            options.flannel_port,
            read(configuration.as_ref(), |configuration| Some(configuration.port)),
            defaults::FLANNEL_PORT,
        ),
        calico_daemon_set_name: text(&options.calico_daemon_set_name, defaults::CALICO_DAEMON_SET_NAME),
        calico_daemon_set_namespace: text(
            &options.calico_daemon_set_namespace,
            defaults::CALICO_DAEMON_SET_NAMESPACE,
        ),
        ip_pool_block_size: Sourced::choose(options.ip_pool_block_size, None, defaults::IP_POOL_BLOCK_SIZE),
        cni_configuration_directory: text(
            &options.cni_configuration_directory,
            defaults::CNI_CONFIGURATION_DIRECTORY,
        ),
        ipv6,
    })
}

/// The settings for IPv6; `None` if flannel has no IPv6 network.
fn detect_ipv6(
    gathered: &mut Gathered,
    configuration: Option<&(NetworkConfiguration, String)>,
    facts: &ClusterFacts,
) -> Option<Ipv6Settings> {
    let network = gathered.value(None, || {
        match read(configuration, |configuration| configuration.ipv6_network) {
            Some(found) => Ok(Some(found)),
            None => agreed_environment(facts, "FLANNEL_IPV6_NETWORK", |environment| {
                environment.ipv6.as_ref().map(|ipv6| ipv6.network)
            }),
        }
    });
    // Without an IPv6 network of flannel, IPv6 subnets of the Nodes are not flannel's.
    network.map(|network| Ipv6Settings {
        flannel_network: network,
        flannel_subnet_length: gathered
            .value(None, || agreed_subnet_length(facts, &IPV6_LENGTHS))
            .unwrap_or_else(|| default(defaults::FLANNEL_IPV6_SUBNET_LENGTH)),
        ip_pool_block_size: default(defaults::IPV6_POOL_BLOCK_SIZE),
    })
}

/// The Nodes to migrate: all except Windows nodes, and those that [`ClusterFacts::leave_out`] has taken out.
pub(super) fn linux_nodes(facts: &ClusterFacts) -> impl Iterator<Item = &Node> {
    cluster::linux_nodes(&facts.nodes)
}

/// Nodes on flannel, by their label. Nodes that Calico's own controller has already migrated are not included.
pub(super) fn flannel_nodes(facts: &ClusterFacts) -> impl Iterator<Item = &Node> {
    linux_nodes(facts).filter(|node| match network_label(node) {
        NetworkLabel::Missing | NetworkLabel::Flannel | NetworkLabel::Other(_) => true,
        NetworkLabel::Neither | NetworkLabel::Calico => false,
    })
}

/// The network that the label of the node names.
pub(super) fn network_label(node: &Node) -> NetworkLabel {
    NetworkLabel::read(node.labels.get(NETWORK_LABEL).map(String::as_str))
}

/// `net-conf.json` of the `ConfigMap` that the `DaemonSet` refers to, with the name of the object. An error if it exists
/// and cannot be parsed.
pub(super) fn network_configuration(
    flannel: &DaemonSet,
    facts: &ClusterFacts,
) -> Result<Option<(NetworkConfiguration, String)>, Box<Check>> {
    let found = flannel.referred_config_maps().into_iter().find_map(|name| {
        let data = facts
            .config_maps
            .get(&(flannel.namespace.clone(), name.to_owned()))?;
        Some((name, data.get(NETWORK_CONFIGURATION)?))
    });
    let Some((name, text)) = found else {
        return Ok(None);
    };
    let object = format!("ConfigMap {}/{name}: {NETWORK_CONFIGURATION}", flannel.namespace);
    match NetworkConfiguration::parse(text) {
        Ok(configuration) => Ok(Some((configuration, object))),
        Err(error @ ParseError::Ipv6Only { .. }) => Err(Box::new(CheckName::FlannelBackend.not_pass(
            Verdict::Fail,
            object,
            error.to_string(),
            "pods with IPv4 addresses, or with both",
            "replumb migrates no cluster whose pods have IPv6 addresses only",
        ))),
        Err(error) => Err(Box::new(CheckName::NetworkConfiguration.not_pass(
            Verdict::Fail,
            object,
            error.to_string(),
            "flannel's configuration as a JSON object",
            "correct the ConfigMap: flannel does not start with this value",
        ))),
    }
}

fn default<T>(value: T) -> Sourced<T> {
    Sourced {
        value,
        source: Source::Default,
    }
}

fn read<T>(
    configuration: Option<&(NetworkConfiguration, String)>,
    read: impl FnOnce(&NetworkConfiguration) -> Option<T>,
) -> Option<(T, String)> {
    let (configuration, object) = configuration?;
    Some((read(configuration)?, object.clone()))
}

/// The value in `subnet.env` of all hosts on flannel; `None` if no host has it.
fn agreed_environment<T: Ord + Display>(
    facts: &ClusterFacts,
    key: &str,
    read: impl Fn(&SubnetEnvironment) -> Option<T>,
) -> Result<Option<(T, String)>, Box<Check>> {
    let values = flannel_nodes(facts).filter_map(|node| {
        let environment = facts.hosts.get(&node.name)?.subnet_environment.present()?;
        Some((node.name.as_str(), read(environment)?))
    });
    let fix = match key {
        // Without a value in net-conf.json, flannel derives it from the uplink of each node.
        "FLANNEL_MTU" => {
            "set Backend.MTU in net-conf.json to an MTU that every node's uplink carries (the smallest of these values), restart \
             flannel's pods, and then the pods of the nodes whose value changed"
        }
        _ => {
            "restart flannel's pods on the nodes that differ: flanneld writes the file from net-conf.json and its arguments"
        }
    };
    agreed(values, |values| {
        CheckName::SubnetEnvironment.not_pass(
            Verdict::Fail,
            "/run/flannel/subnet.env",
            format!("{key} {values}"),
            "the same value on every node",
            fix,
        )
    })
    .map(|found| {
        found.map(|(value, nodes)| (value, format!("subnet.env of {}", number(nodes, "node", "nodes"))))
    })
}

/// Texts about the subnet lengths of the Nodes in one address family.
struct Lengths {
    /// A network that contains the whole address family.
    family: IpNet,
    /// The field of the Nodes.
    field: &'static str,
    /// The suffix of the lengths that were found.
    of: &'static str,
    /// The fix for several lengths.
    fix: &'static str,
}

const LENGTHS: Lengths = Lengths {
    family: IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    field: "spec.podCIDR",
    of: "",
    fix: "set flannelSubnetLength in spec.flannelToCalico.options to the largest length; check PodCidr then names \
          each podCIDR of another length",
};

const IPV6_LENGTHS: Lengths = Lengths {
    family: IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
    field: "spec.podCIDRs",
    of: " in IPv6",
    fix: "delete the Nodes that differ and let them register again: kube-controller-manager sets the length \
          (--node-cidr-mask-size-ipv6)",
};

/// The subnet length of all Nodes in one address family.
fn agreed_subnet_length(facts: &ClusterFacts, lengths: &Lengths) -> Result<Option<(u8, String)>, Box<Check>> {
    let Lengths {
        family,
        field,
        of,
        fix,
    } = lengths;
    let values = flannel_nodes(facts)
        .filter_map(|node| Some((node.name.as_str(), node.range_of(family)?.prefix_len())));
    agreed(values, |values| {
        CheckName::PodCidr.not_pass(
            Verdict::Fail,
            format!("Nodes: {field}"),
            format!("length {values}{of}"),
            "the same length on every node",
            *fix,
        )
    })
    .map(|found| found.map(|(length, nodes)| (length, format!("{field} of {nodes} Nodes"))))
}

/// The value that all nodes have, with the number of nodes. An error that names the nodes if there are several values.
fn agreed<'nodes, T: Ord + Display>(
    values: impl Iterator<Item = (&'nodes str, T)>,
    refuse: impl FnOnce(String) -> Check,
) -> Result<Option<(T, usize)>, Box<Check>> {
    let mut by_value: BTreeMap<T, Vec<&str>> = BTreeMap::new();
    for (node, value) in values {
        by_value.entry(value).or_default().push(node);
    }
    if by_value.len() > 1 {
        let groups: Vec<String> = by_value
            .iter()
            .map(|(value, nodes)| format!("{value} on {}", names(nodes)))
            .collect();
        return Err(Box::new(refuse(lines(&groups))));
    }
    Ok(by_value
        .into_iter()
        .next()
        .map(|(value, nodes)| (value, nodes.len())))
}

/// Collects all refusals, so that the user sees them at the same time.
#[derive(Default)]
struct Gathered {
    refusals: Vec<Check>,
}

impl Gathered {
    fn keep<T>(&mut self, result: Result<Option<T>, Box<Check>>) -> Option<T> {
        match result {
            Ok(value) => value,
            Err(check) => {
                self.refusals.push(*check);
                None
            }
        }
    }

    fn value<T>(
        &mut self,
        spec: Option<T>,
        detect: impl FnOnce() -> Result<Option<(T, String)>, Box<Check>>,
    ) -> Option<Sourced<T>> {
        if let Some(value) = spec {
            return Some(Sourced {
                value,
                source: Source::Spec,
            });
        }
        self.keep(detect()).map(|(value, object)| Sourced {
            value,
            source: Source::Detected(object),
        })
    }

    /// The refusals. Without a refusal, the result says that no agent has reported the needed values.
    fn refusals_or(mut self, flannel: &str, facts: &ClusterFacts) -> Vec<Check> {
        let silent: Vec<&str> = linux_nodes(facts)
            .map(|node| node.name.as_str())
            .filter(|node| !facts.hosts.contains_key(*node))
            .collect();
        if self.refusals.is_empty() {
            self.refusals.push(CheckName::SubnetEnvironment.not_pass(
                Verdict::Unknown,
                "/run/flannel/subnet.env",
                if silent.is_empty() {
                    "no node on flannel has the file".to_owned()
                } else {
                    format!("no agent has reported the file; nodes without a report: {}", names(&silent))
                },
                "FLANNEL_NETWORK, FLANNEL_MTU and FLANNEL_IPMASQ of at least one node",
                format!(
                    "make sure that the agents and the pods of {flannel} run, or set flannelNetwork, flannelMtu and \
                     flannelIpMasquerade in spec.flannelToCalico.options"
                ),
            ));
        }
        self.refusals
    }
}

#[cfg(test)]
mod tests;
