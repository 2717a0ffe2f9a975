//! Calico's datastore: it can be read, and its version of Calico behaves as this migration expects.

use super::CheckName;
use crate::datastore::{Datastore, EtcdFacts};
use crate::facts::{ClusterFacts, Pool};
use crate::pools;
use crate::settings::Settings;
use calico::etcd::ReadyV3;
use engine::check::{Check, Finding, Report};

/// The first release whose IPAM respects the node selectors of pools. An earlier one would give all pods addresses that are
/// meant for traffic pods.
const LEAST: (u32, u32) = (3, 6);

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    judge(facts, facts.pools.get(&settings.old_pool.value))
}

/// The same, before a pool is known.
pub(crate) fn reach(facts: &ClusterFacts) -> Vec<Check> {
    judge(facts, None)
}

fn judge(facts: &ClusterFacts, old: Option<&Pool>) -> Vec<Check> {
    let mut report = Report::new(CheckName::DatastoreAccess);
    let said = match &facts.datastore.detected {
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
            Finding::new(
                "",
                "not read",
                "an answer of etcd",
                "check the log of the coordinator",
            ),
        ),
        Some(Err(problem)) => report.unknown(
            "",
            said.value.to_string(),
            Finding::new(
                "",
                &problem.message,
                "an answer of etcd to the coordinator",
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
            "in {}, version {version}, in use by Calico {}",
            said.value,
            calico.as_deref().unwrap_or("of unknown version")
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
            "missing",
            "check that calico-node is of version 3: Calico v2 stores its objects in etcd v2; convert them first, with a \
             Migration of kind calicoDatastore",
        ),
        ReadyV3::Paused => (
            "datastoreReady false",
            "complete the conversion from v2 that has paused Calico: see `kubectl replumb datastore status`, then use a \
             Migration of kind calicoDatastore or `kubectl replumb datastore complete`",
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
        // Builds between releases have other versions.
        report.warn(
            "",
            object,
            Finding::new(
                "calicoVersion",
                if text.is_empty() { "none" } else { text },
                needed,
                "check the image of calico-node: an earlier version ignores the node selectors of pools",
            ),
        );
        return;
    };
    if version < LEAST {
        let fix = if version.0 < LEAST.0 {
            "restart calico-node v3, which has not started since the conversion (a Migration of kind calicoDatastore does so)"
        } else {
            "upgrade Calico first: before v3.6 its IPAM ignores the node selectors of pools, so all pods would get addresses of \
             the new pool while only traffic pods may"
        };
        report.fail("", object, Finding::new("calicoVersion", text, needed, fix));
    }
}

/// Tunnel addresses are changed through Calico's Nodes: each Node needs one with its name.
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
                "missing",
                "one with the name of the Node",
                "check that calico-node runs there. Other host names (NODENAME in its DaemonSet) are not supported by this \
                 migration",
            ),
        );
    }
}

/// Major and minor of a version such as `v3.31.7`; `None` if it is not a release.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
