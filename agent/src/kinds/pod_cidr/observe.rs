//! Observes the host: the objects in both ranges.

use std::path::PathBuf;
use std::sync::Arc;

use api::FailureCategory;
use pod_cidr::host::{self, HostFacts, HostSettings};
use runtime::error::chain;
use thiserror::Error;

use super::apply::set_addresses;
use super::report::report;
use crate::health::Health;
use crate::host::cnidir;
use crate::host::files::FileError;
use crate::host::folders::FolderWatch;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::kernel_tables;
use crate::kinds::HostParts;
use crate::metrics::Metrics;
use crate::report::Report;

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

/// Observes the host.
#[derive(Debug)]
pub struct Observer {
    /// Folder of the CNI configuration, unless the settings name another one.
    cni_configuration: PathBuf,
    folders: Arc<FolderWatch>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Observer {
    /// An observer without an observation.
    pub fn new(parts: &HostParts) -> Self {
        Self {
            cni_configuration: parts.paths.cni_configuration.clone(),
            folders: Arc::clone(&parts.folders),
            metrics: Arc::clone(&parts.metrics),
            health: Arc::clone(&parts.health),
        }
    }

    /// Observes the host. The report has no phase, since the host has no goal.
    pub async fn report(&self, settings: &HostSettings) -> Report {
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
        &self,
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
    pub async fn observe(&self, settings: &HostSettings) -> Result<HostFacts, ObserveError> {
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
        Ok(host::facts(settings, conflist, &kernel_tables::tables(&tables)))
    }
}
