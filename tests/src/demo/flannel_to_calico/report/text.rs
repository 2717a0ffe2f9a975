//! A report as people read it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Report;
use crate::demo::report as common;

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format_args!(
            "migration {:?} in {:.1} s, at most {} nodes out of work at a time (Calico: {})",
            self.migration.phase, self.migration.seconds, self.migration.most_unavailable, self.calico
        ));
        for node in &self.nodes {
            let steps: Vec<String> = node
                .steps
                .iter()
                .map(|(name, seconds)| format!("{name} {seconds:.1}"))
                .collect();
            line(format_args!(
                "  {:<16} {:<8} {:>6.1} s  ({})",
                node.name,
                node.phase,
                node.seconds,
                steps.join(", ")
            ));
        }
        line(format_args!(
            "{}",
            common::text(&self.probes, &self.pods).trim_end()
        ));
        for node in &self.nodes {
            let Some(comparison) = &node.comparison else {
                continue;
            };
            let verdict = if comparison.different.is_empty() {
                "identical"
            } else {
                "NOT identical"
            };
            line(format_args!(
                "node {}: {verdict} to before, {} lines by ip -j, bridge -j, iptables-save, nft -j, ipset, sysctl and checksums of \
                 files; {} differ and may:",
                node.name,
                comparison.same,
                comparison.allowed.len()
            ));
            let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
            for allowed in &comparison.allowed {
                *reasons.entry(allowed.reason).or_default() += 1;
            }
            for (reason, lines) in reasons {
                line(format_args!("    {lines:>3} {reason}"));
            }
        }
        if self.problems.is_empty() && self.is_back() {
            line(format_args!(
                "everything was taken back: every host is as it was before"
            ));
        } else if self.problems.is_empty() && self.lives_on() {
            line(format_args!(
                "by ip, bridge, iptables-save and nft: flannel's tunnel and conflist are gone, what its living pods need is \
                 there, and no rule or route of anybody else has changed"
            ));
        } else if self.problems.is_empty() {
            line(format_args!(
                "by ip, bridge, iptables-save and nft: nothing of flannel is left on any node, and no rule or route of \
                 anybody else has changed"
            ));
        }
        for problem in &self.problems {
            line(format_args!("PROBLEM: {problem}"));
        }
        text
    }
}
