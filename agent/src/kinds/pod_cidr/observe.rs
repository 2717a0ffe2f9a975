//! Observes the host: the objects in both ranges.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::FailureCategory;
use engine::found::Found;
use engine::local_traffic::LocalTraffic;
use pod_cidr::host::{self, HostFacts, HostSettings};
use runtime::error::chain;
use thiserror::Error;

use super::apply::set_addresses;
use super::report::report;
use crate::health::Health;
use crate::host::cnidir;
use crate::host::files::FileError;
use crate::host::folders::FolderWatch;
use crate::host::kube_proxy;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::kernel_tables;
use crate::kinds::HostParts;
use crate::metrics::Metrics;
use crate::report::Report;

/// Least time between two reads of kube-proxy's rules: the migration waits for a user who changes them.
const RULES_AGE: Duration = Duration::from_secs(5);
/// Reads of the rules take at most the share 1/SHARE of the time: a host may have many thousands.
const SHARE: u32 = 20;

/// The host could not be read.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// Links, addresses, routes or rules could not be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The CNI configuration could not be read.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ObserveError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Netlink(error) => error.category(),
            Self::File(error) => error.category(),
        }
    }
}

/// The last read of kube-proxy's rules.
#[derive(Debug)]
struct RulesRead {
    at: Instant,
    took: Duration,
    local_traffic: Found<LocalTraffic>,
}

impl RulesRead {
    /// How long this read counts: a problem may be over in a moment.
    fn age(&self) -> Duration {
        match &self.local_traffic {
            Found::Malformed(_) => RULES_AGE,
            Found::Present(_) | Found::Absent => RULES_AGE.max(self.took * SHARE),
        }
    }
}

/// Observes the host.
#[derive(Debug)]
pub struct Observer {
    /// Folder of the CNI configuration, unless the settings name another one.
    cni_configuration: PathBuf,
    proc: PathBuf,
    rules: Option<RulesRead>,
    folders: Arc<FolderWatch>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Observer {
    /// An observer without an observation.
    pub fn new(parts: &HostParts) -> Self {
        Self {
            cni_configuration: parts.paths.cni_configuration.clone(),
            proc: parts.paths.proc.clone(),
            rules: None,
            folders: Arc::clone(&parts.folders),
            metrics: Arc::clone(&parts.metrics),
            health: Arc::clone(&parts.health),
        }
    }

    /// Observes the host. The report has no phase, since the host has no goal.
    pub async fn report(&mut self, settings: &HostSettings) -> Report {
        let timer = self.metrics.observe_duration.start_timer();
        let seen = self.keep_and_observe(settings).await;
        timer.observe_duration();
        self.health.set_host_read(seen.is_ok());
        match seen {
            Ok((facts, refused)) => report(settings, facts, &refused),
            Err(error) => Report::unreadable(error.category(), &error),
        }
    }

    /// Removes the addresses that a podCidr migration kept on the loopback link, once no spec requests them.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn release(&self) -> Result<(), ObserveError> {
        set_addresses(&Netlink::connect()?, &[]).await?;
        Ok(())
    }

    async fn keep_and_observe(
        &mut self,
        settings: &HostSettings,
    ) -> Result<(HostFacts, Vec<String>), ObserveError> {
        let refused = set_addresses(&Netlink::connect()?, &settings.tunnel_addresses).await?;
        Ok((self.observe(settings).await?, refused))
    }

    /// Reads the whole state. If one part cannot be read, there are no facts at all, since partial facts would be misleading.
    ///
    /// # Errors
    ///
    /// The CNI folder is missing, or the network cannot be read.
    pub async fn observe(&mut self, settings: &HostSettings) -> Result<HostFacts, ObserveError> {
        let folder = settings
            .cni_configuration_directory
            .as_ref()
            .map_or_else(|| self.cni_configuration.clone(), PathBuf::from);
        if let Err(error) = self.folders.add(&folder) {
            tracing::debug!(error = chain(&error), "watching a folder failed");
        }
        let files = cnidir::files(&folder)?;
        let conflist = host::conflist(&folder.to_string_lossy(), &files);
        // A new socket for each observation: a failed one does not recover.
        let tables = Netlink::connect()?.tables().await?;
        let local_traffic = self.local_traffic().await;
        Ok(host::facts(
            settings,
            conflist,
            local_traffic,
            &kernel_tables::tables(&tables),
        ))
    }

    /// How kube-proxy recognizes pods: the last read of its rules, or a new one.
    async fn local_traffic(&mut self) -> Found<LocalTraffic> {
        if let Some(read) = &self.rules
            && read.at.elapsed() < read.age()
        {
            return read.local_traffic.clone();
        }
        let began = Instant::now();
        let local_traffic = match kube_proxy::read(&self.proc, &BTreeSet::new()).await {
            Ok(rules) => match rules.mode() {
                Found::Malformed(problem) => Found::Malformed(problem),
                Found::Absent | Found::Present(_) => rules.local_traffic().clone(),
            },
            Err(error) => Found::Malformed(format!("rules of kube-proxy: {}", chain(&error))),
        };
        self.rules = Some(RulesRead {
            at: Instant::now(),
            took: began.elapsed(),
            local_traffic: local_traffic.clone(),
        });
        local_traffic
    }
}
