//! The plan: every action on every object, in order.

use std::collections::BTreeMap;

use serde_json::Value;

use super::class::Class;
use super::covers::covers;
use super::entry::Entry;
use super::facts::ClusterFacts;
use super::mentions::{Change, follow_up};
use super::objects::BRIDGE_CLASS;
use super::ranges::{DEFAULT, listed};
use super::settings::{Settings, cover_name, range_names};
use super::side::Side;
use super::subjects::{Book, key, of_migration, sort};
use engine::document::{Action, Document, NodeActions};
use engine::words::{lines, names};

/// What the user asked for, as far as the plan depends on it.
#[derive(Clone, Debug)]
pub struct Wishes<'wishes> {
    /// Which Services get which addresses.
    pub book: &'wishes Book,
    /// Services that go before others of their turn.
    pub order: &'wishes [String],
    /// How many exchange their addresses at the same time.
    pub services_at_once: usize,
    /// How long both addresses answer at the end, in seconds.
    pub soak_seconds: u32,
    /// Whether load balancers keep their addresses.
    pub keep_load_balancers: bool,
}

/// Writes the plan.
pub fn document(settings: &Settings, facts: &ClusterFacts, wishes: &Wishes<'_>) -> Document {
    // A node on which nobody has anything to do has no part in the plan.
    let nodes = facts.linux_nodes().filter_map(|node| {
        Some(NodeActions {
            node: node.name.clone(),
            prepare: Vec::new(),
            actions: vec![on_node(&node.name, settings, facts)?],
        })
    });
    Document {
        prepare: prepare(settings, facts, wishes),
        nodes: nodes.collect(),
        finish: finish(settings, facts, wishes),
    }
}

fn prepare(settings: &Settings, facts: &ClusterFacts, wishes: &Wishes<'_>) -> Vec<Action> {
    let defaults = settings.defaults();
    let (old, new) = (listed(defaults.of(Side::Old)), listed(defaults.of(Side::New)));
    let [range, _] = range_names(Side::New);
    let mut actions = vec![Action::new(
        "create",
        format!("ServiceCIDR {range}"),
        format!(
            "{}: Services can be given addresses of it beside those of {old}",
            listed(settings.changed().of(Side::New))
        ),
    )];
    actions.extend(facts.api_servers.keys().map(|address| {
        Action::new(
            "wait",
            format!("API server {address}"),
            format!(
                "a person lets it start with --service-cluster-ip-range={new} and a certificate for the new first address (and the \
                 controller manager likewise): kubeadm: networking.serviceSubnet in ConfigMap kube-system/kubeadm-config, \
                 /etc/kubernetes/manifests/kube-apiserver.yaml; kops: spec.serviceClusterIPRange, then a roll of the control plane. No Service \
                 changes before each has it"
            ),
        )
    }));
    actions.push(Action::new(
        "create",
        "helpers of each Service, for its exchange",
        format!(
            "SERVICE-replumb-new and SERVICE-replumb-old have its addresses, SERVICE-replumb-bridge and SERVICE-replumb-bridge-ports answer \
             meanwhile: these are of type LoadBalancer, of class {BRIDGE_CLASS}, for which nobody makes a load balancer"
        ),
    ));
    let mut services: Vec<(String, String)> = Vec::new();
    let specs: BTreeMap<String, &Value> = facts
        .services
        .iter()
        .map(|service| (key(service), &service["spec"]))
        .collect();
    let mut ordered: Vec<(super::decide::Turn, String)> = of_migration(&facts.services)
        .map(|service| (Entry::of(service).turn(), key(service)))
        .filter(|(_, name)| wishes.book.contains_key(name))
        .collect();
    sort(&mut ordered, wishes.order, Clone::clone);
    for (_, name) in ordered {
        if let Some(both) = wishes.book.get(&name) {
            let pairs: Vec<String> = both
                .old
                .iter()
                .zip(&both.new)
                .map(|(old, new)| format!("{old} → {new}"))
                .collect();
            let meanwhile = specs.get(&name).map(|spec| meanwhile(spec)).unwrap_or_default();
            services.push((name, format!("{}{meanwhile}", names(&pairs))));
        }
    }
    actions.extend(services.into_iter().map(|(name, pairs)| {
        Action::as_of_now(
            "exchange",
            format!("Service {name}"),
            format!("{pairs}; both answer until the end"),
        )
    }));
    actions
}

/// What is otherwise while a Service exchanges its address.
fn meanwhile(spec: &Value) -> &'static str {
    match (
        spec["internalTrafficPolicy"].as_str(),
        spec["sessionAffinity"].as_str(),
    ) {
        (Some("Local"), _) => ", for some seconds answered by pods of any node",
        (_, Some("ClientIP")) => ", clients of the old address may come to another pod once",
        (_, _) => "",
    }
}

/// What a person does on a node. The migration itself changes nothing there.
fn on_node(node: &str, settings: &Settings, facts: &ClusterFacts) -> Option<Action> {
    use engine::found::Found;
    let left = settings.changed().old;
    match facts.hosts.get(node).map(|host| &host.cluster_dns) {
        Some(Found::Present(said))
            if said
                .iter()
                .any(|address| left.iter().any(|range| range.contains(address))) =>
        {
            let texts: Vec<String> = said.iter().map(ToString::to_string).collect();
            Some(Action::new(
                "wait",
                format!("kubelet of Node {node}"),
                format!(
                    "a person writes the name servers' new address into clusterDNS, which says {}, and starts it again",
                    names(&texts)
                ),
            ))
        }
        Some(_) | None => None,
    }
}

fn finish(settings: &Settings, facts: &ClusterFacts, wishes: &Wishes<'_>) -> Vec<Action> {
    let changed = settings.changed();
    let (old, new) = (listed(changed.of(Side::Old)), listed(changed.of(Side::New)));
    let mut actions = vec![Action::new(
        "delete",
        format!("ServiceCIDR {DEFAULT}"),
        format!("it gives out nothing of {old} any more, and holds what somebody has"),
    )];
    let changes = follow_up(&facts.mentions, changed.of(Side::Old), changed.of(Side::New)).into_iter();
    let (of_tenants, of_the_cluster): (Vec<Change>, Vec<Change>) =
        changes.partition(|change| change.owner.tenant().is_some());
    actions.extend(of_the_cluster.into_iter().map(|change| {
        Action::new(
            "wait",
            change.object,
            format!("a person changes {}: {}", change.found, change.fix),
        )
    }));
    actions.push(Action::as_of_now(
        "evict",
        "pods that were told old addresses when they started",
        format!(
            "some at a time, under their budgets, name servers first: {} pods run",
            facts
                .pods
                .iter()
                .filter(|pod| !pod.finished && !pod.mirror)
                .count()
        ),
    ));
    actions.push(Action::new(
        "wait",
        format!("{} s", wishes.soak_seconds),
        format!("in which nobody has a connection to an address of {old}, and each of them answers still"),
    ));
    actions.push(for_tenants(&of_tenants, &old));
    actions.push(Action::new(
        "delete",
        "Services that answer for old addresses",
        format!("the point of no return for who asks by an address of {old}"),
    ));
    let kept: Vec<_> = of_migration(&facts.services)
        .filter_map(
            |service| match Class::of(&service["spec"], changed.of(Side::Old)) {
                Class::LoadBalancer(addresses) => Some((key(service), addresses)),
                Class::Moves(_) | Class::Headless | Class::ExternalName | Class::Elsewhere => None,
            },
        )
        .collect();
    if !kept.is_empty() && wishes.keep_load_balancers {
        let owners: Vec<String> = kept.iter().map(|(name, _)| name.clone()).collect();
        let addresses: Vec<_> = kept.into_iter().flat_map(|(_, addresses)| addresses).collect();
        actions.extend(covers(&addresses).iter().map(|cover| {
            Action::new(
                "create",
                format!("ServiceCIDR {}", cover_name(cover)),
                format!("holds addresses of load balancers ({}), and is deleted at once: it gives out none, and goes with the last", names(&owners)),
            )
        }));
    }
    actions.push(Action::new(
        "wait",
        format!("ServiceCIDR {DEFAULT}"),
        format!("goes once nobody has an address of it, and an API server makes it again: {new}"),
    ));
    let [range, _] = range_names(Side::New);
    actions.push(Action::new(
        "delete",
        format!("ServiceCIDR {range}"),
        "the default one is the same by then",
    ));
    actions
}

/// What tenants change is waited for at the end. They come and go as they like: a plan that was reviewed stays the plan.
fn for_tenants(changes: &[Change], old: &str) -> Action {
    let told: Vec<String> = changes.iter().map(Change::line).collect();
    let detail = match told.as_slice() {
        [] => format!("none says an address of {old} now"),
        [one] => format!("1 says an address of {old} now, and is waited for here alone: {one}"),
        many => format!(
            "{} say addresses of {old} now, and are waited for here alone: {}",
            many.len(),
            lines(many)
        ),
    };
    Action::as_of_now("wait", "objects of tenants", detail)
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
