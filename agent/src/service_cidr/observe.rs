//! Reads the host and reports what of Services is there.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::node_migration::Failure;
use ipnet::IpNet;
use kube::Config;
use plan::found::Found;
use plan::service_cidr::host::{Carriers, HostFacts, HostSettings, ProxyMode, ServicePort, in_target};

use super::{carriers, connections, kubelet, proxy};
use crate::admin::Health;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::metrics::Metrics;
use crate::pod_cidr::facts::tables;
use crate::report::{Pending, Report, chain};

/// How often the kubelet is asked, and every process looked into, at most.
const PACE: Duration = Duration::from_secs(2);
/// How often kube-proxy's rules are read while nobody waits for one of them: a host may have many thousands.
const SELDOM: Duration = Duration::from_secs(15);

/// The agent's eyes on its host.
pub struct Observer {
    proc: PathBuf,
    config: Config,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    cluster_dns: Option<(Instant, Found<Vec<IpAddr>>)>,
    carriers: Option<(Instant, Vec<IpNet>, Found<Carriers>)>,
    mode: Option<(Instant, Found<ProxyMode>)>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Observer")
            .field("proc", &self.proc)
            .finish_non_exhaustive()
    }
}

impl Observer {
    /// An observer that has not looked yet. `config` is how the agent itself reaches the API server, and who it is.
    pub fn new(proc: PathBuf, config: Config, metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        Self {
            proc,
            config,
            metrics,
            health,
            cluster_dns: None,
            carriers: None,
            mode: None,
        }
    }

    /// Looks at the host and says what is there. There is no phase: nothing is asked of the host.
    pub async fn look(&mut self, settings: &HostSettings) -> Report {
        let timer = self.metrics.observe_duration.start_timer();
        let seen = self.observe(settings).await;
        timer.observe_duration();
        self.health.set_host_read(seen.is_ok());
        match seen {
            Ok(facts) => Report {
                message: "looks at Services, and changes nothing".to_owned(),
                // kube-proxy announces nothing, and neither does a pod that was told something.
                pending: match &facts.unknown {
                    Found::Present(unknown) if unknown.is_empty() => Pending::Change,
                    Found::Present(_) | Found::Absent | Found::Malformed(_) => Pending::Process,
                },
                service_cidr: Some(facts),
                ..Report::default()
            },
            Err(error) => {
                let message = format!("the host cannot be read: {}", chain(&error));
                Report {
                    failure: Some(Failure {
                        category: error.category().to_owned(),
                        message: message.clone(),
                        retriable: true,
                    }),
                    message,
                    ..Report::default()
                }
            }
        }
    }

    async fn observe(&mut self, settings: &HostSettings) -> Result<HostFacts, NetlinkError> {
        // A socket of its own for each look: one that broke stays broken.
        let kernel = Netlink::connect()?.tables().await?;
        let (proxy_mode, unknown) = self.proxy(&settings.known).await;
        let host = self.config.cluster_url.host().unwrap_or_default();
        let api_server = host.trim_matches(['[', ']']).to_owned();
        Ok(HostFacts {
            proxy_mode,
            unknown,
            cluster_dns: self.cluster_dns().await,
            api_server,
            in_target: in_target(&settings.target, &tables(&kernel)),
            carriers: self.carriers(&settings.left),
            connections: connections::read(&self.proc, &settings.left),
        })
    }

    /// How kube-proxy works, and what of this it has no rule for.
    async fn proxy(&mut self, known: &[ServicePort]) -> (Found<ProxyMode>, Found<Vec<ServicePort>>) {
        if let Some((at, mode)) = &self.mode
            && known.is_empty()
            && at.elapsed() < SELDOM
        {
            return (mode.clone(), Found::Present(Vec::new()));
        }
        match proxy::read(&self.proc).await {
            Ok(rules) => {
                self.mode = Some((Instant::now(), rules.mode()));
                let unknown = known.iter().filter(|port| !rules.known.contains(port));
                (rules.mode(), Found::Present(unknown.cloned().collect()))
            }
            Err(error) => {
                self.mode = None;
                (Found::Malformed(chain(&error)), Found::Malformed(chain(&error)))
            }
        }
    }

    async fn cluster_dns(&mut self) -> Found<Vec<IpAddr>> {
        match &self.cluster_dns {
            Some((at, found)) if at.elapsed() < PACE => found.clone(),
            Some(_) | None => {
                let found = kubelet::cluster_dns(&self.config).await;
                self.cluster_dns = Some((Instant::now(), found.clone()));
                found
            }
        }
    }

    fn carriers(&mut self, left: &[IpNet]) -> Found<Carriers> {
        match &self.carriers {
            Some((at, asked, found)) if at.elapsed() < PACE && asked == left => found.clone(),
            Some(_) | None => {
                let found = carriers::read(&self.proc, left);
                self.carriers = Some((Instant::now(), left.to_vec(), found.clone()));
                found
            }
        }
    }
}
