//! Checks of pods that have to leave: volumes that would be lost, and static pods. All kinds of migration share them.

use super::{Check, Finding, Report, Verdict};
use crate::drain::{self, Permissions, Pod};
use crate::words::names;

/// The verdict and the fix for a pod that cannot be evicted: the migration is refused, unless the user has set with
/// `drain.onBlocked` what happens `meanwhile`.
pub fn verdict_for_blocked_pod(
    meanwhile: Option<&'static str>,
    verdict: Verdict,
    fix: &str,
) -> (Verdict, String) {
    match meanwhile {
        None => (verdict, fix.to_owned()),
        Some(meanwhile) => (
            Verdict::Warn,
            format!("{fix}; until then, as set by spec.drain.onBlocked, {meanwhile}"),
        ),
    }
}

/// Pods that would lose their data. They refuse the migration, unless the user has set what happens `meanwhile`.
pub fn empty_dir(
    name: impl Into<&'static str>,
    leaving: &[&Pod],
    permissions: Permissions,
    meanwhile: Option<&'static str>,
) -> Vec<Check> {
    let mut report = Report::new(name);
    for pod in leaving
        .iter()
        .filter(|pod| !pod.mirror && !pod.empty_dirs.is_empty())
    {
        let (verdict, fix) = if permissions.delete_empty_dir_data {
            (
                Verdict::Warn,
                "allowed by spec.drain.deleteEmptyDirData: the data is lost with the pod".to_owned(),
            )
        } else {
            verdict_for_blocked_pod(
                meanwhile,
                Verdict::Fail,
                "the data is lost when the pod leaves its node: back up the data, then set spec.drain.deleteEmptyDirData",
            )
        };
        let found = format!("emptyDir volumes {}", names(&pod.empty_dirs));
        report.add(
            verdict,
            "Pod",
            pod.key(),
            Finding::new("", found, "no emptyDir volume", fix),
        );
    }
    report.finish("every pod that has to leave", "has no emptyDir volume")
}

/// Pods that the API cannot evict.
pub fn static_pods(name: impl Into<&'static str>, leaving: &[&Pod]) -> Vec<Check> {
    let mut report = Report::new(name);
    let obstacle = |pod: &Pod| drain::obstacle(pod, Permissions::default());
    for pod in leaving
        .iter()
        .filter(|pod| obstacle(pod) == Some(drain::Obstacle::Static))
    {
        report.fail(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                format!("a static pod on the pod network of node {}", pod.node),
                "static pods with hostNetwork only",
                "the API cannot evict the pod, and it would keep the old network: move its manifest out of the kubelet's \
                 static pod path while the node is being migrated",
            ),
        );
    }
    report.finish("every static pod", "uses the host network")
}
