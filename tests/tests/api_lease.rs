//! One leader at a time: contenders for the Lease on a real API server, whose conflicts decide.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_lease -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test says that it failed by a panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use api::names;
use coordinator::clock::Moment;
use coordinator::lease::{Candidate, LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD};
use futures::future::join_all;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use tokio::sync::{OnceCell, watch};

/// Leases of these tests. The coordinator may read and write only one, by its name, and each test needs another.
const LEASES: [&str; 4] = ["takeover", "race", "given-up", "running"];

/// The coordinator's own rights: the tests must not need more. For the Leases of the tests it gets the same rights as
/// for its own.
async fn client() -> Client {
    static GRANTED: OnceCell<()> = OnceCell::const_new();
    let lab = ApiLab::shared().unwrap();
    GRANTED
        .get_or_init(|| async {
            let names = LEASES.map(|name| format!("--resource-name={name}"));
            let mut role = vec!["create", "role", "leases-of-tests", "-n", names::NAMESPACE];
            role.extend(["--verb=get,update", "--resource=leases.coordination.k8s.io"]);
            role.extend(names.iter().map(String::as_str));
            lab.kubectl(&role).unwrap();
            let account = format!("--serviceaccount={}:{}", names::NAMESPACE, names::COORDINATOR);
            let binding = ["create", "rolebinding", "leases-of-tests", "-n", names::NAMESPACE];
            let of = ["--role=leases-of-tests", account.as_str()];
            lab.kubectl(&[&binding[..], &of[..]].concat()).unwrap();
        })
        .await;
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    lab.with_token(&token).await.unwrap()
}

fn candidate(client: &Client, lease: &str, identity: &str) -> Candidate {
    Candidate::new(client.clone(), names::NAMESPACE, lease, identity)
}

async fn read(client: &Client, name: &str) -> LeaseSpec {
    let leases: Api<Lease> = Api::namespaced(client.clone(), names::NAMESPACE);
    leases.get(name).await.unwrap().spec.unwrap()
}

fn after(now: Moment, seconds: u64) -> Moment {
    let passed = Duration::from_secs(seconds);
    Moment {
        wall: now.wall + passed,
        steady: now.steady + passed,
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_renewed_lease_is_kept_and_an_expired_one_is_taken_over() {
    let client = client().await;
    let mut first = candidate(&client, "takeover", "first");
    let mut second = candidate(&client, "takeover", "second");
    let start = Moment::now();

    assert!(first.try_once(start).await.unwrap(), "the Lease was free");
    assert!(!second.try_once(after(start, 1)).await.unwrap());
    // Renewed all the time: however long the second one waits, it never gets the Lease.
    for seconds in (2..60).step_by(4) {
        assert!(
            first.try_once(after(start, seconds)).await.unwrap(),
            "at {seconds} s"
        );
        assert!(
            !second.try_once(after(start, seconds + 1)).await.unwrap(),
            "at {seconds} s"
        );
    }
    let kept = read(&client, "takeover").await;
    assert_eq!(kept.holder_identity.as_deref(), Some("first"));
    assert_eq!(kept.lease_transitions, Some(0));

    // An hour more on a clock that was changed does not count.
    let set = Moment {
        wall: start.wall + SignedDuration::from_hours(1),
        ..after(start, 59)
    };
    assert!(!second.try_once(set).await.unwrap(), "its clock was changed");

    // The first has stopped. The second saw its last renewal at 59 s on its own clock.
    let duration = LEASE_DURATION.as_secs();
    assert!(
        !second.try_once(after(start, 59 + duration - 1)).await.unwrap(),
        "one second too early"
    );
    assert!(
        second.try_once(after(start, 59 + duration)).await.unwrap(),
        "the Lease was not renewed"
    );
    let taken = read(&client, "takeover").await;
    assert_eq!(taken.holder_identity.as_deref(), Some("second"));
    assert_eq!(taken.lease_transitions, Some(1));

    // The first returns and does not trust its earlier state.
    assert!(!first.try_once(after(start, 59 + duration)).await.unwrap());
    assert!(second.try_once(after(start, 60 + duration)).await.unwrap());
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn one_of_many_simultaneous_contenders_wins() {
    let client = client().await;
    let start = Moment::now();
    let mut contenders: Vec<Candidate> = (0..12)
        .map(|number| candidate(&client, "race", &format!("contender-{number}")))
        .collect();

    let winners = |answers: Vec<Result<bool, coordinator::lease::LeaseError>>| -> Vec<usize> {
        answers
            .into_iter()
            .enumerate()
            .filter_map(|(number, answer)| answer.unwrap().then_some(number))
            .collect()
    };
    // All find no Lease and create it.
    let created = winners(join_all(contenders.iter_mut().map(|one| one.try_once(start))).await);
    assert_eq!(created.len(), 1, "several created the Lease: {created:?}");
    let holder = read(&client, "race").await.holder_identity;
    assert_eq!(holder, Some(format!("contender-{}", created[0])));

    // The holder dies; all others have seen its Lease and find it expired at the same moment.
    let mut others: Vec<Candidate> = contenders
        .into_iter()
        .enumerate()
        .filter_map(|(number, one)| (number != created[0]).then_some(one))
        .collect();
    let seen = winners(join_all(others.iter_mut().map(|one| one.try_once(after(start, 1)))).await);
    assert!(seen.is_empty(), "taken from a living holder: {seen:?}");
    let dead = after(start, 1 + LEASE_DURATION.as_secs());
    let taken = winners(join_all(others.iter_mut().map(|one| one.try_once(dead))).await);
    assert_eq!(taken.len(), 1, "several took it over: {taken:?}");
    assert_eq!(read(&client, "race").await.lease_transitions, Some(1));
}

/// A Lease with an empty holder (its leader released it) is free at once.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_released_lease_is_free_at_once() {
    let client = client().await;
    let now = Moment::now();
    assert!(
        candidate(&client, "given-up", "first")
            .try_once(now)
            .await
            .unwrap()
    );
    let admin = ApiLab::shared().unwrap().admin().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(admin, names::NAMESPACE);
    let empty = Patch::Merge(serde_json::json!({"spec": {"holderIdentity": ""}}));
    leases
        .patch("given-up", &PatchParams::default(), &empty)
        .await
        .unwrap();
    assert!(
        candidate(&client, "given-up", "second")
            .try_once(after(now, 1))
            .await
            .unwrap()
    );
}

/// With real clocks: two contenders run, the leader ends, the other leads; at no moment do both consider themselves the leader.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_contender_leads_after_the_leader_has_ended_and_never_beside_it() {
    let client = client().await;
    let (one_sender, mut one) = watch::channel(false);
    let (other_sender, other) = watch::channel(false);
    let first = tokio::spawn(candidate(&client, "running", "first").run(one_sender));
    tokio::time::timeout(Duration::from_secs(20), one.wait_for(|leads| *leads))
        .await
        .unwrap()
        .unwrap();
    let second = tokio::spawn(candidate(&client, "running", "second").run(other_sender));

    let lab = ApiLab::shared().unwrap();
    // The second follows while the first renews.
    let mut renewals = BTreeSet::new();
    until(
        "three renewals",
        Duration::from_mins(1),
        lab.folder(),
        async || {
            assert!(
                *one.borrow() && !*other.borrow(),
                "the second leads beside the first"
            );
            renewals.insert(read(&client, "running").await.renew_time.map(|time| time.0));
            let seen = renewals.len();
            Ok(if seen > 3 {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{seen} different times"))
            })
        },
    )
    .await
    .unwrap();

    // Ended as with kill -9: without a release.
    first.abort();
    let ended = std::time::Instant::now();
    let limit = LEASE_DURATION + Duration::from_secs(15);
    until("the second to lead", limit, lab.folder(), async || {
        Ok(if *other.borrow() {
            Observation::Done(())
        } else {
            Observation::NotYet("it follows".to_owned())
        })
    })
    .await
    .unwrap();
    // A leader that cannot renew steps down after RENEW_DEADLINE; no other may lead before that.
    let renew_deadline = RENEW_DEADLINE;
    assert!(
        ended.elapsed() + RETRY_PERIOD > renew_deadline,
        "taken over after {:?}",
        ended.elapsed()
    );
    assert_eq!(
        read(&client, "running").await.holder_identity.as_deref(),
        Some("second")
    );
    second.abort();
}
