//! A crash point of a running test build: armed, reached, released.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crash_point::{PATH, Point, State};

use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::http::{self, Answer};

/// Time limit for a process to restart, read the cluster and answer.
const ANSWERS: Duration = Duration::from_mins(1);

/// The admin port of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminPort {
    address: Ipv4Addr,
    port: u16,
}

impl AdminPort {
    /// The port of the agent on this node.
    pub async fn of_agent(cluster: &Cluster, node: &str) -> Result<Self> {
        Ok(Self {
            address: cluster.node_address(node).await?,
            port: api::names::AGENT_PORT,
        })
    }

    /// The port of the coordinator that runs on this node.
    pub async fn of_coordinator(cluster: &Cluster, home: &str) -> Result<Self> {
        Ok(Self {
            address: cluster.node_address(home).await?,
            port: api::names::COORDINATOR_PORT,
        })
    }

    async fn ask(self, method: &str, body: &str) -> Result<Answer> {
        http::ask(self.address, self.port, method, PATH, body).await
    }

    async fn state(self) -> Result<State> {
        let Answer { status, body, .. } = self.ask("GET", "").await?;
        ensure!(status == 200, "answer {status}: {body}");
        serde_json::from_str(&body).with_context(|| format!("parse the state {body:?}"))
    }

    /// Lets the process run to this point, as soon as it answers; with `None`, without a further stop.
    pub async fn run_to(self, cluster: &Cluster, to: Option<&Point>) -> Result<()> {
        let body = to.map(serde_json::to_string).transpose()?.unwrap_or_default();
        let method = if to.is_some() { "PUT" } else { "DELETE" };
        let logs = cluster.directory().logs();
        until(
            "the process to accept a crash point",
            ANSWERS,
            &logs,
            async || {
                let Answer { status, body, .. } = self.ask(method, &body).await?;
                Ok(match status {
                    200 => Observation::Done(()),
                    404 => Observation::NotYet("the program is not a test build".to_owned()),
                    _ => Observation::NotYet(format!("answer {status}: {body}")),
                })
            },
        )
        .await
        .with_context(|| format!("let {self:?} run to {to:?}"))
    }

    /// Waits until the process has stopped at the armed point.
    pub async fn until_stopped(self, cluster: &Cluster, limit: Duration) -> Result<()> {
        let logs = cluster.directory().logs();
        until(
            "the process to stop at its crash point",
            limit,
            &logs,
            async || {
                Ok(match self.state().await? {
                    State::Stopped(_) => Observation::Done(()),
                    State::Armed(point) => Observation::NotYet(format!("{point:?} is not reached yet")),
                    State::Off => {
                        Observation::NotYet("the process has restarted and lost the crash point".to_owned())
                    }
                })
            },
        )
        .await
    }
}
