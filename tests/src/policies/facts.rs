//! The cluster as the preview sees it, from the objects of the API server.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use policy::settings::{DataPlane, Encapsulation, EndpointToHost, MasqueradesOutgoing, Version};
use policy::{Facts, Policy, Settings};
use serde_json::Value;

use super::fleet;
use crate::cluster::Cluster;
use crate::cluster::pods::CALICO_NAMESPACE;

/// Annotations of a Node with the addresses of its tunnels.
const TUNNELS: [&str; 2] = [
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
];

/// Objects at one moment.
#[derive(Clone, Debug)]
pub struct Objects {
    /// Every pod.
    pub pods: Vec<Pod>,
    /// Every node.
    pub nodes: Vec<Node>,
    /// Every policy.
    pub policies: Vec<NetworkPolicy>,
    namespaces: Vec<Namespace>,
}

impl Objects {
    /// Reads them.
    pub async fn read(cluster: &Cluster) -> Result<Self> {
        let client = || cluster.api().client();
        let all = ListParams::default();
        Ok(Self {
            pods: Api::all(client()).list(&all).await.context("list pods")?.items,
            nodes: Api::all(client()).list(&all).await.context("list nodes")?.items,
            policies: Api::all(client())
                .list(&all)
                .await
                .context("list NetworkPolicies")?
                .items,
            namespaces: Api::all(client())
                .list(&all)
                .await
                .context("list namespaces")?
                .items,
        })
    }

    /// The cluster that the preview evaluates.
    pub fn facts(&self, settings: &Settings) -> Facts {
        let namespace = |namespace: &Namespace| {
            let labels = namespace.metadata.labels.iter().flatten();
            let labels = labels.map(|(key, value)| (key.as_str(), value.as_str()));
            (Arc::from(namespace.name_any().as_str()), labels.collect())
        };
        Facts {
            settings: settings.clone(),
            nodes: self.nodes.iter().map(node).collect(),
            namespaces: self.namespaces.iter().map(namespace).collect(),
            // Calico is the only pod network of this cluster.
            pods: self
                .pods
                .iter()
                .filter_map(|pod| policy::Pod::read(pod, true))
                .collect(),
            policies: self.policies.iter().map(Policy::read).collect(),
            admin_policies: Vec::new(),
        }
    }

    /// The addresses of the tunnels of each node.
    pub fn tunnels(&self) -> Vec<(String, Vec<IpAddr>)> {
        let nodes = self.nodes.iter();
        nodes.map(|node| (node.name_any(), tunnels(node))).collect()
    }

    /// Identity and address of each pod: the same before and after a round.
    pub fn identities(&self) -> Vec<(String, Option<String>, Vec<IpAddr>)> {
        let mut all: Vec<_> = self
            .pods
            .iter()
            .map(|pod| (fleet::name_of(pod), pod.uid(), fleet::addresses(pod)))
            .collect();
        all.sort();
        all
    }
}

fn tunnels(node: &Node) -> Vec<IpAddr> {
    let texts = TUNNELS.iter().filter_map(|name| node.annotations().get(*name));
    texts.filter_map(|text| text.parse().ok()).collect()
}

fn node(node: &Node) -> policy::Node {
    policy::Node {
        name: Arc::from(node.name_any().as_str()),
        addresses: underlay(node),
        tunnels: tunnels(node),
        others: Vec::new(),
        ranges: Vec::new(),
    }
}

/// The addresses of a node in the network of the nodes.
pub fn underlay(node: &Node) -> Vec<IpAddr> {
    let addresses = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    addresses
        .filter(|address| address.type_ == "InternalIP")
        .filter_map(|address| address.address.parse().ok())
        .collect()
}

/// Calico's settings, and its version as in the tag of calico-node's image.
pub async fn settings(cluster: &Cluster) -> Result<(Settings, String)> {
    let api: Api<DaemonSet> = Api::namespaced(cluster.api().client(), CALICO_NAMESPACE);
    let daemon_set = api
        .get("calico-node")
        .await
        .context("read DaemonSet calico-node")?;
    let containers = daemon_set
        .spec
        .and_then(|spec| spec.template.spec)
        .map(|pod| pod.containers);
    let container = containers
        .and_then(|containers| {
            containers
                .into_iter()
                .find(|container| container.name == "calico-node")
        })
        .context("DaemonSet calico-node has no container calico-node")?;
    let image = container.image.unwrap_or_default();
    let tag = image
        .rsplit_once(':')
        .map(|(_, tag)| tag.to_owned())
        .unwrap_or_default();
    let variables = container.env.unwrap_or_default();
    let variable = |name: &str| {
        let found = variables.iter().find(|variable| variable.name == name);
        found.and_then(|variable| variable.value.clone())
    };
    let felix = object(
        cluster,
        "felixconfigurations.crd.projectcalico.org",
        Some("default"),
    )
    .await?;
    let pools = object(cluster, "ippools.crd.projectcalico.org", None).await?;
    let pools: Vec<Value> = pools["items"].as_array().cloned().unwrap_or_default();
    ensure!(!pools.is_empty(), "Calico has no IPPool");
    let settings = Settings {
        version: version(&tag)?,
        data_plane: data_plane(&felix["spec"], variable("FELIX_NFTABLESMODE").as_deref())?,
        encapsulation: encapsulation(&pools)?,
        endpoint_to_host: endpoint_to_host(
            variable("FELIX_DEFAULTENDPOINTTOHOSTACTION")
                .as_deref()
                .or(felix["spec"]["defaultEndpointToHostAction"].as_str()),
        )?,
        vxlan_port: match felix["spec"]["vxlanPort"].as_u64() {
            Some(port) => u16::try_from(port).with_context(|| format!("vxlanPort {port}"))?,
            None => fleet::VXLAN,
        },
        masquerades_outgoing: MasqueradesOutgoing {
            ipv4: masquerades(&pools, true)?,
            ipv6: masquerades(&pools, false)?,
        },
        pod_ranges: pools.iter().map(range).collect::<Result<_>>()?,
        ..Settings::default()
    };
    Ok((settings, tag))
}

/// Whether every pool of a family masquerades.
fn masquerades(pools: &[Value], is_ipv4: bool) -> Result<bool> {
    for pool in pools {
        let is_of_family = range(pool)?.addr().is_ipv4() == is_ipv4;
        if is_of_family && pool["spec"]["natOutgoing"] != true {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An object, or a list without a name.
async fn object(cluster: &Cluster, kind: &str, name: Option<&str>) -> Result<Value> {
    let mut arguments = vec!["get", kind];
    arguments.extend(name);
    arguments.extend(["-o", "json"]);
    let text = cluster.api().kubectl(&arguments).await?;
    serde_json::from_str(&text).with_context(|| format!("parse kubectl's answer to {arguments:?}"))
}

fn version(tag: &str) -> Result<Version> {
    let mut parts = tag.trim_start_matches('v').split('.');
    let mut number = || parts.next()?.parse().ok();
    match (number(), number()) {
        (Some(major), Some(minor)) => Ok(Version::new(major, minor)),
        _ => bail!("the image of calico-node has the tag {tag:?}, which is no version"),
    }
}

/// The variable of the container wins over the object, as in Felix.
fn data_plane(felix: &Value, variable: Option<&str>) -> Result<DataPlane> {
    if felix["bpfEnabled"] == true {
        return Ok(DataPlane::Ebpf);
    }
    match variable.or(felix["nftablesMode"].as_str()) {
        None | Some("Disabled") => Ok(DataPlane::Iptables),
        Some("Enabled") => Ok(DataPlane::Nftables),
        Some(other) => bail!("nftablesMode of Felix is {other:?}: set it to Enabled or Disabled"),
    }
}

fn encapsulation(pools: &[Value]) -> Result<Encapsulation> {
    let mut modes: Vec<&str> = pools
        .iter()
        .map(|pool| pool["spec"]["vxlanMode"].as_str().unwrap_or("Never"))
        .collect();
    modes.dedup();
    match modes[..] {
        ["Always"] => Ok(Encapsulation::Always),
        ["CrossSubnet"] => Ok(Encapsulation::CrossSubnet),
        ["Never"] => Ok(Encapsulation::Never),
        _ => bail!("the IPPools have the vxlanModes {modes:?}, and the preview knows one for all"),
    }
}

fn endpoint_to_host(action: Option<&str>) -> Result<EndpointToHost> {
    match action.map(str::to_uppercase).as_deref() {
        Some("ACCEPT") => Ok(EndpointToHost::Accept),
        // Felix' own default.
        Some("DROP") | None => Ok(EndpointToHost::Drop),
        Some("RETURN") => Ok(EndpointToHost::Return),
        Some(other) => bail!("DefaultEndpointToHostAction of Felix is {other:?}"),
    }
}

fn range(pool: &Value) -> Result<IpNet> {
    let text = pool["spec"]["cidr"].as_str().unwrap_or_default();
    text.parse()
        .with_context(|| format!("IPPool with the range {text:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_is_that_of_the_tag() {
        assert_eq!(version("v3.31.7").unwrap(), Version::new(3, 31));
        assert!(version("latest").unwrap_err().to_string().contains("latest"));
    }

    #[test]
    fn settings_are_read_as_felix_reads_them() {
        let felix = json!({ "nftablesMode": "Enabled" });
        assert_eq!(data_plane(&felix, None).unwrap(), DataPlane::Nftables);
        assert_eq!(data_plane(&felix, Some("Disabled")).unwrap(), DataPlane::Iptables);
        assert_eq!(
            data_plane(&json!({ "bpfEnabled": true }), None).unwrap(),
            DataPlane::Ebpf
        );
        assert!(data_plane(&json!({}), Some("Auto")).is_err());
        assert_eq!(endpoint_to_host(Some("Accept")).unwrap(), EndpointToHost::Accept);
        assert_eq!(endpoint_to_host(None).unwrap(), EndpointToHost::Drop);
        let pool = |mode: &str| json!({ "spec": { "vxlanMode": mode } });
        assert_eq!(
            encapsulation(&[pool("Always"), pool("Always")]).unwrap(),
            Encapsulation::Always
        );
        assert!(encapsulation(&[pool("Always"), pool("Never")]).is_err());
    }
}
