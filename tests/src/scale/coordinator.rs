//! The coordinator as users run it: its own program, account and memory limit.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::names;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;

use super::memory::MemoryLimit;
use super::process::{self, Usage};
use super::proxy::{Counts, Proxy, Target};
use super::size::{Place, Size};
use crate::apilab::OwnApiLab;
use crate::cluster::Images;
use crate::cluster::authority;
use crate::cluster::wait::{Observation, until};
use crate::http::{self, Answer};
use crate::ports::Port;
use crate::started::{Process, on_free_ports};

/// The user name in the audit log.
pub const USER: &str = "system:serviceaccount:replumb-system:replumb-coordinator";
/// Lifetime of the token: longer than any run.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;
/// Time limit for reading the whole cluster at the start.
const READY_LIMIT: Duration = Duration::from_mins(10);

/// A variable of the coordinator's pod with an effect on its memory, and its value in `deploy/base/coordinator.yaml`.
const HEAPS: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

/// A running coordinator. Dropped, it is ended.
#[derive(Debug)]
pub struct Coordinator {
    process: Process,
    port: Port,
    proxy: Proxy,
    // Removed after the process has ended.
    limit: MemoryLimit,
}

impl Coordinator {
    /// Starts the coordinator and waits until it has read the cluster.
    pub async fn start(lab: &OwnApiLab, size: &Size) -> Result<Self> {
        on_free_ports(async || Self::begin(lab, size).await).await
    }

    async fn begin(lab: &OwnApiLab, size: &Size) -> Result<Self> {
        let server = lab.server().trim_start_matches("https://");
        let server: SocketAddr = server
            .parse()
            .with_context(|| format!("read the address {server}"))?;
        let proxy = Proxy::open(server).await?;
        let kubeconfig = lab.folder().join("coordinator.conf");
        let through = format!("https://{}", proxy.address);
        authority::write(
            &kubeconfig,
            &lab.kubeconfig_through(&through, &token(lab).await?)?,
        )?;
        let port = Port::claim()?;
        let limit = MemoryLimit::create(size.memory_limit)?;
        let mut command = limit.command(&size.coordinator);
        command
            .arg(format!("--listen={}:{}", Ipv4Addr::LOCALHOST, port.number()))
            .env("KUBECONFIG", &kubeconfig)
            .env("POD_NAME", "replumb-coordinator-0")
            .env("POD_NAMESPACE", names::NAMESPACE)
            .env("NODE_NAME", Place(size.nodes.saturating_sub(1)).name())
            .env("AGENT_IMAGE", Images::default().agent)
            .env(HEAPS.0, HEAPS.1);
        let log = lab.folder().join("coordinator.log");
        let mut coordinator = Self {
            process: Process::start("the coordinator", log, &mut command)
                .context("find setpriv (Debian: apt-get install util-linux)")?,
            port,
            proxy,
            limit,
        };
        coordinator.ready(lab).await?;
        Ok(coordinator)
    }

    async fn ready(&mut self, lab: &OwnApiLab) -> Result<()> {
        until(
            "the coordinator to have read the cluster",
            READY_LIMIT,
            lab.folder(),
            async || {
                if let Some(ended) = self.process.ended()? {
                    return Ok(Observation::Never(ended.into()));
                }
                let answer = self.get("/readyz").await?;
                Ok(if answer.status == 200 {
                    Observation::Done(())
                } else {
                    Observation::NotYet(answer.body)
                })
            },
        )
        .await
    }

    /// The kernel's present values of the process. An error if the process has ended.
    pub fn usage(&mut self) -> Result<Usage> {
        if let Some(ended) = self.process.ended()? {
            return Err(ended.into());
        }
        process::usage(self.process.id())
    }

    /// The coordinator's metrics.
    pub async fn metrics(&self) -> Result<String> {
        let answer = self.get("/metrics").await?;
        if answer.status != 200 {
            bail!(
                "/metrics of the coordinator answered {}: {}",
                answer.status,
                answer.body
            );
        }
        Ok(answer.body)
    }

    async fn get(&self, path: &str) -> Result<Answer> {
        http::ask(Ipv4Addr::LOCALHOST, self.port.number(), "GET", path, "").await
    }

    /// The kind of memory limit.
    pub fn limited_by(&self) -> &'static str {
        self.limit.name()
    }

    /// The path of the coordinator's requests.
    pub fn way(&self) -> Target {
        self.proxy.way()
    }

    /// Bytes between the coordinator and the API server.
    pub fn counts(&self) -> &Counts {
        &self.proxy.counts
    }
}

async fn token(lab: &OwnApiLab) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(lab.admin().await?, names::NAMESPACE);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(names::COORDINATOR, &PostParams::default(), &request)
        .await
        .context("request the coordinator's token")?;
    Ok(answer
        .status
        .context("read the status of the TokenRequest")?
        .token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coordinator_runs_as_in_the_manifest() {
        let manifest = include_str!("../../../deploy/base/coordinator.yaml");
        let said = format!("- name: {}\n              value: {:?}", HEAPS.0, HEAPS.1);
        assert!(manifest.contains(&said), "{said}");
    }
}
