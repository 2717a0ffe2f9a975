//! A crash point of a running test build: armed, waited for, let go.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crash_point::{PATH, Point, State};

use crate::cluster::Cluster;
use crate::cluster::wait::{Look, until};
use crate::http::{self, Answer};

/// After a crash a process is started again, and reads before it answers.
const ANSWERS: Duration = Duration::from_mins(1);

/// The admin port of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Door {
    address: Ipv4Addr,
    port: u16,
}

impl Door {
    /// Of the agent on this node.
    pub async fn of_agent(cluster: &Cluster, node: &str) -> Result<Self> {
        Ok(Self {
            address: cluster.node_address(node).await?,
            port: api::names::AGENT_PORT,
        })
    }

    /// Of the coordinator that runs on this node.
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
        ensure!(status == 200, "it answered {status}: {body}");
        serde_json::from_str(&body).with_context(|| format!("its state is {body:?}"))
    }

    /// Lets the process go on to this point, as soon as it answers; with none, for good.
    pub async fn go_on(self, cluster: &Cluster, to: Option<&Point>) -> Result<()> {
        let body = to.map(serde_json::to_string).transpose()?.unwrap_or_default();
        let method = if to.is_some() { "PUT" } else { "DELETE" };
        let logs = cluster.directory().logs();
        until("a process that can be armed", ANSWERS, &logs, async || {
            let Answer { status, body, .. } = self.ask(method, &body).await?;
            Ok(match status {
                200 => Look::Done(()),
                404 => Look::NotYet("it is no test build".to_owned()),
                _ => Look::NotYet(format!("it answered {status}: {body}")),
            })
        })
        .await
        .with_context(|| format!("let {self:?} go on to {to:?}"))
    }

    /// Waits until the process has stopped at what is armed.
    pub async fn until_stopped(self, cluster: &Cluster, limit: Duration) -> Result<()> {
        let logs = cluster.directory().logs();
        until("the process stops at its crash point", limit, &logs, async || {
            Ok(match self.state().await? {
                State::Stopped(_) => Look::Done(()),
                State::Armed(point) => Look::NotYet(format!("{point:?} was never reached")),
                State::Off => {
                    Look::NotYet("it was started anew, and has forgotten the crash point".to_owned())
                }
            })
        })
        .await
    }
}
