//! Crash points: where a test build of the agent or the coordinator stops, and waits until it is killed or let go.
//!
//! `cargo lab crash` arms one over the admin port, waits until the process has stopped there, and then kills whom it wants:
//! that process, the other one, the API server, the whole node. A process that is killed forgets what was armed.
//!
//! Without the feature `stops` nothing of this is there: [`reach`] does nothing and [`routes`] has none.

use axum::Router;
use serde::{Deserialize, Serialize};

#[cfg(any(test, feature = "stops"))]
mod stops;

/// Where the routes are on the admin port.
pub const PATH: &str = "/crash-point";

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// It is decided, and the agent's journal has it. Nothing has changed.
    Announced,
    /// The change is made, and nobody has recorded it.
    Changed,
    /// The change is recorded.
    Recorded,
}

impl Edge {
    /// Every edge, in order.
    pub const ALL: [Self; 3] = [Self::Announced, Self::Changed, Self::Recorded];

    /// The edge as it stands in the body of a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Announced => "announced",
            Self::Changed => "changed",
            Self::Recorded => "recorded",
        }
    }
}

/// One boundary of one step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Point {
    /// Name of the step.
    pub step: String,
    /// How far it has come.
    pub edge: Edge,
    /// The node that it is for; any by default. A step of the whole cluster has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What the process has to do with crash points at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "point")]
pub enum State {
    /// Nothing is armed.
    #[default]
    Off,
    /// It will stop there.
    Armed(Point),
    /// It has stopped there.
    Stopped(Point),
}

/// A boundary of a step: returns at once, unless this very one is armed in a test build.
#[cfg(feature = "stops")]
pub async fn reach(step: &str, edge: Edge, node: Option<&str>) {
    stops::POINTS.reach(step, edge, node).await;
}

/// A boundary of a step: returns at once, unless this very one is armed in a test build.
#[cfg(not(feature = "stops"))]
#[expect(clippy::unused_async, reason = "in a test build it waits")]
pub async fn reach(_step: &str, _edge: Edge, _node: Option<&str>) {}

/// In a test build, `GET`, `PUT` and `DELETE` on [`PATH`]: the state; arming a [`Point`], to which a process that has stopped
/// goes on; letting it go.
#[cfg(feature = "stops")]
pub fn routes() -> Router {
    tracing::warn!("this is a test build: whoever reaches the admin port can stop it at {PATH}");
    stops::routes(&stops::POINTS)
}

/// In a test build, `GET`, `PUT` and `DELETE` on [`PATH`]: the state; arming a [`Point`], to which a process that has stopped
/// goes on; letting it go.
#[cfg(not(feature = "stops"))]
pub fn routes() -> Router {
    Router::new()
}
