//! Objects that cannot be parsed: the effect of each, and whether the migration can start nevertheless.

use super::CheckName;
use crate::facts::ClusterFacts;
use crate::settings::Settings;
use crate::unclear::Unclear;
use engine::check::{Check, Finding, Report, Verdict, access};
use engine::cluster::Malformed;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let touches =
        |unclear: &&Unclear| unclear.may_touch(&settings.from.value) || unclear.may_touch(&settings.to.value);
    // Calico's IPAM does not support pools that overlap.
    let (refusing, apart): (Vec<&Unclear>, Vec<&Unclear>) = facts.unclear_pools.iter().partition(touches);
    let refusing = refusing.into_iter().map(|pool| &pool.malformed);
    let malformed: Vec<Malformed> = facts.malformed.iter().chain(refusing).cloned().collect();
    let mut found = access::malformed(
        CheckName::MalformedObjects,
        &malformed,
        facts.nodes.values(),
        &facts.pods,
    );
    let mut report = Report::new(CheckName::MalformedObjects);
    for pool in apart {
        warn(
            &mut report,
            pool,
            "it has no effect, because it overlaps neither range",
        );
    }
    for block in &facts.unclear_blocks {
        let effect = match &block.node {
            _ if !touches(&block) => "it has no effect, because it overlaps neither range".to_owned(),
            Some(node) => format!(
                "node {node} may not get its tunnel address back in a rollback, and the pool of its range is not deleted"
            ),
            None => "the pool of its range is not deleted and, in a rollback, not opened while tunnels have to get addresses of \
                     it back"
                .to_owned(),
        };
        warn(&mut report, block, &effect);
    }
    if !report.is_clean() {
        found.retain(|check| check.verdict != Verdict::Pass);
        found.extend(report.finish("", ""));
    }
    found
}

fn warn(report: &mut Report, unclear: &Unclear, effect: &str) {
    let finding = Finding::new(
        "",
        &unclear.malformed.problem,
        "a valid value",
        format!("correct or delete the object; until then {effect}"),
    );
    report.warn("object", &unclear.malformed.object, finding);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::checks::fixture;

    fn unclear(object: &str, range: Option<&str>, node: Option<&str>) -> Unclear {
        Unclear {
            malformed: Malformed {
                object: object.to_owned(),
                problem: "spec.blockSize: found 99, needed a number up to 32".to_owned(),
            },
            range: range.map(|range| range.parse().unwrap()),
            node: node.map(str::to_owned),
        }
    }

    fn judged(change: impl FnOnce(&mut ClusterFacts)) -> (Verdict, String) {
        let mut facts = fixture::cluster();
        change(&mut facts);
        let [found] = check(&fixture::settings(&facts), &facts).try_into().unwrap();
        (found.verdict, found.object + ": " + &found.fix)
    }

    #[rstest]
    #[case::no_overlap("10.99.0.0/16", Verdict::Warn, "overlaps neither range")]
    #[case::in_the_old_range("10.244.128.0/17", Verdict::Unknown, "correct the object")]
    #[case::around_the_new_range("10.192.0.0/10", Verdict::Unknown, "correct the object")]
    fn an_unparsable_pool_refuses_only_if_it_overlaps(
        #[case] range: &str,
        #[case] verdict: Verdict,
        #[case] words: &str,
    ) {
        let (found, told) = judged(|facts| {
            facts
                .unclear_pools
                .push(unclear("IPPool strange", Some(range), None));
        });
        assert_eq!(found, verdict);
        assert!(told.contains("IPPool strange") && told.contains(words), "{told}");
    }

    #[rstest]
    #[case::no_overlap(Some("10.99.0.0/26"), None, "overlaps neither range")]
    #[case::of_a_node(
        Some("10.244.1.0/26"),
        Some("a"),
        "node a may not get its tunnel address back"
    )]
    #[case::of_an_unknown_node(None, None, "is not deleted")]
    fn an_unparsable_block_is_a_warning(
        #[case] range: Option<&str>,
        #[case] node: Option<&str>,
        #[case] words: &str,
    ) {
        let (found, told) = judged(|facts| {
            facts
                .unclear_blocks
                .push(unclear("IPAMBlock strange", range, node));
        });
        assert_eq!(found, Verdict::Warn);
        assert!(
            told.contains("IPAMBlock strange") && told.contains(words),
            "{told}"
        );
    }

    #[test]
    fn pods_of_an_unparsable_pool_do_not_move() {
        let mut facts = fixture::cluster();
        facts
            .unclear_pools
            .push(unclear("IPPool strange", Some("10.99.0.0/16"), None));
        let stay =
            fixture::settings(&facts).remaining_ranges(&"10.200.0.0/16".parse().unwrap(), facts.ranges());
        assert!(stay.contains(&"10.99.0.0/16".parse().unwrap()), "{stay:?}");
    }
}
