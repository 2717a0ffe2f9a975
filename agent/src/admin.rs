//! `/metrics`, `/healthz` and `/readyz`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use jiff::Timestamp;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// A loop that has not turned for this long is stuck: the kubelet restarts the process.
const STUCK_SECONDS: i64 = 180;

/// What health is judged by.
#[derive(Debug)]
pub struct Health {
    /// Unix seconds of the last turn of the loop.
    turned: AtomicI64,
    host_read: AtomicBool,
    goal_read: AtomicBool,
}

impl Health {
    /// Health of a process that starts now.
    pub fn new(now: Timestamp) -> Self {
        Self {
            turned: AtomicI64::new(now.as_second()),
            host_read: AtomicBool::new(false),
            goal_read: AtomicBool::new(false),
        }
    }

    /// The loop turned.
    pub fn turned(&self, now: Timestamp) {
        self.turned.store(now.as_second(), Ordering::Relaxed);
    }

    /// Whether the host could be read in the last turn.
    pub fn set_host_read(&self, read: bool) {
        self.host_read.store(read, Ordering::Relaxed);
    }

    /// The API server has said once whether this node has a goal. An API server that is away afterwards takes
    /// nothing away from the agent.
    pub fn goal_read(&self) {
        self.goal_read.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Shared {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, health: Arc<Health>) -> Infallible {
    listening::http::serve(listener, router(metrics, health)).await
}

fn router(metrics: Arc<Metrics>, health: Arc<Health>) -> Router {
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Shared { metrics, health });
    crash_point::add_routes(router)
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    match shared.metrics.text() {
        Ok(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            text,
        ),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
            error.to_string(),
        ),
    }
}

async fn healthz(State(shared): State<Shared>) -> (StatusCode, String) {
    let age = Timestamp::now().as_second() - shared.health.turned.load(Ordering::Relaxed);
    if age > STUCK_SECONDS {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the loop has not turned for {age} s\n"),
        )
    } else {
        (StatusCode::OK, "ok\n".to_owned())
    }
}

async fn readyz(State(shared): State<Shared>) -> (StatusCode, String) {
    if !shared.health.host_read.load(Ordering::Relaxed) {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the host could not be read; see the log\n".to_owned(),
        )
    } else if !shared.health.goal_read.load(Ordering::Relaxed) {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the API server has not said this node's goal yet\n".to_owned(),
        )
    } else {
        (StatusCode::OK, "ok\n".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ready_once_host_and_goal_are_read() {
        let now = Timestamp::now();
        let shared = Shared {
            metrics: Arc::new(Metrics::new().unwrap()),
            health: Arc::new(Health::new(now)),
        };
        assert_eq!(
            readyz(State(shared.clone())).await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        shared.health.set_host_read(true);
        let (status, why) = readyz(State(shared.clone())).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(why.contains("API server"), "{why}");
        shared.health.goal_read();
        assert_eq!(readyz(State(shared.clone())).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_loop_that_does_not_turn_is_not_healthy() {
        let long_ago = Timestamp::from_second(0).unwrap();
        let shared = Shared {
            metrics: Arc::new(Metrics::new().unwrap()),
            health: Arc::new(Health::new(long_ago)),
        };
        assert_eq!(
            healthz(State(shared.clone())).await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        shared.health.turned(Timestamp::now());
        assert_eq!(healthz(State(shared)).await.0, StatusCode::OK);
    }
}
