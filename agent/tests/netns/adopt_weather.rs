//! Adoption while other things happen: pods end, appear, and have names that are taken.

use flannel_to_calico::facts::LegacyPod;
use flannel_to_calico::host::{HostDecision, HostStep, leftovers, phase};
use flannel_to_calico::phase::{Goal, Phase};

use rstest::rstest;

use crate::adopt::{felix_takes, mixed, replace_plugins};
use crate::drive;
use crate::host::{Host, in_namespace, run};
use crate::pods::{Pod, Traffic};

/// Number of steps of an adoption: to open the bridge, six actions, to keep its address, to delete it, and to remove its rule.
const STEPS: usize = 10;
/// Failures of one step in a row: the agent repeats a step after an observation.
const MOST_FAILURES: usize = 2;

/// Drives the host to phase Calico while Felix takes every link. `disturb` is called between the observation and each step, with the
/// number of the step. Returns the wait at the end and the number of failed steps.
async fn drive_through(
    host: &Host,
    pods: &mut Vec<Pod>,
    mut disturb: impl FnMut(usize, &HostStep, &mut Vec<Pod>),
) -> (Option<String>, usize) {
    let (mut number, mut failed, mut in_a_row) = (0, 0, 0);
    loop {
        let seen = host.observe().await;
        match host.decide(&seen, Goal::Calico) {
            HostDecision::Run(step) => {
                assert!(number < 60, "too many steps: {step:?}");
                disturb(number, &step, pods);
                number += 1;
                match host.apply(&step, &seen).await {
                    Ok(_) => in_a_row = 0,
                    Err(error) => {
                        in_a_row += 1;
                        failed += 1;
                        assert!(in_a_row <= MOST_FAILURES, "{}: {error:?}", step.name());
                    }
                }
            }
            HostDecision::Wait(message) => {
                let links = run("ip link");
                let is_waiting = |pod: &&Pod| {
                    let mut known = seen.facts.legacy_pods.iter();
                    links.contains(&pod.calico_link())
                        && known.any(|known| known.name == pod.name && known.waits_for_felix())
                };
                let waiting: Vec<&Pod> = pods.iter().filter(is_waiting).collect();
                if waiting.is_empty() {
                    return (Some(message), failed);
                }
                waiting.into_iter().for_each(felix_takes);
            }
            HostDecision::Settled => return (None, failed),
            HostDecision::Halt(why) => panic!("{why}"),
        }
    }
}

/// The link of a pod under whichever name it has.
fn current_link(pod: &Pod) -> String {
    let links = run("ip -o link");
    let names = [pod.link(), pod.calico_link()];
    let found = names
        .into_iter()
        .find(|name| links.contains(&format!(" {name}@")));
    found.unwrap_or_else(|| panic!("{}: no link: {links}", pod.name))
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_pod_that_ends_before_any_step_leaves_nothing_and_the_others_are_adopted() {
    for at in 0..STEPS {
        in_namespace(move || async move {
            let (host, mut pods) = mixed(Host::new()).await;
            replace_plugins(&host);
            let ending = pods[1].clone();
            let traffic = Traffic::start(&[pods[0].clone(), pods[2].clone(), pods[3].clone()]);
            pods.truncate(3);
            let end = |number: usize, _: &HostStep, _: &mut Vec<Pod>| {
                if number == at {
                    run(&format!("ip link delete {}", current_link(&ending)));
                }
            };
            let (wait, failed) = drive_through(&host, &mut pods, end).await;
            assert_eq!(wait, None, "step {at}");
            assert!(!run("ip link").contains(&ending.calico_link()), "no step {at}");
            assert!(failed <= 1, "step {at}: {failed} failures");
            traffic.assert_no_gap(&format!("a pod ends before step {at}"));
            let facts = host.observe().await.facts;
            assert_eq!(phase(&facts, &host.settings()), Phase::Calico);
            assert_eq!(leftovers(&facts, &host.settings()), Vec::<String>::new());
            assert_eq!(facts.legacy_pods.len(), 2);
            assert!(!host.paths.cni_state.join("results/cbr0-b-eth0").exists());
            let rules = run("nft list table netdev replumb");
            assert!(!rules.contains(&ending.link()), "{rules}");
            let rest = [run("ip route"), run("ip neighbour")].concat();
            assert!(!rest.contains("10.244.1.3 "), "{rest}");
        });
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_pod_that_appears_on_the_bridge_before_any_step_is_adopted_too() {
    for at in 0..STEPS {
        in_namespace(move || async move {
            let (host, mut pods) = mixed(Host::new()).await;
            pods.truncate(3);
            let traffic = Traffic::start(&pods);
            let appear = |number: usize, step: &HostStep, pods: &mut Vec<Pod>| {
                // flannel's plugin creates a bridge that does not exist; the kernel test's does not.
                let has_bridge = *step != HostStep::DeleteBridge && run("ip link").contains("cni0:");
                if number == at && has_bridge {
                    pods.push(Pod::on_bridge(&host, "late", 20));
                }
            };
            let (wait, failed) = drive_through(&host, &mut pods, appear).await;
            assert_eq!(wait, None, "step {at}");
            assert!(failed <= 1, "step {at}: {failed} failures");
            traffic.assert_no_gap(&format!("a pod appears before step {at}"));
            let facts = host.observe().await.facts;
            assert_eq!(phase(&facts, &host.settings()), Phase::Calico);
            assert_eq!(facts.legacy_pods.len(), pods.len());
            assert!(facts.legacy_pods.iter().all(LegacyPod::is_adopted));
            Traffic::start(&pods).assert_no_gap("with the late pod");
        });
    }
}

/// The runtime adds a pod in the moment in which the bridge is deleted: the step is not made, and the pod is adopted first.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_bridge_is_not_deleted_with_a_pod_that_has_just_appeared() {
    in_namespace(|| async {
        let (host, mut pods) = mixed(Host::new()).await;
        pods.truncate(3);
        let mut appeared = false;
        let appear = |_: usize, step: &HostStep, pods: &mut Vec<Pod>| {
            if *step == HostStep::DeleteBridge && !std::mem::replace(&mut appeared, true) {
                pods.push(Pod::on_bridge(&host, "late", 20));
            }
        };
        let (wait, failed) = drive_through(&host, &mut pods, appear).await;
        assert_eq!((wait, failed), (None, 1), "the deletion is refused once");
        assert!(appeared);
        let facts = host.observe().await.facts;
        assert_eq!(facts.legacy_pods.len(), 4);
        assert!(facts.legacy_pods.iter().all(LegacyPod::is_adopted) && facts.bridge.is_absent());
        Traffic::start(&pods).assert_no_gap("with the late pod");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_pod_whose_name_is_taken_before_any_step_stays_and_the_others_are_adopted() {
    for at in 0..STEPS {
        in_namespace(move || async move {
            let (host, mut pods) = mixed(Host::new()).await;
            pods.truncate(3);
            let traffic = Traffic::start(&pods);
            let name = pods[0].calico_link();
            let mut taken = false;
            let take = |number: usize, _: &HostStep, _: &mut Vec<Pod>| {
                if number == at && !run("ip link").contains(&name) {
                    run(&format!("ip link add {name} type bridge"));
                    taken = true;
                }
            };
            let (wait, failed) = drive_through(&host, &mut pods, take).await;
            assert!(failed <= 1, "step {at}: {failed} failures");
            traffic.assert_no_gap(&format!("a name is taken before step {at}"));
            let facts = host.observe().await.facts;
            let is_adopted: Vec<bool> = facts.legacy_pods.iter().map(LegacyPod::is_adopted).collect();
            assert_eq!(is_adopted, [!taken, true, true], "step {at}");
            assert_eq!(wait.is_some(), taken, "step {at}: {wait:?}");
            if let Some(wait) = wait {
                assert!(wait.contains("pod shop/a: another link has the name"), "{wait}");
                assert!(run("ip link show master cni0").contains("vetha"), "step {at}");
                // The name is free again.
                run(&format!("ip link delete {name}"));
                let (wait, _) = drive_through(&host, &mut pods, |_, _, _| {}).await;
                assert_eq!(wait, None, "step {at}");
                assert!(
                    host.observe()
                        .await
                        .facts
                        .legacy_pods
                        .iter()
                        .all(LegacyPod::is_adopted)
                );
            }
        });
    }
}

/// The parameters of its link, which the journal has, do not exist any more.
#[rstest]
#[case::forgotten_before(true)]
#[case::not_forgotten_yet(false)]
#[ignore = "needs root and network namespaces"]
fn a_rollback_after_an_adopted_pod_has_ended_returns_the_others(#[case] forgotten: bool) {
    in_namespace(move || async move {
        let (host, mut pods) = mixed(Host::new()).await;
        replace_plugins(&host);
        pods.truncate(3);
        assert_eq!(drive_through(&host, &mut pods, |_, _, _| {}).await, (None, 0));
        let ended = pods.remove(1);
        run(&format!("ip link delete {}", ended.calico_link()));
        if forgotten {
            assert_eq!(drive_through(&host, &mut pods, |_, _, _| {}).await, (None, 0));
        }
        run("ip link delete calinew");
        let traffic = Traffic::start(&pods);
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        traffic.assert_no_gap("rollback after a pod has ended");
        assert!(host.is_rolled_back());
        let facts = host.observe().await.facts;
        assert_eq!(facts.legacy_pods.len(), 2);
        assert!(facts.legacy_pods.iter().all(|pod| pod.attached));
    });
}
