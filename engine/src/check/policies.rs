//! Do the admission policies hold that bound the accounts of coordinator and agents?

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

/// How the API server has a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyState {
    /// There is none of the name.
    Absent,
    /// No binding of it denies anything.
    Unbound,
    /// It is there, and a binding of it denies.
    Bound,
}

/// Every one of [`POLICIES`] is there and bound; `found` is what the API server has, by name.
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
                Finding::new("", "not there", needed, FIX),
            ),
            Some(PolicyState::Unbound) => report.fail(
                "ValidatingAdmissionPolicyBinding",
                policy,
                Finding::new("", "not there, or without Deny in validationActions", needed, FIX),
            ),
            None => report.unknown(
                "ValidatingAdmissionPolicy",
                policy,
                Finding::new("", "not asked", needed, "see the coordinator's log"),
            ),
        }
    }
    report.finish(
        "the admission policies of replumb",
        format!("{} installed and bound", POLICIES.len()),
    )
}

/// All of them, as a good cluster has them.
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
    #[case::not_asked(None, Verdict::Unknown, "ValidatingAdmissionPolicy replumb-drift-nodes")]
    fn one_that_does_not_hold_refuses(
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
