//! Who else says the range: policies and settings that people change, and the controller manager, which may end over it.

use ipnet::IpNet;

use super::CheckName;
use crate::check::{Check, Finding, Report, names};
use crate::pod_cidr::facts::{ClusterFacts, ControllerManager};
use crate::pod_cidr::mentions;
use crate::pod_cidr::ranges::overlap;
use crate::pod_cidr::settings::Settings;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    [mentioned(settings, facts), controller_manager(settings, facts)].concat()
}

/// The migration waits for each, with these words: a warning.
fn mentioned(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Configuration);
    let (from, to) = (settings.from.value, settings.to.value);
    let before = mentions::widen(&facts.mentions, &from, &to);
    let after = mentions::follow_up(&facts.mentions, &from, &to);
    for (lines, needed, fix) in [
        (
            before,
            "both ranges before a pod gets an address of the new one",
            "change it now, or when the migration waits for it (stage Widen)",
        ),
        (
            after,
            "the new range, once every pod has moved",
            "change it when the migration waits for it (stage FollowUp): not before",
        ),
    ] {
        for line in lines {
            let (object, found) = line.split_once(": found ").unwrap_or((&line, ""));
            report.warn("", object, Finding::new("", found, needed, fix));
        }
    }
    report.finish(
        "settings and policies that the API shows",
        format!("none says {from}"),
    )
}

/// Nodes keep their podCIDR for ever. A controller manager that allocates them ends at its start when one is out of its range.
fn controller_manager(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::ControllerManager);
    let to = settings.to.value;
    let outside = outside(facts, &[to]);
    if facts.controller_managers.is_empty() && !outside.is_empty() {
        report.warn(
            "",
            "kube-controller-manager",
            Finding::new(
                "",
                "no pod of it in the API: what it is started with is not known",
                format!("--allocate-node-cidrs=false before --cluster-cidr={to}"),
                format!(
                    "leave its --cluster-cidr as it is, or switch --allocate-node-cidrs off first: podCIDRs of Nodes are outside {to} \
                     ({}), and it would end at each start (\"failed to mark cidr ... as occupied\")",
                    names(&outside)
                ),
            ),
        );
    }
    for manager in &facts.controller_managers {
        if manager.ranges.is_none() {
            report.unknown(
                "Pod",
                &manager.pod,
                Finding::new(
                    "--cluster-cidr",
                    "not understood",
                    "ranges",
                    "correct its command line",
                ),
            );
        }
        if let Some(found) = ends(manager, facts) {
            report.fail(
                "Pod",
                &manager.pod,
                Finding::new(
                    "",
                    found,
                    "--allocate-node-cidrs=false, or a --cluster-cidr that holds every Node's podCIDR",
                    "it ends at its next start (\"failed to mark cidr ... as occupied\"): switch --allocate-node-cidrs off",
                ),
            );
        }
    }
    report.finish(
        "kube-controller-manager",
        match facts.controller_managers.as_slice() {
            [] => "not seen; every Node's podCIDR is in the new range".to_owned(),
            managers => format!("{} of them, none ends over a Node's podCIDR", managers.len()),
        },
    )
}

/// Why this controller manager would end at its next start; `None` when it would not.
pub fn ends(manager: &ControllerManager, facts: &ClusterFacts) -> Option<String> {
    let ranges = manager.ranges.as_ref().filter(|_| manager.allocates)?;
    let outside = outside(facts, ranges);
    (!outside.is_empty()).then(|| {
        let said: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        format!(
            "--cluster-cidr={} with --allocate-node-cidrs, and podCIDRs outside of it: {}",
            said.join(","),
            names(&outside)
        )
    })
}

/// Nodes with a podCIDR that shares nothing with any range of its family, each with it.
fn outside(facts: &ClusterFacts, ranges: &[IpNet]) -> Vec<String> {
    let mut outside = Vec::new();
    for node in facts.nodes.values() {
        let said = node
            .pod_cidrs
            .iter()
            .filter_map(|text| text.parse::<IpNet>().ok());
        for range in said {
            let mut of_family = ranges
                .iter()
                .filter(|other| other.max_prefix_len() == range.max_prefix_len())
                .peekable();
            // Calico's change is of one family: of the other nothing is said.
            if of_family.peek().is_some() && !of_family.any(|other| overlap(other, &range)) {
                outside.push(format!("{} {range}", node.name));
            }
        }
    }
    outside
}
