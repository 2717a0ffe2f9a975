//! A port of its own for metrics: by TLS, and for users who may read them. Accepts connections.

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

/// Before the port is opened again that another process has, or the thread is started again that has ended.
const NEXT_TRY: Duration = Duration::from_secs(5);
/// Between two log lines about questions that have no answer.
const NEXT_LINE: Duration = Duration::from_mins(1);
/// What a client is told then: who asks is not known yet.
const NO_ANSWER: &str = "the API server does not say who reads metrics; the log of this program says why\n";

/// Where the port is, and who asks the API server.
pub struct SecureMetrics {
    /// Address of the other port, where one was given.
    pub given: Option<SocketAddr>,
    /// The node's own address.
    pub node: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// Name in the certificate.
    pub program: &'static str,
    /// The API server that is asked.
    pub config: Config,
    /// Who is told what is asked.
    pub observer: Arc<dyn Observer>,
}

/// What ends the port before it serves.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("making the certificate of metrics")]
    Certificate(#[from] certificate::Error),
    #[error("building the client that asks who reads metrics")]
    Client(#[from] kube::Error),
    #[error("starting the event loop of metrics")]
    Loop(#[from] io::Error),
}

impl SecureMetrics {
    /// Serves these routes to users who may read metrics, until the process ends, on a thread of its own: handshakes that a client asks for
    /// keep nothing else waiting, and neither does a port that another process has.
    pub async fn serve(self, routes: Router) -> Infallible {
        let port = Arc::new(self);
        on_a_thread(move || port.serve_here(routes.clone()), NEXT_TRY).await
    }

    fn serve_here(&self, routes: Router) -> Result<Infallible, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let acceptor = certificate::made_for(self.program)?;
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
                    tracing::warn!(%error, port, "the port of metrics cannot be opened; trying again");
                    tokio::time::sleep(NEXT_TRY).await;
                }
            }
        }
    }
}

/// Serves on a thread of its own. A thread that ends, by an error or a panic, is started again after a pause: a program does not end for its
/// metrics, and does not go on without them.
async fn on_a_thread<Error>(
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
                // The program that waits for it may be ending.
                let _ = ends.send(chain(&error));
            });
        let why = match thread {
            Ok(_) => ended.await.unwrap_or_else(|_| "the thread panicked".to_owned()),
            Err(error) => format!("starting the thread: {error}"),
        };
        tracing::error!(error = why, "metrics are not served; trying again");
        tokio::time::sleep(pause).await;
    }
}

/// What stands at `/metrics` of the other port then.
pub fn elsewhere(port: u16) -> Router {
    let words =
        format!("Metrics are served by TLS on port {port}, to a token whose user may get /metrics.\n");
    Router::new().route("/metrics", get(async move || (StatusCode::FORBIDDEN, words)))
}

/// Who may come in.
struct Guard {
    access: Access,
    /// When the log had its last line about a question without an answer.
    last_line: Mutex<Option<Instant>>,
}

impl Guard {
    fn log(&self, error: &Error) {
        let mut last = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= NEXT_LINE) {
            *last = Some(Instant::now());
            tracing::warn!(error = chain(error), "a client that reads metrics has no answer");
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
        return unauthenticated("a token is missing: Authorization: Bearer TOKEN\n");
    };
    match guard.access.of_token(token, client.ip()).await {
        Ok(Verdict::Allowed) => next.run(request).await,
        Ok(Verdict::Unauthenticated) => unauthenticated("the API server knows no user of this token\n"),
        Ok(Verdict::Forbidden(user)) => (
            StatusCode::FORBIDDEN,
            format!("user {user:?} cannot get the path \"/metrics\"; ClusterRole replumb-metrics-reader gives that right\n"),
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

    /// The thread ends by an error, then by a panic, and then stays.
    #[tokio::test]
    async fn a_thread_that_ends_is_started_again() {
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&starts);
        let (serves, served) = std::sync::mpsc::channel();
        let serve = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::Error::other("no certificate")),
            1 => panic!("a fault of ours"),
            _ => {
                serves.send(()).unwrap();
                loop {
                    std::thread::park();
                }
            }
        };
        let never = on_a_thread(serve, Duration::from_millis(1));
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
    fn a_token_is_what_stands_after_bearer() {
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
