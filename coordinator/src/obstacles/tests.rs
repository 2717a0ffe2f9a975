use super::*;
use crate::write::WriteError;

fn refusal() -> WriteError {
    let status = kube::core::Status::failure("denied by policy", "Forbidden").with_code(403);
    WriteError::of("labelling", "Node a", kube::Error::Api(Box::new(status)))
}

fn conflict() -> WriteError {
    let status = kube::core::Status::failure("it changed", "Conflict").with_code(409);
    WriteError::of("labelling", "Node a", kube::Error::Api(Box::new(status)))
}

fn unreachable() -> WriteError {
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    WriteError::of("labelling", "Node a", kube::Error::Service(Box::new(refused)))
}

fn timeout() -> WriteError {
    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
    WriteError::of("labelling", "Node a", kube::Error::Service(Box::new(late)))
}

#[tokio::test]
async fn a_refused_object_waits_and_keeps_its_message() {
    let obstacles = Obstacles::default();
    let made = obstacles
        .attempt::<(), WriteError>("Node a", async { Err(refusal()) })
        .await;
    assert!(made.unwrap().is_none());
    let now = Timestamp::now();
    assert_eq!(
        obstacles.reason_to_wait("Node a", now).as_deref(),
        Some("labelling Node a: denied by policy")
    );
    let not_made = obstacles
        .attempt("Node a", async { Ok::<_, WriteError>(()) })
        .await;
    assert!(not_made.unwrap().is_none(), "the pause is not over");
    assert_eq!(
        obstacles.reason_to_wait("Node b", now),
        None,
        "another object is not held"
    );
    let wait = obstacles.wait().unwrap();
    assert_eq!(
        wait.message,
        "labelling Node a: denied by policy; the coordinator retries"
    );
}

#[tokio::test]
async fn a_written_object_is_not_an_obstacle() {
    let obstacles = Obstacles::default();
    let earlier = Timestamp::now() - SignedDuration::from_mins(1);
    assert!(obstacles.note("Node a", refusal(), earlier).unwrap().is_some());
    assert!(
        obstacles
            .attempt("Node a", async { Ok::<_, WriteError>(()) })
            .await
            .unwrap()
            .is_some()
    );
    assert!(obstacles.wait().is_none());
}

#[test]
fn a_conflict_is_not_a_failure_and_an_unreachable_api_server_is_an_error() {
    let obstacles = Obstacles::default();
    let now = Timestamp::now();
    assert_eq!(obstacles.note("Node c", conflict(), now).unwrap(), None);
    assert_eq!(obstacles.reason_to_wait("Node c", now), None, "due at once");
    assert!(!obstacles.is_clear(), "not written yet");
    assert!(obstacles.note("Node a", unreachable(), now).is_err());
    assert!(obstacles.wait().is_none());
    // A hanging admission webhook affects the write of one object.
    assert!(obstacles.note("Node a", timeout(), now).unwrap().is_some());
}

#[test]
fn a_resting_object_keeps_its_reason_and_rests_longer_each_time() {
    let obstacles = Obstacles::default();
    let held = WaitReport {
        reason: WaitReason::AgentSilent.into(),
        message: "no agent is Ready on node a".to_owned(),
        needs_user: true,
    };
    let now = Timestamp::now();
    let at = |seconds| now + SignedDuration::from_secs(seconds);
    obstacles.postpone("first step of Node a", &held, now);
    let reported = obstacles.wait().unwrap();
    assert_eq!(reported.reason.as_str(), "AgentSilent");
    assert_eq!(
        reported.message,
        "no agent is Ready on node a; the coordinator retries"
    );
    assert!(obstacles.reason_to_wait("first step of Node a", at(7)).is_some());
    assert_eq!(obstacles.reason_to_wait("first step of Node a", at(10)), None);
    obstacles.postpone("first step of Node a", &held, at(10));
    assert!(obstacles.reason_to_wait("first step of Node a", at(24)).is_some());
    assert_eq!(obstacles.reason_to_wait("first step of Node a", at(30)), None);
}

#[test]
fn objects_without_a_pending_write_are_forgotten() {
    let obstacles = Obstacles::default();
    let now = Timestamp::now();
    for object in ["Node a", "Node b"] {
        obstacles.note(object, refusal(), now).unwrap();
    }
    assert!(obstacles.wait().unwrap().message.contains("(and 1 more object)"));
    obstacles.begin_pass();
    obstacles.reason_to_wait("Node b", now);
    obstacles.end_pass();
    let wait = obstacles.wait().unwrap();
    assert!(!wait.message.contains("more object"), "{}", wait.message);
    assert_eq!(obstacles.reason_to_wait("Node a", now), None);
}

#[tokio::test(start_paused = true)]
async fn a_pass_writes_for_a_limited_time_and_the_next_pass_continues() {
    let obstacles = Obstacles::within(Duration::from_millis(200));
    for _ in 0..2 {
        obstacles.begin_pass();
        // Reads may take longer than the limit for writes: the pass still writes.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let first = obstacles
            .attempt("Node a", async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok::<_, WriteError>(())
            })
            .await;
        assert!(first.unwrap().is_some(), "a started write is finished");
        assert!(obstacles.is_clear());
        for node in ["Node b", "Node c"] {
            let later = obstacles.attempt(node, async { Ok::<_, WriteError>(()) }).await;
            assert!(later.unwrap().is_none());
        }
        assert_eq!(obstacles.postponed(), 2);
        assert!(!obstacles.is_clear() && obstacles.wait().is_none(), "no failure");
        obstacles.end_pass();
    }
    obstacles.begin_pass();
    let made = obstacles
        .attempt("Node b", async { Ok::<_, WriteError>(()) })
        .await;
    assert!(made.unwrap().is_some() && obstacles.is_clear());
}

#[test]
fn pauses_grow_to_their_limit_and_vary() {
    let seconds = |failures| pause("Node a", failures).as_secs_f64();
    for (failures, longest) in [(1, 1.0), (2, 2.0), (3, 4.0), (6, 30.0), (1000, 30.0)] {
        let found = seconds(failures);
        assert!(found <= longest && found >= longest * 0.75, "{failures}: {found}");
    }
    let different: std::collections::BTreeSet<i128> = (0..100)
        .map(|node| pause(&format!("Node {node}"), 5).as_nanos())
        .collect();
    assert!(different.len() > 90);
}
