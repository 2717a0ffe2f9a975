//! Checks of `spec.rollout`.

use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report};

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let object = "spec.rollout.maxUnavailable";
    let mut report = Report::new(CheckName::MaxUnavailable);
    let found = match &policy.max_unavailable {
        Ok(limit) => format!(
            "at most {} of {} nodes at the same time",
            limit.resolve(facts.nodes.len()),
            facts.nodes.len()
        ),
        Err(error) => {
            let finding = Finding::new(
                "",
                &error.found,
                "a number from 1 or a percentage from 1% to 100%",
                "correct the value and apply again",
            );
            report.fail("", object, finding);
            error.found.clone()
        }
    };
    report.finish(object, found)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{self, verdicts};
    use super::*;
    use engine::check::Verdict::{Fail, Pass};
    use engine::rollout::MaxUnavailable;

    #[test]
    fn a_percentage_passes_and_zero_fails() {
        let judge = |text: &str| {
            let policy = CheckPolicy {
                max_unavailable: MaxUnavailable::parse(text),
                ..fixture::policy()
            };
            check(&fixture::cluster(), &policy)
        };
        assert_eq!(verdicts(&judge("34%")), [("MaxUnavailable", Pass)]);
        assert_eq!(judge("34%")[0].found, "at most 2 of 3 nodes at the same time");
        let refused = judge("0");
        assert_eq!(verdicts(&refused), [("MaxUnavailable", Fail)]);
        assert_eq!(refused[0].object, "spec.rollout.maxUnavailable");
    }
}
