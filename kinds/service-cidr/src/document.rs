//! The plan: every action on every object, in order.

use std::collections::BTreeMap;

use serde_json::Value;

use super::assignment::{AssignedAddresses, key, of_migration, sort};
use super::class::Class;
use super::covers::covers;
use super::entry::Entry;
use super::facts::ClusterFacts;
use super::mentions::{Change, follow_up};
use super::objects::BRIDGE_CLASS;
use super::range_name::{cover_name, range_names};
use super::ranges::{DEFAULT, joined};
use super::settings::Settings;
use super::side::Side;
use engine::document::{Action, Document, NodeActions};
use engine::words::{lines, names};

/// Options of the Migration on which the plan depends, and the assigned addresses.
#[derive(Clone, Debug)]
pub struct Options<'options> {
    /// The assigned addresses.
    pub book: &'options AssignedAddresses,
    /// Services that move before the others.
    pub order: &'options [String],
    /// Maximum number of Services that change their addresses at the same time.
    pub services_at_once: usize,
    /// How long both addresses answer at the end, in seconds.
    pub soak_seconds: u32,
    /// Whether load balancers keep their addresses.
    pub keep_load_balancers: bool,
}

/// Creates the plan.
pub fn document(settings: &Settings, facts: &ClusterFacts, options: &Options<'_>) -> Document {
    // A node without actions is not part of the plan.
    let nodes = facts.linux_nodes().filter_map(|node| {
        Some(NodeActions {
            node: node.name.clone(),
            prepare: Vec::new(),
            actions: vec![on_node(&node.name, settings, facts)?],
        })
    });
    Document {
        prepare: prepare(settings, facts, options),
        nodes: nodes.collect(),
        finish: finish(settings, facts, options),
    }
}

fn prepare(settings: &Settings, facts: &ClusterFacts, options: &Options<'_>) -> Vec<Action> {
    let defaults = settings.defaults();
    let (old, new) = (joined(defaults.of(Side::Old)), joined(defaults.of(Side::New)));
    let [range, _] = range_names(Side::New);
    let mut actions = vec![Action::new(
        "create",
        format!("ServiceCIDR {range}"),
        format!(
            "{}: Services can get addresses of it, beside those of {old}",
            joined(settings.changed().of(Side::New))
        ),
    )];
    actions.extend(facts.api_servers.keys().map(|address| {
        Action::new(
            "wait",
            format!("API server {address}"),
            format!(
                "you restart it with --service-cluster-ip-range={new} and a certificate for the new first address (and the \
                 controller manager likewise): kubeadm: networking.serviceSubnet in ConfigMap kube-system/kubeadm-config, \
                 /etc/kubernetes/manifests/kube-apiserver.yaml; kops: spec.serviceClusterIPRange, then a rolling update of the \
                 control plane. No Service changes before all API servers have it"
            ),
        )
    }));
    actions.push(Action::new(
        "create",
        "helpers of each Service, for its exchange",
        format!(
            "SERVICE-replumb-new and SERVICE-replumb-old have its addresses, SERVICE-replumb-bridge and \
             SERVICE-replumb-bridge-ports answer meanwhile: these are of type LoadBalancer, of class {BRIDGE_CLASS}, for which \
             no load balancer is created"
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
        .filter(|(_, name)| options.book.contains_key(name))
        .collect();
    sort(&mut ordered, options.order, Clone::clone);
    for (_, name) in ordered {
        if let Some(both) = options.book.get(&name) {
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

/// Side effects during the change of a Service's address.
fn meanwhile(spec: &Value) -> &'static str {
    match (
        spec["internalTrafficPolicy"].as_str(),
        spec["sessionAffinity"].as_str(),
    ) {
        (Some("Local"), _) => ", for some seconds pods of any node answer",
        (_, Some("ClientIP")) => ", clients of the old address may reach another pod once",
        (_, _) => "",
    }
}

/// The change that the user makes on a node. The migration itself changes nothing there.
fn on_node(node: &str, settings: &Settings, facts: &ClusterFacts) -> Option<Action> {
    use engine::found::Found;
    let source = settings.changed().old;
    match facts.hosts.get(node).map(|host| &host.cluster_dns) {
        Some(Found::Present(said))
            if said
                .iter()
                .any(|address| source.iter().any(|range| range.contains(address))) =>
        {
            let texts: Vec<String> = said.iter().map(ToString::to_string).collect();
            Some(Action::new(
                "wait",
                format!("kubelet of Node {node}"),
                format!(
                    "you write the new address of the cluster DNS to clusterDNS (now {}), and restart the kubelet",
                    names(&texts)
                ),
            ))
        }
        Some(_) | None => None,
    }
}

fn finish(settings: &Settings, facts: &ClusterFacts, options: &Options<'_>) -> Vec<Action> {
    let changed = settings.changed();
    let (old, new) = (joined(changed.of(Side::Old)), joined(changed.of(Side::New)));
    let mut actions = vec![Action::new(
        "delete",
        format!("ServiceCIDR {DEFAULT}"),
        format!("no more addresses of {old} are assigned; addresses in use stay"),
    )];
    let changes = follow_up(&facts.mentions, changed.of(Side::Old), changed.of(Side::New)).into_iter();
    let (of_tenants, of_the_cluster): (Vec<Change>, Vec<Change>) =
        changes.partition(|change| change.owner.tenant().is_some());
    actions.extend(of_the_cluster.into_iter().map(|change| {
        Action::new(
            "wait",
            change.object,
            format!("you change {}: {}", change.found, change.fix),
        )
    }));
    actions.push(Action::as_of_now(
        "evict",
        "pods that have received old addresses",
        format!(
            "some at a time, within their PodDisruptionBudgets, name servers first; running pods: {}",
            facts
                .pods
                .iter()
                .filter(|pod| !pod.finished && !pod.mirror)
                .count()
        ),
    ));
    actions.push(Action::new(
        "wait",
        format!("{} s", options.soak_seconds),
        format!("without any connection to an address of {old}; all these addresses still answer"),
    ));
    actions.push(for_tenants(&of_tenants, &old));
    actions.push(Action::new(
        "delete",
        "Services that answer at old addresses",
        format!("the point of no return for clients of addresses of {old}"),
    ));
    let kept: Vec<_> = of_migration(&facts.services)
        .filter_map(
            |service| match Class::of(&service["spec"], changed.of(Side::Old)) {
                Class::LoadBalancer(addresses) => Some((key(service), addresses)),
                Class::Moves(_) | Class::Headless | Class::ExternalName | Class::Elsewhere => None,
            },
        )
        .collect();
    if !kept.is_empty() && options.keep_load_balancers {
        let owners: Vec<String> = kept.iter().map(|(name, _)| name.clone()).collect();
        let addresses: Vec<_> = kept.into_iter().flat_map(|(_, addresses)| addresses).collect();
        actions.extend(covers(&addresses).iter().map(|cover| {
            Action::new(
                "create",
                format!("ServiceCIDR {}", cover_name(cover)),
                format!(
                    "reserves addresses of load balancers ({}), and is deleted at once: it assigns none, and is removed with \
                     the last",
                    names(&owners)
                ),
            )
        }));
    }
    actions.push(Action::new(
        "wait",
        format!("ServiceCIDR {DEFAULT}"),
        format!("its deletion completes once no address of it is in use, and an API server creates it again: {new}"),
    ));
    let [range, _] = range_names(Side::New);
    actions.push(Action::new(
        "delete",
        format!("ServiceCIDR {range}"),
        "the default ServiceCIDR has the same range by then",
    ));
    actions
}

/// The wait for changes by tenants, at the end. Objects of tenants change at any time, and must not change a reviewed plan.
fn for_tenants(changes: &[Change], old: &str) -> Action {
    let told: Vec<String> = changes.iter().map(Change::line).collect();
    let detail = match told.as_slice() {
        [] => format!("none contains an address of {old} now"),
        [one] => format!("1 contains an address of {old} now, and delays only this step: {one}"),
        many => format!(
            "{} contain addresses of {old} now, and delay only this step: {}",
            many.len(),
            lines(many)
        ),
    };
    Action::as_of_now("wait", "objects of tenants", detail)
}

#[cfg(test)]
mod tests;
