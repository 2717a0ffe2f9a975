//! The plan of this migration as a document.

mod in_place;

use super::api::FlannelToCalico;
use super::detect::NETWORK_LABEL as LABEL;
use super::facts::ClusterFacts;
use super::host::{HostSettings, SUBNET_TABLE};
use super::objects;
use super::settings::{FirewallTwins, LegacyPods, Settings, Strategy};
use engine::cluster::{Node, linux_nodes};
use engine::document::{Action, Document, NodeActions};
use engine::order::{self, Place};
use engine::words::{names, number};
use engine::{drain, pods};

/// The nodes in the order of their migration.
pub fn order<'facts>(facts: &'facts ClusterFacts, coordinator_node: &str) -> Vec<&'facts Node> {
    let mut places: Vec<Place<'_>> = linux_nodes(&facts.nodes)
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
    kind: &FlannelToCalico,
    settings: &Settings,
    facts: &ClusterFacts,
    coordinator_node: &str,
) -> Document {
    let nodes = order(facts, coordinator_node);
    let pods = pods::by_node(&facts.pods);
    let actions = |node: &Node| match kind.strategy {
        Strategy::Drain => {
            let here = pods.get(node.name.as_str()).into_iter().flatten();
            of_node(settings, &drain::residents(here.copied(), &node.name), node)
        }
        Strategy::InPlace => in_place::of_node(settings, kind.legacy_pods, facts, node),
    };
    Document {
        prepare: prepare(settings, facts, &nodes),
        nodes: nodes
            .iter()
            .map(|node| NodeActions {
                node: node.name.clone(),
                prepare: vec![blocks(settings, node)],
                actions: twins(kind).into_iter().chain(actions(node)).collect(),
            })
            .collect(),
        finish: restart(kind.strategy, kind.legacy_pods)
            .into_iter()
            .chain(soak(kind, settings))
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
                "exists with the needed values",
            ),
            // The check IpPool refuses with the same conflict.
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
            number(nodes.len(), "Node", "Nodes"),
            format!("{LABEL}=flannel where the label is missing"),
        ),
        Action::new(
            "patch",
            &flannel,
            format!("add nodeSelector {LABEL}=flannel, then wait for the rollout"),
        ),
        Action::new(
            "patch",
            "IPAMConfig default",
            "strictAffinity true, autoAllocateBlocks false, until the last node is migrated",
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
            "vxlanVNI {}, vxlanPort {}, vxlanMTU {}{ipv6}; missing fields that calico-node would set at its start",
            settings.flannel_vni.value, settings.flannel_port.value, settings.flannel_mtu.value
        ),
    ));
    actions
}

/// What the agent does to the rules of other programs before its first change of the host.
fn twins(kind: &FlannelToCalico) -> Option<Action> {
    (kind.firewall_twins == FirewallTwins::Write).then(|| {
        Action::new(
            "write",
            "firewall of the host",
            "a twin for cali… and vxlan.calico directly after each rule of another program that names cni0 or flannel's tunnel and has \
             none (comment replumb-twin), again within a minute when its program reloads its rules; a rollback removes them",
        )
    })
}

/// The objects that Calico needs for a node before the first node changes.
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
            "none at present".to_owned()
        } else {
            names(&keys)
        }
    };
    let cordon = if node.unschedulable {
        Action::new("cordon", &object, "already cordoned, and stays cordoned")
    } else {
        Action::new("cordon", &object, "uncordoned afterwards")
    };
    let mut actions = vec![
        cordon,
        Action::as_of_now(
            "evict",
            format!("pods of node {}", node.name),
            named(&residents.movable),
        ),
        Action::new(
            "label",
            &object,
            format!("{LABEL}=none; flannel's pod terminates"),
        ),
        Action::new(
            "hold",
            format!("host {}", node.name),
            "move /run/flannel/subnet.env to the backup directory: new pods wait",
        ),
        Action::as_of_now(
            "evict",
            format!("DaemonSet pods of node {}", node.name),
            named(&residents.daemon_set),
        ),
    ];
    actions.extend(route_subnets(settings, node));
    actions.extend(rename_tunnels(settings, node));
    actions.extend([
        Action::new(
            "delete",
            format!("host {}", node.name),
            "FLANNEL-* chains and tables, cni0, host-local leases (with a backup)",
        ),
        Action::new(
            "label",
            &object,
            format!("{LABEL}=calico; calico-node starts and takes over the link"),
        ),
        Action::new(
            "delete",
            format!("host {}", node.name),
            format!(
                "flannel's conflist in {} (with a backup), when Calico's is in use",
                settings.cni_configuration_directory.value
            ),
        ),
        Action::new(
            "probe",
            &object,
            "calico-node is Ready, the agent's checks pass, an old and a new node reach a pod on the node",
        ),
    ]);
    if !node.unschedulable {
        actions.push(Action::new("uncordon", &object, "spec.unschedulable removed"));
    }
    actions
}

/// IPv6: flannel pods must be reachable with any address in the subnet of their node.
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

/// The tunnel of each family gets Calico's name.
fn rename_tunnels(settings: &Settings, node: &Node) -> Vec<Action> {
    let host = format!("host {}", node.name);
    let tunnels = HostSettings::of(settings).tunnels().into_iter();
    tunnels
        .map(|tunnel| {
            Action::new(
                "rename",
                &host,
                format!(
                    "{} becomes {} while it carries packets",
                    tunnel.flannel_name, tunnel.calico_name
                ),
            )
        })
        .collect()
}

/// The action on legacy pods when all nodes are on Calico.
fn restart(strategy: Strategy, legacy_pods: LegacyPods) -> Option<Action> {
    match (strategy, legacy_pods) {
        (Strategy::Drain, _) | (Strategy::InPlace, LegacyPods::Keep | LegacyPods::Adopt) => None,
        (Strategy::InPlace, LegacyPods::Restart) => Some(Action::new(
            "evict",
            "legacy pods on every node",
            "within their PodDisruptionBudgets, at most maxUnavailable nodes at the same time, until cni0 has no pods",
        )),
    }
}

/// The time for a rollback after the last node.
fn soak(kind: &FlannelToCalico, settings: &Settings) -> Option<Action> {
    let time = kind.soak();
    (!time.is_zero()).then(|| {
        Action::new(
            "keep",
            flannel_daemon_set(settings),
            format!(
                "for {} s after the last node (soakSeconds): a rollback is possible until then",
                time.as_secs()
            ),
        )
    })
}

fn finish(settings: &Settings, nodes: &[&Node]) -> Vec<Action> {
    let calico = format!(
        "DaemonSet {}/{}",
        settings.calico_daemon_set_namespace.value, settings.calico_daemon_set_name.value
    );
    let all = number(nodes.len(), "Node", "Nodes");
    let unroute = settings.ipv6.as_ref().map(|_| {
        Action::new(
            "unroute",
            number(nodes.len(), "host", "hosts"),
            format!("table {SUBNET_TABLE} and its rule: no pod uses flannel any more"),
        )
    });
    let rest = [
        Action::new(
            "wait",
            &all,
            "every agent confirms that nothing of flannel is left",
        ),
        Action::new(
            "delete",
            flannel_daemon_set(settings),
            "the point of no return: flannel is removed from the cluster",
        ),
        Action::new(
            "patch",
            calico,
            format!("remove nodeSelector {LABEL}, then wait for the rollout"),
        ),
        Action::new("label", &all, format!("remove {LABEL}")),
        Action::new(
            "patch",
            "IPAMConfig default",
            "restore the values from before the migration",
        ),
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
mod tests;
