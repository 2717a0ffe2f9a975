//! Checks of parsed objects, permissions and admission policies.

use super::{CheckName, PERMISSIONS};
use crate::facts::ClusterFacts;
use engine::check::{Check, access, policies};

/// Node labels have a check of their own ([`super::nodes`]).
pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    [
        access::malformed(
            CheckName::MalformedObjects,
            &facts.malformed,
            facts.nodes.values(),
            &facts.pods,
        ),
        access::permissions(
            CheckName::Permissions,
            &PERMISSIONS,
            &facts.permissions,
            access::BASE_ROLES,
        ),
        policies::policies(CheckName::AdmissionPolicies, &facts.policies),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;
    use engine::check::Verdict::{Fail, Pass, Unknown, Warn};
    use engine::cluster::{Malformed, Needed, NotUnderstood};

    #[test]
    fn a_healthy_cluster_passes() {
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
    fn a_malformed_object_is_unknown() {
        let mut facts = fixture::cluster();
        facts.malformed.push(Malformed {
            object: "IPPool x".to_owned(),
            problem: "spec.cidr: found 1, needed a network".to_owned(),
        });
        let checks = check(&facts);
        assert_eq!(
            verdicts(&checks),
            [
                ("MalformedObjects", Unknown),
                ("Permissions", Pass),
                ("AdmissionPolicies", Pass)
            ]
        );
        assert!(
            checks[0]
                .line()
                .contains("object IPPool x: found spec.cidr: found 1, needed a network")
        );
    }

    #[test]
    fn a_malformed_field_warns_with_its_object() {
        let mut facts = fixture::cluster();
        let field = |field: &str, needed| NotUnderstood {
            field: field.to_owned(),
            found: "\"x\"".to_owned(),
            needed,
        };
        let mut pod = fixture::pod("web", "a");
        pod.not_understood = vec![field("container c: resources.requests.cpu", Needed::Quantity)];
        facts.pods.push(pod);
        let node = facts.nodes.get_mut("b").unwrap();
        node.not_understood = vec![field("status.addresses", Needed::Address)];
        let checks = check(&facts);
        assert_eq!(
            verdicts(&checks),
            [
                ("MalformedObjects", Warn),
                ("MalformedObjects", Warn),
                ("Permissions", Pass),
                ("AdmissionPolicies", Pass)
            ]
        );
        assert_eq!(
            [checks[0].line(), checks[1].line()],
            [
                "MalformedObjects: Node b: status.addresses: found \"x\", needed an IP address. Fix: correct the value: until then the value \
                 counts as no address",
                "MalformedObjects: Pod shop/web: container c: resources.requests.cpu: found \"x\", needed a quantity. Fix: correct the \
                 value: until then the value counts as 0 in comparisons",
            ]
        );
    }

    #[rstest]
    #[case::denied(Some(false), Fail)]
    #[case::not_known(None, Unknown)]
    fn a_missing_permission_does_not_pass(
        #[case] answer: Option<bool>,
        #[case] expected: engine::check::Verdict,
    ) {
        let mut facts = fixture::cluster();
        facts.permissions.remove("delete daemonsets.apps");
        facts
            .permissions
            .extend(answer.map(|answer| ("delete daemonsets.apps".to_owned(), answer)));
        let checks = access::permissions(
            CheckName::Permissions,
            &PERMISSIONS,
            &facts.permissions,
            access::BASE_ROLES,
        );
        assert_eq!(verdicts(&checks), [("Permissions", expected)]);
        assert_eq!(checks[0].object, "permission delete daemonsets.apps");
    }

    #[test]
    fn permissions_have_the_keys_of_kubectl_auth_can_i() {
        let keys: Vec<String> = PERMISSIONS.iter().map(engine::check::Permission::key).collect();
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
