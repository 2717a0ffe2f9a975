//! Reads the host and reports what lies in either range. Changes nothing.

use std::path::PathBuf;
use std::sync::Arc;

use api::node_migration::Failure;
use plan::pod_cidr::host::{self, HostFacts, HostSettings};
use thiserror::Error;

use super::facts;
use crate::admin::Health;
use crate::host::cnidir;
use crate::host::files::FileError;
use crate::host::folders::FolderWatch;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::metrics::Metrics;
use crate::report::{Pending, Report, chain};

/// Why the host could not be read.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// Links, addresses, routes, rules.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The CNI configuration.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ObserveError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Netlink(error) => error.category(),
            Self::File(error) => error.category(),
        }
    }
}

/// The agent's eyes on its host.
#[derive(Debug)]
pub struct Observer {
    /// The folder of the CNI configuration, where the settings name no other.
    cni_configuration: PathBuf,
    folders: Arc<FolderWatch>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Observer {
    /// An observer that has not looked yet.
    pub fn new(
        cni_configuration: PathBuf,
        folders: Arc<FolderWatch>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            cni_configuration,
            folders,
            metrics,
            health,
        }
    }

    /// Looks at the host and says what is there. There is no phase: nothing is asked of the host.
    pub async fn look(&self, settings: &HostSettings) -> Report {
        let timer = self.metrics.observe_duration.start_timer();
        let seen = self.observe(settings).await;
        timer.observe_duration();
        self.health.set_host_read(seen.is_ok());
        match seen {
            Ok(facts) => Report {
                // Numbers would make a new message of each pod.
                message: format!(
                    "looks for {} and {}, and changes nothing",
                    settings.from, settings.to
                ),
                pod_cidr: Some(facts),
                pending: Pending::Nothing,
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

    /// Reads everything. One part that cannot be read leaves no facts at all: half of them would be taken for all.
    pub async fn observe(&self, settings: &HostSettings) -> Result<HostFacts, ObserveError> {
        let folder = settings
            .cni_configuration_directory
            .as_ref()
            .map_or_else(|| self.cni_configuration.clone(), PathBuf::from);
        if let Err(error) = self.folders.add(&folder) {
            tracing::debug!(error = chain(&error), "a folder is not watched");
        }
        let files = cnidir::files(&folder)?;
        let conflist = host::conflist(&folder.to_string_lossy(), &files);
        // A socket of its own for each look: one that broke stays broken.
        let tables = Netlink::connect()?.tables().await?;
        Ok(host::facts(settings, conflist, &facts::tables(&tables)))
    }
}
