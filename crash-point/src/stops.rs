//! The test build's part: one point at a time, armed and looked at over HTTP.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::Notify;

use super::{Edge, PATH, Point, State};

/// Whoever armed it may be gone: after this time the process goes on by itself.
const LONGEST: Duration = Duration::from_mins(2);

/// The points of this process.
#[cfg(feature = "stops")]
pub static POINTS: Points = Points::new();

/// One point at a time.
#[derive(Debug)]
pub struct Points {
    state: Mutex<State>,
    let_go: Notify,
}

impl Points {
    /// Nothing is armed.
    pub const fn new() -> Self {
        Self {
            state: Mutex::new(State::Off),
            let_go: Notify::const_new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is one value: whoever panicked has not left half of it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops here, if this is what is armed, until it is let go.
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
        if tokio::time::timeout(LONGEST, self.let_go.notified())
            .await
            .is_err()
        {
            tracing::warn!(step, "nobody has killed it or let it go; it goes on");
            *self.lock() = State::Off;
        }
    }

    fn state(&self) -> State {
        self.lock().clone()
    }

    /// Arms a point instead of the one that is armed, or nothing. Whoever has stopped goes on, and cannot miss it.
    fn arm(&self, point: Option<Point>) -> State {
        let wanted = point.map_or(State::Off, State::Armed);
        let before = std::mem::replace(&mut *self.lock(), wanted.clone());
        if matches!(before, State::Stopped(_)) {
            self.let_go.notify_one();
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
                        format!("the body is no crash point: {error}"),
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
    async fn it_stops_at_what_is_armed_and_nowhere_else_until_it_is_let_go() {
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
        // Armed anew, it goes on to the next one.
        let next = point(None);
        ask(&router, Method::PUT, Some(&next)).await;
        stopped.await.unwrap();
        let stopped = tokio::spawn(POINTS.reach("Rename", Edge::Changed, Some("b")));
        while ask(&router, Method::GET, None).await.1 != State::Stopped(next.clone()) {
            tokio::task::yield_now().await;
        }
        ask(&router, Method::DELETE, None).await;
        stopped.await.unwrap();
        // Once: it does not stop there again.
        POINTS.reach("Rename", Edge::Changed, Some("a")).await;
        assert_eq!(ask(&router, Method::GET, None).await.1, State::Off);
    }

    #[tokio::test(start_paused = true)]
    async fn a_point_that_everybody_has_forgotten_is_left_after_a_while() {
        static POINTS: Points = Points::new();
        POINTS.arm(Some(point(None)));
        let before = tokio::time::Instant::now();
        POINTS.reach("Rename", Edge::Changed, Some("any")).await;
        assert!(before.elapsed() >= LONGEST);
        assert_eq!(POINTS.state(), State::Off);
    }

    #[tokio::test]
    async fn what_users_run_has_no_such_route() {
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
