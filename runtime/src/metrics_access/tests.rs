use std::net::Ipv4Addr;

use http::{Request, Response};
use kube::client::{Body, ClientBuilder};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::limit::RateLimitLayer;

use super::*;
use crate::log::written::Written;

const TOKEN: &str = "a-token";
const SCRAPER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

fn key(number: u16) -> Key {
    Sha256::digest(number.to_be_bytes()).into()
}

#[test]
fn access_is_cached_for_minutes_and_a_refusal_for_seconds() {
    let (mut remembered, now) = (Remembered::default(), Instant::now());
    remembered.keep(key(1), &Verdict::Allowed, SCRAPER, now);
    remembered.keep(key(2), &Verdict::Unauthenticated, SCRAPER, now);
    let later = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(remembered.fresh(&key(1), later(599)), Some(Verdict::Allowed));
    assert_eq!(remembered.fresh(&key(1), later(600)), None);
    assert_eq!(
        remembered.fresh(&key(2), later(9)),
        Some(Verdict::Unauthenticated)
    );
    assert_eq!(remembered.fresh(&key(2), later(10)), None);
    assert!(remembered.had_access(&key(1), later(3599)));
    assert!(!remembered.had_access(&key(1), later(3600)));
    assert!(!remembered.had_access(&key(2), now));
    // A refusal ends granted access.
    remembered.keep(
        key(1),
        &Verdict::Forbidden("user".to_owned()),
        SCRAPER,
        later(600),
    );
    assert!(!remembered.had_access(&key(1), later(601)));
}

#[test]
fn guessed_tokens_fill_no_memory_and_remove_no_access() {
    let (mut remembered, now) = (Remembered::default(), Instant::now());
    remembered.keep(key(0), &Verdict::Allowed, SCRAPER, now);
    for number in 1..=1000 {
        let at = now + Duration::from_millis(u64::from(number));
        remembered.keep(key(number), &Verdict::Unauthenticated, SCRAPER, at);
    }
    assert_eq!(remembered.answers.len(), MAX_ENTRIES);
    assert_eq!(remembered.fresh(&key(0), now), Some(Verdict::Allowed));
    assert!(remembered.answers.contains_key(&key(1000)));
}

#[test]
fn an_address_is_known_for_an_hour_and_the_number_is_limited() {
    let (mut remembered, now) = (Remembered::default(), Instant::now());
    let later = |seconds| now + Duration::from_secs(seconds);
    let at = |number: u16| IpAddr::V4(Ipv4Addr::from(0x0af4_0000 | u32::from(number)));
    remembered.keep(key(1), &Verdict::Allowed, at(1), now);
    remembered.keep(key(2), &Verdict::Unauthenticated, at(2), now);
    assert!(remembered.has_served(at(1), later(3599)) && !remembered.has_served(at(1), later(3600)));
    assert!(!remembered.has_served(at(2), now));
    for number in 1..=1000 {
        remembered.keep(key(number), &Verdict::Allowed, at(number), later(number.into()));
    }
    assert_eq!(remembered.served.len(), MAX_ENTRIES);
    assert!(remembered.has_served(at(1000), later(1000)) && !remembered.has_served(at(1), later(1000)));
}

/// A client of an API server that answers each review by its kind, and the list of reviews.
fn api_server(
    answer: impl Fn(&str) -> Option<Value> + Clone + Send + Sync + 'static,
) -> (Client, Arc<Mutex<Vec<Value>>>) {
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let answer = move |question: &Value| {
        seen.lock().unwrap().push(question.clone());
        answer(question["kind"].as_str().unwrap())
    };
    (client(answer, None), asked)
}

/// A client of an API server that answers each review with `answer`.
fn client(
    answer: impl Fn(&Value) -> Option<Value> + Clone + Send + Sync + 'static,
    limit: Option<Limit>,
) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let bytes = request.into_body().collect_bytes().await?;
            let question: Value = serde_json::from_slice(&bytes).unwrap();
            let (code, body) = match answer(&question) {
                Some(status) => {
                    let mut whole = question;
                    whole["status"] = status;
                    (201, whole)
                }
                None => (
                    500,
                    json!({ "kind": "Status", "status": "Failure", "message": "etcd is down", "code": 500 }),
                ),
            };
            let response = Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    match limit {
        None => Client::new(service, "default"),
        Some(Limit { requests, period }) => ClientBuilder::new(service, "default")
            .with_layer(&RateLimitLayer::new(requests, period))
            .build(),
    }
}

fn user() -> Value {
    json!({ "authenticated": true, "user": {
        "username": "system:serviceaccount:monitoring:prometheus", "groups": ["system:authenticated"],
    } })
}

#[tokio::test]
async fn a_token_and_its_user_are_reviewed_once_and_cached() {
    let (client, asked) = api_server(|kind| {
        Some(match kind {
            "TokenReview" => user(),
            _ => json!({ "allowed": true }),
        })
    });
    let access = Access::of(client.clone(), client);
    for _ in 0..3 {
        assert_eq!(access.review(TOKEN, SCRAPER).await.unwrap(), Verdict::Allowed);
    }
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 2, "one review each, cached afterwards");
    assert_eq!(asked[0]["spec"]["token"], TOKEN);
    assert_eq!(
        asked[1]["spec"],
        json!({
            "user": "system:serviceaccount:monitoring:prometheus", "groups": ["system:authenticated"],
            "nonResourceAttributes": { "path": "/metrics", "verb": "get" },
        })
    );
}

#[tokio::test]
async fn an_invalid_token_or_a_user_without_the_right_has_no_access() {
    let (client, _) = api_server(|_| Some(json!({ "authenticated": false, "error": "expired" })));
    let access = Access::of(client.clone(), client);
    assert_eq!(
        access.review(TOKEN, SCRAPER).await.unwrap(),
        Verdict::Unauthenticated
    );
    // Authenticated, but without a user.
    let (client, _) = api_server(|_| Some(json!({ "authenticated": true })));
    let access = Access::of(client.clone(), client);
    assert_eq!(
        access.review(TOKEN, SCRAPER).await.unwrap(),
        Verdict::Unauthenticated
    );
    let (client, _) = api_server(|kind| {
        Some(match kind {
            "TokenReview" => user(),
            _ => json!({ "allowed": false, "denied": true }),
        })
    });
    let access = Access::of(client.clone(), client);
    let user = "system:serviceaccount:monitoring:prometheus".to_owned();
    assert_eq!(
        access.review(TOKEN, SCRAPER).await.unwrap(),
        Verdict::Forbidden(user)
    );
}

#[tokio::test]
async fn without_an_answer_only_a_known_token_has_access() {
    let (away, _) = api_server(|_| None);
    let access = Access::of(away.clone(), away);
    let error = access.review(TOKEN, SCRAPER).await.unwrap_err();
    assert_eq!(error.to_string(), "creating TokenReview for a metrics client");
    let old = Instant::now().checked_sub(ALLOWED_FOR).unwrap();
    let key = Sha256::digest(TOKEN).into();
    access.remembered().keep(key, &Verdict::Allowed, SCRAPER, old);
    assert_eq!(access.review(TOKEN, SCRAPER).await.unwrap(), Verdict::Allowed);
    assert!(access.review("another", SCRAPER).await.is_err());
}

/// Tokens of scrapers have access, all others have none.
fn status_for(question: &Value) -> Value {
    match &question["spec"]["token"] {
        Value::String(token) if token.starts_with("scraper") => user(),
        Value::String(_) => json!({ "authenticated": false }),
        _ => json!({ "allowed": true }),
    }
}

/// From each of these addresses, `connections` connections guess tokens continuously.
fn guess(access: &Arc<Access>, addresses: impl Iterator<Item = IpAddr>, connections: u32) -> JoinSet<()> {
    let mut guesses = JoinSet::new();
    for address in addresses {
        for connection in 0..connections {
            let access = Arc::clone(access);
            guesses.spawn(async move {
                for number in 0_u64.. {
                    let token = format!("{address}-{connection}-{number}");
                    let _ = access.review(&token, address).await;
                }
            });
        }
    }
    guesses
}

/// A token is replaced within an hour: a scraper sends a new token while others guess.
#[tokio::test(start_paused = true)]
async fn clients_that_guess_do_not_delay_a_scraper() {
    let others = |count: u8| (1..=count).map(|last| IpAddr::V4(Ipv4Addr::new(10, 244, 0, last)));
    for (what, had_access, guessing, connections, within) in [
        ("one address", false, others(1).collect(), 8, 2),
        ("many addresses", true, others(30).collect(), 2, 1),
        ("its own address", false, vec![SCRAPER], 7, 6),
        ("its own address", true, vec![SCRAPER], 7, 2),
    ] {
        let guessing: Vec<IpAddr> = guessing;
        let [unknown, known] =
            [UNKNOWN, KNOWN].map(|limit| client(|question| Some(status_for(question)), Some(limit)));
        let access = Arc::new(Access::of(unknown, known));
        if had_access {
            let before = access.review("scraper-before", SCRAPER).await.unwrap();
            assert_eq!(before, Verdict::Allowed);
        }
        let guesses = guess(&access, guessing.into_iter(), connections);
        tokio::time::sleep(Duration::from_secs(20)).await;
        let began = tokio::time::Instant::now();
        let verdict = access.review("scraper-after", SCRAPER).await.unwrap();
        assert_eq!(verdict, Verdict::Allowed, "{what}");
        let took = began.elapsed();
        assert!(
            took <= Duration::from_secs(within),
            "{what}, {had_access}: {took:?}"
        );
        drop(guesses);
    }
}

#[tokio::test]
async fn two_requests_with_one_token_cause_one_review() {
    let (client, asked) = api_server(|kind| {
        Some(match kind {
            "TokenReview" => user(),
            _ => json!({ "allowed": true }),
        })
    });
    let access = Access::of(client.clone(), client);
    let [one, other] = tokio::join!(access.review(TOKEN, SCRAPER), access.review(TOKEN, SCRAPER)).into();
    assert_eq!(
        (one.unwrap(), other.unwrap()),
        (Verdict::Allowed, Verdict::Allowed)
    );
    assert_eq!(asked.lock().unwrap().len(), 2);
    drop(access.queue(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(lock(&access.queues).len(), 1, "empty queues are removed");
}

#[tokio::test]
async fn a_malformed_answer_is_logged_without_the_token() {
    let log = Written::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    tracing::info!("the log is written");
    let (client, _) = api_server(|_| Some(json!({ "authenticated": "perhaps" })));
    let access = Access::of(client.clone(), client);
    let error = access.review(TOKEN, SCRAPER).await.unwrap_err();
    tracing::warn!(error = crate::error::chain(&error), "no answer");
    let logged = log.text();
    assert!(
        logged.contains("the log is written") && logged.contains("no answer"),
        "{logged}"
    );
    assert!(!logged.contains(TOKEN), "{logged}");
}
