use super::*;
use crate::echo::{Echo, free_port};

/// A probe pod on a free port.
fn pod(uid: &str) -> (ProbeTarget, JoinHandle<()>) {
    let free = free_port();
    let echo = Echo::bind(free, uid).unwrap();
    let task = tokio::spawn(async move {
        echo.serve().await.unwrap();
    });
    let target = ProbeTarget {
        node: "a".to_owned(),
        address: Ipv4Addr::LOCALHOST.into(),
        port: free,
        pod_uid: uid.to_owned(),
    };
    (target, task)
}

#[tokio::test]
async fn a_pod_that_answers_is_reached() {
    let (target, task) = pod("u-1");
    let outcome = probe(&target, 1450).await;
    assert!(outcome.is_reached(), "{}", outcome.message());
    assert_eq!(
        outcome.message(),
        "UDP answered; TCP answered; UDP of 1450 bytes answered"
    );
    task.abort();
}

#[tokio::test]
async fn an_answer_of_another_pod_at_the_address_is_refused() {
    let (mut target, task) = pod("u-1");
    target.pod_uid = "u-2".to_owned();
    let outcome = probe(&target, 1450).await;
    assert!(!outcome.is_reached());
    assert!(
        outcome.large.is_err() && outcome.message().contains("u-1") && outcome.message().contains("u-2"),
        "{}",
        outcome.message()
    );
    task.abort();
}

#[tokio::test]
async fn without_a_listener_each_probe_reports_an_error() {
    let (target, task) = pod("u-1");
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let outcome = probe(&target, 1450).await;
    assert!(
        outcome.udp.is_err() && outcome.tcp.is_err() && outcome.large.is_err(),
        "{}",
        outcome.message()
    );
}

#[tokio::test]
async fn a_datagram_larger_than_the_mtu_is_not_fragmented() {
    let (target, task) = pod("u-1");
    // The MTU of the loopback link is 65536 at most: this datagram cannot be sent whole, and must not be fragmented.
    let outcome = probe(&target, 65_534 + 28).await;
    assert!(
        outcome.udp.is_ok() && outcome.large.is_err(),
        "{}",
        outcome.message()
    );
    task.abort();
}

#[tokio::test]
async fn results_follow_the_targets() {
    let (target, task) = pod("u-1");
    let changed = Arc::new(Notify::new());
    let mut probes = Probes::new(Arc::clone(&changed));
    probes.set(std::slice::from_ref(&target), 1450);
    tokio::time::timeout(Duration::from_secs(10), async {
        while probes.results(std::slice::from_ref(&target)).is_empty() {
            changed.notified().await;
        }
    })
    .await
    .unwrap();
    let results = probes.results(std::slice::from_ref(&target));
    assert!(results[0].reached, "{}", results[0].message);
    probes.set(&[], 1450);
    assert!(probes.results(&[target]).is_empty());
    task.abort();
}
