//! Who may read metrics, where tokens are asked for. The API server says whose a token is (`TokenReview`), and whether that user may
//! `get` the path `/metrics` (`SubjectAccessReview`). Asks the API server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::PostParams;
use kube::core::Request;
use kube::{Client, Config, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::client::{Limit, Observer};

/// The path and the verb that a user needs.
const PATH: &str = "/metrics";
const VERB: &str = "get";
/// How long an answer that gives access holds: a right that is taken away ends after it. With 5 000 agents each minute less is many
/// requests a second.
const ALLOWED_FOR: Duration = Duration::from_mins(10);
/// How long a refusal holds: a right that is given begins after it.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long after its last answer a token has access while the API server gives none: metrics matter most then.
const ALLOWED_WITHOUT_ANSWER: Duration = Duration::from_hours(1);
/// How long the API server may take, waiting for a turn and for the rate included.
const PATIENCE: Duration = Duration::from_secs(8);
/// Questions about clients that had access, and about what a user may: a token that is no user's leads to none of the latter.
const KNOWN: Limit = Limit {
    requests: 20,
    period: Duration::from_secs(1),
};
/// Questions whose the tokens of all others are: a client that guesses may ask 5 000 agents.
const UNKNOWN: Limit = Limit {
    requests: 2,
    period: Duration::from_secs(1),
};
/// Answers that are kept, and addresses.
const MOST: usize = 256;

/// What the API server says of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its user may read metrics.
    Allowed,
    /// It is no user's.
    Unauthenticated,
    /// This user may not read metrics.
    Forbidden(String),
}

/// Why nothing is known of a token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a question, or could not be reached.
    #[error("create {kind} to learn who reads metrics")]
    Review {
        /// The kind of the question.
        kind: &'static str,
        /// What the API server answered.
        source: kube::Error,
    },
    /// No answer came in time.
    #[error("the API server did not say within {} s whose the token is", PATIENCE.as_secs())]
    NoAnswer,
    /// The API server could not find out what a user may.
    #[error("the API server could not find out whether user {user} may read metrics: {reason}")]
    NotEvaluated {
        /// The user.
        user: String,
        /// What the API server says.
        reason: String,
    },
}

impl Error {
    /// Whether the API server refused the question itself: this program may not ask any more.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Review { source: kube::Error::Api(status), .. } if status.code == 403)
    }
}

/// Asks about tokens, and remembers the answers. A `ServiceAccount`'s token is replaced within the hour: a client that had access is known by
/// its address then.
pub struct Access {
    /// Asks whose a token of an unknown client is.
    unknown: Client,
    /// Asks everything else: however many unknown clients come, nothing of this waits for them.
    known: Client,
    remembered: Mutex<Remembered>,
    /// Where clients with other tokens than before wait for their turn, by their address.
    lines: Mutex<BTreeMap<IpAddr, Line>>,
}

/// One question at a time, and first come, first served.
type Line = Arc<tokio::sync::Mutex<()>>;

impl Access {
    /// Asks the API server of this configuration, at a rate of its own.
    ///
    /// # Errors
    /// When the configuration names certificates or a proxy that cannot be used.
    pub fn new(config: &Config, observer: &Arc<dyn Observer>) -> Result<Self, kube::Error> {
        // A question that was refused is asked again by the client that waits for it.
        let mut config = config.clone();
        config.default_retry = false;
        let client = |limit| crate::client::client(config.clone(), Arc::clone(observer), limit);
        Ok(Self::of(client(UNKNOWN)?, client(KNOWN)?))
    }

    fn of(unknown: Client, known: Client) -> Self {
        Self {
            unknown,
            known,
            remembered: Mutex::default(),
            lines: Mutex::default(),
        }
    }

    /// What the API server says of this token, or has said a moment ago, for a client at this address. A token that had access keeps it for
    /// an hour while the API server gives no answer.
    pub async fn of_token(&self, token: &str, address: IpAddr) -> Result<Verdict, Error> {
        let address = address.to_canonical();
        let key = Sha256::digest(token).into();
        if let Some(verdict) = self.remembered().fresh(&key, Instant::now()) {
            return Ok(verdict);
        }
        let had_access = self.remembered().had_access(&key, Instant::now());
        let answer = async {
            if had_access {
                self.ask(&self.known, &key, token, address).await
            } else {
                self.ask_in_turn(&key, token, address).await
            }
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        match answer.unwrap_or(Err(Error::NoAnswer)) {
            Err(error) if had_access && !error.is_refusal() => {
                tracing::info!(%error, "the API server does not say who reads metrics; a token that it knew a moment ago has access");
                Ok(Verdict::Allowed)
            }
            answer => answer,
        }
    }

    /// Asks about a token without access. A client that guesses has one question open, however many connections it has: all others at its
    /// address wait for their turn, and at other addresses only for this one.
    async fn ask_in_turn(&self, key: &Key, token: &str, address: IpAddr) -> Result<Verdict, Error> {
        let line = self.line(address);
        let _turn = line.lock().await;
        // The one before may have asked about this very token.
        if let Some(verdict) = self.remembered().fresh(key, Instant::now()) {
            return Ok(verdict);
        }
        let is_known = self.remembered().has_served(address, Instant::now());
        let client = if is_known { &self.known } else { &self.unknown };
        self.ask(client, key, token, address).await
    }

    /// Asks by this client whose the token is, and keeps the answer.
    async fn ask(&self, client: &Client, key: &Key, token: &str, address: IpAddr) -> Result<Verdict, Error> {
        let verdict = match whose(client, token).await? {
            Some(user) => may_read(&self.known, user).await?,
            None => Verdict::Unauthenticated,
        };
        self.remembered().keep(*key, &verdict, address, Instant::now());
        Ok(verdict)
    }

    /// The line of this address. Lines that no client waits in are forgotten.
    fn line(&self, address: IpAddr) -> Line {
        let mut lines = lock(&self.lines);
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        Arc::clone(lines.entry(address).or_default())
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        lock(&self.remembered)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change of it is whole before something can fail.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The user of a token; `None` where it is no user's.
async fn whose(client: &Client, token: &str) -> Result<Option<UserInfo>, Error> {
    let question = TokenReview {
        spec: TokenReviewSpec {
            token: Some(token.to_owned()),
            audiences: None,
        },
        ..TokenReview::default()
    };
    let status: TokenReviewStatus = ask(client, &question).await?;
    Ok(status.user.filter(|_| status.authenticated == Some(true)))
}

/// Whether this user may read metrics.
async fn may_read(client: &Client, user: UserInfo) -> Result<Verdict, Error> {
    let UserInfo {
        username,
        uid,
        groups,
        extra,
    } = user;
    let question = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: username.clone(),
            uid,
            groups,
            extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(PATH.to_owned()),
                verb: Some(VERB.to_owned()),
            }),
            resource_attributes: None,
        },
        ..SubjectAccessReview::default()
    };
    let status: SubjectAccessReviewStatus = ask(client, &question).await?;
    let user = username.unwrap_or_default();
    match (status.allowed, status.evaluation_error) {
        (true, _) => Ok(Verdict::Allowed),
        (false, Some(reason)) if !status.denied.unwrap_or_default() => {
            Err(Error::NotEvaluated { user, reason })
        }
        (false, _) => Ok(Verdict::Forbidden(user)),
    }
}

/// What is read of an answer. The question stands beside it, with the token.
#[derive(Deserialize)]
struct Answer<Status> {
    status: Option<Status>,
}

/// Asks, and reads no more of the answer than what is new in it: an answer that is not understood is not logged with the token.
async fn ask<Q, Status>(client: &Client, question: &Q) -> Result<Status, Error>
where
    Q: k8s_openapi::Resource + Resource<DynamicType = ()> + Serialize,
    Status: DeserializeOwned + Default,
{
    let answer = async {
        let body = serde_json::to_vec(question).map_err(kube::Error::SerdeError)?;
        let request = Request::new(Q::url_path(&(), None))
            .create(&PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        let text = client.request_text(request).await?;
        serde_json::from_str(&text).map_err(kube::Error::SerdeError)
    };
    let answer: Result<Answer<Status>, kube::Error> = answer.await;
    match answer {
        Ok(answer) => Ok(answer.status.unwrap_or_default()),
        Err(source) => Err(Error::Review {
            kind: <Q as k8s_openapi::Resource>::KIND,
            source,
        }),
    }
}

/// A token, as it is remembered: no token is kept.
type Key = [u8; 32];

/// Answers of a moment ago. No I/O.
#[derive(Debug, Default)]
struct Remembered {
    answers: BTreeMap<Key, (Instant, Verdict)>,
    /// From where tokens with access came, and when the API server said so last.
    served: BTreeMap<IpAddr, Instant>,
}

impl Remembered {
    fn fresh(&self, key: &Key, now: Instant) -> Option<Verdict> {
        let (given, verdict) = self.answers.get(key)?;
        let holds_for = match verdict {
            Verdict::Allowed => ALLOWED_FOR,
            Verdict::Unauthenticated | Verdict::Forbidden(_) => REFUSED_FOR,
        };
        (now.duration_since(*given) < holds_for).then(|| verdict.clone())
    }

    fn had_access(&self, key: &Key, now: Instant) -> bool {
        self.answers.get(key).is_some_and(|(given, verdict)| {
            *verdict == Verdict::Allowed && now.duration_since(*given) < ALLOWED_WITHOUT_ANSWER
        })
    }

    /// Whether a token that came from this address had access, as lately.
    fn has_served(&self, address: IpAddr, now: Instant) -> bool {
        let last = self.served.get(&address);
        last.is_some_and(|last| now.duration_since(*last) < ALLOWED_WITHOUT_ANSWER)
    }

    /// Keeps an answer. Where there are too many, the oldest refusal goes first: a client that guesses drives out no token that has access.
    fn keep(&mut self, key: Key, verdict: &Verdict, address: IpAddr, now: Instant) {
        self.answers.insert(key, (now, verdict.clone()));
        shrink(&mut self.answers, |(given, verdict)| {
            (*verdict == Verdict::Allowed, *given)
        });
        if *verdict == Verdict::Allowed {
            self.served.insert(address, now);
            shrink(&mut self.served, |last| *last);
        }
    }
}

/// Takes away the first by this order, as long as there are too many.
fn shrink<K: Clone + Ord, V, Order: Ord>(kept: &mut BTreeMap<K, V>, order: impl Fn(&V) -> Order) {
    while kept.len() > MOST {
        let first = kept.iter().min_by_key(|(_, value)| order(value));
        let Some(key) = first.map(|(key, _)| key.clone()) else {
            return;
        };
        kept.remove(&key);
    }
}

#[cfg(test)]
mod tests {
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
    fn access_holds_for_minutes_and_a_refusal_for_seconds() {
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
        // A refusal ends what was allowed.
        remembered.keep(
            key(1),
            &Verdict::Forbidden("user".to_owned()),
            SCRAPER,
            later(600),
        );
        assert!(!remembered.had_access(&key(1), later(601)));
    }

    #[test]
    fn a_client_that_guesses_tokens_fills_no_memory_and_drives_out_no_access() {
        let (mut remembered, now) = (Remembered::default(), Instant::now());
        remembered.keep(key(0), &Verdict::Allowed, SCRAPER, now);
        for number in 1..=1000 {
            let at = now + Duration::from_millis(u64::from(number));
            remembered.keep(key(number), &Verdict::Unauthenticated, SCRAPER, at);
        }
        assert_eq!(remembered.answers.len(), MOST);
        assert_eq!(remembered.fresh(&key(0), now), Some(Verdict::Allowed));
        assert!(remembered.answers.contains_key(&key(1000)));
    }

    #[test]
    fn an_address_is_known_for_as_long_as_a_token_of_it_and_few_are_kept() {
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
        assert_eq!(remembered.served.len(), MOST);
        assert!(remembered.has_served(at(1000), later(1000)) && !remembered.has_served(at(1), later(1000)));
    }

    /// An API server that answers each question by its kind, and keeps what was asked.
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

    /// A client of an API server that answers each question so.
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
                        json!({ "kind": "Status", "status": "Failure", "message": "etcd is away", "code": 500 }),
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
    async fn the_user_of_a_token_is_asked_about_and_remembered() {
        let (client, asked) = api_server(|kind| {
            Some(match kind {
                "TokenReview" => user(),
                _ => json!({ "allowed": true }),
            })
        });
        let access = Access::of(client.clone(), client);
        for _ in 0..3 {
            assert_eq!(access.of_token(TOKEN, SCRAPER).await.unwrap(), Verdict::Allowed);
        }
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 2, "asked once, remembered afterwards");
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
    async fn who_is_no_user_or_has_no_right_has_no_access() {
        let (client, _) = api_server(|_| Some(json!({ "authenticated": false, "error": "expired" })));
        let access = Access::of(client.clone(), client);
        assert_eq!(
            access.of_token(TOKEN, SCRAPER).await.unwrap(),
            Verdict::Unauthenticated
        );
        // Said to be authenticated, and no user is named.
        let (client, _) = api_server(|_| Some(json!({ "authenticated": true })));
        let access = Access::of(client.clone(), client);
        assert_eq!(
            access.of_token(TOKEN, SCRAPER).await.unwrap(),
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
            access.of_token(TOKEN, SCRAPER).await.unwrap(),
            Verdict::Forbidden(user)
        );
    }

    #[tokio::test]
    async fn without_an_answer_a_known_token_has_access_and_another_one_has_not() {
        let (away, _) = api_server(|_| None);
        let access = Access::of(away.clone(), away);
        let error = access.of_token(TOKEN, SCRAPER).await.unwrap_err();
        assert_eq!(error.to_string(), "create TokenReview to learn who reads metrics");
        let old = Instant::now().checked_sub(ALLOWED_FOR).unwrap();
        let key = Sha256::digest(TOKEN).into();
        access.remembered().keep(key, &Verdict::Allowed, SCRAPER, old);
        assert_eq!(access.of_token(TOKEN, SCRAPER).await.unwrap(), Verdict::Allowed);
        assert!(access.of_token("another", SCRAPER).await.is_err());
    }

    /// Tokens of scrapers have access, all others are guessed.
    fn of_scrapers(question: &Value) -> Value {
        match &question["spec"]["token"] {
            Value::String(token) if token.starts_with("scraper") => user(),
            Value::String(_) => json!({ "authenticated": false }),
            _ => json!({ "allowed": true }),
        }
    }

    /// So many connections of each of these addresses guess tokens without a pause.
    fn guess(access: &Arc<Access>, addresses: impl Iterator<Item = IpAddr>, connections: u32) -> JoinSet<()> {
        let mut guesses = JoinSet::new();
        for address in addresses {
            for connection in 0..connections {
                let access = Arc::clone(access);
                guesses.spawn(async move {
                    for number in 0_u64.. {
                        let token = format!("{address}-{connection}-{number}");
                        let _ = access.of_token(&token, address).await;
                    }
                });
            }
        }
        guesses
    }

    /// A token is replaced within the hour: a scraper comes with one that is not known, while others guess.
    #[tokio::test(start_paused = true)]
    async fn clients_that_guess_keep_no_scraper_waiting() {
        let others = |count: u8| (1..=count).map(|last| IpAddr::V4(Ipv4Addr::new(10, 244, 0, last)));
        for (what, had_access, guessing, connections, within) in [
            ("one address", false, others(1).collect(), 8, 2),
            ("many addresses", true, others(30).collect(), 2, 1),
            ("its own address", false, vec![SCRAPER], 7, 6),
            ("its own address", true, vec![SCRAPER], 7, 2),
        ] {
            let guessing: Vec<IpAddr> = guessing;
            let [unknown, known] =
                [UNKNOWN, KNOWN].map(|limit| client(|question| Some(of_scrapers(question)), Some(limit)));
            let access = Arc::new(Access::of(unknown, known));
            if had_access {
                let before = access.of_token("scraper-before", SCRAPER).await.unwrap();
                assert_eq!(before, Verdict::Allowed);
            }
            let guesses = guess(&access, guessing.into_iter(), connections);
            tokio::time::sleep(Duration::from_secs(20)).await;
            let began = tokio::time::Instant::now();
            let verdict = access.of_token("scraper-after", SCRAPER).await.unwrap();
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
    async fn a_token_that_comes_twice_at_once_is_asked_about_once() {
        let (client, asked) = api_server(|kind| {
            Some(match kind {
                "TokenReview" => user(),
                _ => json!({ "allowed": true }),
            })
        });
        let access = Access::of(client.clone(), client);
        let [one, other] =
            tokio::join!(access.of_token(TOKEN, SCRAPER), access.of_token(TOKEN, SCRAPER)).into();
        assert_eq!(
            (one.unwrap(), other.unwrap()),
            (Verdict::Allowed, Verdict::Allowed)
        );
        assert_eq!(asked.lock().unwrap().len(), 2);
        drop(access.line(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(
            lock(&access.lines).len(),
            1,
            "a line is kept that no client waits in"
        );
    }

    #[tokio::test]
    async fn no_token_is_logged_with_an_answer_that_is_not_understood() {
        let log = Written::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        let _logged = tracing::subscriber::set_default(subscriber);
        tracing::info!("the log is kept");
        let (client, _) = api_server(|_| Some(json!({ "authenticated": "perhaps" })));
        let access = Access::of(client.clone(), client);
        let error = access.of_token(TOKEN, SCRAPER).await.unwrap_err();
        tracing::warn!(error = crate::error::chain(&error), "no answer");
        let logged = log.text();
        assert!(
            logged.contains("the log is kept") && logged.contains("no answer"),
            "{logged}"
        );
        assert!(!logged.contains(TOKEN), "{logged}");
    }
}
