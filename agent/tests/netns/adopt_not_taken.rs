//! Adoption without a Felix: the pods return to `cni0`, and stay there until the migration is resumed.

use std::time::{Duration, Instant};

use agent::kinds::flannel_to_calico::journal::Journal;
use axum::http::StatusCode;
use flannel_to_calico::facts::LegacyPod;
use flannel_to_calico::host::phase;
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use rstest::rstest;
use serde_json::json;

use crate::adopt::{felix_takes, mixed, new_host, of_pods};
use crate::drive;
use crate::host::{Host, in_namespace, run};
use crate::pods::{Pod, Traffic};
use crate::turn::{Server, beside, object, start};

/// Longest time for a change of the host, sufficient for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The agent's clock is over for these pods.
fn expire(host: &Host, pods: &[Pod]) {
    let sandboxes = pods.iter().map(|pod| pod.name.clone()).collect();
    let mut journal = Journal::open(&host.state()).unwrap();
    journal.record_not_taken(sandboxes, Timestamp::now()).unwrap();
}

#[rstest]
#[case::ipv4(false)]
#[case::dual_stack(true)]
#[ignore = "needs root and network namespaces"]
fn a_host_without_felix_is_as_before_and_no_packet_is_lost(#[case] dual_stack: bool) {
    in_namespace(move || async move {
        let (host, pods) = mixed(new_host(dual_stack)).await;
        let flannels = &pods[..3];
        let before = of_pods(flannels);
        let traffic = Traffic::start(&pods);
        let waits = drive(&host, Goal::Calico).await.unwrap();
        assert!(waits.contains("calico-node has not taken links"), "{waits}");
        assert!(run("ip link").contains(&pods[0].calico_link()));
        expire(&host, flannels);
        let waits = drive(&host, Goal::Calico).await.unwrap();
        assert!(
            waits.contains("within 60 s") && waits.contains("pod shop/a"),
            "{waits}"
        );
        traffic.assert_no_gap("there and back without Felix");
        assert_eq!(of_pods(flannels), before);
        // No step follows, and the way back is that of a host in phase Mixed.
        let path = Journal::open(&host.state()).unwrap().path();
        let journal = std::fs::read_to_string(&path).unwrap();
        assert_eq!(drive(&host, Goal::Calico).await, Some(waits));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), journal);
        run("ip link delete calinew");
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        assert!(host.is_rolled_back());
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn one_pod_that_is_not_taken_returns_while_the_others_stay_adopted() {
    in_namespace(|| async {
        let (host, pods) = mixed(Host::new()).await;
        let traffic = Traffic::start(&pods);
        drive(&host, Goal::Calico).await.unwrap();
        felix_takes(&pods[1]);
        felix_takes(&pods[2]);
        expire(&host, &pods[..1]);
        let waits = drive(&host, Goal::Calico).await.unwrap();
        assert!(
            waits.contains("pod shop/a") && !waits.contains("pod shop/b"),
            "{waits}"
        );
        let facts = host.observe().await.facts;
        assert_eq!(phase(&facts, &host.settings()), Phase::Mixed);
        let attached: Vec<bool> = facts.legacy_pods.iter().map(|pod| pod.attached).collect();
        assert_eq!(attached, [true, false, false]);
        assert!(facts.legacy_pods[1..].iter().all(LegacyPod::is_adopted));
        traffic.assert_no_gap("one pod returns");
        // Everything goes back afterwards.
        run("ip link delete calinew");
        let traffic = Traffic::start(&pods[..3]);
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        traffic.assert_no_gap("rollback");
        let facts = host.observe().await.facts;
        assert!(
            facts.legacy_pods.iter().all(|pod| pod.attached),
            "{:?}",
            facts.legacy_pods
        );
    });
}

/// Answers the agent until the host satisfies the condition.
async fn until(server: &mut Server, what: &str, condition: impl Fn() -> bool) {
    let answers = async {
        loop {
            server.patch(StatusCode::OK).await;
        }
    };
    let holds = async {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < PATIENCE, "{what}: {}", run("ip link"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = holds => {}
        () = answers => {}
    }
}

fn on_bridge(pod: &Pod) -> bool {
    run("ip link show master cni0").contains(&pod.link())
}

/// The agent itself: its clock, a restart, and a resume.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_pod_that_is_not_taken_is_adopted_again_after_a_resume_and_not_after_a_restart() {
    in_namespace(|| async {
        let (mut host, pods) = mixed(Host::new()).await;
        host.adoption.taking_seconds = 2;
        let mut asked = object(&host);
        asked["spec"]["flannelToCalico"]["goal"] = json!("Calico");
        let (mut server, agent) = start(&host, asked.clone());
        beside(agent, async {
            let first = &pods[0];
            until(&mut server, "adopted", || {
                run("ip link").contains(&first.calico_link())
            })
            .await;
            let adopted = Instant::now();
            for pod in &pods[1..3] {
                felix_takes(pod);
            }
            until(&mut server, "returned", || on_bridge(first)).await;
            assert!(adopted.elapsed() > Duration::from_secs(1), "too early");
            until(&mut server, "the others are taken", || !on_bridge(&pods[1])).await;
        })
        .await;
        // A restarted agent remembers it.
        let (mut server, agent) = start(&host, asked.clone());
        beside(agent, async {
            let named = |server: &Server| {
                let status = server.object["status"]["flannelToCalico"]["facts"]["legacyPods"].clone();
                status[0]["notTakenWithin"] == json!(2)
            };
            while !named(&server) {
                server.patch(StatusCode::OK).await;
            }
            let message = server.object["status"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("within 2 s"), "{message}");
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(on_bridge(&pods[0]));
            // The user resumes, and calico-node works again.
            server.object["spec"]["flannelToCalico"]["host"]["adoption"]["resumedAt"] =
                json!("2026-10-01T00:00:00Z");
            server.set_goal(Goal::Calico);
            until(&mut server, "adopted again", || {
                run("ip link").contains(&pods[0].calico_link())
            })
            .await;
            felix_takes(&pods[0]);
            until(&mut server, "the end of cni0", || {
                !run("ip link").contains("cni0:")
            })
            .await;
        })
        .await;
    });
}
