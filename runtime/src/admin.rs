//! Serves `/metrics`, `/healthz` and `/readyz` of a program. Accepts connections.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::secure_metrics::{self, SecureMetrics};

/// The answers of a program to the kubelet's probes.
pub trait Health: Send + Sync {
    /// Whether the program works; otherwise why the kubelet has to restart it.
    ///
    /// # Errors
    ///
    /// The program does not work, and has to be restarted.
    fn alive(&self) -> Result<(), String>;

    /// Whether the program has the data that it needs; otherwise what is missing.
    ///
    /// # Errors
    ///
    /// Data is missing.
    fn ready(&self) -> Result<(), String>;
}

/// The last turn of a loop, by a clock that cannot be set: a correction of the host's time does not restart the program.
#[derive(Debug)]
pub struct LoopTurns {
    started: Instant,
    /// Milliseconds from the start to the last turn.
    last: AtomicU64,
}

impl LoopTurns {
    /// A loop whose first turn is now.
    pub fn starting() -> Self {
        Self {
            started: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// Records a turn of the loop.
    pub fn turned(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// Checks that the last turn is not older than `limit`.
    ///
    /// # Errors
    /// If it is older: a message with its age.
    pub fn within(&self, limit: Duration) -> Result<(), String> {
        let age = Duration::from_millis(self.now().saturating_sub(self.last.load(Ordering::Relaxed)));
        if age > limit {
            return Err(format!("the main loop has made no turn for {} s", age.as_secs()));
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Serves until the process ends: metrics on the port of health, or on the secure port if there is one. `routes` are served on
/// the port of health.
pub async fn serve<M>(
    listener: TcpListener,
    secure: Option<SecureMetrics>,
    metrics: M,
    health: Arc<dyn Health>,
    routes: Router,
) -> Infallible
where
    M: Fn() -> Result<String, prometheus::Error> + Clone + Send + Sync + 'static,
{
    let alive = Arc::clone(&health);
    let beside = routes
        .route("/healthz", get(async move || answer(alive.alive())))
        .route("/readyz", get(async move || answer(health.ready())));
    let scraped = Router::new().route("/metrics", get(async move || scrape(metrics())));
    match secure {
        None => listening::http::serve(listener, beside.merge(scraped)).await,
        Some(secure) => {
            let beside = beside.merge(secure_metrics::redirect_to_secure_port(secure.port));
            tokio::select! {
                never = secure.serve(scraped) => never,
                never = listening::http::serve(listener, beside) => never,
            }
        }
    }
}

fn answer(state: Result<(), String>) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn scrape(text: Result<String, prometheus::Error>) -> axum::response::Response {
    match text {
        Ok(text) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_without_a_recent_turn_is_not_alive() {
        let turns = LoopTurns {
            started: Instant::now().checked_sub(Duration::from_secs(100)).unwrap(),
            last: AtomicU64::new(0),
        };
        let stuck = turns.within(Duration::from_secs(90)).unwrap_err();
        assert!(
            stuck.starts_with("the main loop has made no turn for 100 s"),
            "{stuck}"
        );
        turns.within(Duration::from_secs(110)).unwrap();
        turns.turned();
        turns.within(Duration::from_secs(90)).unwrap();
    }
}
