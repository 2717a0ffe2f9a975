//! The plan of this migration as a document.

use super::cluster::ClusterFacts;

use super::detect::NETWORK_LABEL as LABEL;
use super::host::{HostSettings, SUBNET_TABLE};
use super::objects;
use super::settings::{LegacyPods, Settings, Strategy};
use engine::cluster::Node;
use engine::document::{Action, Document, NodeActions};
use engine::drain;
use engine::order::{self, Place};
use engine::words::names;

/// Nodes in the order in which they are worked on.
pub fn order<'facts>(facts: &'facts ClusterFacts, coordinator_node: &str) -> Vec<&'facts Node> {
    let mut places: Vec<Place<'_>> = facts
        .nodes
        .values()
        .filter(|node| node.operating_system != "windows")
        .map(|node| Place {
            name: &node.name,
            control_plane: node.control_plane,
            coordinator: node.name == coordinator_node,
        })
        .collect();
    order::sort(&mut places);
    places
        .iter()
        .filter_map(|place| facts.nodes.get(place.name))
        .collect()
}

/// Every action on every object, in order.
pub fn document(
    strategy: Strategy,
    legacy_pods: LegacyPods,
    settings: &Settings,
    facts: &ClusterFacts,
    coordinator_node: &str,
) -> Document {
    let nodes = order(facts, coordinator_node);
    let pods = drain::by_node(&facts.pods);
    let actions = |node: &Node| match strategy {
        Strategy::Drain => {
            let here = pods.get(node.name.as_str()).into_iter().flatten();
            of_node(settings, &drain::residents(here.copied(), &node.name), node)
        }
        Strategy::InPlace => of_node_in_place(settings, facts, node),
    };
    Document {
        prepare: prepare(settings, facts, &nodes),
        nodes: nodes
            .iter()
            .map(|node| NodeActions {
                node: node.name.clone(),
                prepare: vec![blocks(settings, node)],
                actions: actions(node),
            })
            .collect(),
        finish: restart(strategy, legacy_pods)
            .into_iter()
            .chain(finish(settings, &nodes))
            .collect(),
    }
}

fn prepare(settings: &Settings, facts: &ClusterFacts, nodes: &[&Node]) -> Vec<Action> {
    let flannel = flannel_daemon_set(settings);
    let pools = settings.pod_networks().into_iter().map(|network| {
        match objects::pool(settings, &network, &facts.ip_pools) {
            Ok(pool) if pool.create.is_some() => Action::new(
                "create",
                format!("IPPool {}", pool.name),
                format!(
                    "cidr {}, blockSize {}, vxlanMode Always, natOutgoing {}",
                    pool.range, pool.block_size, settings.flannel_ip_masquerade.value
                ),
            ),
            Ok(pool) => Action::new(
                "use",
                format!("IPPool {}", pool.name),
                "it is there, and as it has to be",
            ),
            // The check of the pool refuses in the same words.
            Err(conflict) => Action::new(
                "refuse",
                format!("IPPool {}", conflict.name),
                conflict.to_string(),
            ),
        }
    });
    let mut actions = vec![
        Action::new(
            "label",
            format!("{} Nodes", nodes.len()),
            format!("{LABEL}=flannel where it is missing"),
        ),
        Action::new(
            "patch",
            &flannel,
            format!("add nodeSelector {LABEL}=flannel; its pods are rolled, and the roll is waited for"),
        ),
        Action::new(
            "patch",
            "IPAMConfig default",
            "strictAffinity true, autoAllocateBlocks false, until the last node is done",
        ),
    ];
    actions.extend(pools);
    let ipv6 = settings.ipv6.as_ref().map_or_else(String::new, |_| {
        format!(", vxlanMTUV6 {}, ipv6Support true", settings.flannel_ipv6_mtu())
    });
    actions.push(Action::new(
        "patch",
        "FelixConfiguration default",
        format!(
            "vxlanVNI {}, vxlanPort {}, vxlanMTU {}{ipv6}; what calico-node fills in at its start, where it is missing",
            settings.flannel_vni.value, settings.flannel_port.value, settings.flannel_mtu.value
        ),
    ));
    actions
}

/// What Calico is told of a node before the first one changes.
fn blocks(settings: &Settings, node: &Node) -> Action {
    let ranges: Vec<String> = settings
        .pod_networks()
        .iter()
        .filter_map(|network| node.range_of(&network.range))
        .map(|range| range.to_string())
        .collect();
    let range = if ranges.is_empty() {
        "its podCIDR".to_owned()
    } else {
        ranges.join(" and ")
    };
    Action::new(
        "create",
        format!("IPAM blocks of node {}", node.name),
        format!(
            "IPAMBlock and BlockAffinity for {range}, with the tunnel address; Node annotations for Felix"
        ),
    )
}

fn of_node(settings: &Settings, residents: &drain::Residents<'_>, node: &Node) -> Vec<Action> {
    let object = format!("Node {}", node.name);
    let named = |pods: &[&drain::Pod]| {
        let keys: Vec<String> = pods.iter().map(|pod| pod.key()).collect();
        if keys.is_empty() {
            "none now".to_owned()
        } else {
            names(&keys)
        }
    };
    let tunnels = HostSettings::of(settings).tunnels();
    let devices: Vec<&str> = tunnels.iter().map(|tunnel| tunnel.flannels.as_str()).collect();
    let cordon = if node.unschedulable {
        Action::new("cordon", &object, "is cordoned already, and stays so at the end")
    } else {
        Action::new("cordon", &object, "unschedulable true, remembered as ours")
    };
    let mut actions = vec![
        cordon,
        Action::as_of_now(
            "evict",
            format!("pods of node {}", node.name),
            named(&residents.movable),
        ),
        Action::new("label", &object, format!("{LABEL}=none; flannel's pod ends")),
        Action::new(
            "hold",
            format!("host {}", node.name),
            "withdraw /run/flannel/subnet.env: new pods wait",
        ),
        Action::as_of_now(
            "evict",
            format!("DaemonSet pods of node {}", node.name),
            named(&residents.daemon_set),
        ),
        Action::new(
            "delete",
            format!("host {}", node.name),
            format!(
                "{}, cni0, FLANNEL-* chains and tables, host-local leases (with a backup)",
                devices.join(", ")
            ),
        ),
        Action::new("label", &object, format!("{LABEL}=calico; calico-node starts")),
    ];
    actions.extend(route_subnets(settings, node));
    actions.extend([
        Action::new(
            "delete",
            format!("host {}", node.name),
            format!(
                "flannel's conflist in {} (with a backup), once Calico's wins",
                settings.cni_configuration_directory.value
            ),
        ),
        Action::new(
            "probe",
            &object,
            "calico-node Ready, agent's checks pass, a pod on it reached from an old and a new node",
        ),
    ]);
    if !node.unschedulable {
        actions.push(Action::new("uncordon", &object, "unschedulable removed"));
    }
    actions
}

/// In place nobody is moved: the tunnel changes its name, and pods keep their cables to `cni0`.
fn of_node_in_place(settings: &Settings, facts: &ClusterFacts, node: &Node) -> Vec<Action> {
    let object = format!("Node {}", node.name);
    let host = format!("host {}", node.name);
    let living = facts
        .hosts
        .get(&node.name)
        .map_or(0, |host| host.legacy_pods.len());
    let answers = if settings.ipv6.is_some() {
        "/32 and /128 to cni0 for each pod that lives there; cni0 answers ARP and neighbour solicitations for Calico's pods"
    } else {
        "/32 to cni0 for each pod that lives there; cni0 answers ARP for Calico's pods"
    };
    let mut actions = vec![
        Action::new(
            "label",
            &object,
            format!("{LABEL}=none; flannel's pod ends, what it has set up carries on"),
        ),
        Action::new(
            "hold",
            &host,
            "withdraw /run/flannel/subnet.env: new pods wait for some seconds",
        ),
        Action::as_of_now(
            "import",
            format!("IPAM blocks of node {}", node.name),
            format!("addresses of {living} pods that live on cni0"),
        ),
        Action::new(
            "import",
            format!("IPAM blocks of node {}", node.name),
            "cni0's own address and the last of the podCIDR: nobody may have them",
        ),
        Action::new("route", &host, answers),
    ];
    actions.extend(route_subnets(settings, node));
    let renamed = HostSettings::of(settings).tunnels().into_iter().map(|tunnel| {
        Action::new(
            "rename",
            &host,
            format!(
                "{} becomes {} while it carries packets",
                tunnel.flannels, tunnel.calicos
            ),
        )
    });
    actions.extend(renamed);
    actions.extend([
        Action::new(
            "label",
            &object,
            format!("{LABEL}=calico; calico-node starts and takes the link over"),
        ),
        Action::new(
            "delete",
            &host,
            format!(
                "flannel's conflist in {} (with a backup), once Calico's wins; new pods are Calico's",
                settings.cni_configuration_directory.value
            ),
        ),
        Action::new(
            "probe",
            &object,
            "calico-node Ready, agent's checks pass, a pod on it reached from an old and a new node",
        ),
        Action::new(
            "delete",
            &host,
            "cni0, FLANNEL-* chains and tables, host-local leases (with a backup), once the last pod from before has \
             gone by itself; days later, perhaps",
        ),
        Action::new(
            "release",
            format!("IPAM blocks of node {}", node.name),
            "cni0's own address and the last of the podCIDR",
        ),
    ]);
    actions
}

/// IPv6: pods of flannel's are reached wherever in their node's subnet they are.
fn route_subnets(settings: &Settings, node: &Node) -> Option<Action> {
    settings.ipv6.as_ref().map(|ipv6| {
        Action::new(
            "route",
            format!("host {}", node.name),
            format!(
                "the whole /{} of each other node through the tunnel, in table {SUBNET_TABLE} with a rule before main: \
                 Calico has routes to claimed blocks only",
                ipv6.flannel_subnet_length.value
            ),
        )
    })
}

/// What happens to pods from before, once every node is on Calico.
fn restart(strategy: Strategy, legacy_pods: LegacyPods) -> Option<Action> {
    match (strategy, legacy_pods) {
        (Strategy::Drain, _) | (Strategy::InPlace, LegacyPods::Keep) => None,
        (Strategy::InPlace, LegacyPods::Restart) => Some(Action::new(
            "evict",
            "pods from before on every node",
            "under their budgets, maxUnavailable nodes at a time, until none is on cni0",
        )),
    }
}

fn finish(settings: &Settings, nodes: &[&Node]) -> Vec<Action> {
    let calico = format!(
        "DaemonSet {}/{}",
        settings.calico_daemon_set_namespace.value, settings.calico_daemon_set_name.value
    );
    let all = format!("{} Nodes", nodes.len());
    let unroute = settings.ipv6.as_ref().map(|_| {
        Action::new(
            "unroute",
            format!("{} hosts", nodes.len()),
            format!("table {SUBNET_TABLE} and its rule: no pod of flannel's lives any more"),
        )
    });
    let rest = [
        Action::new("wait", &all, "every agent proves that nothing of flannel is left"),
        Action::new(
            "delete",
            flannel_daemon_set(settings),
            "the point of no return: flannel is gone from the cluster",
        ),
        Action::new(
            "patch",
            calico,
            format!("remove nodeSelector {LABEL}; its pods are rolled, and the roll is waited for"),
        ),
        Action::new("label", &all, format!("remove {LABEL}")),
        Action::new("patch", "IPAMConfig default", "as it was before the migration"),
    ];
    unroute.into_iter().chain(rest).collect()
}

fn flannel_daemon_set(settings: &Settings) -> String {
    format!(
        "DaemonSet {}/{}",
        settings.flannel_daemon_set_namespace.value, settings.flannel_daemon_set_name.value
    )
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
