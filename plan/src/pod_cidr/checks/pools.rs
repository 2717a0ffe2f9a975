//! The two pools, and whose the new range is.

use ipnet::IpNet;

use super::CheckName;
use crate::check::{Check, Finding, Report, names, owner};
use crate::pod_cidr::facts::{ClusterFacts, Pool};
use crate::pod_cidr::host;
use crate::pod_cidr::pools::{self, Openness};
use crate::pod_cidr::ranges::overlap;
use crate::pod_cidr::settings::Settings;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let old = facts.pools.get(&settings.old_pool.value);
    let new = facts.pools.get(&settings.new_pool.value);
    [
        old.map_or_else(Vec::new, old_pool),
        new_pool(settings, old, new),
        owners(&[old, new]),
        ranges(settings, facts),
    ]
    .concat()
}

/// It is open to everybody: who closed it meant something by it.
fn old_pool(pool: &Pool) -> Vec<Check> {
    let mut report = Report::new(CheckName::OldPool);
    let openness = Openness::of(&pool.spec);
    let fix = "open it (`disabled: false`), or is another change of it under way?";
    if pool.terminating {
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new("", "is being deleted", "a pool that stays", "make it again first"),
        );
    } else if openness != Openness::ToEverybody {
        let found = match openness {
            Openness::Absent | Openness::Closed => "disabled",
            Openness::ToWhoNamesIt | Openness::Narrowed | Openness::ToEverybody => {
                "gives addresses only to some pods (its nodeSelector or assignmentMode)"
            }
        };
        report.fail(
            "IPPool",
            &pool.name,
            Finding::new("", found, "a pool that gives every pod an address", fix),
        );
    }
    report.finish(
        format!("IPPool {}", pool.name),
        format!("{}, open to every pod", pool.range),
    )
}

fn new_pool(settings: &Settings, old: Option<&Pool>, new: Option<&Pool>) -> Vec<Check> {
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
                range.to_string(),
                "rename or delete that pool",
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
    for pool in &pools {
        for (mark, controller) in owner::controllers(&pool.labels, &pool.annotations, &pool.managers) {
            let fix = if controller.contains("operator") {
                "change spec.calicoNetwork.ipPools of the Installation instead: add the new range there first. The operator would take \
                 back every change of this pool"
                    .to_owned()
            } else {
                format!(
                    "suspend {controller} for this pool until the migration is over, and give it the new one then"
                )
            };
            report.fail(
                "IPPool",
                &pool.name,
                Finding::new(
                    "",
                    format!("{mark}: kept by {controller}"),
                    "nobody who writes the pool back",
                    fix,
                ),
            );
        }
        for owner in &pool.owners {
            report.fail(
                "IPPool",
                &pool.name,
                Finding::new(
                    "metadata.ownerReferences",
                    owner.clone(),
                    "nobody who writes the pool back",
                    "change the pool where its owner says it, or take the owner reference away",
                ),
            );
        }
    }
    let all: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    report.finish(format!("IPPools {}", names(&all)), "no mark of a controller")
}

/// Whose the new range is already.
fn ranges(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Ranges);
    let to = settings.to.value;
    let mut taken = |kind: &'static str, name: &str, part: &str, found: String, fix: &str| {
        let needed = format!("nothing that shares an address with {to}");
        report.fail(kind, name, Finding::new(part, found, needed, fix));
    };
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
    report.finish(
        format!("range {to}"),
        format!(
            "is no Node's, no Service's, no other IPPool's, and on no route of {} hosts",
            facts.hosts.len()
        ),
    )
}
