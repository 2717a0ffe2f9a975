//! The report as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Report;
use crate::demo::report as common;

impl Report {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format_args!(
            "migration {:?} in {:.1} s, most nodes unavailable at a time: {} (Calico: {})",
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
                "node {}: {verdict} to before; equal lines of ip -j, bridge -j, iptables-save, nft -j, ipset, sysctl and checksums of \
                 files: {}; allowed differences: {}",
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
        if self.problems.is_empty() && self.is_rolled_back() {
            line(format_args!(
                "the migration was rolled back: every host is as before"
            ));
        } else if self.problems.is_empty() && self.keeps_pods() {
            line(format_args!(
                "by ip, bridge, iptables-save and nft: flannel's tunnel and conflist are gone, the entries that its running pods \
                 need are present, and no foreign rule or route has changed"
            ));
        } else if self.problems.is_empty() {
            line(format_args!(
                "by ip, bridge, iptables-save and nft: no entry of flannel remains on any node, and no foreign rule or route has \
                 changed"
            ));
        }
        for problem in &self.problems {
            line(format_args!("PROBLEM: {problem}"));
        }
        text
    }
}
