//! The plan of this migration as a document: what the tool does, what people do, and where it is past going back.

use ipnet::IpNet;

use super::facts::{ClusterFacts, Pool};
use super::mentions::{self, Change};
use super::pools::{self, NO_NODE, OFF_LABEL};
use super::settings::{Mode, Settings};
use engine::document::{Action, Document};
use engine::moves::{self, Movers, Resident, Wave, Workload};
use engine::residents::{AT_LEAST, Needed, residents, with_one_pod, workloads_of};
use engine::words::{lines, names};

/// kops puts this label on its Nodes.
const KOPS_LABEL: &str = "kops.k8s.io/instancegroup";
/// The verb of what a person does.
const YOU: &str = "you change";

/// What the plan depends on besides settings and facts.
#[derive(Clone, Debug)]
pub struct Wishes<'spec> {
    /// How pods leave the old range.
    pub mode: Mode,
    /// How long the old pool stays, empty, in seconds.
    pub soak_seconds: u32,
    /// Whether pods that nobody makes again are evicted.
    pub delete_bare_pods: bool,
    /// What others need pods for.
    pub needed: &'spec Needed,
}

/// Every action on every object, in order. Pods come and go: which of them move is told as of now, and in which waves always.
pub fn document(settings: &Settings, facts: &ClusterFacts, wishes: &Wishes<'_>) -> Document {
    let workloads = workloads_of(&facts.pods);
    let residents = residents(&facts.pods, &workloads, wishes.needed, None);
    let raised = raised(facts, &residents);
    Document {
        prepare: [
            prepare(settings, facts, &raised),
            moving(settings, facts, &residents, wishes),
        ]
        .concat(),
        nodes: Vec::new(),
        finish: finish(settings, facts, &raised, wishes),
    }
}

/// Deployments that have another pod for the time of the migration.
fn raised(facts: &ClusterFacts, residents: &[Resident<'_>]) -> Vec<String> {
    let raised = with_one_pod(residents, &facts.workloads, facts.places());
    raised.iter().map(Workload::key).collect()
}

fn prepare(settings: &Settings, facts: &ClusterFacts, raised: &[String]) -> Vec<Action> {
    let (from, to) = (settings.from.value, settings.to.value);
    let (old, new) = (
        format!("IPPool {}", settings.old_pool.value),
        format!("IPPool {}", settings.new_pool.value),
    );
    let (of_tenants, of_the_cluster): (Vec<Change>, Vec<Change>) =
        mentions::before(&facts.mentions, &from, &to)
            .into_iter()
            .partition(|change| change.owner.tenant().is_some());
    let mut actions: Vec<Action> = of_the_cluster
        .iter()
        .map(|change| by_a_person(change, "before the new pool is made"))
        .collect();
    let of_tenants: Vec<String> = of_tenants.iter().map(Change::line).collect();
    // Tenants come and go as they like: a plan that was reviewed stays the plan.
    actions.push(Action::as_of_now(
        YOU,
        "objects of tenants",
        match of_tenants.as_slice() {
            [] => "none now".to_owned(),
            changes => format!(
                "{} now, before pods move: {}. {}",
                changes.len(),
                mentions::unwaited(&to),
                lines(changes)
            ),
        },
    ));
    let size = settings.block_size.value;
    actions.push(if facts.pools.contains_key(&settings.new_pool.value) {
        Action::new("use", &new, "it is there, and as it has to be")
    } else {
        let like = facts
            .pools
            .get(&settings.old_pool.value)
            .map(|pool| described(&pools::wanted(&pool.spec, &to, size)))
            .unwrap_or_default();
        Action::new(
            "create",
            &new,
            format!("{like}; disabled: nobody gets an address of it"),
        )
    });
    actions.extend([
        Action::new(
            "open",
            &new,
            format!("to pods that name it alone: disabled false, nodeSelector {NO_NODE}"),
        ),
        Action::new(
            "create",
            "traffic pods",
            format!(
                "on every node one with an address of {from} and one with an address of {to}; each path between them, to Services, DNS \
                 and the API server has to answer before anything else is done, and is watched until the end"
            ),
        ),
    ]);
    actions.extend(raised.iter().map(|deployment| {
        let detail = format!("1 pod becomes {AT_LEAST} for the time of the migration: others need it");
        Action::new("scale", deployment, detail)
    }));
    actions.extend([Action::new("open", &new, "to every pod")]);
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
                "node by node: the end of its tunnel gets an address of {to} out of the node's own block, held in Calico's IPAM and written \
                 with label {OFF_LABEL} into {whose}; where none is free Calico chooses, by a clause of nodeSelector. Its agent keeps the \
                 old address on lo until blocks are released, so that no connection ends"
            ),
        ));
    }
    actions.push(Action::new(
        "close",
        &old,
        "disabled true: pods that have an address of it keep it",
    ));
    actions
}

/// The parts of a pool's spec that a person compares.
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

/// Who moves, wave by wave.
fn moving(
    settings: &Settings,
    facts: &ClusterFacts,
    residents: &[Resident<'_>],
    wishes: &Wishes<'_>,
) -> Vec<Action> {
    let left = moves::left(
        residents,
        Movers::OutOf(&settings.stay(&settings.to.value, facts.ranges())),
    );
    let nodes = match wishes.mode {
        Mode::ByWorkload => None,
        Mode::ByNode => Some(Action::new(
            "cordon",
            "one node after the other",
            "workers first, the coordinator's own at the end, rollout.maxUnavailable at once: its pods are evicted in the order below; it is \
             uncordoned once its agent finds no route to a pod of the old range",
        )),
    };
    let waves = Wave::ALL.into_iter().map(|wave| {
        let (verb, how) = match wave {
            Wave::Jobs => ("wait for", "they end by themselves"),
            Wave::Bare if !wishes.delete_bare_pods => (
                "wait for",
                "nobody makes them again: delete them, or set podCidr.deleteBarePods",
            ),
            Wave::Bare => (
                "evict",
                "nobody makes them again, and podCidr.deleteBarePods says that they may go",
            ),
            Wave::Stateful => (
                "evict",
                "the highest ordinal first, each after the one before is Ready",
            ),
            // It has the host's network, unless somebody took that away.
            Wave::Coordinator => ("evict", "where it is on the pod network"),
            Wave::DaemonSets => (
                "evict",
                "as many of each at a time as its updateStrategy.rollingUpdate.maxUnavailable says, each on another node, under their budgets",
            ),
            Wave::NameServers | Wave::Admission | Wave::Stateless => (
                "evict",
                "of each workload one at a time, the next when every one of it is Ready, under their budgets",
            ),
        };
        let pods: Vec<String> = left
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

fn finish(settings: &Settings, facts: &ClusterFacts, raised: &[String], wishes: &Wishes<'_>) -> Vec<Action> {
    let (from, to) = (settings.from.value, settings.to.value);
    let old = format!("IPPool {}", settings.old_pool.value);
    let mut actions = vec![Action::new(
        "verify",
        format!("range {from}"),
        "twice, 30 s apart: no pod, no address in Calico's IPAM, no end of a tunnel in it",
    )];
    actions.extend(
        mentions::after(&facts.mentions, &from, &to)
            .iter()
            .filter(|change| change.owner.tenant().is_none())
            .map(|change| by_a_person(change, "once every pod has moved; the migration waits for it")),
    );
    actions.extend(kops(settings, facts));
    actions.extend([
        Action::new(
            "wait",
            &old,
            format!(
                "{} s, empty and closed (podCidr.soakSeconds): so long `kubectl replumb rollback --all` leads every pod back",
                wishes.soak_seconds
            ),
        ),
        Action::as_of_now(
            "release",
            format!("blocks of {from}"),
            format!(
                "{} now; each only if it is empty, guarded by {}, with its affinity",
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
            "the point of no return: another migration leads back from here",
        ),
        Action::new("verify", "every host", format!("no route and no address in {from}")),
    ]);
    actions.extend(
        raised
            .iter()
            .map(|deployment| Action::new("scale", deployment, format!("{AT_LEAST} pods become 1 again"))),
    );
    actions.push(Action::new("delete", "traffic pods", "of this migration"));
    actions
}

/// A place that people change, as an action of theirs.
fn by_a_person(change: &Change, when: &str) -> Action {
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

/// What kops' own spec has to say, so that its next update writes nothing back.
fn kops(settings: &Settings, facts: &ClusterFacts) -> Vec<Action> {
    let is_kops = facts
        .nodes
        .values()
        .any(|node| node.labels.contains_key(KOPS_LABEL));
    if !is_kops {
        return Vec::new();
    }
    let (from, to) = (settings.from.value, settings.to.value);
    // Addresses of single Services say nothing of their range.
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
            "- true  + false: first of all, or together with clusterCIDR; with it the controller manager ends over Nodes whose podCIDR \
             is in the old range"
                .to_owned(),
        ),
        field("kubeControllerManager.clusterCIDR", format!("- {from}  + {to}")),
        field("podCIDR", format!("- {from}  + {to}")),
        field(
            "nonMasqueradeCIDR",
            match around.filter(|around| around.prefix_len() >= 8) {
                Some(_) if services.is_empty() => format!(
                    "+ one range around {to} and serviceClusterIPRange, which the API does not say: kops wants one around pods and Services"
                ),
                Some(around) => format!("+ {around}: kops wants one range around pods and Services"),
                None => format!(
                    "+ one range around {to} and the Services' ({}): there is none narrower than a /8, so the Services' has to change too",
                    names(&services.iter().map(ToString::to_string).collect::<Vec<_>>())
                ),
            },
        ),
    ]
}

/// The narrowest range around two of one family.
fn envelope(one: &IpNet, other: &IpNet) -> Option<IpNet> {
    let mut around = one.trunc();
    while !around.contains(other) {
        around = around.supernet()?;
    }
    Some(around)
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
