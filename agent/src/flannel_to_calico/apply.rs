//! Performs one step: journal what is there, change it, look again. The only file that changes the host.

use std::collections::BTreeMap;

use jiff::Timestamp;
use plan::flannel_to_calico::host::{BRIDGE, HostStep};
use thiserror::Error;

use super::facts;
use super::observe::{Observation, ObserveError, Paths, observe};
use crate::host::files::{self, FileError};
use crate::host::firewall::{self, FirewallError};
use crate::host::netlink::{Netlink, NetlinkError};
use crate::journal::{Before, Journal, JournalError};

/// Why a step was not performed.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// What is there could not be put on disk first.
    #[error("{step} was not begun")]
    Journal {
        /// Name of the step.
        step: &'static str,
        /// What went wrong.
        #[source]
        source: JournalError,
    },
    /// A file could not be changed.
    #[error("{step} failed")]
    File {
        /// Name of the step.
        step: &'static str,
        /// What went wrong.
        #[source]
        source: FileError,
    },
    /// A link could not be changed.
    #[error("{step} failed")]
    Netlink {
        /// Name of the step.
        step: &'static str,
        /// What went wrong.
        #[source]
        source: NetlinkError,
    },
    /// The firewall could not be changed.
    #[error("{step} failed")]
    Firewall {
        /// Name of the step.
        step: &'static str,
        /// What went wrong.
        #[source]
        source: FirewallError,
    },
    /// A pod came to the old network, or went from it, since the step was decided.
    #[error("{step} was not begun: {BRIDGE} changed since it was looked at; the agent looks again")]
    Changed {
        /// Name of the step.
        step: &'static str,
    },
    /// The step ran, and the host could not be read afterwards.
    #[error("{step} ran, and whether it worked is not known")]
    Observe {
        /// Name of the step.
        step: &'static str,
        /// What went wrong.
        #[source]
        source: ObserveError,
    },
    /// The step ran without an error, and what it should have removed is there.
    #[error(
        "{step} ran and what it removes is there again: {object}. Somebody puts it back; find out who (is another \
         flanneld running?) and stop it"
    )]
    NotDone {
        /// Name of the step.
        step: &'static str,
        /// What it is about.
        object: String,
    },
}

impl ApplyError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Journal { source, .. } => source.category(),
            Self::File { source, .. } => source.category(),
            Self::Netlink { source, .. } => source.category(),
            Self::Firewall { source, .. } => source.category(),
            Self::Observe { source, .. } => source.category(),
            Self::Changed { .. } => "HostChanged",
            Self::NotDone { .. } => "StepUndone",
        }
    }
}

/// Performs one step and returns the host as it is then.
pub async fn apply(
    step: &HostStep,
    seen: &Observation,
    paths: &Paths,
    netlink: &Netlink,
    journal: &mut Journal,
) -> Result<Observation, ApplyError> {
    let name = step.name();
    let before = before(step, seen, paths, journal).await?;
    journal
        .begin(step, before, Timestamp::now())
        .map_err(|source| ApplyError::Journal { step: name, source })?;
    if takes_network(step) {
        // The kernel does not list its links in one piece: a pod that came meanwhile could be missing from the list.
        let now = netlink
            .snapshot()
            .await
            .map_err(|source| ApplyError::Netlink { step: name, source })?;
        if facts::bridge(&now) != seen.facts.bridge {
            return Err(ApplyError::Changed { step: name });
        }
    }
    perform(step, seen, paths, netlink).await?;
    let after = observe(paths, netlink)
        .await
        .map_err(|source| ApplyError::Observe { step: name, source })?;
    if !step.is_done(&after.facts) {
        return Err(ApplyError::NotDone {
            step: name,
            object: step.object(),
        });
    }
    journal
        .finish(step, Timestamp::now())
        .map_err(|source| ApplyError::Journal { step: name, source })?;
    Ok(after)
}

/// Whether a pod on the old network would feel the step.
fn takes_network(step: &HostStep) -> bool {
    match step {
        HostStep::DeleteVxlanDevice(_)
        | HostStep::DeleteBridge
        | HostStep::DeleteFirewallObject(_)
        | HostStep::RemoveLeases => true,
        HostStep::WithdrawSubnetEnvironment | HostStep::RemoveConflist(_) => false,
    }
}

/// What is there before the step.
async fn before(
    step: &HostStep,
    seen: &Observation,
    paths: &Paths,
    journal: &Journal,
) -> Result<Before, ApplyError> {
    let name = step.name();
    let journal_error = |source| ApplyError::Journal { step: name, source };
    let of_link = |link: &str| Before {
        network: seen
            .snapshot
            .link(link)
            .map(|link| seen.snapshot.of_link(link.index)),
        ..Before::default()
    };
    Ok(match step {
        HostStep::WithdrawSubnetEnvironment => Before {
            files: journal
                .save(&paths.subnet_environment())
                .map_err(journal_error)?
                .into_iter()
                .collect(),
            ..Before::default()
        },
        HostStep::DeleteVxlanDevice(link) => of_link(link),
        HostStep::DeleteBridge => of_link(BRIDGE),
        HostStep::DeleteFirewallObject(object) => Before {
            rules: firewall::rules(object)
                .await
                .map_err(|source| ApplyError::Firewall { step: name, source })?,
            ..Before::default()
        },
        HostStep::RemoveLeases => {
            let mut texts = BTreeMap::new();
            for path in seen
                .state
                .leases
                .iter()
                .chain(&seen.state.bookkeeping)
                .chain(&seen.state.delegates)
            {
                let bytes =
                    files::read_if_there(path).map_err(|source| ApplyError::File { step: name, source })?;
                if let Some(bytes) = bytes {
                    texts.insert(path.clone(), String::from_utf8_lossy(&bytes).into_owned());
                }
            }
            Before {
                texts,
                ..Before::default()
            }
        }
        HostStep::RemoveConflist(file) => Before {
            files: journal
                .save(&paths.cni_configuration.join(file))
                .map_err(journal_error)?
                .into_iter()
                .collect(),
            ..Before::default()
        },
    })
}

async fn perform(
    step: &HostStep,
    seen: &Observation,
    paths: &Paths,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    let name = step.name();
    let file_error = |source| ApplyError::File { step: name, source };
    match step {
        HostStep::WithdrawSubnetEnvironment => {
            files::remove_durably(&paths.subnet_environment()).map_err(file_error)
        }
        HostStep::DeleteVxlanDevice(link) => delete_link(name, link, seen, netlink).await,
        HostStep::DeleteBridge => delete_link(name, BRIDGE, seen, netlink).await,
        HostStep::DeleteFirewallObject(object) => firewall::delete(object)
            .await
            .map_err(|source| ApplyError::Firewall { step: name, source }),
        HostStep::RemoveLeases => {
            for path in seen
                .state
                .leases
                .iter()
                .chain(&seen.state.bookkeeping)
                .chain(&seen.state.delegates)
            {
                files::remove_durably(path).map_err(file_error)?;
            }
            for folder in &seen.state.folders {
                files::remove_folder_if_empty(folder).map_err(file_error)?;
            }
            Ok(())
        }
        HostStep::RemoveConflist(file) => {
            files::remove_durably(&paths.cni_configuration.join(file)).map_err(file_error)
        }
    }
}

/// Deletes a link by the index that was seen: a link that took its name since is somebody else's.
async fn delete_link(
    step: &'static str,
    link: &str,
    seen: &Observation,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    match seen.snapshot.link(link) {
        Some(link) => netlink
            .delete_link(link.index, &link.name)
            .await
            .map_err(|source| ApplyError::Netlink { step, source }),
        None => Ok(()),
    }
}
