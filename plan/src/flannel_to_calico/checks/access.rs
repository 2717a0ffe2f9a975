//! Was every object understood, and may everything be done?

use super::{CheckName, PERMISSIONS};
use crate::check::{Check, access, policies};
use crate::flannel_to_calico::cluster::ClusterFacts;

/// Labels of Nodes are a prerequisite of their own ([`super::nodes`]).
pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    [
        access::malformed(CheckName::MalformedObjects, &facts.malformed),
        access::permissions(CheckName::Permissions, &PERMISSIONS, &facts.permissions),
        policies::policies(CheckName::AdmissionPolicies, &facts.policies),
    ]
    .concat()
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
            [
                ("MalformedObjects", Pass),
                ("Permissions", Pass),
                ("AdmissionPolicies", Pass)
            ]
        );
    }

    #[test]
    fn what_was_not_understood_is_unknown() {
        let mut facts = fixture::cluster();
        facts.malformed.push(Malformed {
            object: "IPPool x".to_owned(),
            problem: "spec.cidr: found 1, needed a network".to_owned(),
        });
        let checks = access::malformed(CheckName::MalformedObjects, &facts.malformed);
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
        let checks = access::permissions(CheckName::Permissions, &PERMISSIONS, &facts.permissions);
        assert_eq!(verdicts(&checks), [("Permissions", expected)]);
        assert_eq!(checks[0].object, "permission delete daemonsets.apps");
    }

    #[test]
    fn permissions_have_the_keys_that_kubectl_speaks() {
        let keys: Vec<String> = PERMISSIONS.iter().map(crate::check::Permission::key).collect();
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
