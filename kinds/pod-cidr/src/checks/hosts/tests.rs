use rstest::rstest;

use super::super::fixture::{self, judge, only};
use super::*;
use engine::check::Verdict::{self, Fail, Unknown};
use engine::found::Found;

#[rstest]
#[case::silent(true, "no report of an agent")]
#[case::not_ready(false, "no report of an agent; the Node is NotReady")]
fn a_node_without_a_report_fails(#[case] ready: bool, #[case] found: &str) {
    let checks = judge(|facts| {
        facts.hosts.remove("b");
        facts.nodes.get_mut("b").unwrap().ready = ready;
    });
    let check = only(&checks, CheckName::AgentMissing);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (Fail, "Node b", found)
    );
}

#[test]
fn a_windows_node_needs_no_agent() {
    let checks = judge(|facts| {
        facts.hosts.remove("b");
        facts.nodes.get_mut("b").unwrap().operating_system = "windows".to_owned();
    });
    let missing: Vec<&Check> = checks
        .iter()
        .filter(|check| check.name == "AgentMissing")
        .collect();
    assert_eq!(missing[0].found, "agents that report: 2");
}

/// The podCIDR of a Node cannot be changed.
#[rstest]
#[case::host_local(Found::Present("host-local".to_owned()), Fail, "host-local")]
#[case::no_plugin(
    Found::Absent,
    Unknown,
    "/etc/cni/net.d/10-calico.conflist: plugin calico has no IPAM plugin"
)]
#[case::malformed(
    Found::Malformed("ipam.type: found a number, needed a string".to_owned()), Unknown,
    "/etc/cni/net.d/10-calico.conflist: ipam.type: found a number, needed a string")]
fn another_ipam_plugin_refuses(#[case] ipam: Found<String>, #[case] expected: Verdict, #[case] found: &str) {
    let checks = judge(|facts| fixture::conflist_mut(facts).ipam = ipam);
    let check = only(&checks, CheckName::Ipam);
    assert_eq!((check.verdict, check.found.as_str()), (expected, found));
    assert!(check.object.starts_with("Node b: "), "{}", check.object);
}

#[rstest]
#[case::missing(Found::Absent, "no CNI configuration")]
#[case::malformed(Found::Malformed("/etc/cni/net.d/00.conflist: EOF".to_owned()), "/etc/cni/net.d/00.conflist: EOF")]
fn a_missing_or_malformed_cni_configuration_is_unknown(
    #[case] conflist: Found<crate::host::Conflist>,
    #[case] found: &str,
) {
    let checks = judge(|facts| facts.hosts.get_mut("b").unwrap().conflist = conflist);
    let check = only(&checks, CheckName::Ipam);
    assert_eq!((check.verdict, check.found.as_str()), (Unknown, found));
}

#[test]
fn equal_findings_of_several_hosts_are_one_line() {
    let checks = judge(|facts| {
        for host in facts.hosts.values_mut() {
            host.conflist = Found::Absent;
        }
    });
    let check = only(&checks, CheckName::Ipam);
    assert_eq!(check.object, "Nodes a, b, c: CNI configuration");
}

/// A resource that is not served must not look like an empty range.
#[test]
fn a_resource_that_is_not_served_fails() {
    let checks = judge(|facts| {
        facts.calico_resources.remove("ipamblocks");
    });
    let check = only(&checks, CheckName::Ipam);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (Fail, "group crd.projectcalico.org", "not served: ipamblocks")
    );
}

#[test]
fn without_any_host_the_ipam_plugin_is_unknown() {
    let checks: Vec<Check> = judge(|facts| facts.hosts.clear());
    let of_ipam: Vec<&Check> = checks.iter().filter(|check| check.name == "Ipam").collect();
    assert_eq!(of_ipam.len(), 1);
    assert_eq!(of_ipam[0].verdict, Unknown);
}
