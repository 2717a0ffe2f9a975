//! `/metrics`, `/healthz` and `/readyz`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use jiff::Timestamp;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// A loop that has not turned for this long is stuck: the kubelet restarts the process.
const STUCK_SECONDS: i64 = 120;

/// What health is judged by.
pub struct Health {
    /// Unix seconds of the last turn of the loop.
    turned: AtomicI64,
    /// Unix seconds when the stores were first filled; 0 before.
    filled: AtomicI64,
}

impl Health {
    /// Health of a process that starts now.
    pub fn new(now: Timestamp) -> Self {
        Self {
            turned: AtomicI64::new(now.as_second()),
            filled: AtomicI64::new(0),
        }
    }

    /// The loop turned.
    pub fn turned(&self, now: Timestamp) {
        self.turned.store(now.as_second(), Ordering::Relaxed);
    }

    /// The stores are filled.
    pub fn filled(&self, now: Timestamp) {
        self.filled.store(now.as_second(), Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Shared {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, health: Arc<Health>) -> Infallible {
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Shared { metrics, health });
    listening::http::serve(listener, crash_point::add_routes(router)).await
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
    if shared.health.filled.load(Ordering::Relaxed) == 0 {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the API has not been read yet\n".to_owned(),
        )
    } else {
        (StatusCode::OK, "ok\n".to_owned())
    }
}
