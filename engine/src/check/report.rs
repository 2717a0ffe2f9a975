//! Collecting what one check has to say, in few lines.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Check, Verdict};
use crate::words::{LISTED, names};

/// More lines than this of one check are put together.
const LISTED_LINES: usize = 10;

/// What one check found wrong.
pub struct Report {
    name: &'static str,
    lines: Vec<Line>,
    /// The place of each line by what it says: there may be as many as tenants make objects.
    places: HashMap<Arc<Said>, usize>,
}

/// The same finding on one or more objects of a kind.
struct Line {
    said: Arc<Said>,
    names: Vec<String>,
}

/// What is said of them.
#[derive(PartialEq, Eq, Hash)]
struct Said {
    verdict: Verdict,
    kind: &'static str,
    part: String,
    found: String,
    needed: String,
    fix: String,
}

impl Line {
    fn object(&self, of: &[String]) -> String {
        let part = if self.said.part.is_empty() {
            String::new()
        } else {
            format!(": {}", self.said.part)
        };
        let kind = match (self.said.kind, of.len()) {
            ("", _) => return format!("{}{part}", names(of)),
            (kind, 1) => kind.to_owned(),
            (kind, _) => format!("{kind}s"),
        };
        format!("{kind} {}{part}", names(of))
    }

    /// The line about some of its objects.
    fn about(&self, name: &str, of: &[String]) -> Check {
        let said = &self.said;
        Check::not_pass(
            name,
            said.verdict,
            self.object(of),
            &said.found,
            &said.needed,
            &said.fix,
        )
    }

    /// The line as a check: with those that name every object, where it names the first.
    fn check(&self, name: &str) -> Check {
        let mut check = self.about(name, &self.names);
        if self.names.len() > LISTED {
            let all = self.names.chunks(LISTED);
            check.whole = all.map(|of| self.about(name, of)).collect();
        }
        check
    }
}

/// A part of an object, what it is and what it should be.
pub struct Finding<'text> {
    /// The part that was looked at; empty for the object itself.
    pub part: &'text str,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub needed: String,
    /// What a person does.
    pub fix: String,
}

impl<'text> Finding<'text> {
    /// The part, what it is, what it should be, what a person does.
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
    /// Nothing is wrong yet with this prerequisite.
    pub fn new(name: impl Into<&'static str>) -> Self {
        Self {
            name: name.into(),
            lines: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Adds a finding on an object; one that says the same as another is put together with it. The kind is empty
    /// where the name says it.
    pub fn add(
        &mut self,
        verdict: Verdict,
        kind: &'static str,
        name: impl Into<String>,
        finding: Finding<'_>,
    ) {
        let said = Said {
            verdict,
            kind,
            part: finding.part.to_owned(),
            found: finding.found,
            needed: finding.needed,
            fix: finding.fix,
        };
        if let Some(place) = self.places.get(&said) {
            self.lines[*place].names.push(name.into());
            return;
        }
        let said = Arc::new(said);
        self.places.insert(Arc::clone(&said), self.lines.len());
        self.lines.push(Line {
            said,
            names: vec![name.into()],
        });
    }

    /// Adds what refuses.
    pub fn fail(&mut self, kind: &'static str, name: impl Into<String>, finding: Finding<'_>) {
        self.add(Verdict::Fail, kind, name, finding);
    }

    /// Adds what a person should know.
    pub fn warn(&mut self, kind: &'static str, name: impl Into<String>, finding: Finding<'_>) {
        self.add(Verdict::Warn, kind, name, finding);
    }

    /// Adds what nobody could look at.
    pub fn unknown(&mut self, kind: &'static str, name: impl Into<String>, finding: Finding<'_>) {
        self.add(Verdict::Unknown, kind, name, finding);
    }

    /// Whether nothing was found wrong.
    pub fn is_clean(&self) -> bool {
        self.lines.is_empty()
    }

    /// The lines, the worst first; one line that passes when there are none.
    pub fn finish(self, object: impl Into<String>, found: impl Into<String>) -> Vec<Check> {
        let name = self.name;
        if self.lines.is_empty() {
            return vec![Check::pass(name, object, found)];
        }
        let mut lines = self.lines;
        lines.sort_by_key(|line| std::cmp::Reverse(line.said.verdict));
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
                first.said.verdict,
                format!("{} {}", first.said.kind, names(&objects)),
                format!(
                    "{} more findings like those above; the first: {}",
                    rest.len(),
                    first.said.found
                ),
                &first.said.needed,
                &first.said.fix,
            );
            let all = rest.iter().map(|line| line.check(name));
            more.whole = all.flat_map(|check| check.in_full().to_vec()).collect();
            checks.push(more);
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(found: &str) -> Finding<'static> {
        Finding::new("part", found, "good", "mend it")
    }

    #[test]
    fn nothing_wrong_is_one_line() {
        let checks = Report::new("IpPool").finish("IPPool", "fine");
        assert_eq!(checks, [Check::pass("IpPool", "IPPool", "fine")]);
    }

    #[test]
    fn the_same_finding_is_said_once() {
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
                "IpPool: Nodes b, c: part: found bad, needed good. Fix: mend it",
                "IpPool: Node d: part: found worse, needed good. Fix: mend it",
                "IpPool: Node a: part: found bad, needed good. Fix: mend it",
            ]
        );
    }

    #[test]
    fn every_object_of_a_line_is_named_somewhere() {
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
    fn many_findings_stay_few_lines() {
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
        assert_eq!(
            checks[10].found,
            "990 more findings like those above; the first: 10"
        );
        let all: Vec<Check> = checks.iter().flat_map(|check| check.in_full().to_vec()).collect();
        assert_eq!(all.len(), 1000);
        assert_eq!(all[999].object, "Node 999: part");
    }

    /// One line for each of so many objects: each is found by what it says, and not among all others.
    #[test]
    fn as_many_findings_as_tenants_make_objects() {
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
