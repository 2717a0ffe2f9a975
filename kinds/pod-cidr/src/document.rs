//! The plan of this migration as a document: the actions of replumb, the changes that the user makes, and the point of no return.

use ipnet::IpNet;

use super::facts::{ClusterFacts, Pool};
use super::hardcoded_range::{self, Change};
use super::movers;
use super::pools::{self, NO_NODE, OFF_LABEL};
use super::settings::{Mode, Settings};
use engine::document::{Action, Document};
use engine::moves::{self, Resident, Wave, Workload};
use engine::residents::{AT_LEAST, Needed, deployments_to_scale_up, residents, workloads_of};
use engine::words::{lines, names};

/// kops puts this label on its Nodes.
const KOPS_LABEL: &str = "kops.k8s.io/instancegroup";
/// The verb of changes that the user makes.
const YOU: &str = "you change";

/// Options of the Migration on which the plan depends, in addition to settings and facts.
#[derive(Clone, Debug)]
pub struct Options<'spec> {
    /// The order in which pods move.
    pub mode: Mode,
    /// How long the old pool is kept, empty, in seconds.
    pub soak_seconds: u32,
    /// Whether pods without a controller are evicted.
    pub delete_bare_pods: bool,
    /// Pods that other pods need.
    pub needed: &'spec Needed,
}

/// Every action on every object, in order. The waves are part of the plan; the pods in them are listed as of now.
pub fn document(settings: &Settings, facts: &ClusterFacts, options: &Options<'_>) -> Document {
    let workloads = workloads_of(&facts.pods);
    let residents = residents(&facts.pods, &workloads, options.needed, None);
    let raised = raised(facts, &residents);
    Document {
        prepare: [
            prepare(settings, facts, &raised),
            moving(settings, facts, &residents, options),
        ]
        .concat(),
        nodes: Vec::new(),
        finish: finish(settings, facts, &raised, options),
    }
}

/// Deployments that are scaled up during the migration.
fn raised(facts: &ClusterFacts, residents: &[Resident<'_>]) -> Vec<String> {
    let raised = deployments_to_scale_up(residents, &facts.workloads, facts.nodes_for_pods());
    raised.iter().map(Workload::key).collect()
}

fn prepare(settings: &Settings, facts: &ClusterFacts, raised: &[String]) -> Vec<Action> {
    let (from, to) = (settings.from.value, settings.to.value);
    let (old, new) = (
        format!("IPPool {}", settings.old_pool.value),
        format!("IPPool {}", settings.new_pool.value),
    );
    let mut actions = changes_before(facts, &from, &to);
    let size = settings.block_size.value;
    actions.push(if facts.pools.contains_key(&settings.new_pool.value) {
        Action::new("use", &new, "existing pool with the needed spec")
    } else {
        let like = facts
            .pools
            .get(&settings.old_pool.value)
            .map(|pool| described(&pools::wanted(&pool.spec, &to, size)))
            .unwrap_or_default();
        Action::new(
            "create",
            &new,
            format!("{like}; disabled, so no pod gets an address of it"),
        )
    });
    actions.extend([
        Action::new(
            "open",
            &new,
            format!("to pods that name it only: disabled false, nodeSelector {NO_NODE}"),
        ),
        Action::new(
            "create",
            "traffic pods",
            format!(
                "on every node, one with an address of {from} and one with an address of {to}; each path between them, to \
                 Services, DNS and the API server has to answer before the next step, and is watched until the end"
            ),
        ),
    ]);
    actions.extend(raised.iter().map(|deployment| {
        let detail =
            format!("from 1 to {AT_LEAST} replicas during the migration, because other pods need it");
        Action::new("scale", deployment, detail)
    }));
    actions.extend([Action::new("open", &new, "to all pods")]);
    let has_tunnel = |pool: &Pool| pools::has_tunnel(&pool.spec);
    if facts.pools.get(&settings.old_pool.value).is_some_and(has_tunnel) {
        let whose = match settings.datastore.value.etcd {
            Some(_) => "Calico's Node in etcd",
            None => "the Node",
        };
        actions.push(Action::new(
            "leave",
            &old,
            format!(
                "node by node: its tunnel gets an address of {to} from a block of the node, allocated in Calico's IPAM and \
                 written with label {OFF_LABEL} to {whose}; if none is free, Calico chooses, through a clause in nodeSelector. \
                 The agent keeps the old address on lo until blocks are released, so that no connection breaks"
            ),
        ));
    }
    actions.push(Action::new(
        "close",
        &old,
        "disabled true: pods with an address of it keep that address",
    ));
    actions
}

/// The changes that the user makes before pods move.
fn changes_before(facts: &ClusterFacts, from: &IpNet, to: &IpNet) -> Vec<Action> {
    let (of_tenants, of_the_cluster): (Vec<Change>, Vec<Change>) =
        hardcoded_range::before(&facts.mentions, from, to)
            .into_iter()
            .partition(|change| change.owner.tenant().is_some());
    let mut actions: Vec<Action> = of_the_cluster
        .iter()
        .map(|change| by_user(change, "before the new pool is created"))
        .collect();
    let of_tenants: Vec<String> = of_tenants.iter().map(Change::line).collect();
    // Objects of tenants change at any time, and must not change a reviewed plan.
    actions.push(Action::as_of_now(
        YOU,
        "objects of tenants",
        match of_tenants.as_slice() {
            [] => "none now".to_owned(),
            changes => format!(
                "{} now, before pods move: {}. {}",
                changes.len(),
                hardcoded_range::tenant_consequence(to),
                lines(changes)
            ),
        },
    ));
    actions
}

/// The fields of a pool's spec that a reviewer compares.
fn described(spec: &serde_json::Value) -> String {
    let fields = [
        "cidr",
        "blockSize",
        "ipipMode",
        "vxlanMode",
        "natOutgoing",
        "disableBGPExport",
        "nodeSelector",
        "allowedUses",
    ];
    let said: Vec<String> = fields
        .iter()
        .filter(|field| !spec[**field].is_null())
        .map(|field| match &spec[*field] {
            serde_json::Value::String(text) => format!("{field} {text}"),
            other => format!("{field} {other}"),
        })
        .collect();
    said.join(", ")
}

/// The pods that move, wave by wave.
fn moving(
    settings: &Settings,
    facts: &ClusterFacts,
    residents: &[Resident<'_>],
    options: &Options<'_>,
) -> Vec<Action> {
    let remaining = moves::remaining_pods(
        residents,
        movers::out_of(&settings.remaining_ranges(&settings.to.value, facts.ranges())),
    );
    let nodes = match options.mode {
        Mode::ByWorkload => None,
        Mode::ByNode => Some(Action::new(
            "cordon",
            "one node after the other",
            "workers first, the coordinator's node last, rollout.maxUnavailable at once: its pods are evicted in the order \
             below, and it is uncordoned once its agent finds no route to a pod of the old range",
        )),
    };
    let waves = Wave::ALL.iter().copied().map(|wave| {
        let (verb, how) = match wave {
            Wave::Jobs => ("wait for", "not evicted, they run to completion"),
            Wave::Bare if !options.delete_bare_pods => (
                "wait for",
                "no controller replaces them: delete them, or set podCidr.deleteBarePods",
            ),
            Wave::Bare => (
                "evict",
                "no controller replaces them, and podCidr.deleteBarePods allows their eviction",
            ),
            Wave::Stateful => (
                "evict",
                "the highest ordinal first, each after the previous one is Ready",
            ),
            // The coordinator has the host's network, unless its manifest was changed.
            Wave::Coordinator => ("evict", "if on the pod network"),
            Wave::DaemonSets => (
                "evict",
                "per DaemonSet as many at a time as its updateStrategy.rollingUpdate.maxUnavailable, each on another node, \
                 within their PodDisruptionBudgets",
            ),
            Wave::NameServers | Wave::Admission | Wave::Stateless => (
                "evict",
                "one per workload at a time, the next one when all its pods are Ready, within their PodDisruptionBudgets",
            ),
        };
        let pods: Vec<String> = remaining
            .get(&wave)
            .into_iter()
            .flatten()
            .map(|resident| resident.pod.key())
            .collect();
        let who = match pods.as_slice() {
            [] => "none now".to_owned(),
            pods => format!("{} now: {}", pods.len(), names(pods)),
        };
        Action::as_of_now(verb, wave.words(), format!("{how}; {who}"))
    });
    nodes.into_iter().chain(waves).collect()
}

fn finish(
    settings: &Settings,
    facts: &ClusterFacts,
    raised: &[String],
    options: &Options<'_>,
) -> Vec<Action> {
    let (from, to) = (settings.from.value, settings.to.value);
    let old = format!("IPPool {}", settings.old_pool.value);
    let mut actions = vec![Action::new(
        "verify",
        format!("range {from}"),
        "two observations, 30 s apart: no pod, no allocation of Calico's IPAM and no tunnel address in it",
    )];
    actions.extend(
        hardcoded_range::after(&facts.mentions, &from, &to)
            .iter()
            .filter(|change| change.owner.tenant().is_none())
            .map(|change| by_user(change, "once every pod has moved; the migration waits for it")),
    );
    actions.extend(kops(settings, facts));
    actions.extend([
        Action::new(
            "wait",
            &old,
            format!(
                "{} s, empty and closed (podCidr.soakSeconds): until then `kubectl replumb rollback --all` moves every pod back",
                options.soak_seconds
            ),
        ),
        Action::as_of_now(
            "release",
            format!("blocks of {from}"),
            format!(
                "{} now; each with its affinity, only if it is empty, guarded by {}",
                facts
                    .blocks
                    .iter()
                    .filter(|block| from.contains(&block.range))
                    .count(),
                if settings.datastore.value.etcd.is_none() {
                    "its resourceVersion"
                } else {
                    "its revision in etcd"
                }
            ),
        ),
        Action::new(
            "delete",
            &old,
            "the point of no return: from here on, only another Migration moves pods back",
        ),
        Action::new("verify", "every host", format!("no route and no address in {from}")),
    ]);
    actions.extend(
        raised
            .iter()
            .map(|deployment| Action::new("scale", deployment, format!("from {AT_LEAST} to 1 replica"))),
    );
    actions.push(Action::new("delete", "traffic pods", "of this migration"));
    actions
}

/// A change that the user makes, as an action.
fn by_user(change: &Change, when: &str) -> Action {
    let Change {
        object,
        owner: _,
        found,
        needed,
        fix,
    } = change;
    Action::new(
        YOU,
        object,
        format!("found {found}, needed {needed}. Fix: {fix} ({when})"),
    )
}

/// The needed changes of the kops cluster spec, so that the next kops update does not revert the range.
fn kops(settings: &Settings, facts: &ClusterFacts) -> Vec<Action> {
    let is_kops = facts
        .nodes
        .values()
        .any(|node| node.labels.contains_key(KOPS_LABEL));
    if !is_kops {
        return Vec::new();
    }
    let (from, to) = (settings.from.value, settings.to.value);
    // Addresses of single Services do not show their range.
    let services: Vec<IpNet> = facts
        .services
        .iter()
        .map(|(_, range)| *range)
        .filter(|range| {
            range.max_prefix_len() == to.max_prefix_len() && range.prefix_len() < range.max_prefix_len()
        })
        .collect();
    let around = services
        .iter()
        .try_fold(to, |around, range| envelope(&around, range));
    let field = |name: &str, detail: String| Action::new(YOU, format!("kops cluster spec: {name}"), detail);
    vec![
        field(
            "kubeControllerManager.allocateNodeCIDRs",
            "- true  + false: first, or together with clusterCIDR; with true, the controller manager exits because of Nodes \
             with a podCIDR in the old range"
                .to_owned(),
        ),
        field("kubeControllerManager.clusterCIDR", format!("- {from}  + {to}")),
        field("podCIDR", format!("- {from}  + {to}")),
        field(
            "nonMasqueradeCIDR",
            match around.filter(|around| around.prefix_len() >= 8) {
                Some(_) if services.is_empty() => format!(
                    "+ one range that contains {to} and serviceClusterIPRange, which is unknown here: kops needs one range for \
                     pods and Services"
                ),
                Some(around) => format!("+ {around}: kops needs one range for pods and Services"),
                None => format!(
                    "+ one range that contains {to} and the range of Services ({}): none is /8 or narrower, so the range of \
                     Services has to change too",
                    names(&services.iter().map(ToString::to_string).collect::<Vec<_>>())
                ),
            },
        ),
    ]
}

/// The narrowest range that contains two ranges of one family.
fn envelope(one: &IpNet, other: &IpNet) -> Option<IpNet> {
    let mut around = one.trunc();
    while !around.contains(other) {
        around = around.supernet()?;
    }
    Some(around)
}

#[cfg(test)]
mod tests;
