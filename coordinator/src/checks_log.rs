//! Checks in the log. A status names the first of many objects; the log names all of them. Each line is logged once while it is
//! found, with a limit for each read, so that tenants cannot flood the log with their objects.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use engine::check::{Check, Verdict};
use tracing::info;

/// Most lines logged for one read. The remaining lines follow with later reads.
const AT_ONCE: usize = 200;

/// Hashes of current lines: true once logged, false while waiting.
#[derive(Debug, Default)]
pub struct ChecksLog(HashMap<u64, bool>);

impl ChecksLog {
    /// Logs the lines of these checks that are not logged yet.
    pub fn log(&mut self, checks: &[Check]) {
        let (next_lines, waiting) = self.next_lines(checks);
        for check in next_lines {
            info!(verdict = ?check.verdict, check = check.line(), "check result");
        }
        if waiting > 0 {
            info!(lines = waiting, "more check results wait to be logged");
        }
    }

    /// Lines to log now, and the number of waiting lines. Lines that waited longest come first, so a tenant with new lines at
    /// each read delays no other line.
    fn next_lines<'checks>(&mut self, checks: &'checks [Check]) -> (Vec<&'checks Check>, usize) {
        let is_found = |check: &&Check| check.verdict != Verdict::Pass;
        let is_shortened = checks
            .iter()
            .any(|check| !check.whole.is_empty() && is_found(&check));
        let all = checks.iter().flat_map(Check::in_full).filter(is_found);
        let mut standing = HashMap::new();
        let (mut waited, mut new) = (Vec::new(), Vec::new());
        for check in all.filter(|_| is_shortened) {
            let hash = hash(check);
            let known = self.0.get(&hash).copied();
            if standing.insert(hash, known == Some(true)).is_some() {
                continue;
            }
            match known {
                Some(true) => {}
                Some(false) => waited.push((hash, check)),
                None => new.push((hash, check)),
            }
        }
        self.0 = standing;
        let waiting = (waited.len() + new.len()).saturating_sub(AT_ONCE);
        let next = waited.into_iter().chain(new).take(AT_ONCE);
        let mut next_lines = Vec::new();
        for (hash, check) in next {
            self.0.insert(hash, true);
            next_lines.push(check);
        }
        (next_lines, waiting)
    }
}

fn hash(check: &Check) -> u64 {
    let mut hasher = DefaultHasher::new();
    check.line().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: &str) -> Check {
        Check::not_pass("EmptyDir", Verdict::Warn, "Pod a/b", found, "", "")
    }

    /// One shortened line for these.
    fn of(found: &[String]) -> Check {
        Check {
            whole: found.iter().map(|found| check(found)).collect(),
            ..check("many")
        }
    }

    fn texts(numbers: impl Iterator<Item = usize>) -> Vec<String> {
        numbers.map(|number| number.to_string()).collect()
    }

    fn logged(log: &mut ChecksLog, checks: &[Check]) -> (Vec<String>, usize) {
        let (next_lines, waiting) = log.next_lines(checks);
        (
            next_lines.iter().map(|check| check.found.clone()).collect(),
            waiting,
        )
    }

    #[test]
    fn a_line_is_logged_once_while_it_is_found() {
        let mut log = ChecksLog::default();
        let mut all = texts(0..20);
        assert_eq!(logged(&mut log, &[of(&all)]), (all.clone(), 0));
        assert_eq!(logged(&mut log, &[of(&all)]), (Vec::new(), 0));
        // A tenant changes one object.
        all[7] = "changed".to_owned();
        assert_eq!(logged(&mut log, &[of(&all)]), (vec!["changed".to_owned()], 0));
        all[7] = "7".to_owned();
        assert_eq!(logged(&mut log, &[of(&all)]).0, ["7"]);
    }

    #[test]
    fn complete_lines_and_passed_checks_are_not_logged() {
        let mut log = ChecksLog::default();
        assert_eq!(logged(&mut log, &[check("a")]), (Vec::new(), 0));
        let passes = Check {
            verdict: Verdict::Pass,
            ..of(&texts(0..20))
        };
        assert_eq!(logged(&mut log, &[passes]), (Vec::new(), 0));
    }

    #[test]
    fn steady_lines_are_logged_while_other_lines_change_at_each_read() {
        let mut log = ChecksLog::default();
        let steady = texts(0..1000);
        let mut seen = Vec::new();
        for read in 0..6 {
            let hostile: Vec<String> = (0..20_000).map(|pod| format!("read {read} pod {pod}")).collect();
            let (next_lines, waiting) = logged(&mut log, &[of(&hostile), of(&steady)]);
            assert_eq!(next_lines.len(), AT_ONCE);
            assert!(waiting >= 20_000);
            seen.extend(next_lines.into_iter().filter(|found| !found.starts_with("read")));
        }
        assert_eq!(seen, steady);
    }
}
