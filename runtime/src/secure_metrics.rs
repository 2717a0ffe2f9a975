//! A separate port for metrics, with TLS, for users with the right to read them. Accepts connections.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use kube::Config;
use listening::certificate;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::client::Observer;
use crate::error::chain;
use crate::metrics_access::{Access, Error, Verdict};

/// The delay before another attempt to open the port, or to start the thread.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The interval of log lines about reviews without an answer.
const LOG_INTERVAL: Duration = Duration::from_mins(1);
/// The response to a client whose token could not be reviewed.
const NO_ANSWER: &str = "the API server has not reviewed the token: see the log of this program\n";

/// The address of the port, and the configuration for token reviews.
pub struct SecureMetrics {
    /// Address of the admin port, if the user sets one: the metrics port has the same address.
    pub given: Option<SocketAddr>,
    /// The address of the node.
    pub node: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// Name in the certificate.
    pub program: &'static str,
    /// The configuration of the API server that reviews tokens.
    pub config: Config,
    /// The observer of requests to the API server.
    pub observer: Arc<dyn Observer>,
}

/// Why the port cannot be served.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("creating the certificate of the metrics port")]
    Certificate(#[from] certificate::Error),
    #[error("building the client for token reviews")]
    Client(#[from] kube::Error),
    #[error("starting the event loop of the metrics port")]
    Loop(#[from] io::Error),
}

impl SecureMetrics {
    /// Serves these routes to users with the right to read metrics, until the process ends, on a separate thread: TLS handshakes
    /// of clients, or a port that another process uses, delay nothing else.
    pub async fn serve(self, routes: Router) -> Infallible {
        let port = Arc::new(self);
        serve_on_thread(move || port.serve_here(routes.clone()), RETRY_DELAY).await
    }

    fn serve_here(&self, routes: Router) -> Result<Infallible, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let acceptor = certificate::acceptor(self.program)?;
            let guard = Guard {
                access: Access::new(&self.config, &self.observer)?,
                last_line: Mutex::default(),
            };
            let listener = self.listener().await;
            Ok(listening::http::serve_tls(listener, guarded(routes, guard), acceptor).await)
        })
    }

    async fn listener(&self) -> TcpListener {
        loop {
            match listening::bind_beside(self.given, self.node, self.port).await {
                Ok(listener) => return listener,
                Err(error) => {
                    let port = self.port;
                    tracing::warn!(%error, port, "opening the metrics port failed; retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}

/// Serves on a separate thread. A thread that ends, by an error or a panic, is started again after a pause: a fault in the
/// metrics neither ends the program nor leaves it without metrics.
async fn serve_on_thread<Error>(
    serve: impl Fn() -> Result<Infallible, Error> + Clone + Send + 'static,
    pause: Duration,
) -> Infallible
where
    Error: std::error::Error + 'static,
{
    loop {
        let (ends, ended) = oneshot::channel();
        let serve = serve.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                let Err(error) = serve();
                // At the end of the program nothing waits for the thread.
                let _ = ends.send(chain(&error));
            });
        let why = match thread {
            Ok(_) => ended.await.unwrap_or_else(|_| "the thread panicked".to_owned()),
            Err(error) => format!("starting the thread: {error}"),
        };
        tracing::error!(error = why, "the thread of the metrics port ended; retrying");
        tokio::time::sleep(pause).await;
    }
}

/// The route `/metrics` of the admin port, which names the metrics port.
pub fn redirect_to_secure_port(port: u16) -> Router {
    let words = format!("Metrics are on port {port}, with TLS, for users with the right to get /metrics.\n");
    Router::new().route("/metrics", get(async move || (StatusCode::FORBIDDEN, words)))
}

/// Admits requests.
struct Guard {
    access: Access,
    /// Time of the last log line about a review without an answer.
    last_line: Mutex<Option<Instant>>,
}

impl Guard {
    fn log(&self, error: &Error) {
        let mut last = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!(
                error = chain(error),
                "reviewing the token of a metrics client failed"
            );
        }
    }
}

fn guarded(routes: Router, guard: Guard) -> Router {
    routes.layer(middleware::from_fn_with_state(Arc::new(guard), admit))
}

async fn admit(
    State(guard): State<Arc<Guard>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = token(request.headers()) else {
        return unauthenticated("header Authorization is missing, needed Bearer TOKEN\n");
    };
    match guard.access.review(token, client.ip()).await {
        Ok(Verdict::Allowed) => next.run(request).await,
        Ok(Verdict::Unauthenticated) => unauthenticated("the API server refused the token, needed a valid token of a user or ServiceAccount\n"),
        Ok(Verdict::Forbidden(user)) => (
            StatusCode::FORBIDDEN,
            format!("user {user:?} cannot get path \"/metrics\": bind ClusterRole replumb-metrics-reader to the user\n"),
        )
            .into_response(),
        Err(error) => {
            guard.log(&error);
            (StatusCode::SERVICE_UNAVAILABLE, NO_ANSWER).into_response()
        }
    }
}

fn unauthenticated(words: &'static str) -> Response {
    (
        StatusCode::UNAUTHORIZED,
        [(header::WWW_AUTHENTICATE, "Bearer")],
        words,
    )
        .into_response()
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The thread ends with an error, then with a panic, and then serves.
    #[tokio::test]
    async fn a_thread_that_ends_is_started_again() {
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&starts);
        let (serves, served) = std::sync::mpsc::channel();
        let serve = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::Error::other("no certificate")),
            1 => panic!("a fault"),
            _ => {
                serves.send(()).unwrap();
                loop {
                    std::thread::park();
                }
            }
        };
        let never = serve_on_thread(serve, Duration::from_millis(1));
        let waited = tokio::time::timeout(Duration::from_secs(10), async {
            tokio::select! {
                never = never => match never {},
                served = tokio::task::spawn_blocking(move || served.recv()) => served.unwrap().unwrap(),
            }
        });
        waited.await.unwrap();
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_token_follows_the_word_bearer() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            token(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc ").as_deref(), Some("abc"));
        for other in ["Bearer", "Bearer ", "Basic abc", "abc", ""] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
