//! The implementation in a test build: one point at a time, armed and read over HTTP.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::Notify;

use super::{Edge, PATH, Point, State};

/// The longest stop: the client that armed the point may be gone, so the process continues after this time.
const LONGEST: Duration = Duration::from_mins(2);

/// The points of this process.
#[cfg(feature = "stops")]
pub static POINTS: Points = Points::new();

/// The crash points of a process: one armed point at a time.
#[derive(Debug)]
pub struct Points {
    state: Mutex<State>,
    released: Notify,
}

impl Points {
    /// No point is armed.
    pub const fn new() -> Self {
        Self {
            state: Mutex::new(State::Off),
            released: Notify::const_new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is one value, so a panic cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops here until released, if this point is armed.
    pub async fn reach(&self, step: &str, edge: Edge, node: Option<&str>) {
        {
            let mut state = self.lock();
            let State::Armed(point) = &*state else { return };
            let here = point.step == step
                && point.edge == edge
                && (point.node.is_none() || point.node.as_deref() == node);
            if !here {
                return;
            }
            let point = point.clone();
            tracing::warn!(step, edge = edge.as_str(), node, "stopped at a crash point");
            *state = State::Stopped(point);
        }
        if tokio::time::timeout(LONGEST, self.released.notified())
            .await
            .is_err()
        {
            tracing::warn!(step, "neither killed nor released at the crash point; continuing");
            *self.lock() = State::Off;
        }
    }

    fn state(&self) -> State {
        self.lock().clone()
    }

    /// Arms a point, or none, in place of the armed one. A stopped process is released after the new point is armed, so it cannot
    /// miss the point.
    fn arm(&self, point: Option<Point>) -> State {
        let wanted = point.map_or(State::Off, State::Armed);
        let before = std::mem::replace(&mut *self.lock(), wanted.clone());
        if matches!(before, State::Stopped(_)) {
            self.released.notify_one();
        }
        wanted
    }
}

/// The routes.
pub fn routes(points: &'static Points) -> Router {
    Router::new().route(
        PATH,
        get(move || async move { answer(&points.state()) })
            .put(move |body: String| async move {
                match serde_json::from_str(&body) {
                    Ok(point) => answer(&points.arm(Some(point))),
                    Err(error) => (
                        StatusCode::BAD_REQUEST,
                        format!("the body is not a crash point: {error}"),
                    ),
                }
            })
            .delete(move || async move { answer(&points.arm(None)) }),
    )
}

fn answer(state: &State) -> (StatusCode, String) {
    match serde_json::to_string(state) {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use http::{Method, Request};
    use tower::ServiceExt as _;

    use super::*;

    fn point(node: Option<&str>) -> Point {
        Point {
            step: "Rename".to_owned(),
            edge: Edge::Changed,
            node: node.map(str::to_owned),
        }
    }

    async fn ask(router: &Router, method: Method, body: Option<&Point>) -> (StatusCode, State) {
        let text = body.map_or_else(String::new, |point| serde_json::to_string(point).unwrap());
        let request = Request::builder()
            .method(method)
            .uri(PATH)
            .body(Body::from(text))
            .unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 1024).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    #[tokio::test]
    async fn a_process_stops_only_at_the_armed_point_until_released() {
        static POINTS: Points = Points::new();
        let router = routes(&POINTS);
        let wanted = point(Some("a"));
        let armed = ask(&router, Method::PUT, Some(&wanted)).await;
        assert_eq!(armed, (StatusCode::OK, State::Armed(wanted.clone())));
        POINTS.reach("Rename", Edge::Announced, Some("a")).await;
        POINTS.reach("Rename", Edge::Changed, Some("b")).await;
        POINTS.reach("Rename", Edge::Changed, None).await;
        POINTS.reach("Other", Edge::Changed, Some("a")).await;
        assert_eq!(
            ask(&router, Method::GET, None).await.1,
            State::Armed(wanted.clone())
        );

        let stopped = tokio::spawn(POINTS.reach("Rename", Edge::Changed, Some("a")));
        while ask(&router, Method::GET, None).await.1 != State::Stopped(wanted.clone()) {
            tokio::task::yield_now().await;
        }
        assert!(!stopped.is_finished());
        // Armed again, the process continues to the next point.
        let next = point(None);
        ask(&router, Method::PUT, Some(&next)).await;
        stopped.await.unwrap();
        let stopped = tokio::spawn(POINTS.reach("Rename", Edge::Changed, Some("b")));
        while ask(&router, Method::GET, None).await.1 != State::Stopped(next.clone()) {
            tokio::task::yield_now().await;
        }
        ask(&router, Method::DELETE, None).await;
        stopped.await.unwrap();
        // A point stops the process once.
        POINTS.reach("Rename", Edge::Changed, Some("a")).await;
        assert_eq!(ask(&router, Method::GET, None).await.1, State::Off);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_without_a_release_ends_after_a_timeout() {
        static POINTS: Points = Points::new();
        POINTS.arm(Some(point(None)));
        let before = tokio::time::Instant::now();
        POINTS.reach("Rename", Edge::Changed, Some("any")).await;
        assert!(before.elapsed() >= LONGEST);
        assert_eq!(POINTS.state(), State::Off);
    }

    #[tokio::test]
    async fn only_a_test_build_has_the_route() {
        let router = crate::routes().route("/healthz", get(async || "ok"));
        let (status, _) = ask(&router, Method::PUT, Some(&point(None))).await;
        let expected = if cfg!(feature = "stops") {
            StatusCode::OK
        } else {
            StatusCode::NOT_FOUND
        };
        assert_eq!(status, expected);
    }
}
