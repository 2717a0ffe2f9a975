//! Check that each pod on flannel's bridge is known.

use super::network::hosts;
use super::{CheckName, CheckPolicy};
use crate::facts::{ClusterFacts, HostFacts};
use crate::host::{HostSettings, links_without_known_pod, obstacles};
use crate::runtime::SettingName;
use crate::settings::{LegacyPods, Settings, Strategy};
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::words::number;

/// Folders of libcni's records that the agent reads: that of containerd and CRI-O, and that of cri-dockerd.
const RECORDS: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cni/cache/results"];

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::LegacyPods);
    // In place, Calico could assign an unknown address to another pod. A drain waits until the link is gone.
    let verdict = match policy.strategy {
        Strategy::InPlace => Verdict::Fail,
        Strategy::Drain => Verdict::Warn,
    };
    let mut known = 0;
    for (node, host) in hosts(facts, &mut report) {
        known += host.legacy_pods.iter().filter(|pod| pod.attached).count();
        let problems = links_without_known_pod(host);
        if let Some(finding) = without_records(host).filter(|_| !problems.is_empty()) {
            report.add(verdict, "Node", &node.name, finding);
        } else {
            for problem in problems {
                let finding = Finding::new(
                    "cni0",
                    problem,
                    "a libcni record for each link on cni0",
                    "delete the pod of that link; the new pod has a record",
                );
                report.add(verdict, "Node", &node.name, finding);
            }
        }
        if (policy.strategy, policy.legacy_pods) == (Strategy::InPlace, LegacyPods::Adopt) {
            for pod in obstacles(host, &HostSettings::of(settings)) {
                let finding = Finding::new(
                    "cni0",
                    format!("{pod}, so the pod cannot be adopted"),
                    "a pod that can be adopted",
                    "restart the pod after its node is on Calico; until then cni0 stays on the node",
                );
                report.add(Verdict::Warn, "Node", &node.name, finding);
            }
        }
        let answered = host.bridge.present().map_or(&[][..], |bridge| &bridge.answered);
        let in_place = policy.strategy == Strategy::InPlace && settings.ipv6.is_some();
        if in_place && !answered.is_empty() {
            let listed: Vec<String> = answered.iter().map(ToString::to_string).collect();
            let finding = Finding::new(
                "cni0",
                format!("already answers for {}", names(&listed)),
                "answers for its own addresses only: a rollback removes all others",
                "delete these proxy entries (`ip -6 neighbour show proxy dev cni0`), or use strategy Drain",
            );
            report.add(Verdict::Fail, "Node", &node.name, finding);
        }
    }
    report.finish("pods on cni0", format!("{known}, each with a known sandbox"))
}

/// The finding for a host on which no pod has a record at all: its container runtime keeps them elsewhere, and a new pod would have none
/// either.
fn without_records(host: &HostFacts) -> Option<Finding<'static>> {
    let links = host.bridge.present().map_or(0, |bridge| bridge.ports.len());
    if links == 0 || !host.legacy_problems.is_empty() || host.legacy_pods.iter().any(|pod| pod.attached) {
        return None;
    }
    let [usual, of_docker] = RECORDS;
    let cache = host
        .runtime
        .as_ref()
        .and_then(|runtime| Some((runtime, runtime.setting(SettingName::CacheDirectory)?)));
    let fix = match cache {
        Some((runtime, cache)) => format!(
            "{} keeps its records in {value}/results ({} {value}), which the agent does not see: set this option to /var/lib/cni/cache, \
             copy {value}/results to {of_docker}, and restart {} on the node; running pods stay",
            runtime.program,
            cache.key,
            runtime.program,
            value = cache.value.trim_end_matches('/'),
        ),
        None => "find the folder of the container runtime: cri-dockerd has the option --cni-cache-dir (needed: /var/lib/cni/cache, the \
                 default), containerd and CRI-O use /var/lib/cni, which the agent's pod mounts. Or use strategy Drain; to delete pods does \
                 not help, as a new pod has no record there either"
            .to_owned(),
    };
    Some(Finding::new(
        "cni0",
        format!(
            "no pod of the node has a record of libcni, neither in {usual} nor in {of_docker}: {}",
            number(links, "link", "links")
        ),
        "a libcni record for each link on cni0",
        fix,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{self, verdicts};
    use super::*;
    use crate::facts::{Found, LegacyPod};
    use crate::runtime::Runtime;
    use engine::check::Verdict::{Fail, Pass, Warn};

    /// A pod of node b on `cni0`, with its record.
    fn known_pod() -> LegacyPod {
        LegacyPod {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            sandbox: "1".to_owned(),
            link: "veth1".to_owned(),
            addresses: vec!["10.244.2.5".parse().unwrap()],
            attached: true,
            routed: false,
            mac: String::new(),
            pod_link: None,
            other_link: None,
            obstacle: None,
            not_taken_within: None,
        }
    }

    /// Mirantis/cri-dockerd#43: a cache of records that the agent does not read.
    #[test]
    fn a_node_without_any_record_names_the_cache_of_the_runtime() {
        let mut facts = fixture::cluster();
        let host = facts.hosts.get_mut("b").unwrap();
        if let Found::Present(bridge) = &mut host.bridge {
            bridge.ports = vec!["veth1".to_owned(), "veth9".to_owned()];
        }
        let policy = CheckPolicy {
            strategy: Strategy::InPlace,
            ..fixture::policy()
        };
        let judge = |facts: &ClusterFacts| check(&fixture::settings(), facts, &policy);
        let found = judge(&facts);
        assert_eq!(
            verdicts(&found),
            [("LegacyPods", Fail)],
            "one finding for the node"
        );
        assert!(
            found[0].found.contains("no pod of the node has a record"),
            "{found:?}"
        );
        assert!(found[0].fix.contains("--cni-cache-dir"), "{found:?}");
        assert!(!found[0].fix.contains("delete the pod"), "{found:?}");

        let line = ["cri-dockerd", "--cni-cache-dir=/data/cni/"].map(str::to_owned);
        facts.hosts.get_mut("b").unwrap().runtime = Some(Runtime::cri_dockerd(&line));
        let found = judge(&facts);
        assert!(
            found[0]
                .fix
                .contains("copy /data/cni/results to /var/lib/cni/cache/results"),
            "{found:?}"
        );

        // The record of another pod is there: this one pod has lost its own.
        facts.hosts.get_mut("b").unwrap().legacy_pods.push(known_pod());
        let found = judge(&facts);
        assert_eq!(verdicts(&found), [("LegacyPods", Fail)]);
        assert!(
            found[0].found.contains("veth9") && found[0].fix.contains("delete the pod"),
            "{found:?}"
        );
    }

    #[test]
    fn a_link_without_a_record_is_named_and_fails_in_place() {
        let mut facts = fixture::cluster();
        facts.hosts.get_mut("b").unwrap().legacy_pods.push(known_pod());
        if let Found::Present(bridge) = &mut facts.hosts.get_mut("b").unwrap().bridge {
            bridge.ports.push("veth1".to_owned());
        }
        let judge = |facts: &ClusterFacts, strategy| {
            let policy = CheckPolicy {
                strategy,
                ..fixture::policy()
            };
            check(&fixture::settings(), facts, &policy)
        };
        assert_eq!(
            verdicts(&judge(&facts, Strategy::InPlace)),
            [("LegacyPods", Pass)]
        );
        if let Found::Present(bridge) = &mut facts.hosts.get_mut("b").unwrap().bridge {
            bridge.ports.push("veth9".to_owned());
        }
        let found = judge(&facts, Strategy::InPlace);
        assert_eq!(verdicts(&found), [("LegacyPods", Fail)]);
        assert!(
            found[0].object.contains("Node b") && found[0].found.contains("veth9"),
            "{found:?}"
        );
        assert_eq!(verdicts(&judge(&facts, Strategy::Drain)), [("LegacyPods", Warn)]);
    }

    #[test]
    fn a_bridge_that_answers_for_other_addresses_fails_in_place() {
        let (settings, mut facts) = fixture::dual_stack();
        if let Found::Present(bridge) = &mut facts.hosts.get_mut("b").unwrap().bridge {
            bridge.answered.push("fd00:10:244:2::50/128".parse().unwrap());
        }
        for (strategy, expected) in [(Strategy::InPlace, Fail), (Strategy::Drain, Pass)] {
            let policy = CheckPolicy {
                strategy,
                ..fixture::policy()
            };
            let found = check(&settings, &facts, &policy);
            assert_eq!(verdicts(&found), [("LegacyPods", expected)]);
            assert_eq!(found[0].found.contains("fd00:10:244:2::50"), expected == Fail);
        }
    }
}
