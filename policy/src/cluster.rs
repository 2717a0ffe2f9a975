//! The cluster that verdicts are about: nodes, namespaces, pods and policies, with an index of addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use engine::labels::Labels;
use ipnet::IpNet;
use jiff::Timestamp;

use crate::admin::AdminPolicy;
use crate::pod::{ContainerPort, Pod};
use crate::rules::Policy;
use crate::selector::share;
use crate::settings::{Encapsulation, Settings};

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its addresses in the network of the nodes.
    pub addresses: Vec<IpAddr>,
    /// The addresses of its tunnels under Calico; empty while Calico has assigned none.
    pub tunnels: Vec<IpAddr>,
    /// Other addresses of the host in the ranges of pods, or link-local: flannel's tunnel and bridge, `NodeLocal` DNS.
    pub others: Vec<IpAddr>,
    /// Ranges of its pods, if known: an address outside of them is none of a pod of this node.
    pub ranges: Vec<IpNet>,
}

impl Node {
    /// Whether a pod of this node may have the address.
    pub(crate) fn may_have_pod(&self, address: IpAddr) -> bool {
        self.ranges.is_empty() || self.ranges.iter().any(|range| range.contains(&address))
    }
}

/// What a cluster consists of.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Settings of Calico.
    pub settings: Settings,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Namespaces with their labels.
    pub namespaces: Vec<(Arc<str>, Labels)>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// Policies of Kubernetes.
    pub policies: Vec<Policy>,
    /// Policies of administrators, and Calico's own.
    pub admin_policies: Vec<AdminPolicy>,
}

/// A cluster at one moment. A connection is evaluated with the cluster of its moment, because addresses are reused. A clone shares
/// the content.
#[derive(Clone, Debug)]
pub struct Cluster {
    content: Arc<Content>,
    /// Pods have their addresses as at this moment; `None` is now.
    moment: Option<Timestamp>,
}

#[derive(Debug)]
struct Content {
    settings: Settings,
    /// In order of their names.
    nodes: Vec<Node>,
    namespaces: BTreeMap<Arc<str>, Labels>,
    pods: Vec<Pod>,
    /// In order of namespace and name.
    policies: Vec<Policy>,
    /// In the order in which Calico evaluates them.
    admin_policies: Vec<AdminPolicy>,
    /// In order of the addresses.
    holders: Vec<(IpAddr, Holder)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Pod(u32),
    Node(u32, Part),
}

/// The part of a node that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The network of the nodes.
    Underlay,
    /// Its tunnel or bridge.
    Overlay,
}

/// The owner of an address, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner<'cluster> {
    /// A pod.
    Pod(&'cluster Pod),
    /// The node that sees it.
    OwnNode,
    /// Another node: the addresses that Calico may see for it.
    OtherNode(Candidates),
    /// No pod and no node.
    Outside,
    /// An address in the ranges of pods that no known pod has.
    NoPod,
    /// Several pods, or a pod and a node.
    Several,
}

/// Addresses of which one is the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// The right one is among them for certain.
    pub is_complete: bool,
}

impl Owner<'_> {
    /// The owner of a destination: a client chose this address. One that a host has under Calico, too, stays the same; flannel's
    /// own do not.
    pub(crate) fn destination(self, address: IpAddr) -> Self {
        match &self {
            Self::OtherNode(candidates) if candidates.addresses.contains(&address) => self.exactly(address),
            _ => self,
        }
    }

    /// The owner with exactly this address.
    pub(crate) fn exactly(self, address: IpAddr) -> Self {
        match self {
            Self::OtherNode(_) => Self::OtherNode(Candidates {
                addresses: vec![address],
                is_complete: true,
            }),
            other => other,
        }
    }
}

impl Cluster {
    /// Builds the index. Equal labels, names and lists of ports are shared, because a cluster may have 150 000 pods.
    pub fn new(facts: Facts) -> Self {
        let Facts {
            settings,
            mut nodes,
            namespaces,
            mut pods,
            mut policies,
            mut admin_policies,
        } = facts;
        let mut names = BTreeSet::new();
        for policy in &mut policies {
            policy.share(&mut names);
        }
        policies.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        admin_policies.sort_by(AdminPolicy::order);
        share_parts(&mut pods, &mut names);
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        let holders = holders(&nodes, &pods);
        Self {
            content: Arc::new(Content {
                settings,
                nodes,
                namespaces: namespaces.into_iter().collect(),
                pods,
                policies,
                admin_policies,
                holders,
            }),
            moment: None,
        }
    }

    /// The same cluster with the addresses of pods at another moment. Labels, policies and settings are those of now.
    #[must_use]
    pub fn at(&self, moment: Timestamp) -> Self {
        Self {
            content: Arc::clone(&self.content),
            moment: Some(moment),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.content.settings
    }

    /// The pods.
    pub fn pods(&self) -> &[Pod] {
        &self.content.pods
    }

    /// The policies of Kubernetes, in order of namespace and name.
    pub fn policies(&self) -> &[Policy] {
        &self.content.policies
    }

    /// The policies of administrators and Calico's own, in the order in which Calico evaluates them.
    pub fn admin_policies(&self) -> &[AdminPolicy] {
        &self.content.admin_policies
    }

    /// The policies of a namespace.
    pub fn policies_of(&self, namespace: &str) -> &[Policy] {
        let start = self
            .content
            .policies
            .partition_point(|policy| *policy.namespace < *namespace);
        let of = &self.content.policies[start..];
        &of[..of.partition_point(|policy| *policy.namespace == *namespace)]
    }

    /// The labels of a namespace.
    pub fn namespace(&self, name: &str) -> Option<&Labels> {
        self.content.namespaces.get(name)
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        let place = self
            .content
            .nodes
            .binary_search_by(|node| (*node.name).cmp(name))
            .ok()?;
        Some(&self.content.nodes[place])
    }

    fn holders(&self, address: IpAddr) -> impl Iterator<Item = Holder> {
        let holders = &self.content.holders;
        let start = holders.partition_point(|(known, _)| *known < address);
        let all = holders[start..].iter();
        all.take_while(move |(known, _)| *known == address)
            .map(|(_, holder)| *holder)
            .filter(|holder| match holder {
                Holder::Pod(place) => {
                    let pod = &self.content.pods[*place as usize];
                    pod.lifetime.contains(self.moment)
                }
                Holder::Node(..) => true,
            })
    }

    /// Whether the same pods and nodes have the address in another moment of the cluster.
    pub(crate) fn has_same_holders(&self, other: &Self, address: IpAddr) -> bool {
        self.holders(address).eq(other.holders(address))
    }

    /// The node with this address or with the pod that has it. An address that several nodes have is on the nearest one.
    pub(crate) fn home(&self, address: IpAddr, near: Option<&Node>) -> Option<&Node> {
        let mut homes = self.holders(address).filter_map(|holder| match holder {
            Holder::Pod(place) => self.node(&self.content.pods[place as usize].node),
            Holder::Node(place, _) => self.content.nodes.get(place as usize),
        });
        let first = homes.next()?;
        let is_near = |node: &&Node| near.is_some_and(|near| near.name == node.name);
        Some(std::iter::once(first).chain(homes).find(is_near).unwrap_or(first))
    }

    /// A name for the owner of an address: `namespace/name` of a pod, the name of a node, or the address.
    pub fn describe(&self, address: IpAddr, seen_by: &str) -> String {
        let owner = self.node(seen_by).map(|node| self.owner(address, node));
        match owner {
            Some(Owner::Pod(pod)) => format!("{}/{}", pod.namespace, pod.name),
            Some(Owner::OwnNode | Owner::OtherNode(_)) => self
                .home(address, self.node(seen_by))
                .map_or_else(|| address.to_string(), |node| node.name.to_string()),
            Some(Owner::Outside | Owner::NoPod | Owner::Several) | None => address.to_string(),
        }
    }

    /// The owner of an address as this node sees it.
    pub(crate) fn owner(&self, address: IpAddr, seen_by: &Node) -> Owner<'_> {
        let holders = || self.holders(address);
        let node = |place: u32| &self.content.nodes[place as usize];
        let is_own =
            |holder: Holder| matches!(holder, Holder::Node(place, _) if node(place).name == seen_by.name);
        if holders().any(is_own) {
            return Owner::OwnNode;
        }
        let mut found = holders();
        match (found.next(), found.next()) {
            (None, _) if self.is_of_pods(address) => Owner::NoPod,
            (None, _) => Owner::Outside,
            (Some(Holder::Pod(place)), None) => Owner::Pod(&self.content.pods[place as usize]),
            (Some(Holder::Node(place, part)), None) => {
                Owner::OtherNode(self.candidates(node(place), address, part))
            }
            // An address that every host has for itself, such as that of NodeLocal DNS.
            (Some(Holder::Node(..)), Some(Holder::Node(..))) if is_link_local(address) => Owner::Outside,
            (Some(_), Some(_)) => Owner::Several,
        }
    }

    fn is_of_pods(&self, address: IpAddr) -> bool {
        self.content
            .settings
            .pod_ranges
            .iter()
            .any(|range| range.contains(&address))
    }

    /// The addresses that Calico may see when another node is the source. A program that binds to an address of the node keeps
    /// it; all others have that of the tunnel.
    fn candidates(&self, node: &Node, seen: IpAddr, part: Part) -> Candidates {
        let of_family = |addresses: &[IpAddr]| -> Vec<IpAddr> {
            let same = |address: &&IpAddr| address.is_ipv4() == seen.is_ipv4();
            addresses.iter().filter(same).copied().collect()
        };
        let tunnels = of_family(&node.tunnels);
        let underlay = of_family(&node.addresses);
        let has_tunnel = !tunnels.is_empty();
        let (addresses, is_complete) = match (self.content.settings.encapsulation, part) {
            (Encapsulation::Never, Part::Underlay) => (vec![seen], true),
            (Encapsulation::Never, Part::Overlay) => {
                let is_complete = !underlay.is_empty();
                (underlay, is_complete)
            }
            (Encapsulation::Always, Part::Overlay) => (tunnels, has_tunnel),
            (Encapsulation::Always, Part::Underlay) => ([vec![seen], tunnels].concat(), has_tunnel),
            (Encapsulation::CrossSubnet, _) => ([underlay, tunnels].concat(), has_tunnel),
        };
        Candidates {
            addresses,
            is_complete,
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn holders(nodes: &[Node], pods: &[Pod]) -> Vec<(IpAddr, Holder)> {
    let of_pods = (0..)
        .zip(pods)
        .flat_map(|(place, pod)| pod.addresses().map(move |address| (address, Holder::Pod(place))));
    let of_nodes = (0..).zip(nodes).flat_map(|(place, node)| {
        let underlay = node.addresses.iter().map(|address| (*address, Part::Underlay));
        let overlay = node.tunnels.iter().chain(&node.others);
        let all = underlay.chain(overlay.map(|address| (*address, Part::Overlay)));
        all.map(move |(address, part)| (address, Holder::Node(place, part)))
    });
    let mut holders: Vec<(IpAddr, Holder)> = of_pods.chain(of_nodes).collect();
    holders.sort_by_key(|(address, _)| *address);
    // Calico's tunnel may have the address of flannel's.
    holders.dedup();
    holders.shrink_to_fit();
    holders
}

/// Shares equal parts of pods: pods of a workload have the same labels and ports.
fn share_parts(pods: &mut [Pod], names: &mut BTreeSet<Arc<str>>) {
    let mut labels: HashMap<Labels, Labels> = HashMap::new();
    let mut ports: HashMap<Arc<[ContainerPort]>, Arc<[ContainerPort]>> = HashMap::new();
    for pod in pods {
        for name in [&mut pod.namespace, &mut pod.workload, &mut pod.node] {
            share(name, names);
        }
        let known = labels.entry(pod.labels.clone());
        pod.labels = known.or_insert_with(|| pod.labels.clone()).clone();
        let known = ports.entry(Arc::clone(&pod.ports));
        pod.ports = Arc::clone(known.or_insert_with(|| Arc::clone(&pod.ports)));
    }
}

#[cfg(test)]
mod tests;
