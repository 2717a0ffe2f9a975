//! What the log says of the checks. A status names the first of many objects, and the log names all of them: each line once while it
//! stands, and not too many at one look, whatever tenants do with their objects.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use engine::check::{Check, Verdict};
use tracing::info;

/// More lines than this are not logged at one look. The others are at the next ones.
const AT_ONCE: usize = 200;

/// Lines that stand, by their hashes: whether they are logged, or wait for that.
#[derive(Debug, Default)]
pub struct ChecksLog(HashMap<u64, bool>);

impl ChecksLog {
    /// Logs what is new of these checks.
    pub fn log(&mut self, checks: &[Check]) {
        let (news, waiting) = self.news(checks);
        for check in news {
            info!(verdict = ?check.verdict, check = check.line(), "found");
        }
        if waiting > 0 {
            info!(lines = waiting, "more is found, which the next looks log");
        }
    }

    /// What is to be logged now, and how many lines wait. Those that waited longest are the first: who makes new ones at each look keeps no
    /// other waiting.
    fn news<'checks>(&mut self, checks: &'checks [Check]) -> (Vec<&'checks Check>, usize) {
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
        let mut news = Vec::new();
        for (hash, check) in next {
            self.0.insert(hash, true);
            news.push(check);
        }
        (news, waiting)
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

    /// One line that stands for these.
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
        let (news, waiting) = log.news(checks);
        (news.iter().map(|check| check.found.clone()).collect(), waiting)
    }

    #[test]
    fn a_line_is_logged_once_while_it_stands() {
        let mut log = ChecksLog::default();
        let mut all = texts(0..20);
        assert_eq!(logged(&mut log, &[of(&all)]), (all.clone(), 0));
        assert_eq!(logged(&mut log, &[of(&all)]), (Vec::new(), 0));
        // A tenant changes one of them.
        all[7] = "changed".to_owned();
        assert_eq!(logged(&mut log, &[of(&all)]), (vec!["changed".to_owned()], 0));
        all[7] = "7".to_owned();
        assert_eq!(logged(&mut log, &[of(&all)]).0, ["7"]);
    }

    #[test]
    fn what_the_status_has_room_for_and_what_passes_is_not_logged() {
        let mut log = ChecksLog::default();
        assert_eq!(logged(&mut log, &[check("a")]), (Vec::new(), 0));
        let passes = Check {
            verdict: Verdict::Pass,
            ..of(&texts(0..20))
        };
        assert_eq!(logged(&mut log, &[passes]), (Vec::new(), 0));
    }

    #[test]
    fn every_line_has_its_turn_however_many_change_at_each_look() {
        let mut log = ChecksLog::default();
        let steady = texts(0..1000);
        let mut seen = Vec::new();
        for look in 0..6 {
            let hostile: Vec<String> = (0..20_000).map(|pod| format!("look {look} pod {pod}")).collect();
            let (news, waiting) = logged(&mut log, &[of(&hostile), of(&steady)]);
            assert_eq!(news.len(), AT_ONCE);
            assert!(waiting >= 20_000);
            seen.extend(news.into_iter().filter(|found| !found.starts_with("look")));
        }
        assert_eq!(seen, steady);
    }
}
