//! Pods that have to leave, and what would keep them, whatever kind of migration asks them to.

use super::{Check, Finding, Report, Verdict, names};
use crate::drain::{self, Permissions, Pod};

/// What a pod that does not go means for the beginning, and what a person does: a refusal, unless the user has said what happens
/// `meanwhile` (`drain.onBlocked`).
pub fn held(meanwhile: Option<&'static str>, verdict: Verdict, fix: &str) -> (Verdict, String) {
    match meanwhile {
        None => (verdict, fix.to_owned()),
        Some(meanwhile) => (
            Verdict::Warn,
            format!("{fix}; until then, by spec.drain.onBlocked, {meanwhile}"),
        ),
    }
}

/// Pods that would lose their data. They refuse, unless the user has said what happens `meanwhile`.
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
            held(
                meanwhile,
                Verdict::Fail,
                "the data is lost when the pod leaves its node: save what matters, then allow it by \
                 spec.drain.deleteEmptyDirData",
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
                "the API cannot evict it, and it would keep a dead network: move its manifest out of the kubelet's \
                 folder while the node is in work",
            ),
        );
    }
    report.finish("every static pod", "is on the host's network")
}
