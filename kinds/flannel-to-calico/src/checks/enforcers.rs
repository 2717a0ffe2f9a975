//! Check of other programs that enforce network policies. Beside Calico, a connection needs the consent of both.

use super::CheckName;
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, Verdict};
use engine::cluster::{Container, DaemonSet};

/// A program that enforces network policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enforcer {
    /// kube-network-policies, also as a container of flannel's pods.
    KubeNetworkPolicies,
    KubeRouter,
    WeaveNpc,
    Antrea,
    Cilium,
}

impl Enforcer {
    /// The program that a container runs.
    fn of(container: &Container) -> Option<Self> {
        let is_named = |name: &str| container.name == name || image_name(&container.image) == name;
        let runs = |word: &str| container.arguments.iter().any(|argument| argument.contains(word));
        if is_named("kube-network-policies") {
            return Some(Self::KubeNetworkPolicies);
        }
        if is_named("kube-router") {
            let is_off = runs("--run-firewall=false");
            return (!is_off).then_some(Self::KubeRouter);
        }
        if is_named("weave-npc") {
            return Some(Self::WeaveNpc);
        }
        if is_named("antrea-agent") {
            return Some(Self::Antrea);
        }
        is_named("cilium-agent").then_some(Self::Cilium)
    }

    fn name(self) -> &'static str {
        match self {
            Self::KubeNetworkPolicies => "kube-network-policies",
            Self::KubeRouter => "kube-router",
            Self::WeaveNpc => "weave-npc",
            Self::Antrea => "Antrea",
            Self::Cilium => "Cilium",
        }
    }

    /// The rules that stay on a host after the program has ended, and the command that removes them.
    fn leftovers(self) -> &'static str {
        match self {
            Self::KubeNetworkPolicies => "`nft delete table inet kube-network-policies` on each node",
            Self::KubeRouter => "`kube-router --cleanup-config` on each node",
            Self::WeaveNpc => "delete the chains WEAVE-NPC* on each node",
            Self::Antrea | Self::Cilium => {
                "restart the nodes, or delete its programs and chains on each of them"
            }
        }
    }

    /// Whether it is a plugin in flannel's conflist. Calico's conflist has no such plugin, so it does not see new pods.
    fn is_chained(self) -> bool {
        match self {
            Self::Antrea | Self::Cilium => true,
            Self::KubeNetworkPolicies | Self::KubeRouter | Self::WeaveNpc => false,
        }
    }
}

/// The last part of an image's path, without tag and digest.
fn image_name(image: &str) -> &str {
    let path = image.split('@').next().unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

pub(super) fn check(flannel: Option<&DaemonSet>, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::PolicyEnforcers);
    for set in facts.daemon_sets.values() {
        let Some(enforcer) = set.containers.iter().find_map(Enforcer::of) else {
            continue;
        };
        let goes_with_flannel = flannel.is_some_and(|flannel| flannel.key() == set.key());
        let (verdict, finding) = finding(enforcer, goes_with_flannel);
        report.add(verdict, "DaemonSet", set.key(), finding);
    }
    report.finish("programs that enforce network policies", "none but Calico")
}

fn finding(enforcer: Enforcer, goes_with_flannel: bool) -> (Verdict, Finding<'static>) {
    let name = enforcer.name();
    let leftovers = enforcer.leftovers();
    if enforcer.is_chained() {
        let finding = Finding::new(
            "",
            format!("{name} enforces network policies, by a plugin in flannel's conflist"),
            "Calico alone, whose conflist has no other plugin",
            format!(
                "remove {name} before the migration ({leftovers}); Calico enforces NetworkPolicies from then on"
            ),
        );
        return (Verdict::Fail, finding);
    }
    let fix = if goes_with_flannel {
        format!("{name} ends with flannel's pod on each node; then its rules stay: {leftovers}")
    } else {
        format!("uninstall {name} when the migration is over, and remove its rules: {leftovers}")
    };
    let finding = Finding::new(
        "",
        format!(
            "{name} enforces network policies: until it is gone, a connection needs its consent and Calico's"
        ),
        "",
        fix,
    );
    (Verdict::Warn, finding)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::fixture;
    use super::*;
    use engine::check::Verdict::{Fail, Pass, Warn};

    fn judge(set: DaemonSet) -> Check {
        let mut facts = fixture::cluster();
        let flannel = fixture::flannel();
        facts
            .daemon_sets
            .insert((set.namespace.clone(), set.name.clone()), set);
        let key = (flannel.namespace, flannel.name);
        let mut checks = check(facts.daemon_sets.get(&key), &facts);
        assert_eq!(checks.len(), 1, "{checks:?}");
        checks.remove(0)
    }

    fn set(name: &str, image: &str, arguments: &[&str]) -> DaemonSet {
        DaemonSet {
            namespace: "kube-system".to_owned(),
            name: "policies".to_owned(),
            containers: vec![Container {
                name: name.to_owned(),
                image: image.to_owned(),
                arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
                ..Container::default()
            }],
            ..DaemonSet::default()
        }
    }

    #[rstest]
    #[case::knp("netpol", "registry.k8s.io/networking/kube-network-policies:v1.1.1", &[], Warn)]
    #[case::kube_router("kube-router", "docker.io/cloudnativelabs/kube-router:v2.5.0", &["--run-firewall=true"], Warn)]
    #[case::kube_router_by_default("router", "cloudnativelabs/kube-router@sha256:00", &[], Warn)]
    #[case::kube_router_without_firewall("kube-router", "cloudnativelabs/kube-router", &["--run-firewall=false"], Pass)]
    #[case::weave("weave-npc", "weaveworks/weave-npc:2.8.1", &[], Warn)]
    #[case::antrea("antrea-agent", "antrea/antrea-agent-ubuntu:v2.2.0", &[], Fail)]
    #[case::cilium("cilium-agent", "quay.io/cilium/cilium:v1.17.0", &[], Fail)]
    #[case::another("proxy", "registry.k8s.io/kube-proxy:v1.36.0", &["--v=2"], Pass)]
    fn other_enforcers_are_found(
        #[case] name: &str,
        #[case] image: &str,
        #[case] arguments: &[&str],
        #[case] expected: Verdict,
    ) {
        let check = judge(set(name, image, arguments));
        assert_eq!(check.verdict, expected, "{check:?}");
        if expected != Pass {
            assert_eq!(check.object, "DaemonSet kube-system/policies");
            assert!(!check.fix.is_empty());
        }
    }

    #[test]
    fn the_policy_controller_of_flannel_goes_with_flannel() {
        let mut flannel = fixture::flannel();
        flannel.containers.push(Container {
            name: "kube-network-policies".to_owned(),
            ..Container::default()
        });
        let check = judge(flannel);
        assert_eq!(check.verdict, Warn);
        assert!(
            check
                .fix
                .starts_with("kube-network-policies ends with flannel's pod"),
            "{check:?}"
        );
    }

    #[test]
    fn flannel_and_calico_alone_pass() {
        let facts = fixture::cluster();
        let checks = check(None, &facts);
        assert_eq!((checks.len(), checks[0].verdict), (1, Pass));
    }
}
