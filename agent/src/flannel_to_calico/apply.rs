//! Performs one step: journal what is there, change it, look again. The only file that changes the host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ipnet::IpNet;
use jiff::Timestamp;
use plan::cni::{AttachmentError, deletion};
use plan::flannel_to_calico::host::{BRIDGE, HostStep};
use thiserror::Error;

use super::facts;
use super::observe::{Observation, ObserveError, Paths, observe};
use crate::host::cniplugin;
use crate::host::files::{self, FileError};
use crate::host::firewall::{self, FirewallError};
use crate::host::netlink::{Netlink, NetlinkError, ROUTE_PROTOCOL, Renamed};
use crate::host::program::ProgramError;
use crate::host::snapshot::{Route, Snapshot};
use crate::host::sysctl;
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
    /// A CNI plugin could not be asked.
    #[error("{step} failed")]
    CniPlugin {
        /// Name of the step.
        step: &'static str,
        /// What went wrong.
        #[source]
        source: ProgramError,
    },
    /// A record of libcni was not understood.
    #[error("{step} failed: {path}")]
    Attachment {
        /// Name of the step.
        step: &'static str,
        /// The record.
        path: String,
        /// What went wrong.
        #[source]
        source: AttachmentError,
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
            Self::CniPlugin { source, .. } => source.category(),
            Self::Attachment { .. } => "CniRecord",
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
        if ports(&now) != ports(&seen.snapshot) {
            return Err(ApplyError::Changed { step: name });
        }
    }
    let saved = journal.before_interrupted(step).cloned().unwrap_or_default();
    perform(step, seen, &saved, paths, netlink).await?;
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

/// Links on the bridge, by name.
fn ports(snapshot: &Snapshot) -> Vec<String> {
    facts::bridge(snapshot, false)
        .present()
        .map(|bridge| bridge.ports.clone())
        .unwrap_or_default()
}

/// Whether a pod on the old network would feel the step.
fn takes_network(step: &HostStep) -> bool {
    match step {
        HostStep::DeleteVxlanDevice(_)
        | HostStep::DeleteBridge
        | HostStep::DeleteFirewallObject(_)
        | HostStep::RemoveLeases => true,
        HostStep::WithdrawSubnetEnvironment
        | HostStep::RemoveConflist(_)
        | HostStep::RouteLegacyPods(_)
        | HostStep::AnswerForPods
        | HostStep::RenameVxlanDevice { .. }
        | HostStep::ForgetLegacyPod(_) => false,
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
        // Made anew after a crash: what the link was, only the journal knows.
        HostStep::RenameVxlanDevice { from, .. } => match seen.snapshot.link(from) {
            Some(_) => of_link(from),
            None => journal.before_interrupted(step).cloned().unwrap_or_default(),
        },
        HostStep::RouteLegacyPods(_) => Before::default(),
        HostStep::AnswerForPods => {
            let parameters = sysctl::answering(BRIDGE).map(|(parameter, _)| paths.sysctl.join(parameter));
            texts(parameters.iter(), name)?
        }
        HostStep::ForgetLegacyPod(sandbox) => texts(records(seen, sandbox), name)?,
        HostStep::DeleteFirewallObject(object) => Before {
            rules: firewall::rules(object)
                .await
                .map_err(|source| ApplyError::Firewall { step: name, source })?,
            ..Before::default()
        },
        HostStep::RemoveLeases => {
            let files = seen
                .state
                .leases
                .iter()
                .chain(&seen.state.bookkeeping)
                .chain(&seen.state.delegates);
            texts(files, name)?
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

/// Small files, as they are.
fn texts<'path>(
    paths: impl Iterator<Item = &'path PathBuf>,
    step: &'static str,
) -> Result<Before, ApplyError> {
    let mut texts = BTreeMap::new();
    for path in paths {
        let bytes = files::read_if_there(path).map_err(|source| ApplyError::File { step, source })?;
        if let Some(bytes) = bytes {
            texts.insert(path.clone(), String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(Before {
        texts,
        ..Before::default()
    })
}

/// libcni's records of this sandbox.
fn records<'seen>(seen: &'seen Observation, sandbox: &'seen str) -> impl Iterator<Item = &'seen PathBuf> {
    seen.state
        .attachments
        .iter()
        .filter(move |(_, attachment)| attachment.as_ref().is_ok_and(|known| known.sandbox == sandbox))
        .map(|(path, _)| path)
}

async fn perform(
    step: &HostStep,
    seen: &Observation,
    saved: &Before,
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
        HostStep::RouteLegacyPods(addresses) => {
            if let Some(bridge) = seen.snapshot.link(BRIDGE) {
                for address in addresses {
                    netlink
                        .add_host_route(*address, bridge.index)
                        .await
                        .map_err(|source| ApplyError::Netlink { step: name, source })?;
                }
            }
            Ok(())
        }
        HostStep::AnswerForPods => {
            for (parameter, value) in sysctl::answering(BRIDGE) {
                sysctl::write(&paths.sysctl.join(parameter), value).map_err(file_error)?;
            }
            Ok(())
        }
        HostStep::RenameVxlanDevice { from, to, block_size } => {
            rename(from, to, *block_size, seen, saved, netlink)
                .await
                .map_err(|source| ApplyError::Netlink { step: name, source })
        }
        HostStep::ForgetLegacyPod(sandbox) => forget(sandbox, seen, paths, netlink).await,
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

/// The new name, while packets go through; or, where the kernel does not do that, the link made again.
async fn rename(
    from: &str,
    to: &str,
    block_size: u8,
    seen: &Observation,
    saved: &Before,
    netlink: &Netlink,
) -> Result<(), NetlinkError> {
    let Some(link) = seen.snapshot.link(from) else {
        return restore(to, saved, block_size, netlink).await;
    };
    netlink
        .add_block_routes(&seen.snapshot.of_link(link.index), block_size)
        .await?;
    match netlink.rename_link(link, to).await? {
        Renamed::Yes => Ok(()),
        Renamed::Refused => {
            tracing::info!(
                link = from,
                "the kernel does not rename a link that is up; it is made again"
            );
            netlink.delete_link(link.index, from).await?;
            restore(to, saved, block_size, netlink).await
        }
    }
}

async fn restore(to: &str, saved: &Before, block_size: u8, netlink: &Netlink) -> Result<(), NetlinkError> {
    let Some(network) = &saved.network else {
        return Ok(());
    };
    let index = netlink.restore_vxlan(network, to).await?;
    let moved = Snapshot {
        routes: network.routes.iter().map(|route| route.through(index)).collect(),
        ..Snapshot::default()
    };
    netlink.add_block_routes(&moved, block_size).await
}

/// What a pod that is gone has left. Its record goes last: as long as it is there, the step is not done.
async fn forget(
    sandbox: &str,
    seen: &Observation,
    paths: &Paths,
    netlink: &Netlink,
) -> Result<(), ApplyError> {
    let step = HostStep::ForgetLegacyPod(sandbox.to_owned()).name();
    let pods = seen.facts.legacy_pods.iter().filter(|pod| pod.sandbox == sandbox);
    let addresses: Vec<IpNet> = pods
        .flat_map(|pod| &pod.addresses)
        .map(|own| IpNet::from(*own))
        .collect();
    let ours = |route: &&Route| route.protocol == ROUTE_PROTOCOL && addresses.contains(&route.destination);
    for route in seen.snapshot.routes.iter().filter(ours) {
        netlink
            .delete_route(route)
            .await
            .map_err(|source| ApplyError::Netlink { step, source })?;
    }
    for path in records(seen, sandbox) {
        let file_error = |source| ApplyError::File { step, source };
        let Some(bytes) = files::read_if_there(path).map_err(file_error)? else {
            continue;
        };
        let calls = deletion(&bytes).map_err(|source| ApplyError::Attachment {
            step,
            path: path.display().to_string(),
            source,
        })?;
        cniplugin::call(&paths.cni_plugins, &calls)
            .await
            .map_err(|source| ApplyError::CniPlugin { step, source })?;
        files::remove_durably(path).map_err(file_error)?;
    }
    Ok(())
}
