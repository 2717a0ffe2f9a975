//! Crash points: steps at which a test build of the agent or the coordinator stops until it is killed or released.
//!
//! `cargo lab crash` arms a point over the admin port, waits until the process has stopped there, and then kills that process,
//! the other program, the API server or the whole node. A new process has no armed point.
//!
//! Without the feature `stops`, [`reach`] does nothing and [`routes`] returns no routes.

use axum::Router;
use serde::{Deserialize, Serialize};
use strum::{EnumCount, IntoStaticStr};

#[cfg(any(test, feature = "stops"))]
mod stops;

/// The path of the routes on the admin port.
pub const PATH: &str = "/crash-point";

/// The progress of a step.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, EnumCount, IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// The step is decided, and recorded in the agent's journal. Nothing has changed.
    Announced,
    /// The change is made, and not recorded yet.
    Changed,
    /// The change is recorded.
    Recorded,
}

impl Edge {
    /// Every edge, in order.
    pub const ALL: [Self; Self::COUNT] = [Self::Announced, Self::Changed, Self::Recorded];

    /// The edge as written in the body of a request.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One boundary of one step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Point {
    /// Name of the step.
    pub step: String,
    /// The progress of the step.
    pub edge: Edge,
    /// The node of the step; any node if unset. A step of the whole cluster has no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// The state of the crash points of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "point")]
pub enum State {
    /// Nothing is armed.
    #[default]
    Off,
    /// The process will stop at this point.
    Armed(Point),
    /// The process has stopped at this point.
    Stopped(Point),
}

/// Marks a boundary of a step: returns at once, unless this point is armed in a test build.
#[cfg(feature = "stops")]
pub async fn reach(step: &str, edge: Edge, node: Option<&str>) {
    stops::POINTS.reach(step, edge, node).await;
}

/// Marks a boundary of a step: returns at once, unless this point is armed in a test build.
#[cfg(not(feature = "stops"))]
#[expect(clippy::unused_async, reason = "the function waits in a test build")]
pub async fn reach(_step: &str, _edge: Edge, _node: Option<&str>) {}

/// In a test build, `GET`, `PUT` and `DELETE` on [`PATH`]: return the state; arm a [`Point`] and release a stopped process;
/// disarm and release.
#[cfg(feature = "stops")]
pub fn routes() -> Router {
    tracing::warn!("test build: any client of the admin port can stop the process with {PATH}");
    stops::routes(&stops::POINTS)
}

/// In a test build, `GET`, `PUT` and `DELETE` on [`PATH`]: return the state; arm a [`Point`] and release a stopped process;
/// disarm and release.
#[cfg(not(feature = "stops"))]
pub fn routes() -> Router {
    Router::new()
}
