//! Checks of the kernel of each node: it renames a link that is up, and has `nf_tables`.

use super::network::reported;
use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::settings::{LegacyPods, Strategy};
use engine::check::{Check, Finding, Report};
use engine::cluster::linux_nodes;

/// Major and minor number of the first version that does.
const FIRST: (u32, u32) = (6, 2);

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [live_rename(facts, policy), nf_tables(facts, policy)].concat()
}

fn live_rename(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::LiveRename);
    let adopts = (policy.strategy, policy.legacy_pods) == (Strategy::InPlace, LegacyPods::Adopt);
    let and_pods = if adopts {
        ", and the link of each pod for some milliseconds: single paths of a pod may need a second"
    } else {
        ""
    };
    for node in linux_nodes(&facts.nodes) {
        let found = match version(&node.kernel_version) {
            Some(version) if version >= FIRST => continue,
            Some(_) => format!("{} may not rename a link that is up", node.kernel_version),
            None => format!(
                "{:?} is not a version, and may not rename a link that is up",
                node.kernel_version
            ),
        };
        let finding = Finding::new(
            "kernel",
            format!("{found}: the tunnel is down for some 15 ms on this node{and_pods}"),
            "Linux 6.2 or later, which loses nothing",
            "no action needed, established connections continue; or upgrade the kernel first",
        );
        report.warn("Node", &node.name, finding);
    }
    report.finish("kernels", "rename links that are up")
}

/// A kernel without `nf_tables` has no rule of nftables. replumb itself adds such rules for an adoption, and for the connections of the
/// host while its tunnel is down.
fn nf_tables(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::NfTables);
    for (node, _) in reported(facts).iter().filter(|(_, host)| host.lacks_nf_tables) {
        let found = "the kernel has no nf_tables; iptables-legacy is read";
        let build = "use a kernel with CONFIG_NF_TABLES, or load the module nf_tables";
        match (policy.strategy, policy.legacy_pods) {
            (Strategy::InPlace, LegacyPods::Adopt) => report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "kernel",
                    found,
                    "nf_tables, by which a pod keeps its connections while it is adopted",
                    format!("set legacyPods to Keep or Restart, or strategy to Drain, which need no adoption; or {build}"),
                ),
            ),
            (Strategy::InPlace, LegacyPods::Keep | LegacyPods::Restart) | (Strategy::Drain, _) => {
                if version(&node.kernel_version) < Some(FIRST) {
                    let finding = Finding::new(
                        "kernel",
                        format!(
                            "{found}: connections of the node itself to pods of other nodes end when the tunnel is renamed, if the \
                             node masquerades them"
                        ),
                        "nf_tables, by which such connections continue, or Linux 6.2 or later",
                        format!("no action needed, if programs of the node connect again; or {build}"),
                    );
                    report.warn("Node", &node.name, finding);
                }
            }
        }
    }
    report.finish("kernels", "have nf_tables where the migration needs it")
}

/// Major and minor number of a kernel's version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use engine::check::Verdict;
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;

    #[rstest]
    #[case::first("6.2.0", Verdict::Pass)]
    #[case::later("6.18.44-fc-v669", Verdict::Pass)]
    #[case::next_major("7.0.0-rc1+", Verdict::Pass)]
    #[case::debian("6.1.0-18-amd64", Verdict::Warn)]
    #[case::ubuntu("5.15.0-91-generic", Verdict::Warn)]
    #[case::red_hat("5.14.0-362.8.1.el9_3.x86_64", Verdict::Warn)]
    #[case::nothing("", Verdict::Warn)]
    #[case::no_version("linux", Verdict::Warn)]
    #[case::one_number("6", Verdict::Warn)]
    fn a_kernel_before_6_2_warns(#[case] kernel: &str, #[case] expected: Verdict) {
        let mut facts = fixture::cluster();
        facts.nodes.get_mut("b").unwrap().kernel_version = kernel.to_owned();
        let found = live_rename(&facts, &fixture::policy());
        assert_eq!(verdicts(&found), [("LiveRename", expected)]);
        if expected == Verdict::Warn {
            assert!(
                found[0].object.contains("Node b") && found[0].found.contains(kernel),
                "{found:?}"
            );
        }
    }

    #[test]
    fn an_adoption_says_what_pods_lose_and_equal_kernels_are_one_line() {
        let mut facts = fixture::cluster();
        for node in facts.nodes.values_mut() {
            node.kernel_version = "5.15.0".to_owned();
        }
        let policy = CheckPolicy {
            strategy: Strategy::InPlace,
            legacy_pods: LegacyPods::Adopt,
            ..fixture::policy()
        };
        let found = live_rename(&facts, &policy);
        assert_eq!(found.len(), 1);
        assert!(found[0].found.contains("link of each pod"), "{found:?}");
        let found = live_rename(&facts, &fixture::policy());
        assert!(!found[0].found.contains("link of each pod"), "{found:?}");
    }

    #[rstest]
    #[case::an_adoption(Strategy::InPlace, LegacyPods::Adopt, "6.18.0", Verdict::Fail)]
    #[case::an_adoption_on_an_old_kernel(Strategy::InPlace, LegacyPods::Adopt, "5.10.0", Verdict::Fail)]
    #[case::kept(Strategy::InPlace, LegacyPods::Keep, "6.18.0", Verdict::Pass)]
    #[case::kept_on_an_old_kernel(Strategy::InPlace, LegacyPods::Keep, "5.10.0", Verdict::Warn)]
    #[case::restarted(Strategy::InPlace, LegacyPods::Restart, "6.2.0", Verdict::Pass)]
    #[case::drained(Strategy::Drain, LegacyPods::Adopt, "6.18.0", Verdict::Pass)]
    #[case::drained_on_an_old_kernel(Strategy::Drain, LegacyPods::Adopt, "5.10.110", Verdict::Warn)]
    #[case::no_version(Strategy::Drain, LegacyPods::Keep, "", Verdict::Warn)]
    fn a_kernel_without_nf_tables_adopts_no_pod(
        #[case] strategy: Strategy,
        #[case] legacy_pods: LegacyPods,
        #[case] kernel: &str,
        #[case] expected: Verdict,
    ) {
        let mut facts = fixture::cluster();
        facts.nodes.get_mut("b").unwrap().kernel_version = kernel.to_owned();
        let policy = CheckPolicy {
            strategy,
            legacy_pods,
            ..fixture::policy()
        };
        assert_eq!(
            verdicts(&nf_tables(&facts, &policy)),
            [("NfTables", Verdict::Pass)]
        );
        facts.hosts.get_mut("b").unwrap().lacks_nf_tables = true;
        let found = nf_tables(&facts, &policy);
        assert_eq!(verdicts(&found), [("NfTables", expected)]);
        if expected == Verdict::Fail {
            assert!(
                found[0].object.contains("Node b") && found[0].fix.contains("legacyPods to Keep"),
                "{found:?}"
            );
        }
    }
}
