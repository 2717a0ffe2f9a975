//! The actions on one node, in place.

use engine::document::Action;

use super::{LABEL, rename_tunnels, route_subnets};
use crate::facts::ClusterFacts;
use crate::host::{HostSettings, obstacles};
use crate::settings::{LegacyPods, Settings};
use engine::cluster::Node;

/// In place, no pod is evicted: the tunnel is renamed, and the links of pods stay attached to `cni0`.
pub(super) fn of_node(
    settings: &Settings,
    legacy_pods: LegacyPods,
    facts: &ClusterFacts,
    node: &Node,
) -> Vec<Action> {
    let object = format!("Node {}", node.name);
    let host = format!("host {}", node.name);
    let attached = facts
        .hosts
        .get(&node.name)
        .map_or(0, |host| host.legacy_pods.len());
    let answers = if settings.ipv6.is_some() {
        "/32 and /128 to cni0 for each pod that runs there; cni0 answers ARP and neighbour solicitations for Calico's pods"
    } else {
        "/32 to cni0 for each pod that runs there; cni0 answers ARP for Calico's pods"
    };
    let mut actions = vec![
        Action::new(
            "label",
            &object,
            format!("{LABEL}=none; flannel's pod terminates, and its network keeps working"),
        ),
        Action::new(
            "hold",
            &host,
            "move /run/flannel/subnet.env to the backup directory: new pods wait for some seconds",
        ),
        Action::as_of_now(
            "import",
            format!("IPAM blocks of node {}", node.name),
            format!("addresses of the pods on cni0 ({attached})"),
        ),
        Action::new(
            "import",
            format!("IPAM blocks of node {}", node.name),
            "reserve the address of cni0 and the last address of the podCIDR",
        ),
        Action::new("route", &host, answers),
    ];
    actions.extend(route_subnets(settings, node));
    actions.extend(rename_tunnels(settings, node));
    actions.extend([
        Action::new(
            "label",
            &object,
            format!("{LABEL}=calico; calico-node starts and takes over the link"),
        ),
        Action::new(
            "delete",
            &host,
            format!(
                "flannel's conflist in {} (with a backup), when Calico's is in use; new pods use Calico",
                settings.cni_configuration_directory.value
            ),
        ),
        Action::new(
            "probe",
            &object,
            "calico-node is Ready, the agent's checks pass, an old and a new node reach a pod on the node",
        ),
    ]);
    actions.extend(remove_bridge(settings, legacy_pods, facts, node));
    actions.extend([Action::new(
        "release",
        format!("IPAM blocks of node {}", node.name),
        "the address of cni0 and the last address of the podCIDR",
    )]);
    actions
}

/// The end of `cni0`: when its last pod has ended, or has been adopted.
fn remove_bridge(
    settings: &Settings,
    legacy_pods: LegacyPods,
    facts: &ClusterFacts,
    node: &Node,
) -> Vec<Action> {
    let host = format!("host {}", node.name);
    let delete = |objects: &str, when: &str| Action::new("delete", &host, format!("{objects}, when {when}"));
    match legacy_pods {
        LegacyPods::Keep | LegacyPods::Restart => vec![delete(
            "cni0, FLANNEL-* chains and tables, host-local leases (with a backup)",
            "the last legacy pod has ended, possibly days later",
        )],
        LegacyPods::Adopt => {
            let facts = facts.hosts.get(&node.name);
            let settings = HostSettings::of(settings);
            let stays = facts.map(|facts| obstacles(facts, &settings)).unwrap_or_default();
            let adopted = facts.map_or(0, |facts| {
                let attached = facts.legacy_pods.iter().filter(|pod| pod.attached).count();
                attached.saturating_sub(stays.len())
            });
            let adopt = Action::as_of_now(
                "adopt",
                &host,
                format!(
                    "pods on cni0 ({adopted}): the link of each pod leaves cni0 and gets the name that Calico gives it; no pod \
                     restarts"
                ),
            );
            let keep = stays
                .into_iter()
                .map(|pod| Action::as_of_now("keep", &host, format!("cni0 for {pod}, until the pod ends")));
            let rest = [
                delete("FLANNEL-* chains and tables, and cni0", "no pod is on cni0"),
                delete(
                    "host-local leases (with a backup), the address of cni0 on link lo",
                    "the last adopted pod has ended",
                ),
            ];
            [adopt].into_iter().chain(keep).chain(rest).collect()
        }
    }
}
