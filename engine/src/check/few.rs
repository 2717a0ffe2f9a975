//! Bounds the checks of a status to the size that a status has room for.

use std::collections::BTreeMap;

use super::report::worst;
use super::{Check, Verdict};
use crate::words::{cut, names};

/// The encoded size of a check without its texts.
const LINE_BYTES: usize = 128;
/// Objects of lines that are only counted are cut to this many bytes.
const OBJECTS_BYTES: usize = 512;

/// The checks that fit into `bytes` bytes, the worst first. Checks that do not fit are counted, in one line for each prerequisite
/// with the worst of their verdicts: every refusal is visible.
pub fn fit_checks(mut checks: Vec<Check>, bytes: usize) -> Vec<Check> {
    checks.sort_by(|left, right| {
        let verdicts = right.verdict.cmp(&left.verdict);
        verdicts.then_with(|| left.name.cmp(&right.name))
    });
    let mut room = bytes;
    let mut shown = Vec::new();
    let mut omitted: BTreeMap<String, Vec<Check>> = BTreeMap::new();
    for check in checks {
        match room.checked_sub(size(&check)) {
            Some(rest) if omitted.is_empty() => {
                room = rest;
                shown.push(check);
            }
            Some(_) | None => omitted.entry(check.name.clone()).or_default().push(check),
        }
    }
    shown.extend(omitted.into_iter().map(|(name, checks)| counted(name, &checks)));
    shown.sort_by_key(|check| std::cmp::Reverse(check.verdict));
    shown
}

fn size(check: &Check) -> usize {
    let texts = [
        &check.name,
        &check.object,
        &check.found,
        &check.needed,
        &check.fix,
    ];
    LINE_BYTES + texts.into_iter().map(String::len).sum::<usize>()
}

fn counted(name: String, checks: &[Check]) -> Check {
    let verdict = worst(checks);
    let objects: Vec<&str> = checks.iter().map(|check| check.object.as_str()).collect();
    let objects = cut(&names(&objects), OBJECTS_BYTES).into_owned();
    let lines = match checks.len() {
        1 => "1 more line".to_owned(),
        count => format!("{count} more lines"),
    };
    let mut counted = match verdict {
        Verdict::Pass => Check::pass(name, objects, lines),
        Verdict::Warn | Verdict::Unknown | Verdict::Fail => Check::not_pass(
            name,
            verdict,
            objects,
            format!("{lines} of this check that do not fit into the status"),
            "",
            "correct the listed objects first; the others are listed next. The coordinator's log has all of them",
        ),
    };
    counted.whole = checks.iter().flat_map(|check| check.in_full().to_vec()).collect();
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(name: &str, object: &str) -> Check {
        Check::not_pass(name, Verdict::Fail, object, "bad", "good", "correct it")
    }

    #[test]
    fn checks_that_fit_are_all_kept_and_sorted() {
        let checks = vec![
            Check::pass("A", "a", "fine"),
            fail("C", "c"),
            Check::not_pass("B", Verdict::Warn, "b", "", "", ""),
            fail("B", "b"),
        ];
        let few = fit_checks(checks.clone(), 1 << 16);
        let order: Vec<(&str, Verdict)> = few
            .iter()
            .map(|check| (check.name.as_str(), check.verdict))
            .collect();
        assert_eq!(
            order,
            [
                ("B", Verdict::Fail),
                ("C", Verdict::Fail),
                ("B", Verdict::Warn),
                ("A", Verdict::Pass)
            ]
        );
        assert!(checks.iter().all(|check| few.contains(check)));
    }

    #[test]
    fn many_findings_are_bounded_and_every_check_is_named() {
        let long = "x".repeat(1 << 20);
        let checks: Vec<Check> = (0..40)
            .flat_map(|name| (0..11).map(move |_| format!("Check{name}")))
            .map(|name| fail(&name, &long))
            .collect();
        let few = fit_checks(checks, 1 << 16);
        let bytes = serde_json::to_vec(&few).unwrap().len();
        assert!(bytes < 2 << 16, "{bytes}");
        for name in 0..40 {
            let name = format!("Check{name}");
            assert!(
                few.iter()
                    .any(|check| check.name == name && !check.verdict.allows())
            );
        }
    }
}
