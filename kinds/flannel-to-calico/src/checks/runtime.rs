//! The container runtime's own choice of a pod network, where it has one beside the CNI configuration directory.

use super::CheckName;
use super::network::reported;
use crate::facts::ClusterFacts;
use crate::runtime::{CRI_DOCKERD, CRIO, CRIO_FOLDER, Runtime, SettingName};
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};
use engine::cluster::Node;
use engine::words::number;

/// Name of the network in the conflist that Calico writes.
const CALICO_NETWORK: &str = "k8s-pod-network";
/// The network plugin of cri-dockerd that reads the CNI configuration directory.
const CNI: &str = "cni";

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::ContainerRuntime);
    let reported = reported(facts);
    for (node, host) in &reported {
        let Some(program) = program(&node.container_runtime) else {
            continue;
        };
        match host.runtime.as_ref().filter(|runtime| runtime.program == program) {
            Some(runtime) => judge(settings, node, runtime, &mut report),
            None => report.unknown(
                "Node",
                &node.name,
                Finding::new(
                    &node.container_runtime,
                    format!("the agent has reported no settings of process {program}"),
                    "the network that the runtime chooses",
                    format!(
                        "see that {program} runs in the network namespace of the host; an agent of an earlier version does not report \
                         it: update it"
                    ),
                ),
            ),
        }
    }
    report.finish(
        format!("container runtime of {}", number(reported.len(), "host", "hosts")),
        "chooses the pod network by the CNI configuration directory alone",
    )
}

/// The process of a runtime with a choice of its own, by `status.nodeInfo.containerRuntimeVersion`.
fn program(version: &str) -> Option<&'static str> {
    match version.split_once("://")?.0 {
        "cri-o" => Some(CRIO),
        "docker" => Some(CRI_DOCKERD),
        _ => None,
    }
}

fn judge(settings: &Settings, node: &Node, runtime: &Runtime, report: &mut Report) {
    if let Some(problem) = &runtime.problem {
        let finding = Finding::new(
            &node.container_runtime,
            problem,
            "readable settings of the runtime",
            format!(
                "CRI-O: apply deploy/cri-o in place of deploy/base, which mounts {CRIO_FOLDER} read-only into the agent; move \
                 configuration that is elsewhere to {CRIO_FOLDER}, and correct a file that is not valid"
            ),
        );
        report.unknown("Node", &node.name, finding);
    }
    let directory = &settings.cni_configuration_directory.value;
    let restart = format!("restart {} on the node; running pods stay", runtime.program);
    for setting in &runtime.settings {
        let value = setting.value.as_str();
        let (needed, fix) = match setting.name {
            SettingName::Network if value == CALICO_NETWORK => continue,
            SettingName::Network => (
                "no value".to_owned(),
                format!(
                    "the runtime attaches pods to the network of this name only, so that Calico's conflist (network {CALICO_NETWORK}) \
                     would never be used: remove the key, which is right for flannel and for Calico, and {restart}"
                ),
            ),
            SettingName::ConfigurationDirectory if is_same(value, directory) => continue,
            SettingName::ConfigurationDirectory => (
                format!("{directory}, {}", settings.cni_configuration_directory.source),
                format!(
                    "remove the setting, or set it to this directory, and {restart}; or, if flannel's conflist is in {value}, set \
                     cniConfigurationDirectory in spec.flannelToCalico.options"
                ),
            ),
            SettingName::Plugin if value == CNI => continue,
            SettingName::Plugin => (
                CNI.to_owned(),
                format!("let the runtime attach pods by CNI first: set the option to {CNI}, and {restart}"),
            ),
            // The check LegacyPods says so if the records of pods are not found.
            SettingName::CacheDirectory => continue,
        };
        let part = format!("{}: {}", setting.place, setting.key);
        report.fail("Node", &node.name, Finding::new(&part, value, needed, fix));
    }
}

fn is_same(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use engine::check::Verdict::{self, Fail, Pass, Unknown};
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn crio(text: &str) -> Runtime {
        let file = ("/etc/crio/crio.conf.d/10.conf".to_owned(), Ok(text.to_owned()));
        Runtime::crio(&[], &Ok(vec![file]))
    }

    fn judge(version: &str, runtime: Option<Runtime>) -> Vec<Check> {
        let mut facts = fixture::cluster();
        facts.nodes.get_mut("b").unwrap().container_runtime = version.to_owned();
        facts.hosts.get_mut("b").unwrap().runtime = runtime;
        check(&fixture::settings(), &facts)
    }

    #[rstest]
    #[case::another_network("cni_default_network = 'cbr0'", Fail)]
    #[case::the_network_of_calico("cni_default_network = 'k8s-pod-network'", Pass)]
    #[case::no_network("", Pass)]
    #[case::another_folder("network_dir = '/opt/cni/net.d'", Fail)]
    #[case::the_usual_folder("network_dir = '/etc/cni/net.d/'", Pass)]
    fn settings_of_crio(#[case] line: &str, #[case] expected: Verdict) {
        let found = judge("cri-o://1.34.0", Some(crio(&format!("[crio.network]\n{line}\n"))));
        assert_eq!(verdicts(&found), [("ContainerRuntime", expected)]);
        if expected == Fail {
            let [key, value] = line.split(" = ").collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            assert!(
                found[0].object.contains("Node b: /etc/crio/crio.conf.d/10.conf"),
                "{found:?}"
            );
            assert!(found[0].object.contains(key), "{found:?}");
            assert_eq!(found[0].found, value.trim_matches('\''));
        }
    }

    #[rstest]
    #[case::another_plugin("cri-dockerd --network-plugin=kubenet", Fail)]
    #[case::the_defaults("cri-dockerd --container-runtime-endpoint fd://", Pass)]
    #[case::the_cache_is_no_choice("cri-dockerd --cni-cache-dir=/data/cni", Pass)]
    fn settings_of_cri_dockerd(#[case] line: &str, #[case] expected: Verdict) {
        let found = judge("docker://28.0.0", Some(Runtime::cri_dockerd(&words(line))));
        assert_eq!(verdicts(&found), [("ContainerRuntime", expected)]);
    }

    #[test]
    fn what_is_not_known_is_no_pass() {
        let unread = Runtime::crio(
            &[],
            &Err("folder /etc/crio of the host is not mounted".to_owned()),
        );
        for runtime in [None, Some(Runtime::cri_dockerd(&[])), Some(unread)] {
            let found = judge("cri-o://1.34.0", runtime);
            assert_eq!(verdicts(&found), [("ContainerRuntime", Unknown)]);
            assert!(
                found[0].object.contains("Node b") && !found[0].fix.is_empty(),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_runtime_without_a_choice_of_its_own_passes() {
        for version in ["containerd://2.2.0", ""] {
            assert_eq!(verdicts(&judge(version, None)), [("ContainerRuntime", Pass)]);
        }
    }
}
