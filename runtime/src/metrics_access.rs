//! Who may read metrics, where tokens are asked for. The API server says whose a token is (`TokenReview`), and whether that user may
//! `get` the path `/metrics` (`SubjectAccessReview`). Asks the API server.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
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
/// How long the API server may take, waiting for the rate included.
const PATIENCE: Duration = Duration::from_secs(8);
/// Questions about tokens that had access; each costs two.
const KNOWN: Limit = Limit {
    requests: 20,
    period: Duration::from_secs(1),
};
/// Questions about all other tokens: 5 000 agents may be asked by a client that guesses.
const UNKNOWN: Limit = Limit {
    requests: 2,
    period: Duration::from_secs(1),
};
/// Answers that are kept.
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

/// Asks about tokens, and remembers the answers.
pub struct Access {
    /// Asks about tokens that had no access before.
    unknown: Client,
    /// Asks again about those that had: however many others come, these do not wait for them.
    known: Client,
    remembered: Mutex<Remembered>,
}

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
        }
    }

    /// What the API server says of this token, or has said a moment ago. A token that had access keeps it for an hour while the API
    /// server gives no answer.
    pub async fn of_token(&self, token: &str) -> Result<Verdict, Error> {
        let key = Sha256::digest(token).into();
        if let Some(verdict) = self.remembered().fresh(&key, Instant::now()) {
            return Ok(verdict);
        }
        let had_access = self.remembered().had_access(&key, Instant::now());
        let client = if had_access { &self.known } else { &self.unknown };
        let answer = tokio::time::timeout(PATIENCE, review(client, token)).await;
        match answer.unwrap_or(Err(Error::NoAnswer)) {
            Ok(verdict) => {
                self.remembered().keep(key, &verdict, Instant::now());
                Ok(verdict)
            }
            Err(error) if had_access && !error.is_refusal() => {
                tracing::info!(%error, "the API server does not say who reads metrics; a token that it knew a moment ago has access");
                Ok(Verdict::Allowed)
            }
            Err(error) => Err(error),
        }
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        // Every change of it is whole before something can fail.
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn review(client: &Client, token: &str) -> Result<Verdict, Error> {
    let question = TokenReview {
        spec: TokenReviewSpec {
            token: Some(token.to_owned()),
            audiences: None,
        },
        ..TokenReview::default()
    };
    let answer = ask(client, &question).await?;
    let status = answer.status.unwrap_or_default();
    let (Some(true), Some(user)) = (status.authenticated, status.user) else {
        return Ok(Verdict::Unauthenticated);
    };
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
    let answer = ask(client, &question).await?;
    let user = username.unwrap_or_default();
    let status = answer.status.unwrap_or_default();
    match (status.allowed, status.evaluation_error) {
        (true, _) => Ok(Verdict::Allowed),
        (false, Some(reason)) if !status.denied.unwrap_or_default() => {
            Err(Error::NotEvaluated { user, reason })
        }
        (false, _) => Ok(Verdict::Forbidden(user)),
    }
}

async fn ask<Q>(client: &Client, question: &Q) -> Result<Q, Error>
where
    Q: k8s_openapi::Resource
        + Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + Debug,
{
    let questions: Api<Q> = Api::all(client.clone());
    let answer = questions.create(&PostParams::default(), question).await;
    answer.map_err(|source| Error::Review {
        kind: Q::KIND,
        source,
    })
}

/// A token, as it is remembered: no token is kept.
type Key = [u8; 32];

/// Answers of a moment ago. No I/O.
#[derive(Debug, Default)]
struct Remembered {
    answers: BTreeMap<Key, (Instant, Verdict)>,
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

    /// Keeps an answer. Where there are too many, the oldest refusal goes first: a client that guesses drives out no token that has access.
    fn keep(&mut self, key: Key, verdict: &Verdict, now: Instant) {
        self.answers.insert(key, (now, verdict.clone()));
        while self.answers.len() > MOST {
            let first_to_go = self
                .answers
                .iter()
                .min_by_key(|(_, (given, verdict))| (*verdict == Verdict::Allowed, *given))
                .map(|(key, _)| *key);
            let Some(key) = first_to_go else { return };
            self.answers.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    const TOKEN: &str = "a-token";

    fn key(number: u16) -> Key {
        Sha256::digest(number.to_be_bytes()).into()
    }

    #[test]
    fn access_holds_for_minutes_and_a_refusal_for_seconds() {
        let (mut remembered, now) = (Remembered::default(), Instant::now());
        remembered.keep(key(1), &Verdict::Allowed, now);
        remembered.keep(key(2), &Verdict::Unauthenticated, now);
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
        remembered.keep(key(1), &Verdict::Forbidden("user".to_owned()), later(600));
        assert!(!remembered.had_access(&key(1), later(601)));
    }

    #[test]
    fn a_client_that_guesses_tokens_fills_no_memory_and_drives_out_no_access() {
        let (mut remembered, now) = (Remembered::default(), Instant::now());
        remembered.keep(key(0), &Verdict::Allowed, now);
        for number in 1..=1000 {
            let at = now + Duration::from_millis(u64::from(number));
            remembered.keep(key(number), &Verdict::Unauthenticated, at);
        }
        assert_eq!(remembered.answers.len(), MOST);
        assert_eq!(remembered.fresh(&key(0), now), Some(Verdict::Allowed));
        assert!(remembered.answers.contains_key(&key(1000)));
    }

    /// An API server that answers each question by its kind, and keeps what was asked.
    fn api_server(
        answer: impl Fn(&str) -> Option<Value> + Clone + Send + Sync + 'static,
    ) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (answer, seen) = (answer.clone(), Arc::clone(&seen));
            async move {
                let bytes = request.into_body().collect_bytes().await?;
                let question: Value = serde_json::from_slice(&bytes).unwrap();
                let kind = question["kind"].as_str().unwrap().to_owned();
                seen.lock().unwrap().push(question.clone());
                let (code, body) = match answer(&kind) {
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
        (Client::new(service, "default"), asked)
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
            assert_eq!(access.of_token(TOKEN).await.unwrap(), Verdict::Allowed);
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
        assert_eq!(access.of_token(TOKEN).await.unwrap(), Verdict::Unauthenticated);
        // Said to be authenticated, and no user is named.
        let (client, _) = api_server(|_| Some(json!({ "authenticated": true })));
        let access = Access::of(client.clone(), client);
        assert_eq!(access.of_token(TOKEN).await.unwrap(), Verdict::Unauthenticated);
        let (client, _) = api_server(|kind| {
            Some(match kind {
                "TokenReview" => user(),
                _ => json!({ "allowed": false, "denied": true }),
            })
        });
        let access = Access::of(client.clone(), client);
        let user = "system:serviceaccount:monitoring:prometheus".to_owned();
        assert_eq!(access.of_token(TOKEN).await.unwrap(), Verdict::Forbidden(user));
    }

    #[tokio::test]
    async fn without_an_answer_a_known_token_has_access_and_another_one_has_not() {
        let (away, _) = api_server(|_| None);
        let access = Access::of(away.clone(), away);
        let error = access.of_token(TOKEN).await.unwrap_err();
        assert_eq!(error.to_string(), "create TokenReview to learn who reads metrics");
        let old = Instant::now().checked_sub(ALLOWED_FOR).unwrap();
        let key = Sha256::digest(TOKEN).into();
        access.remembered().keep(key, &Verdict::Allowed, old);
        assert_eq!(access.of_token(TOKEN).await.unwrap(), Verdict::Allowed);
        assert!(access.of_token("another").await.is_err());
    }
}
