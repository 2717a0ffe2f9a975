//! Where Calico's objects are: can they be read there, and does this migration know how Calico goes by them?

use super::CheckName;
use crate::datastore::{Datastore, EtcdFacts};
use crate::facts::{ClusterFacts, Pool};
use crate::pools;
use crate::settings::Settings;
use calico::etcd::ReadyV3;
use engine::check::{Check, Finding, Report};

/// The first release whose IPAM goes by the node selectors of pools: one before gives everybody the addresses that are for the
/// pods that watch.
const LEAST: (u32, u32) = (3, 6);

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    judge(facts, facts.pools.get(&settings.old_pool.value))
}

/// The same before a pool is known.
pub(crate) fn reach(facts: &ClusterFacts) -> Vec<Check> {
    judge(facts, None)
}

fn judge(facts: &ClusterFacts, old: Option<&Pool>) -> Vec<Check> {
    let mut report = Report::new(CheckName::DatastoreAccess);
    let said = match &facts.datastore.said {
        Ok(said) => said,
        Err(unclear) => {
            let finding = Finding::new("", &unclear.found, &unclear.needed, &unclear.fix);
            report.fail("", &unclear.object, finding);
            return report.finish("Calico's objects", "");
        }
    };
    let object = format!("Calico's objects ({})", said.source);
    let Datastore { etcd: Some(_) } = &said.value else {
        return report.finish(object, format!("in {}", said.value));
    };
    match &facts.datastore.etcd {
        None => report.unknown(
            "",
            said.value.to_string(),
            Finding::new("", "not asked", "an answer of etcd", "see the coordinator's log"),
        ),
        Some(Err(problem)) => report.unknown(
            "",
            said.value.to_string(),
            Finding::new(
                "",
                &problem.message,
                "an answer of etcd, where the coordinator runs",
                &problem.hint,
            ),
        ),
        Some(Ok(found)) => {
            calico(&said.value, found, &mut report);
            if old.is_some_and(|old| pools::has_tunnel(&old.spec)) {
                nodes(facts, &mut report);
            }
        }
    }
    let found = match &facts.datastore.etcd {
        Some(Ok(EtcdFacts { version, calico, .. })) => format!(
            "in {}, of version {version}; Calico {} works with them",
            said.value,
            calico.as_deref().unwrap_or("without a version")
        ),
        Some(Err(_)) | None => String::new(),
    };
    report.finish(object, found)
}

fn calico(datastore: &Datastore, found: &EtcdFacts, report: &mut Report) {
    let object = format!("ClusterInformation default in {datastore}");
    let (said, fix) = match found.ready {
        ReadyV3::Open => {
            version(&object, found.calico.as_deref(), report);
            return;
        }
        ReadyV3::Missing => (
            "it is not there",
            "does calico-node run in a version of v3? Calico v2 keeps its objects in etcd's v2 store: convert it first, by a Migration with \
             calicoDatastore",
        ),
        ReadyV3::Paused => (
            "datastoreReady false",
            "Calico is paused, by a conversion from v2 that has not ended: see `kubectl replumb datastore status`, and finish it first (a \
             Migration with calicoDatastore, or `kubectl replumb datastore complete`)",
        ),
    };
    report.fail(
        "",
        object,
        Finding::new("", said, "datastoreReady true, written by Calico v3", fix),
    );
}

fn version(object: &str, found: Option<&str>, report: &mut Report) {
    let text = found.unwrap_or_default();
    let needed = format!("v{}.{} or later", LEAST.0, LEAST.1);
    let Some(version) = release(text) else {
        // Builds between releases have others.
        report.warn(
            "",
            object,
            Finding::new(
                "calicoVersion",
                if text.is_empty() { "nothing" } else { text },
                needed,
                "see by the image of calico-node that it is so: an earlier one does not go by the node selectors of pools",
            ),
        );
        return;
    };
    if version < LEAST {
        let fix = if version.0 < LEAST.0 {
            "calico-node of v3 has not started since the conversion: roll it first (a Migration with calicoDatastore does so)"
        } else {
            "upgrade Calico first: before v3.6 its IPAM does not go by the node selectors of pools, and everybody would get addresses of the \
             new one while only the pods that watch may"
        };
        report.fail("", object, Finding::new("calicoVersion", text, needed, fix));
    }
}

/// Ends of tunnels are exchanged node by node by what Calico's Nodes say: each has to be the one of a Node.
fn nodes(facts: &ClusterFacts, report: &mut Report) {
    for node in facts
        .linux_nodes()
        .filter(|node| !facts.calico_nodes.contains_key(&node.name))
    {
        report.fail(
            "Node",
            &node.name,
            Finding::new(
                "Calico's Node in etcd",
                "there is none of this name",
                "one, with the end of its tunnel",
                "does calico-node run there? Where it has named the host otherwise (NODENAME of its DaemonSet), this migration does not work: it goes \
                 by that name",
            ),
        );
    }
}

/// Major and minor of a version such as `v3.31.7`; `None` of what is no release.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
#[path = "datastore_tests.rs"]
mod tests;
