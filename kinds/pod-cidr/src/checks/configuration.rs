//! Configuration that contains the range: policies and settings that the user changes, and the controller manager, which exits
//! if a Node's podCIDR is outside its range.

use ipnet::IpNet;

use super::{CheckName, CheckPolicy};
use crate::facts::{ClusterFacts, ControllerManager};
use crate::hardcoded_range::{self, Change};
use crate::host::HostFacts;
use crate::kube_proxy_rules;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report, names};
use engine::ranges::overlap;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: CheckPolicy) -> Vec<Check> {
    [
        mentioned(settings, facts, policy),
        controller_manager(settings, facts),
    ]
    .concat()
}

/// The migration waits for each object of the cluster, with this message, and for no object of a tenant. All are warnings, so
/// that no tenant can prevent the start of a migration.
fn mentioned(settings: &Settings, facts: &ClusterFacts, policy: CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::Configuration);
    kube_proxy(facts, policy, &mut report);
    let (from, to) = (settings.from.value, settings.to.value);
    let mentions = kube_proxy_rules::with_rules(&facts.mentions, hosts(facts, policy), &from, &to);
    let before = hardcoded_range::before(&mentions, &from, &to).into_iter();
    let (of_tenants, of_the_cluster): (Vec<Change>, Vec<Change>) =
        before.partition(|change| change.owner.tenant().is_some());
    let mut after = hardcoded_range::after(&mentions, &from, &to);
    after.retain(|change| change.owner.tenant().is_none());
    for (changes, when) in [
        (
            of_the_cluster,
            " (now, or when the migration waits for it in stage Widen, before any pod moves)".to_owned(),
        ),
        (
            after,
            " (when the migration waits for it in stage FollowUp, not before every pod has moved)".to_owned(),
        ),
        (
            of_tenants,
            format!(
                " (now, with its owner); {}",
                hardcoded_range::tenant_consequence(&to)
            ),
        ),
    ] {
        for change in changes {
            let fix = change.fix + &when;
            report.warn(
                "",
                change.object,
                Finding::new("", change.found, change.needed, fix),
            );
        }
    }
    report.finish(
        "settings and policies in the API",
        format!("no object needs a change from {from}"),
    )
}

/// The reports of agents, by node; none if the user has confirmed what the rules of kube-proxy in them would show.
fn hosts(facts: &ClusterFacts, policy: CheckPolicy) -> impl Iterator<Item = (&str, &HostFacts)> {
    let hosts = facts.hosts.iter().filter(move |_| !policy.local_ranges_checked);
    hosts.map(|(node, host)| (node.as_str(), host))
}

/// What is not known of kube-proxy.
fn kube_proxy(facts: &ClusterFacts, policy: CheckPolicy, report: &mut Report) {
    let linux_nodes = facts.linux_nodes().map(|node| node.name.as_str());
    let unknown = kube_proxy_rules::unknown(linux_nodes.map(|node| (node, facts.hosts.get(node))));
    if let Some((node, found)) = unknown.first()
        && !facts.kube_proxy_is_known
        && !policy.local_ranges_checked
    {
        let others = kube_proxy_rules::and_others(unknown.len() - 1);
        report.unknown(
            "",
            "kube-proxy",
            Finding::new(
                "",
                format!(
                    "no pod or DaemonSet of kube-system runs it with flags or with a ConfigMap, and its rules do not show the ranges \
                     that it takes for pods: node {node}: {found}{others}"
                ),
                "both ranges, or another way to recognize pods, while pods of both ranges exist",
                "look at the program that routes Services on a node (kube-proxy on the host, k3s, eBPF): if it has \
                 --cluster-cidr or clusterCIDR, set one range around both; then confirm by spec.podCidr.localRangesChecked \
                 (--local-ranges-checked). Otherwise packets of moved pods to other nodes get the address of their node",
            ),
        );
    }
    if let Some(found) = kube_proxy_rules::unreadable(hosts(facts, policy))
        && facts.kube_proxy_is_known
    {
        report.warn(
            "",
            "kube-proxy",
            Finding::new(
                "",
                found,
                "the ranges that kube-proxy takes for those of pods, on every node",
                "nothing before the start: the migration waits for it in stage Widen, before any pod moves",
            ),
        );
    }
}

/// Nodes keep their podCIDR. A controller manager that allocates podCIDRs exits when it starts if one is outside its range.
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
                "no pod of it in the API, so its command line is unknown",
                format!("--allocate-node-cidrs=false before --cluster-cidr={to}"),
                format!(
                    "keep its --cluster-cidr, or set --allocate-node-cidrs=false first: podCIDRs of Nodes are outside {to} \
                     ({}), and it would exit at each start (\"failed to mark cidr ... as occupied\")",
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
                    "a value that is not a list of ranges",
                    "ranges, such as 10.244.0.0/16 or 10.244.0.0/16,fd00::/56",
                    "correct its command line, so that replumb can check whether it exits at its next start",
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
                    "--allocate-node-cidrs=false, or a --cluster-cidr that contains every Node's podCIDR",
                    "restore --cluster-cidr, or set --allocate-node-cidrs=false: otherwise it exits at each start (\"failed to \
                     mark cidr ... as occupied\")",
                ),
            );
        }
    }
    report.finish(
        "kube-controller-manager",
        match facts.controller_managers.as_slice() {
            [] => format!("no pod of it in the API; no Node has a podCIDR outside {to}"),
            managers => format!("{} found, each accepts the podCIDRs of all Nodes", managers.len()),
        },
    )
}

/// Why this controller manager would exit at its next start; `None` if it would not.
pub fn ends(manager: &ControllerManager, facts: &ClusterFacts) -> Option<String> {
    // Without a range the allocator of a cloud provider assigns podCIDRs, from any range.
    let ranges = manager
        .ranges
        .as_ref()
        .filter(|ranges| manager.allocates && !ranges.is_empty())?;
    let outside = outside(facts, ranges, OtherFamily::Outside);
    (!outside.is_empty()).then(|| {
        let said: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        format!(
            "--cluster-cidr={} with --allocate-node-cidrs, and podCIDRs outside it: {}",
            said.join(","),
            names(&outside)
        )
    })
}

/// How to treat a podCIDR of a family without a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherFamily {
    /// Ignore it.
    Ignored,
    /// Count it as outside.
    Outside,
}

/// Nodes with a podCIDR that overlaps no range of its family, each with the podCIDR.
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
            let counts = of_family.peek().is_some() || unsaid == OtherFamily::Outside;
            if counts && !of_family.any(|other| overlap(other, &range)) {
                outside.push(format!("{} {range}", node.name));
            }
        }
    }
    outside
}

#[cfg(test)]
mod tests;
