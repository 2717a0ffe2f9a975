//! Who else says the range: policies and settings that people change, and the controller manager, which may end over it.

use ipnet::IpNet;

use super::CheckName;
use crate::facts::{ClusterFacts, ControllerManager};
use crate::mentions::{self, Change};
use crate::settings::Settings;
use engine::check::{Check, Finding, Report, names};
use engine::ranges::overlap;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    [mentioned(settings, facts), controller_manager(settings, facts)].concat()
}

/// The migration waits for each that is the cluster's, with these words, and for none of a tenant's: a warning all the same, so that no
/// tenant keeps a migration from its start.
fn mentioned(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Configuration);
    let (from, to) = (settings.from.value, settings.to.value);
    let before = mentions::before(&facts.mentions, &from, &to).into_iter();
    let (of_tenants, of_the_cluster): (Vec<Change>, Vec<Change>) =
        before.partition(|change| change.owner.tenant().is_some());
    let mut after = mentions::after(&facts.mentions, &from, &to);
    after.retain(|change| change.owner.tenant().is_none());
    for (changes, when) in [
        (
            of_the_cluster,
            "do it now, or when the migration waits for it (stage Widen): before any pod moves".to_owned(),
        ),
        (
            after,
            "do it when the migration waits for it (stage FollowUp): not before every pod has moved"
                .to_owned(),
        ),
        (
            of_tenants,
            format!("do it now, with its owner: {}", mentions::unwaited(&to)),
        ),
    ] {
        for change in changes {
            let fix = format!("{}; {when}", change.fix);
            report.warn(
                "",
                change.object,
                Finding::new("", change.found, change.needed, fix),
            );
        }
    }
    report.finish(
        "settings and policies that the API shows",
        format!("none has to be changed from {from}"),
    )
}

/// Nodes keep their podCIDR for ever. A controller manager that allocates them ends at its start when one is out of its range.
fn controller_manager(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::ControllerManager);
    let to = settings.to.value;
    let outside = outside(facts, &[to], OtherFamily::Ignored);
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
                    "a value that is no list of ranges",
                    "ranges, such as 10.244.0.0/16 or 10.244.0.0/16,fd00::/56",
                    "correct its command line: nobody knows whether it would end at its next start",
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
                    "it ends at its next start (\"failed to mark cidr ... as occupied\"), and again each time: put --cluster-cidr back, or \
                     switch --allocate-node-cidrs off",
                ),
            );
        }
    }
    report.finish(
        "kube-controller-manager",
        match facts.controller_managers.as_slice() {
            [] => format!("not seen as a pod; no Node has a podCIDR outside {to}"),
            managers => format!("{} of them, none ends over a Node's podCIDR", managers.len()),
        },
    )
}

/// Why this controller manager would end at its next start; `None` when it would not.
pub fn ends(manager: &ControllerManager, facts: &ClusterFacts) -> Option<String> {
    // Without a range a cloud's allocator gives them, and goes by no range.
    let ranges = manager
        .ranges
        .as_ref()
        .filter(|ranges| manager.allocates && !ranges.is_empty())?;
    let outside = outside(facts, ranges, OtherFamily::Outside);
    (!outside.is_empty()).then(|| {
        let said: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        format!(
            "--cluster-cidr={} with --allocate-node-cidrs, and podCIDRs outside of it: {}",
            said.join(","),
            names(&outside)
        )
    })
}

/// What a podCIDR comes to whose family has no range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherFamily {
    /// Nothing is said of that family.
    Ignored,
    /// It is out of every range.
    Outside,
}

/// Nodes with a podCIDR that shares nothing with any range of its family, each with it.
fn outside(facts: &ClusterFacts, ranges: &[IpNet], unsaid: OtherFamily) -> Vec<String> {
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
            let is_spoken_of = of_family.peek().is_some() || unsaid == OtherFamily::Outside;
            if is_spoken_of && !of_family.any(|other| overlap(other, &range)) {
                outside.push(format!("{} {range}", node.name));
            }
        }
    }
    outside
}

#[cfg(test)]
#[path = "configuration_tests.rs"]
mod tests;
