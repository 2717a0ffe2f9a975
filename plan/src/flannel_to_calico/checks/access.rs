//! Was every object understood, and may everything be done?

use super::{CheckName, PERMISSIONS};
use crate::check::{Check, Finding, Permission, Report};
use crate::flannel_to_calico::cluster::ClusterFacts;

pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    [malformed(facts), permissions(facts)].concat()
}

fn malformed(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::MalformedObjects);
    for object in &facts.malformed {
        report.unknown(
            "object",
            &object.object,
            Finding::new(
                "",
                &object.problem,
                "a value that can be understood",
                "correct the object or delete it",
            ),
        );
    }
    report.finish("every object that was read", "understood")
}

/// Labels of Nodes are a prerequisite of their own ([`super::nodes`]).
fn permissions(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Permissions);
    for key in PERMISSIONS.iter().map(Permission::key) {
        match facts.permissions.get(&key) {
            Some(true) => {}
            Some(false) => report.fail(
                "permission",
                key,
                Finding::new(
                    "",
                    "denied by the API server",
                    "allowed",
                    "apply the coordinator's ClusterRole again, and see who else decides (webhook authorizer)",
                ),
            ),
            None => report.unknown(
                "permission",
                key,
                Finding::new("", "not asked", "an answer of the API server", "see the coordinator's log"),
            ),
        }
    }
    report.finish(
        "the coordinator's permissions",
        format!("{} allowed", PERMISSIONS.len()),
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;
    use crate::check::Verdict::{Fail, Pass, Unknown};
    use crate::cluster::Malformed;

    #[test]
    fn a_good_cluster() {
        assert_eq!(
            verdicts(&check(&fixture::cluster())),
            [("MalformedObjects", Pass), ("Permissions", Pass)]
        );
    }

    #[test]
    fn what_was_not_understood_is_unknown() {
        let mut facts = fixture::cluster();
        facts.malformed.push(Malformed {
            object: "IPPool x".to_owned(),
            problem: "spec.cidr: found 1, needed a network".to_owned(),
        });
        let checks = malformed(&facts);
        assert_eq!(verdicts(&checks), [("MalformedObjects", Unknown)]);
        assert!(
            checks[0]
                .line()
                .contains("object IPPool x: found spec.cidr: found 1, needed a network")
        );
    }

    #[rstest]
    #[case::denied(Some(false), Fail)]
    #[case::not_asked(None, Unknown)]
    fn what_may_not_be_done(#[case] answer: Option<bool>, #[case] expected: crate::check::Verdict) {
        let mut facts = fixture::cluster();
        facts.permissions.remove("delete daemonsets.apps");
        facts
            .permissions
            .extend(answer.map(|answer| ("delete daemonsets.apps".to_owned(), answer)));
        let checks = permissions(&facts);
        assert_eq!(verdicts(&checks), [("Permissions", expected)]);
        assert_eq!(checks[0].object, "permission delete daemonsets.apps");
    }

    #[test]
    fn permissions_have_the_keys_that_kubectl_speaks() {
        let keys: Vec<String> = PERMISSIONS.iter().map(super::Permission::key).collect();
        assert_eq!(
            keys[..4],
            [
                "patch nodes",
                "create pods/eviction",
                "patch daemonsets.apps",
                "delete daemonsets.apps"
            ]
        );
    }
}
