//! Check of the admission policies that limit the service accounts of coordinator and agents.

use std::collections::BTreeMap;

use super::{Check, Finding, Report};

/// Every policy that `deploy/base` installs, each with a binding.
pub const POLICIES: [&str; 17] = [
    "replumb-agent-own-node",
    "replumb-coordinator-bounds-calico",
    "replumb-coordinator-bounds-daemonsets",
    "replumb-coordinator-bounds-endpointslices",
    "replumb-coordinator-bounds-evictions",
    "replumb-coordinator-bounds-images",
    "replumb-coordinator-bounds-migration",
    "replumb-coordinator-bounds-nodes",
    "replumb-coordinator-bounds-pods",
    "replumb-coordinator-bounds-scale",
    "replumb-coordinator-bounds-secrets",
    "replumb-coordinator-bounds-servicecidrs",
    "replumb-coordinator-bounds-services",
    "replumb-drift-calico",
    "replumb-drift-daemonsets",
    "replumb-drift-nodes",
    "replumb-migration-under-way",
];

/// The state of a policy in the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyState {
    /// The policy does not exist.
    Absent,
    /// The policy exists, and no binding of it denies requests.
    Unbound,
    /// The policy exists, and a binding of it denies requests.
    Bound,
}

/// Checks that all [`POLICIES`] exist and are bound; `found` has the state of each policy by name.
pub fn policies(name: impl Into<&'static str>, found: &BTreeMap<String, PolicyState>) -> Vec<Check> {
    const FIX: &str = "kubectl apply --server-side -k deploy/base";
    let mut report = Report::new(name);
    for policy in POLICIES {
        let needed = "a policy with a binding that denies";
        match found.get(policy) {
            Some(PolicyState::Bound) => {}
            Some(PolicyState::Absent) => report.fail(
                "ValidatingAdmissionPolicy",
                policy,
                Finding::new("", "does not exist", needed, FIX),
            ),
            Some(PolicyState::Unbound) => report.fail(
                "ValidatingAdmissionPolicyBinding",
                policy,
                Finding::new(
                    "",
                    "does not exist, or has no Deny in validationActions",
                    needed,
                    FIX,
                ),
            ),
            None => report.unknown(
                "ValidatingAdmissionPolicy",
                policy,
                Finding::new("", "not read", needed, "see the coordinator's log"),
            ),
        }
    }
    report.finish(
        "the admission policies of replumb",
        format!("{} installed and bound", POLICIES.len()),
    )
}

/// All policies, each in the state of a correct installation.
pub fn all_bound() -> BTreeMap<String, PolicyState> {
    POLICIES
        .map(|policy| (policy.to_owned(), PolicyState::Bound))
        .into()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::check::Verdict;

    #[rstest]
    #[case::absent(
        Some(PolicyState::Absent),
        Verdict::Fail,
        "ValidatingAdmissionPolicy replumb-drift-nodes"
    )]
    #[case::unbound(
        Some(PolicyState::Unbound),
        Verdict::Fail,
        "ValidatingAdmissionPolicyBinding replumb-drift-nodes"
    )]
    #[case::not_read(None, Verdict::Unknown, "ValidatingAdmissionPolicy replumb-drift-nodes")]
    fn a_policy_that_is_not_bound_refuses(
        #[case] state: Option<PolicyState>,
        #[case] verdict: Verdict,
        #[case] object: &str,
    ) {
        let mut found = all_bound();
        assert_eq!(policies("AdmissionPolicies", &found).len(), 1);
        assert_eq!(policies("AdmissionPolicies", &found)[0].verdict, Verdict::Pass);
        found.remove("replumb-drift-nodes");
        found.extend(state.map(|state| ("replumb-drift-nodes".to_owned(), state)));
        let checks = policies("AdmissionPolicies", &found);
        assert_eq!(checks.len(), 1, "{checks:?}");
        assert_eq!((checks[0].verdict, checks[0].object.as_str()), (verdict, object));
    }
}
