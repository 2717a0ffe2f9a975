//! Detection of settings. If the old pool is not found, the refusal names the pools that exist.

use super::checks::{CheckName, datastore};
use super::datastore::in_kubernetes;
use super::facts::{ClusterFacts, Pool};
use super::pools;
use super::settings::{Family, Options, Settings, pool_name};
use calico;
use engine::check::{Check, Verdict, access, names};
use engine::cluster::Malformed;
use engine::owner::KUBE_SYSTEM;
use engine::ranges::{self, Relation};
use engine::sourced::{Source, Sourced};

/// Merges the spec with the facts of the cluster. Returns refusing checks if the two ranges do not fit together, or if the old
/// pool was not found.
///
/// # Errors
///
/// The ranges do not fit together, the datastore cannot be reached, the old pool is not found, or several `DaemonSet`s run
/// calico-node.
pub fn detect(options: &Options, facts: &ClusterFacts) -> Result<Settings, Vec<Check>> {
    if let Some(refusal) = relation(options) {
        return Err(vec![refusal]);
    }
    let reach = datastore::reach(facts);
    if !reach.iter().all(|check| check.verdict.allows()) {
        return Err(reach);
    }
    let old = old_pool(options, facts).map_err(|check| {
        // The pool may be one that cannot be parsed.
        let malformed: Vec<Malformed> = facts
            .malformed
            .iter()
            .filter(|found| found.object.starts_with("IPPool "))
            .chain(facts.unclear_pools.iter().map(|pool| &pool.malformed))
            .cloned()
            .collect();
        match malformed.as_slice() {
            [] => vec![*check],
            _ => [
                vec![*check],
                access::malformed(CheckName::MalformedObjects, &malformed, [], []),
            ]
            .concat(),
        }
    })?;
    let detected = |pool: &Pool| format!("IPPool {}", pool.name);
    let size = pools::block_size(&old.spec, &old.range);
    let there = facts.pools.values().find(|pool| pool.range == options.to);
    let spec = |value| Sourced {
        value,
        source: Source::Spec,
    };
    // If the DaemonSet is missing, its check reports that.
    let calico = calico::daemon_set(facts.daemon_sets.values()).map_err(|several| {
        let keys: Vec<String> = several.iter().map(|set| set.key()).collect();
        vec![CheckName::CalicoNodes.not_pass(
            Verdict::Fail,
            "DaemonSet calico-node",
            format!("several: {}", names(&keys)),
            "one DaemonSet that runs calico-node",
            "delete the one that is not Calico's, or remove hostNetwork from its pods",
        )]
    })?;
    let of_calico = |part: &dyn Fn(&engine::cluster::DaemonSet) -> String, default: &str| {
        let found = calico.map(|set| (part(set), format!("DaemonSet {}", set.key())));
        Sourced::choose(None, found, default.to_owned())
    };
    Ok(Settings {
        from: spec(options.from),
        to: spec(options.to),
        old_pool: Sourced {
            value: old.name.clone(),
            source: Source::Detected(detected(old)),
        },
        new_pool: Sourced::choose(
            None,
            there.map(|pool| (pool.name.clone(), detected(pool))),
            pool_name(&options.to),
        ),
        block_size: Sourced::choose(options.block_size, Some((size, detected(old))), size),
        calico_daemon_set_namespace: of_calico(&|set| set.namespace.clone(), KUBE_SYSTEM),
        calico_daemon_set_name: of_calico(&|set| set.name.clone(), "calico-node"),
        datastore: facts
            .datastore
            .detected
            .clone()
            .unwrap_or_else(|_| in_kubernetes()),
    })
}

/// The refusal if these two ranges do not fit together.
fn relation(options: &Options) -> Option<Check> {
    let Options { from, to, family, .. } = options;
    let refuse = |field: &str, found: String, needed: &str, fix: String| {
        let object = format!("spec.podCidr.{field}");
        Some(CheckName::Ranges.not_pass(Verdict::Fail, object, found, needed, fix))
    };
    if let Some(family) = family.filter(|family| *family != Family::of(from)) {
        return refuse(
            "family",
            family.as_str().to_owned(),
            Family::of(from).as_str(),
            format!("spec.podCidr.from is {from}: correct one of the two"),
        );
    }
    match ranges::relation(from, to) {
        Relation::Apart => None,
        Relation::Same => refuse(
            "to",
            format!("{to}, the same as spec.podCidr.from"),
            "a range that does not overlap it",
            "to change the block size of the same range, migrate to another range and back".to_owned(),
        ),
        Relation::OtherFamily => refuse(
            "to",
            format!("{to}, of another family than spec.podCidr.from ({from})"),
            "a range of the same family",
            "use one migration per address family".to_owned(),
        ),
        Relation::NewWithinOld => refuse(
            "to",
            format!("{to}, within spec.podCidr.from ({from})"),
            "a range that does not overlap it",
            format!(
                "migrate in two hops: from {from} to a third range that overlaps neither, and from there to {to}; \
                 `kubectl replumb generate pod-cidr` generates both Migrations"
            ),
        ),
        Relation::OldWithinNew => refuse(
            "to",
            format!("{to}, which contains spec.podCidr.from ({from})"),
            "a range that does not overlap it",
            format!(
                "migrate in two hops to get the larger pool: from {from} to a third range that overlaps neither, and from there \
                 to {to}"
            ),
        ),
    }
}

fn old_pool<'facts>(options: &Options, facts: &'facts ClusterFacts) -> Result<&'facts Pool, Box<Check>> {
    let refuse = |found: String, fix: String| {
        let object = format!("IPPool of {}", options.from);
        let needed = "one pool of this range";
        Box::new(CheckName::OldPool.not_pass(Verdict::Fail, object, found, needed, fix))
    };
    let of_range: Vec<&Pool> = facts
        .pools
        .values()
        .filter(|pool| pool.range == options.from)
        .collect();
    match of_range.as_slice() {
        [pool] => Ok(pool),
        [] => {
            let all: Vec<String> = facts.pools.values().map(describe).collect();
            let found = if all.is_empty() {
                "no IPPool".to_owned()
            } else {
                format!("IPPools {}", names(&all))
            };
            let fix = if facts.pools.is_empty() {
                "check that Calico's IPAM is in use, and its datastore: pools in etcd are read if calico-node has \
                 ETCD_ENDPOINTS and no DATASTORE_TYPE kubernetes"
            } else {
                "set spec.podCidr.from to the range of an existing pool"
            };
            Err(refuse(found, fix.to_owned()))
        }
        several => {
            let all: Vec<String> = several.iter().map(|pool| describe(pool)).collect();
            Err(refuse(
                format!("{} IPPools: {}", several.len(), names(&all)),
                "delete the pool without blocks: Calico does not support two pools of one range".to_owned(),
            ))
        }
    }
}

fn describe(pool: &Pool) -> String {
    format!("{} ({})", pool.name, pool.range)
}

#[cfg(test)]
mod tests;
