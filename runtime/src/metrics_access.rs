//! Access to metrics by token. The API server reviews the token (`TokenReview`) and whether its user may `get` the path
//! `/metrics` (`SubjectAccessReview`). Sends requests to the API server.

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

/// The path and the verb that the user of a token has to be allowed.
const PATH: &str = "/metrics";
const VERB: &str = "get";
/// How long granted access is cached: a removed right ends after this time. With 5 000 agents, a shorter time means many requests
/// per second.
const ALLOWED_FOR: Duration = Duration::from_mins(10);
/// How long a refusal is cached: a new right takes effect after this time.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long a token keeps access after its last review while the API server does not answer: metrics matter most then.
const ALLOWED_WITHOUT_ANSWER: Duration = Duration::from_hours(1);
/// How long a review may take, with the waits in the queue and for the rate limit.
const PATIENCE: Duration = Duration::from_secs(8);
/// The rate limit of reviews for clients that had access, and of access reviews: an invalid token causes no access review.
const KNOWN: Limit = Limit {
    requests: 20,
    period: Duration::from_secs(1),
};
/// The rate limit of token reviews for all other clients: a client that guesses tokens may send requests to 5 000 agents.
const UNKNOWN: Limit = Limit {
    requests: 2,
    period: Duration::from_secs(1),
};
/// The largest number of cached answers, and of known addresses.
const MAX_ENTRIES: usize = 256;

/// The result of the review of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The user of the token may read metrics.
    Allowed,
    /// The token is not valid.
    Unauthenticated,
    /// This user may not read metrics.
    Forbidden(String),
}

/// Why a token could not be reviewed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused the review, or could not be reached.
    #[error("creating {kind} for a metrics client")]
    Review {
        /// The kind of the review.
        kind: &'static str,
        /// The answer of the API server.
        source: kube::Error,
    },
    /// The answer did not arrive in time.
    #[error("the API server has not reviewed the token within {} s", PATIENCE.as_secs())]
    NoAnswer,
    /// The API server could not evaluate the rights of a user.
    #[error("the API server could not evaluate whether user {user} may read metrics: {reason}")]
    NotEvaluated {
        /// The user.
        user: String,
        /// The reason from the API server.
        reason: String,
    },
}

impl Error {
    /// Whether the API server forbids the review itself: this program has lost the right to it.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Review { source: kube::Error::Api(status), .. } if status.code == 403)
    }
}

/// Reviews tokens, and caches the answers. The token of a `ServiceAccount` is replaced within an hour: a client that had access
/// is then known by its address.
pub struct Access {
    /// Sends token reviews for unknown clients.
    unknown: Client,
    /// Sends all other reviews, which do not wait for unknown clients, however many there are.
    known: Client,
    remembered: Mutex<Remembered>,
    /// Queues of clients with new tokens, by address.
    queues: Mutex<BTreeMap<IpAddr, Queue>>,
}

/// One review at a time, first come, first served.
type Queue = Arc<tokio::sync::Mutex<()>>;

impl Access {
    /// Sends reviews to the API server of this configuration, with separate rate limits.
    ///
    /// # Errors
    /// If the configuration names certificates or a proxy that cannot be used.
    pub fn new(config: &Config, observer: &Arc<dyn Observer>) -> Result<Self, kube::Error> {
        // The client that waits for a failed review repeats its request.
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
            queues: Mutex::default(),
        }
    }

    /// The verdict on this token, reviewed now or cached, for a client at this address. A token that had access keeps it for an
    /// hour while the API server does not answer.
    ///
    /// # Errors
    ///
    /// The API server refuses the review, does not answer in time, or cannot evaluate the rights of the user.
    pub async fn review(&self, token: &str, address: IpAddr) -> Result<Verdict, Error> {
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
                self.ask_in_queue(&key, token, address).await
            }
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        match answer.unwrap_or(Err(Error::NoAnswer)) {
            Err(error) if had_access && !error.is_refusal() => {
                tracing::info!(%error, "reviewing the token of a metrics client failed; the client keeps its access");
                Ok(Verdict::Allowed)
            }
            answer => answer,
        }
    }

    /// Reviews a token without access. A client that guesses has one open review, however many connections it has: its other
    /// connections wait in the queue of its address, and clients at other addresses wait only for this one review.
    async fn ask_in_queue(&self, key: &Key, token: &str, address: IpAddr) -> Result<Verdict, Error> {
        let queue = self.queue(address);
        let _turn = queue.lock().await;
        // The previous review in the queue may have been for the same token.
        if let Some(verdict) = self.remembered().fresh(key, Instant::now()) {
            return Ok(verdict);
        }
        let is_known = self.remembered().has_served(address, Instant::now());
        let client = if is_known { &self.known } else { &self.unknown };
        self.ask(client, key, token, address).await
    }

    /// Reviews the token with this client, and caches the answer.
    async fn ask(&self, client: &Client, key: &Key, token: &str, address: IpAddr) -> Result<Verdict, Error> {
        let verdict = match review_token(client, token).await? {
            Some(user) => review_access(&self.known, user).await?,
            None => Verdict::Unauthenticated,
        };
        self.remembered().keep(*key, &verdict, address, Instant::now());
        Ok(verdict)
    }

    /// The queue of this address. Empty queues are removed.
    fn queue(&self, address: IpAddr) -> Queue {
        let mut queues = lock(&self.queues);
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        Arc::clone(queues.entry(address).or_default())
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        lock(&self.remembered)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before anything can panic.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The user of a token; `None` if the token is not valid.
async fn review_token(client: &Client, token: &str) -> Result<Option<UserInfo>, Error> {
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
async fn review_access(client: &Client, user: UserInfo) -> Result<Verdict, Error> {
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

/// The part of an answer that is read. The answer also repeats the request, with the token.
#[derive(Deserialize)]
struct Answer<Status> {
    status: Option<Status>,
}

/// Creates a review, and reads only the status of the answer: an answer that is not understood is not logged with the token.
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

/// The hash of a token: no token is stored.
type Key = [u8; 32];

/// The cache of answers. No I/O.
#[derive(Debug, Default)]
struct Remembered {
    answers: BTreeMap<Key, (Instant, Verdict)>,
    /// Addresses of clients whose tokens had access, and the time of the last such review.
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

    /// Whether a token from this address had access within [`ALLOWED_WITHOUT_ANSWER`].
    fn has_served(&self, address: IpAddr, now: Instant) -> bool {
        let last = self.served.get(&address);
        last.is_some_and(|last| now.duration_since(*last) < ALLOWED_WITHOUT_ANSWER)
    }

    /// Caches an answer. Above the limit, the oldest refusal is removed first: a client that guesses removes no token with
    /// access.
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

/// Removes the first entries by this order, down to [`MAX_ENTRIES`].
fn shrink<K: Clone + Ord, V, Order: Ord>(kept: &mut BTreeMap<K, V>, order: impl Fn(&V) -> Order) {
    while kept.len() > MAX_ENTRIES {
        let first = kept.iter().min_by_key(|(_, value)| order(value));
        let Some(key) = first.map(|(key, _)| key.clone()) else {
            return;
        };
        kept.remove(&key);
    }
}

#[cfg(test)]
mod tests;
