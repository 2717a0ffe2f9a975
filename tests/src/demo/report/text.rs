//! The report as text.

use std::collections::BTreeMap;

use traffic::report::{PathOutage, Summary};

use super::{NodeReport, OwnPart, Pods, Report};

/// Limit of outages in the text; the JSON report has more.
const SHOWN_OUTAGES: usize = 10;

impl<Own: OwnPart> Report<Own> {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut lines = vec![self.header()];
        lines.extend(self.migration.stages.iter().map(|stage| {
            format!(
                "  {:<8} {:<14} {:>6.1} s",
                stage.direction, stage.name, stage.seconds
            )
        }));
        lines.extend(self.nodes.iter().filter_map(node_line));
        lines.extend(traffic_lines(&self.probes, &self.pods));
        lines.extend(self.own.lines());
        lines.extend(self.nodes.iter().flat_map(comparison_lines));
        if self.problems.is_empty() {
            lines.extend(Own::verdict(self));
        }
        lines.extend(self.problems.iter().map(|problem| format!("PROBLEM: {problem}")));
        lines.push(String::new());
        lines.join("\n")
    }

    fn header(&self) -> String {
        let migration = &self.migration;
        let unavailable = migration.most_unavailable.map_or_else(String::new, |most| {
            format!(", most nodes unavailable at the same time: {most}")
        });
        let calico = self.calico.as_ref();
        let calico = calico.map_or_else(String::new, |calico| format!(" (Calico: {calico})"));
        format!(
            "migration {:?} in {:.1} s{unavailable}{calico}",
            migration.phase, migration.seconds
        )
    }
}

fn node_line(node: &NodeReport) -> Option<String> {
    let steps = node.steps.iter().flatten();
    let steps: Vec<String> = steps
        .map(|step| format!("{} {:.1}", step.name, step.seconds))
        .collect();
    Some(format!(
        "  {:<16} {:<8} {:>6.1} s  ({})",
        node.name,
        node.phase.as_ref()?,
        node.seconds?,
        steps.join(", ")
    ))
}

fn traffic_lines(probes: &Summary, pods: &Pods) -> Vec<String> {
    let mut lines = vec![format!(
        "probes: {} sent, {} lost ({} of them answered too late), longest gap {} ms, slowest answer {} ms",
        probes.all.sent,
        probes.all.lost,
        probes.all.late,
        probes.all.longest_gap_ms,
        probes.all.slowest_answer_ms
    )];
    lines.extend(probes.classes.iter().map(|(class, counts)| {
        format!(
            "  {class:<16} {:>8} sent, {:>5} lost, {:>5} late, longest gap {} ms, slowest answer {} ms",
            counts.sent, counts.lost, counts.late, counts.longest_gap_ms, counts.slowest_answer_ms
        )
    }));
    let outages = probes.outages.iter().take(SHOWN_OUTAGES);
    lines.extend(outages.map(|outage| format!("  {}", outage_text(outage))));
    lines.push(format!(
        "pods created again: {}, container restarts: {}",
        pods.recreated, pods.restarted
    ));
    lines
}

/// Differences of a node after a rollback: their number, and the reasons of the allowed ones.
fn comparison_lines(node: &NodeReport) -> Vec<String> {
    let Some(comparison) = &node.comparison else {
        return Vec::new();
    };
    let verdict = if comparison.different.is_empty() {
        "identical"
    } else {
        "NOT identical"
    };
    let mut lines = vec![format!(
        "node {}: {verdict} to before; equal lines of ip -j, bridge -j, iptables-save, nft -j, ipset, sysctl and checksums of \
         files: {}; allowed differences: {}",
        node.name,
        comparison.same,
        comparison.allowed.len()
    )];
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for allowed in &comparison.allowed {
        *reasons.entry(allowed.reason).or_default() += 1;
    }
    lines.extend(
        reasons
            .into_iter()
            .map(|(reason, count)| format!("    {count:>3} {reason}")),
    );
    lines
}

/// Consecutive probes that one path lost, as text.
fn outage_text(outage: &PathOutage) -> String {
    let to = outage
        .to
        .as_ref()
        .map(|node| format!(" on {node}"))
        .unwrap_or_default();
    let why = outage
        .last_error
        .as_ref()
        .map(|why| format!(" (last error: {why})"))
        .unwrap_or_default();
    format!(
        "lost at {:.3}: {} of {} from {} to {}{to}{why}",
        outage.outage.since, outage.outage.lost, outage.class, outage.from, outage.target
    )
}
