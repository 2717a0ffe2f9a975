//! Reads the host and reports what lies in either range.

use std::path::PathBuf;
use std::sync::Arc;

use api::node_migration::Failure;
use engine::words::lines;
use pod_cidr::ends::{self, Keeping};
use pod_cidr::host::{self, HostFacts, HostSettings};
use runtime::error::chain;
use thiserror::Error;

use super::facts;
use super::keep::keep;
use crate::health::Health;
use crate::host::cnidir;
use crate::host::files::FileError;
use crate::host::folders::FolderWatch;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::metrics::Metrics;
use crate::report::{Pending, Report};

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
        let seen = self.keep_and_observe(settings).await;
        timer.observe_duration();
        self.health.set_host_read(seen.is_ok());
        match seen {
            Ok((facts, refused)) => Report {
                message: message(settings),
                failure: (!refused.is_empty()).then(|| Failure {
                    category: "Contradiction".to_owned(),
                    message: lines(&refused),
                    retriable: true,
                }),
                // Whoever exchanges an address does so in a moment, and may take ours away on the way.
                pending: match ends::keeping(&settings.tunnel_ends, &settings.from, Some(&facts)) {
                    Keeping::Done | Keeping::NotYet(_) => Pending::Nothing,
                    Keeping::Exchanging(_) => Pending::Change,
                },
                pod_cidr: Some(facts),
                ..Report::default()
            },
            Err(error) => Report::unreadable(error.category(), &error),
        }
    }

    /// Takes from the loopback what an agent has kept there for a change of range: nobody asks for it any more.
    pub async fn release(&self) -> Result<(), ObserveError> {
        keep(&Netlink::connect()?, &[]).await?;
        Ok(())
    }

    async fn keep_and_observe(
        &self,
        settings: &HostSettings,
    ) -> Result<(HostFacts, Vec<String>), ObserveError> {
        let refused = keep(&Netlink::connect()?, &settings.tunnel_ends).await?;
        Ok((self.observe(settings).await?, refused))
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

/// What the agent does. Numbers of what it finds would make a new message of each pod.
fn message(settings: &HostSettings) -> String {
    let HostSettings {
        from,
        to,
        tunnel_ends,
        ..
    } = settings;
    let kept: Vec<String> = tunnel_ends.iter().map(|end| end.kept.to_string()).collect();
    if kept.is_empty() {
        format!("looks for {from} and {to}, and changes nothing")
    } else {
        format!(
            "looks for {from} and {to}, and keeps {} for connections of the host that began there",
            kept.join(", ")
        )
    }
}
