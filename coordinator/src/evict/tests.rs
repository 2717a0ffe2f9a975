use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fake_api::FakeApi;

const PATH: &str = "/api/v1/namespaces/shop/pods/web-0";

fn pod(uid: &str) -> PodName {
    PodName {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: uid.to_owned(),
    }
}

fn server() -> FakeApi {
    let server = FakeApi::default();
    server.put(
        PATH,
        json!({ "metadata": { "namespace": "shop", "name": "web-0", "uid": "first" } }),
    );
    server
}

fn counted(context: &Context, result: &str) -> u64 {
    context.metrics.evictions.with_label_values(&[result]).get()
}

#[tokio::test]
async fn an_eviction_has_the_uid_and_the_grace_period() {
    let (server, mut memory) = (server(), Memory::default());
    let context = server.context();
    evict(&context, &[pod("first")], Some(7), &mut memory).await;
    assert_eq!(server.get(PATH), None);
    assert_eq!(server.grace_period(PATH), Some(7));
    assert_eq!(counted(&context, "evicted"), 1);
    assert_eq!(context.metrics.api_warnings(), 0);
    let at_once = body(&pod("first"), Some(0)).delete_options.unwrap();
    assert_eq!(
        at_once.grace_period_seconds,
        Some(1),
        "no pod is deleted by force"
    );
}

#[tokio::test]
async fn a_new_pod_of_the_same_name_stays_and_is_counted_as_replaced() {
    let (server, mut memory) = (server(), Memory::default());
    let context = server.context();
    evict(&context, &[pod("earlier")], None, &mut memory).await;
    assert!(server.get(PATH).is_some(), "the successor stays");
    assert_eq!(
        (counted(&context, "evicted"), counted(&context, "replaced")),
        (0, 1)
    );
    assert!(memory.refusals.is_empty(), "the requested pod is gone");
}

#[tokio::test]
async fn an_evicted_pod_is_not_requested_again_before_the_watch_can_show_it() {
    let (server, mut memory) = (server(), Memory::default());
    let context = server.context();
    for expected in [1, 1] {
        evict(&context, &[pod("first")], None, &mut memory).await;
        assert_eq!(counted(&context, "evicted"), expected);
    }
    // The eviction was undone.
    let restored = json!({ "metadata": { "namespace": "shop", "name": "web-0", "uid": "first" } });
    server.put(PATH, restored);
    for at in memory.evictions.made.values_mut() {
        *at -= SHOWN_WITHIN;
    }
    evict(&context, &[pod("first")], None, &mut memory).await;
    assert_eq!((server.get(PATH), counted(&context, "evicted")), (None, 2));
}

/// The watch missed the end of the pod.
#[rstest]
#[case::gone(None)]
#[case::replaced(Some("second"))]
#[tokio::test]
async fn a_pod_missing_in_the_api_server_counts_as_gone_after_a_delay(#[case] successor: Option<&str>) {
    let (server, mut memory) = (server(), Memory::default());
    let (context, store) = (server.context(), server.cache().pods.clone());
    server.remove(PATH);
    if let Some(uid) = successor {
        let object = json!({ "metadata": { "namespace": "shop", "name": "web-0", "uid": uid } });
        server.put(PATH, object);
    }
    for expected in [1, 1] {
        evict(&context, &[pod("first")], None, &mut memory).await;
        forget_missed(&mut memory, &store);
        assert_eq!(
            store.index().pods().len(),
            expected,
            "the watch may still show it"
        );
    }
    for at in memory
        .evictions
        .made
        .values_mut()
        .chain(memory.evictions.gone.values_mut())
    {
        *at -= SHOWN_WITHIN;
    }
    evict(&context, &[pod("first")], None, &mut memory).await;
    forget_missed(&mut memory, &store);
    assert!(store.index().pods().is_empty());
    assert!(memory.evictions.gone.is_empty());
}

/// An admission webhook may answer 404 for an existing pod.
#[tokio::test]
async fn a_webhook_answer_of_not_found_is_a_refusal() {
    let (server, mut memory) = (server(), Memory::default());
    server.deny_as_not_found(
        PATH,
        "admission webhook \"guard.shop.example\" denied the request",
    );
    let context = server.context();
    evict(&context, &[pod("first")], None, &mut memory).await;
    assert_eq!((counted(&context, "gone"), counted(&context, "refused")), (0, 1));
    assert!(memory.refusals["first"].message.contains("guard.shop.example"));
}

#[tokio::test]
async fn a_pod_is_requested_again_after_a_request_without_an_answer() {
    let (server, mut memory) = (server(), Memory::default());
    let context = server.context();
    let asked_at = Timestamp::now() - ANSWERED_WITHIN;
    memory
        .evictions
        .unanswered
        .insert("first".to_owned(), asked_at + SLOW);
    evict(&context, &[pod("first")], None, &mut memory).await;
    assert_eq!(counted(&context, "evicted"), 0, "the answer may still come");
    memory.evictions.unanswered.insert("first".to_owned(), asked_at);
    evict(&context, &[pod("first")], None, &mut memory).await;
    assert_eq!((server.get(PATH), counted(&context, "evicted")), (None, 1));
}

#[tokio::test]
async fn a_repeated_refusal_keeps_its_message_and_its_age() {
    let (server, mut memory) = (server(), Memory::default());
    server.deny(
        PATH,
        "admission webhook \"guard.shop.example\" denied the request",
    );
    let context = server.context();
    evict(&context, &[pod("first")], None, &mut memory).await;
    let first = memory.refusals["first"].clone();
    assert!(first.message.contains("guard.shop.example"), "{}", first.message);
    evict(&context, &[pod("first")], None, &mut memory).await;
    assert_eq!(memory.refusals["first"].since, first.since);
    assert_eq!(counted(&context, "refused"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_without_an_answer_delays_no_other_and_times_out() {
    let (server, mut memory) = (server(), Memory::default());
    let quick = "/api/v1/namespaces/shop/pods/web-1";
    server.put(
        quick,
        json!({ "metadata": { "namespace": "shop", "name": "web-1", "uid": "second" } }),
    );
    server.hang(PATH);
    let context = server.context();
    let second = PodName {
        name: "web-1".to_owned(),
        ..pod("second")
    };
    evict(&context, &[pod("first"), second], None, &mut memory).await;
    assert_eq!(server.get(quick), None, "the other pod is evicted");
    evict(&context, &[pod("first")], None, &mut memory).await;
    assert_eq!(server.hanging(), 1, "requested once");
    tokio::time::sleep(LIMIT).await;
    collect(&context.metrics, &mut memory);
    let refusal = &memory.refusals["first"];
    assert_eq!(refusal.message, "no answer within 40 s");
    assert!(!refusal.by_budget);
}
