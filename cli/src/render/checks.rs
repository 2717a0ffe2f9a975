//! Checks, failures first.

use engine::check::{Check, Verdict};

use crate::table::{table, wrap};

/// Width of the texts of a check.
const WIDTH: usize = 96;

/// Every check: a block with object, values and fix for each that does not pass, and one line for each that passes.
pub fn checks(checks: &[Check]) -> String {
    let mut sorted: Vec<&Check> = checks.iter().collect();
    // A stable sort keeps the coordinator's order within a verdict.
    sorted.sort_by_key(|check| std::cmp::Reverse(check.verdict));
    let mut text = String::new();
    for check in sorted.iter().filter(|check| check.verdict != Verdict::Pass) {
        text.push_str(&block(check));
    }
    let passed: Vec<Vec<String>> = sorted
        .iter()
        .filter(|check| check.verdict == Verdict::Pass)
        .map(|check| {
            vec![
                word(check.verdict),
                check.name.clone(),
                check.object.clone(),
                check.found.clone(),
            ]
        })
        .collect();
    text.push_str(&table(&[], &passed));
    text
}

/// Checks that refuse the migration, for the end of a plan; empty without any.
pub fn refusals(checks: &[Check]) -> String {
    checks
        .iter()
        .filter(|check| !check.verdict.allows())
        .map(block)
        .collect()
}

/// `2 Fail, 1 Unknown, 3 Warn, 18 Pass`.
pub fn count(checks: &[Check]) -> String {
    let parts: Vec<String> = [Verdict::Fail, Verdict::Unknown, Verdict::Warn, Verdict::Pass]
        .into_iter()
        .map(|verdict| {
            (
                verdict,
                checks.iter().filter(|check| check.verdict == verdict).count(),
            )
        })
        .filter(|(_, number)| *number > 0)
        .map(|(verdict, number)| format!("{number} {}", word(verdict)))
        .collect();
    if parts.is_empty() {
        "no checks".to_owned()
    } else {
        parts.join(", ")
    }
}

fn block(check: &Check) -> String {
    let mut text = format!("{:<7}  {}: {}\n", word(check.verdict), check.name, check.object);
    for (label, value) in [
        ("found", &check.found),
        ("needed", &check.needed),
        ("fix", &check.fix),
    ] {
        for (index, line) in wrap(value, WIDTH).into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            text.push_str(&format!("         {label:<6}  {line}\n"));
        }
    }
    text
}

fn word(verdict: Verdict) -> String {
    verdict.as_str().to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_come_first_with_object_values_and_fix() {
        let list = [
            Check::pass(
                "FlannelVersion",
                "DaemonSet kube-flannel/kube-flannel-ds",
                "v0.28.4",
            ),
            Check::not_pass(
                "BarePods",
                Verdict::Warn,
                "Pod default/lonely",
                "no controller",
                "",
                "delete it",
            ),
            Check::not_pass(
                "FlannelBackend",
                Verdict::Fail,
                "ConfigMap kube-flannel/kube-flannel-cfg",
                "host-gw",
                "vxlan",
                "Change Backend.Type",
            ),
        ];
        insta::assert_snapshot!(checks(&list), @r"
        FAIL     FlannelBackend: ConfigMap kube-flannel/kube-flannel-cfg
                 found   host-gw
                 needed  vxlan
                 fix     Change Backend.Type
        WARN     BarePods: Pod default/lonely
                 found   no controller
                 fix     delete it
        PASS  FlannelVersion  DaemonSet kube-flannel/kube-flannel-ds  v0.28.4
        ");
        assert_eq!(count(&list), "1 FAIL, 1 WARN, 1 PASS");
        assert!(!refusals(&list).contains("BarePods"));
    }

    #[test]
    fn an_empty_list_is_not_a_pass() {
        assert_eq!(count(&[]), "no checks");
    }
}
