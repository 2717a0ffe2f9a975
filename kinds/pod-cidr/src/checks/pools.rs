//! The two pools, and other users of the new range.

use ipnet::IpNet;

use super::{CheckName, encapsulation, other_pools};
use crate::facts::{ClusterFacts, Pool};
use crate::host;
use crate::pools::{self, Openness};
use crate::settings::Settings;
use engine::check::{Check, Finding, Report, names, owner};
use engine::ranges::{overlap, reserved};

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let old = facts.pools.get(&settings.old_pool.value);
    let new = facts.pools.get(&settings.new_pool.value);
    [
        old_pool(&settings.old_pool.value, old, facts),
        new_pool(settings, facts, old, new),
        other_pools::check(settings, facts),
        encapsulation::check(&settings.old_pool.value, old),
        owners(&[old, new]),
        ranges(settings, facts),
    ]
    .concat()
}

/// The old pool must be open: if it is closed, the user had a reason. A pool that selects some nodes counts as open, and the
/// new pool will select the same nodes.
fn old_pool(name: &str, pool: Option<&Pool>, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::OldPool);
    let Some(pool) = pool else {
        // The pool existed when the settings were detected.
        let fix = "create it again with the same spec: pods have addresses of it";
        report.fail("IPPool", name, Finding::new("", "missing", "the old pool", fix));
        return report.finish("", "");
    };
    let closed = match Openness::of(&pool.spec) {
        Openness::Narrowed => Some((
            "narrowed by another migration, which has removed nodes from it",
            "remove the clause with replumb.dev/off-pool from its nodeSelector, unless another change of this pool is in \
             progress",
        )),
        Openness::AllPods => None,
        Openness::Absent | Openness::Closed => Some((
            "disabled",
            "set `disabled: false`, unless another change of this pool is in progress",
        )),
        Openness::OptIn => Some((
            "open only to pods that name it",
            "set nodeSelector all() and assignmentMode Automatic, unless another change of this pool is in progress",
        )),
    };
    if pool.terminating {
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new(
                "",
                "being deleted",
                "a pool that is not deleted",
                "wait until it is deleted, and create it again with the same spec: pods have addresses of it",
            ),
        );
    } else if let Some((found, fix)) = closed {
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new("", found, "a pool that is open to all pods", fix),
        );
    }
    if closed.is_none() {
        selected(pool, facts, &mut report);
    }
    if !pools::is_for_pods(&pool.spec) {
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new(
                "spec.allowedUses",
                pool.spec["allowedUses"].to_string(),
                "Workload among them",
                "set spec.podCidr.from to the range of a pool for pods: no pod has an address of this one",
            ),
        );
    }
    let whom = match pools::selector_of(&pool.spec).as_str() {
        "all()" => "all pods".to_owned(),
        selector => format!("all pods on nodes with {selector}"),
    };
    report.finish(
        format!("IPPool {}", pool.name),
        format!("{}, open to {whom}", pool.range),
    )
}

/// The node selector of the old pool selects a Node.
fn selected(pool: &Pool, facts: &ClusterFacts, report: &mut Report) {
    match other_pools::nodes_of(&pool.spec, facts) {
        Ok(0) if facts.linux_nodes().next().is_some() => report.fail(
            "IPPool",
            &pool.name,
            Finding::new(
                "spec.nodeSelector",
                format!("{}, which selects no Node", pools::selector_of(&pool.spec)),
                "a pool that is open to all pods",
                "set nodeSelector to all(), or to one that selects the nodes whose pods use the pool, unless another change of this \
                 pool is in progress",
            ),
        ),
        Ok(_) => {}
        Err(problem) => report.unknown(
            "IPPool",
            &pool.name,
            Finding::new(
                "spec.nodeSelector",
                format!("{}: {problem}", pools::selector_of(&pool.spec)),
                "a selector that can be evaluated against the Nodes",
                "correct the selector; all() selects every Node",
            ),
        ),
    }
}

fn new_pool(settings: &Settings, facts: &ClusterFacts, old: Option<&Pool>, new: Option<&Pool>) -> Vec<Check> {
    let mut report = Report::new(CheckName::NewPool);
    let name = &settings.new_pool.value;
    let size = settings.block_size.value;
    let range = settings.to.value;
    if let Err(allowed) = pools::check_block_size(size, &range) {
        report.fail(
            "",
            "spec.podCidr.blockSize",
            Finding::new(
                "",
                size.to_string(),
                format!("{allowed} for {range}"),
                "correct it, or choose a larger range",
            ),
        );
    }
    if let Some(found) = new.filter(|found| found.range != range) {
        // Another pool has the name that the new pool would get.
        report.fail(
            "IPPool",
            name,
            Finding::new(
                "spec.cidr",
                found.range.to_string(),
                format!("{range}, or no pool of this name, which the pool of {range} would get"),
                format!(
                    "create the pool of {range} with another name, `disabled: true`, and otherwise with the spec of IPPool {}: \
                     the migration then uses it",
                    settings.old_pool.value
                ),
            ),
        );
    } else if let (Some(old), Some(found)) = (old, new) {
        let wanted = pools::wanted(&old.spec, &range, size);
        for difference in pools::differences(&found.spec, &wanted) {
            report.fail(
                "IPPool",
                name,
                Finding::new(
                    "",
                    difference,
                    format!(
                        "the value of IPPool {}, so that pods of the two pools reach each other",
                        old.name
                    ),
                    "correct it, or delete the pool and let the migration create it",
                ),
            );
        }
        if found.terminating {
            report.fail(
                "IPPool",
                name,
                Finding::new(
                    "",
                    "being deleted",
                    "a pool that is not deleted",
                    "wait until it is deleted",
                ),
            );
        }
    }
    blocks_of_another_size(facts, &range, size, &mut report);
    let found = match new {
        None => format!(
            "will be created for {range}, with the spec of {}",
            settings.old_pool.value
        ),
        Some(_) => format!("exists for {range}, with the spec of {}", settings.old_pool.value),
    };
    report.finish(format!("IPPool {name}"), found)
}

/// Blocks of another size in the range of the new pool.
fn blocks_of_another_size(facts: &ClusterFacts, range: &IpNet, size: u8, report: &mut Report) {
    // Calico's API server refuses such a pool; a direct write is not checked.
    for block in &facts.blocks {
        if overlap(&block.range, range) && block.range.prefix_len() != size {
            report.fail(
                "IPAMBlock",
                block.range.to_string(),
                Finding::new(
                    "",
                    format!("a block of another size in {range}"),
                    format!("blocks of /{size} only"),
                    "check `calicoctl ipam show --show-blocks`: if no address of it is in use, delete this IPAMBlock and its \
                     BlockAffinity. Otherwise set spec.podCidr.blockSize to its size, or choose another range",
                ),
            );
        }
    }
}

/// Controllers that would revert changes of the pools.
fn owners(pools: &[Option<&Pool>]) -> Vec<Check> {
    let mut report = Report::new(CheckName::PoolOwner);
    let pools: Vec<&Pool> = pools.iter().copied().flatten().collect();
    let needed = "no controller that reverts changes of the pool";
    for pool in &pools {
        for (mark, controller) in owner::controllers(&pool.labels, &pool.annotations, &pool.managers) {
            let fix = if controller.contains("operator") {
                "remove the pool from spec.calicoNetwork.ipPools of Installation default, as the documentation of your \
                 operator's version describes: until then the operator reverts every change of this pool"
                    .to_owned()
            } else {
                format!(
                    "suspend {controller} for this pool until the migration is complete, then replace the old pool in its source"
                )
            };
            let found = format!("{mark}: managed by {controller}");
            report.fail("IPPool", &pool.name, Finding::new("", found, needed, fix));
        }
        for owner in &pool.owners {
            report.fail(
                "IPPool",
                &pool.name,
                Finding::new(
                    "metadata.ownerReferences",
                    owner.clone(),
                    needed,
                    "change the pool through its owner, or remove the owner reference",
                ),
            );
        }
        if let Some(release) = helm_release(pool) {
            report.warn(
                "IPPool",
                &pool.name,
                Finding::new(
                    "",
                    format!("belongs to Helm release {release}"),
                    needed,
                    "do not upgrade the release during the migration; remove the old pool from its chart or values before the \
                     next upgrade",
                ),
            );
        }
    }
    let all: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    report.finish(format!("IPPools {}", names(&all)), "no controller found")
}

fn helm_release(pool: &Pool) -> Option<String> {
    let release = pool.annotations.get("meta.helm.sh/release-name")?;
    let namespace = pool.annotations.get("meta.helm.sh/release-namespace");
    Some(namespace.map_or_else(|| release.clone(), |namespace| format!("{namespace}/{release}")))
}

/// Other users of the new range.
fn ranges(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Ranges);
    let to = settings.to.value;
    if let Some((range, what)) = reserved(&to) {
        report.fail(
            "",
            "spec.podCidr.to",
            Finding::new(
                "",
                format!("overlaps {range}, which is reserved for {what}"),
                format!("no overlap with {to}"),
                "choose another range: hosts do not route this one",
            ),
        );
    }
    let from = settings.from.value;
    for pool in facts.pools.values() {
        let is_old = pool.name == settings.old_pool.value;
        if !is_old && overlap(&pool.range, &from) {
            let found = format!("{}, which overlaps {from}", pool.range);
            let needed = format!(
                "no pool that shares addresses with IPPool {}",
                settings.old_pool.value
            );
            let fix = "an address of both pools belongs to no pool for certain, so the end of the move could not be told: let the pods \
                       with addresses of this pool end or move (disable it and restart their workloads), delete it, and plan again";
            report.fail(
                "IPPool",
                &pool.name,
                Finding::new("spec.cidr", found, needed, fix),
            );
        }
    }
    let mut taken = |kind: &'static str, name: &str, part: &str, found: String, fix: &str| {
        let needed = format!("no overlap with {to}");
        report.fail(kind, name, Finding::new(part, found, needed, fix));
    };
    for pool in facts.pools.values() {
        let is_ours = pool.name == settings.new_pool.value || pool.name == settings.old_pool.value;
        if !is_ours && overlap(&pool.range, &to) {
            let fix = "choose another range: Calico's IPAM does not support overlapping pools";
            taken("IPPool", &pool.name, "spec.cidr", pool.range.to_string(), fix);
        }
    }
    for (object, range) in &facts.services {
        if overlap(range, &to) {
            let fix = "choose another range: a pod could get the address of a Service";
            taken("", object, "", range.to_string(), fix);
        }
    }
    for node in facts.nodes.values() {
        for address in &node.internal_addresses {
            if to.contains(&IpNet::from(*address)) {
                let fix = "choose another range: the node would become unreachable";
                taken("Node", &node.name, "address", address.to_string(), fix);
            }
        }
    }
    let is_there = facts.pools.contains_key(&settings.new_pool.value);
    for (node, facts) in &facts.hosts {
        // Before the pool exists, announced routes belong to another router.
        let announced = if is_there {
            Vec::new()
        } else {
            host::announced(facts)
        };
        for found in host::foreign(facts).into_iter().chain(announced) {
            let fix = "choose another range: the host uses this one for another network (VPN, docker0, a peered network)";
            taken("Node", node, "host", found, fix);
        }
    }
    services_unknown(&to, facts, &mut report);
    report.finish(
        format!("range {to}"),
        format!(
            "no overlap with Nodes, Services, other IPPools, and the routes of hosts ({})",
            facts.hosts.len()
        ),
    )
}

/// Without a `ServiceCIDR`, only the current addresses of Services are known.
fn services_unknown(to: &IpNet, facts: &ClusterFacts, report: &mut Report) {
    let of_family: Vec<&IpNet> = facts
        .services
        .iter()
        .map(|(_, range)| range)
        .filter(|range| range.max_prefix_len() == to.max_prefix_len())
        .collect();
    let is_said = of_family
        .iter()
        .any(|range| range.prefix_len() < range.max_prefix_len());
    // Services of only the other family cannot overlap.
    let is_other_family = of_family.is_empty() && !facts.services.is_empty();
    if is_said || is_other_family {
        return;
    }
    report.warn(
        "the range of",
        "Services",
        Finding::new(
            "",
            "unknown, because the API has no ServiceCIDR: only the current addresses of Services are known",
            format!("no overlap with {to}"),
            "compare it with --service-cluster-ip-range of kube-apiserver: if they overlap, a new Service could get the address \
             of a pod",
        ),
    );
}

#[cfg(test)]
mod tests;
