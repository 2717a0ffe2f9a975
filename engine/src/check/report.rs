//! Collects the findings of one check in few lines.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Check, Verdict};
use crate::words::{LISTED, names};

/// Lines of one check beyond this number are summarized in one line.
const LISTED_LINES: usize = 10;

/// The findings of one check.
pub struct Report {
    name: &'static str,
    lines: Vec<Line>,
    /// The place of each line by its statement: tenants may create any number of objects.
    places: HashMap<Arc<Statement>, usize>,
}

/// The same finding on one or more objects of a kind.
struct Line {
    statement: Arc<Statement>,
    names: Vec<String>,
}

/// The statement of a line about its objects.
#[derive(PartialEq, Eq, Hash)]
struct Statement {
    verdict: Verdict,
    kind: &'static str,
    part: String,
    found: String,
    needed: String,
    fix: String,
}

impl Line {
    fn object(&self, of: &[String]) -> String {
        let part = if self.statement.part.is_empty() {
            String::new()
        } else {
            format!(": {}", self.statement.part)
        };
        let kind = match (self.statement.kind, of.len()) {
            ("", _) => return format!("{}{part}", names(of)),
            (kind, 1) => kind.to_owned(),
            (kind, _) => format!("{kind}s"),
        };
        format!("{kind} {}{part}", names(of))
    }

    /// A check with this line for the objects in `of`.
    fn about(&self, name: &str, of: &[String]) -> Check {
        let statement = &self.statement;
        Check::not_pass(
            name,
            statement.verdict,
            self.object(of),
            &statement.found,
            &statement.needed,
            &statement.fix,
        )
    }

    /// The line as a check. If it names only the first objects, `whole` has the checks that name every object.
    fn check(&self, name: &str) -> Check {
        let mut check = self.about(name, &self.names);
        if self.names.len() > LISTED {
            let all = self.names.chunks(LISTED);
            check.whole = all.map(|of| self.about(name, of)).collect();
        }
        check
    }
}

/// A finding: a part of an object, the value found, the value needed, and the fix.
pub struct Finding<'text> {
    /// The part that was checked; empty for the object itself.
    pub part: &'text str,
    /// The value found.
    pub found: String,
    /// The value needed.
    pub needed: String,
    /// What the user does.
    pub fix: String,
}

impl<'text> Finding<'text> {
    /// A finding with its part, the value found, the value needed, and the fix.
    pub fn new(
        part: &'text str,
        found: impl Into<String>,
        needed: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            part,
            found: found.into(),
            needed: needed.into(),
            fix: fix.into(),
        }
    }
}

impl Report {
    /// An empty report on this prerequisite.
    pub fn new(name: impl Into<&'static str>) -> Self {
        Self {
            name: name.into(),
            lines: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Adds a finding on an object; equal findings share one line. The kind is empty if the name contains it.
    pub fn add(
        &mut self,
        verdict: Verdict,
        kind: &'static str,
        name: impl Into<String>,
        finding: Finding<'_>,
    ) {
        let statement = Statement {
            verdict,
            kind,
            part: finding.part.to_owned(),
            found: finding.found,
            needed: finding.needed,
            fix: finding.fix,
        };
        if let Some(place) = self.places.get(&statement) {
            self.lines[*place].names.push(name.into());
            return;
        }
        let statement = Arc::new(statement);
        self.places.insert(Arc::clone(&statement), self.lines.len());
        self.lines.push(Line {
            statement,
            names: vec![name.into()],
        });
    }

    /// Adds a finding that refuses the migration.
    pub fn fail(&mut self, kind: &'static str, name: impl Into<String>, finding: Finding<'_>) {
        self.add(Verdict::Fail, kind, name, finding);
    }

    /// Adds a finding that the user should read.
    pub fn warn(&mut self, kind: &'static str, name: impl Into<String>, finding: Finding<'_>) {
        self.add(Verdict::Warn, kind, name, finding);
    }

    /// Adds a finding on an object that could not be checked.
    pub fn unknown(&mut self, kind: &'static str, name: impl Into<String>, finding: Finding<'_>) {
        self.add(Verdict::Unknown, kind, name, finding);
    }

    /// Whether there is no finding.
    pub fn is_clean(&self) -> bool {
        self.lines.is_empty()
    }

    /// The lines, the worst first; one line that passes if there is no finding.
    pub fn finish(self, object: impl Into<String>, found: impl Into<String>) -> Vec<Check> {
        let name = self.name;
        if self.lines.is_empty() {
            return vec![Check::pass(name, object, found)];
        }
        let mut lines = self.lines;
        lines.sort_by_key(|line| std::cmp::Reverse(line.statement.verdict));
        let rest = lines.split_off(lines.len().min(LISTED_LINES));
        let mut checks: Vec<Check> = lines.iter().map(|line| line.check(name)).collect();
        if let Some(first) = rest.first() {
            let objects: Vec<&str> = rest
                .iter()
                .flat_map(|line| &line.names)
                .map(String::as_str)
                .collect();
            let mut more = Check::not_pass(
                name,
                first.statement.verdict,
                format!("{} {}", first.statement.kind, names(&objects)),
                format!(
                    "further findings: {}; the first: {}",
                    rest.len(),
                    first.statement.found
                ),
                &first.statement.needed,
                &first.statement.fix,
            );
            let all = rest.iter().map(|line| line.check(name));
            more.whole = all.flat_map(|check| check.in_full().to_vec()).collect();
            checks.push(more);
        }
        checks
    }
}

/// The worst verdict of a list; [`Verdict::Unknown`] for an empty list, since nothing was checked.
pub fn worst(checks: &[Check]) -> Verdict {
    checks
        .iter()
        .map(|check| check.verdict)
        .max()
        .unwrap_or(Verdict::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(found: &str) -> Finding<'static> {
        Finding::new("part", found, "good", "correct it")
    }

    #[test]
    fn a_report_without_findings_is_one_line_that_passes() {
        let checks = Report::new("IpPool").finish("IPPool", "fine");
        assert_eq!(checks, [Check::pass("IpPool", "IPPool", "fine")]);
    }

    #[test]
    fn equal_findings_share_one_line() {
        let mut report = Report::new("IpPool");
        report.warn("Node", "a", finding("bad"));
        report.fail("Node", "b", finding("bad"));
        report.fail("Node", "c", finding("bad"));
        report.fail("Node", "d", finding("worse"));
        assert!(!report.is_clean());
        let objects: Vec<String> = report.finish("", "").iter().map(Check::line).collect();
        assert_eq!(
            objects,
            [
                "IpPool: Nodes b, c: part: found bad, needed good. Fix: correct it",
                "IpPool: Node d: part: found worse, needed good. Fix: correct it",
                "IpPool: Node a: part: found bad, needed good. Fix: correct it",
            ]
        );
    }

    #[test]
    fn every_object_of_a_long_line_is_named_in_full() {
        let mut report = Report::new("IpPool");
        for number in 0..25 {
            report.fail("Node", number.to_string(), finding("bad"));
        }
        let checks = report.finish("", "");
        assert_eq!(checks.len(), 1);
        let all: Vec<&str> = checks[0]
            .in_full()
            .iter()
            .map(|check| check.object.as_str())
            .collect();
        assert_eq!(
            all,
            [
                "Nodes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9: part",
                "Nodes 10, 11, 12, 13, 14, 15, 16, 17, 18, 19: part",
                "Nodes 20, 21, 22, 23, 24: part",
            ]
        );
    }

    #[test]
    fn many_findings_become_few_lines() {
        let mut report = Report::new("IpPool");
        for number in 0..1000 {
            report.unknown("Node", number.to_string(), finding(&number.to_string()));
        }
        let checks = report.finish("", "");
        assert_eq!(checks.len(), 11);
        assert_eq!(checks[10].verdict, Verdict::Unknown);
        assert_eq!(
            checks[10].object,
            "Node 10, 11, 12, 13, 14, 15, 16, 17, 18, 19 and 980 more"
        );
        assert_eq!(checks[10].found, "further findings: 990; the first: 10");
        let all: Vec<Check> = checks.iter().flat_map(|check| check.in_full().to_vec()).collect();
        assert_eq!(all.len(), 1000);
        assert_eq!(all[999].object, "Node 999: part");
    }

    /// With one line for each of 100 000 objects, a line is found by its statement, without a search.
    #[test]
    fn findings_on_any_number_of_objects_are_collected() {
        let mut report = Report::new("IpPool");
        for number in 0..100_000 {
            report.warn(
                "Pod",
                number.to_string(),
                finding(&format!("bad {}", number % 50_000)),
            );
        }
        let checks = report.finish("", "");
        assert_eq!(checks.len(), 11);
        assert_eq!(checks[0].object, "Pods 0, 50000: part");
    }
}
