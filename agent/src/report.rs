//! The result of one pass over the host.

use std::time::Duration;

use api::FailureCategory;
use api::node_migration::{Failure, FinishedStep, NodeMigrationStatus, ProbeResult};
use api::traffic::TrafficReport;
use runtime::error::chain;

/// Result of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The agent's current activity, or what it waits for.
    pub message: String,
    /// Why the agent cannot continue.
    pub failure: Option<Failure>,
    /// What the kinds report: only their fields are set.
    pub kinds: NodeMigrationStatus,
    /// Time until the host is rolled back automatically, unless the migration continues before.
    pub falls_back_in: Option<Duration>,
    /// The change that the next observation waits for.
    pub pending: Pending,
    /// Steps performed, the newest last.
    pub steps: Vec<FinishedStep>,
    /// Results of the probes.
    pub probes: Vec<ProbeResult>,
    /// Report of the traffic pods.
    pub traffic: Option<TrafficReport>,
}

impl Report {
    /// The report about a host that cannot be read. The agent tries again.
    pub fn unreadable(category: FailureCategory, error: &dyn std::error::Error) -> Self {
        let message = format!("could not observe the host: {}", chain(error));
        Self {
            failure: Some(Failure {
                category: category.into(),
                message: message.clone(),
                retriable: true,
            }),
            message,
            ..Self::default()
        }
    }
}

/// The change that the next observation waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pending {
    /// The host has no goal.
    #[default]
    NoGoal,
    /// The goal is reached, and has to stay reached.
    GoalReached,
    /// A change that causes no event, and that the migration waits for: the end of a process, a rule of kube-proxy.
    Process,
    /// Any other change that the migration waits for.
    Change,
    /// Nothing: more steps may follow in a moment, and others wait for this report.
    Steps,
    /// The host has no goal, and changes of what is observed cause no events.
    Unobservable,
}
