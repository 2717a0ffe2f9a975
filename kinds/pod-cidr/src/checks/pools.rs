//! The two pools, and whose the new range is.

use ipnet::IpNet;

use super::CheckName;
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
        old_pool(&settings.old_pool.value, old),
        new_pool(settings, facts, old, new),
        owners(&[old, new]),
        ranges(settings, facts),
    ]
    .concat()
}

/// It is open to everybody: who closed it meant something by it. One that selects some nodes is open to everybody there, and
/// the new pool will select the same ones.
fn old_pool(name: &str, pool: Option<&Pool>) -> Vec<Check> {
    let mut report = Report::new(CheckName::OldPool);
    let Some(pool) = pool else {
        // It was there when it was looked for.
        let fix = "somebody deleted it a moment ago: make it again as it was, since pods live in it";
        report.fail(
            "IPPool",
            name,
            Finding::new("", "not there", "the pool that pods leave", fix),
        );
        return report.finish("", "");
    };
    let closed = match Openness::of(&pool.spec) {
        Openness::Narrowed => Some((
            "narrowed by another migration: nodes were taken off it one by one",
            "take the clause with replumb.dev/off-pool out of its nodeSelector, or is another change of it under way?",
        )),
        Openness::ToEverybody => None,
        Openness::Absent | Openness::Closed => Some((
            "disabled",
            "set `disabled: false`, or is another change of it under way?",
        )),
        Openness::ToWhoNamesIt => Some((
            "gives addresses only to pods that name it",
            "set nodeSelector all() and assignmentMode Automatic, or is another change of it under way?",
        )),
    };
    if pool.terminating {
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new(
                "",
                "is being deleted",
                "a pool that stays",
                "somebody deleted it, and that cannot be taken back: wait until it is gone, and make it again as it was, since pods live in \
                 it",
            ),
        );
    } else if let Some((found, fix)) = closed {
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new("", found, "a pool that gives every pod an address", fix),
        );
    }
    if !pools::is_for_pods(&pool.spec) {
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new(
                "spec.allowedUses",
                pool.spec["allowedUses"].to_string(),
                "Workload among them",
                "no pod has an address of it: set spec.podCidr.from to the range that pods are to leave",
            ),
        );
    }
    let whom = match pools::selector_of(&pool.spec).as_str() {
        "all()" => "every pod".to_owned(),
        selector => format!("every pod on the nodes that {selector} selects"),
    };
    report.finish(
        format!("IPPool {}", pool.name),
        format!("{}, open to {whom}", pool.range),
    )
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
                "correct it, or take a larger range",
            ),
        );
    }
    if let Some(found) = new.filter(|found| found.range != range) {
        // The name that a pool of this range would get is another pool's.
        report.fail(
            "IPPool",
            name,
            Finding::new(
                "spec.cidr",
                found.range.to_string(),
                format!("{range}, or no pool of this name: it is the one that the pool of {range} would get"),
                format!(
                    "make the pool of {range} yourself under another name, closed (`disabled: true`) and otherwise as {} is: it is used \
                     then",
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
                        "what IPPool {} says: pods of both reach each other only so",
                        old.name
                    ),
                    "correct it, or delete it and let the migration make it",
                ),
            );
        }
        if found.terminating {
            report.fail(
                "IPPool",
                name,
                Finding::new(
                    "",
                    "is being deleted",
                    "a pool that stays",
                    "wait until it is gone",
                ),
            );
        }
    }
    // Calico's own API refuses such a pool; a write past it refuses nothing.
    for block in &facts.blocks {
        if overlap(&block.range, &range) && block.range.prefix_len() != size {
            report.fail(
                "IPAMBlock",
                block.range.to_string(),
                Finding::new(
                    "",
                    format!("a block of another size in {range}"),
                    format!("blocks of /{size} only"),
                    "left by an earlier pool? See `calicoctl ipam show --show-blocks`; when nobody has an address of it, delete this \
                     IPAMBlock and its BlockAffinity. Or set spec.podCidr.blockSize to its size, or choose another range",
                ),
            );
        }
    }
    let found = match new {
        None => format!("will be made for {range}, as {} is", settings.old_pool.value),
        Some(_) => format!("of {range}, as {} is: is used as it is", settings.old_pool.value),
    };
    report.finish(format!("IPPool {name}"), found)
}

/// Who would write back what the migration opens, closes and deletes.
fn owners(pools: &[Option<&Pool>]) -> Vec<Check> {
    let mut report = Report::new(CheckName::PoolOwner);
    let pools: Vec<&Pool> = pools.iter().copied().flatten().collect();
    let needed = "nobody who writes the pool back";
    for pool in &pools {
        for (mark, controller) in owner::controllers(&pool.labels, &pool.annotations, &pool.managers) {
            let fix = if controller.contains("operator") {
                "it would take back every change of this pool. While Installation default says the pool in spec.calicoNetwork.ipPools this \
                 migration cannot be done: see the documentation of your operator's version on pools that it does not manage"
                    .to_owned()
            } else {
                format!(
                    "suspend {controller} for this pool until the migration is over, and give it the new one instead of the old one then"
                )
            };
            let found = format!("{mark}: kept by {controller}");
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
                    "change the pool where its owner says it, or take the owner reference away",
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
                    "no upgrade of the release while the migration runs; take the old pool out of its chart or values before the next one",
                ),
            );
        }
    }
    let all: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    report.finish(format!("IPPools {}", names(&all)), "no mark of a controller")
}

fn helm_release(pool: &Pool) -> Option<String> {
    let release = pool.annotations.get("meta.helm.sh/release-name")?;
    let namespace = pool.annotations.get("meta.helm.sh/release-namespace");
    Some(namespace.map_or_else(|| release.clone(), |namespace| format!("{namespace}/{release}")))
}

/// Whose the new range is already.
fn ranges(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Ranges);
    let to = settings.to.value;
    let mut taken = |kind: &'static str, name: &str, part: &str, found: String, fix: &str| {
        let needed = format!("nothing that shares an address with {to}");
        report.fail(kind, name, Finding::new(part, found, needed, fix));
    };
    if let Some((range, what)) = reserved(&to) {
        let fix = "choose another range: no host routes this one";
        taken(
            "",
            "spec.podCidr.to",
            "",
            format!("{range} in it, which is for {what}"),
            fix,
        );
    }
    for pool in facts.pools.values() {
        let is_ours = pool.name == settings.new_pool.value || pool.name == settings.old_pool.value;
        if !is_ours && overlap(&pool.range, &to) {
            let fix = "choose another range: Calico's IPAM cannot tell the two pools apart";
            taken("IPPool", &pool.name, "spec.cidr", pool.range.to_string(), fix);
        }
    }
    for (object, range) in &facts.services {
        if overlap(range, &to) {
            let fix = "choose another range: a pod would get an address that a Service has, or gets";
            taken("", object, "", range.to_string(), fix);
        }
    }
    for node in facts.nodes.values() {
        for address in &node.internal_addresses {
            if to.contains(&IpNet::from(*address)) {
                let fix = "choose another range: the node could not be reached any more";
                taken("Node", &node.name, "address", address.to_string(), fix);
            }
        }
    }
    let is_there = facts.pools.contains_key(&settings.new_pool.value);
    for (node, facts) in &facts.hosts {
        // Before there is a pool, nobody but somebody else announces routes into it.
        let announced = if is_there {
            Vec::new()
        } else {
            host::announced(facts)
        };
        for found in host::foreign(facts).into_iter().chain(announced) {
            let fix =
                "choose another range: the host reaches somebody else by it (VPN, docker0, a peered network)";
            taken("Node", node, "host", found, fix);
        }
    }
    services_unknown(&to, facts, &mut report);
    report.finish(
        format!("range {to}"),
        format!(
            "is no Node's, no Service's, no other IPPool's, and on no route of {} hosts",
            facts.hosts.len()
        ),
    )
}

/// Without a `ServiceCIDR` only those addresses are known that Services have now.
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
    // Services of the other family alone share no address with it.
    let is_other_family = of_family.is_empty() && !facts.services.is_empty();
    if is_said || is_other_family {
        return;
    }
    report.warn(
        "the range of",
        "Services",
        Finding::new(
            "",
            "not said by the API (no ServiceCIDR): only the addresses that Services have now are known",
            format!("a range apart from {to}"),
            "compare it with --service-cluster-ip-range of kube-apiserver yourself: a Service that is made later could get the address of a pod",
        ),
    );
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
