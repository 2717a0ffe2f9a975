//! The client of process 1's socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::{MachineSpec, Reply, Request, Service, ServiceStatus};

/// Sends requests to process 1 of one machine.
#[derive(Clone, Debug)]
pub struct Control {
    socket: PathBuf,
}

impl Control {
    /// The client for the machine in this folder.
    pub fn new(directory: &Path) -> Self {
        Self {
            socket: MachineSpec::socket(directory),
        }
    }

    /// Starts a service, or replaces it.
    pub async fn start(&self, service: Service) -> Result<()> {
        let name = service.name.clone();
        self.done(Request::Start(service))
            .await
            .with_context(|| format!("start service {name}"))
    }

    /// Stops a service without a restart.
    pub async fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        let grace_milliseconds = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let request = Request::Stop {
            name: name.to_owned(),
            grace_milliseconds,
        };
        self.done(request)
            .await
            .with_context(|| format!("stop service {name}"))
    }

    /// Removes a stopped service from the list.
    pub async fn forget(&self, name: &str) -> Result<()> {
        let request = Request::Forget {
            name: name.to_owned(),
        };
        self.done(request)
            .await
            .with_context(|| format!("forget service {name}"))
    }

    /// The services of the machine.
    pub async fn status(&self) -> Result<Vec<ServiceStatus>> {
        match self.ask(&Request::Status).await? {
            Reply::Status(services) => Ok(services),
            other => bail!("process 1 answered {other:?} to a request for its status"),
        }
    }

    async fn done(&self, request: Request) -> Result<()> {
        match self.ask(&request).await? {
            Reply::Done => Ok(()),
            Reply::Failed(message) => bail!(message),
            Reply::Status(_) => bail!("process 1 answered with its status"),
        }
    }

    async fn ask(&self, request: &Request) -> Result<Reply> {
        let mut stream = UnixStream::connect(&self.socket)
            .await
            .with_context(|| format!("connect to {} (is the machine on?)", self.socket.display()))?;
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        stream
            .write_all(text.as_bytes())
            .await
            .context("send the request")?;
        let mut line = String::new();
        BufReader::new(stream)
            .read_line(&mut line)
            .await
            .context("read the reply")?;
        serde_json::from_str(&line).with_context(|| format!("parse the reply {line:?}"))
    }
}
