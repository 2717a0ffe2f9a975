//! Errors of steps.

use api::FailureCategory;
use flannel_to_calico::attachment::AttachmentError;
use flannel_to_calico::host::BRIDGE;
use thiserror::Error;

use crate::host::connections::ConnectionsError;
use crate::host::files::FileError;
use crate::host::firewall::FirewallError;
use crate::host::netlink::NetlinkError;
use crate::host::program::ProgramError;
use crate::kinds::flannel_to_calico::journal::JournalError;
use crate::kinds::flannel_to_calico::observe::ObserveError;

/// A step was not performed, or its outcome is unknown.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The state before the step could not be saved.
    #[error("{step} was not started")]
    Journal {
        /// Name of the step.
        step: &'static str,
        /// The cause.
        #[source]
        source: JournalError,
    },
    /// A file could not be changed.
    #[error("{step} failed")]
    File {
        /// Name of the step.
        step: &'static str,
        /// The cause.
        #[source]
        source: FileError,
    },
    /// A link could not be changed.
    #[error("{step} failed")]
    Netlink {
        /// Name of the step.
        step: &'static str,
        /// The cause.
        #[source]
        source: NetlinkError,
    },
    /// The firewall could not be changed.
    #[error("{step} failed")]
    Firewall {
        /// Name of the step.
        step: &'static str,
        /// The cause.
        #[source]
        source: FirewallError,
    },
    /// Connections could not be kept.
    #[error("{step} failed")]
    Connections {
        /// Name of the step.
        step: &'static str,
        /// The cause.
        #[source]
        source: ConnectionsError,
    },
    /// A CNI plugin failed.
    #[error("{step} failed")]
    CniPlugin {
        /// Name of the step.
        step: &'static str,
        /// The cause.
        #[source]
        source: ProgramError,
    },
    /// A record of libcni is malformed.
    #[error("{step} failed: {path}")]
    Attachment {
        /// Name of the step.
        step: &'static str,
        /// The record.
        path: String,
        /// The cause.
        #[source]
        source: AttachmentError,
    },
    /// A pod was added to or removed from the old network since the step was decided.
    #[error("{step} was not started: pods on {BRIDGE} changed since the last observation; retrying")]
    Changed {
        /// Name of the step.
        step: &'static str,
    },
    /// The step ran, and the host could not be read afterwards.
    #[error("{step} was performed, but its result could not be observed")]
    Observe {
        /// Name of the step.
        step: &'static str,
        /// The cause.
        #[source]
        source: ObserveError,
    },
    /// The journal's backup is missing or changed.
    #[error("{step} cannot be performed: {problem}")]
    Lost {
        /// Name of the step.
        step: &'static str,
        /// The missing data, and what the user does about it.
        problem: String,
    },
    /// The step ran without an error, and the host has the state before the step again.
    #[error(
        "{step} was performed and reverted by another program: {object}: find that program (another flanneld or \
         calico-node?) and stop it"
    )]
    NotDone {
        /// Name of the step.
        step: &'static str,
        /// The object that the step changes.
        object: String,
    },
}

impl ApplyError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Journal { source, .. } => source.category(),
            Self::File { source, .. } => source.category(),
            Self::Netlink { source, .. } => source.category(),
            Self::Firewall { source, .. } => source.category(),
            Self::Connections { source, .. } => source.category(),
            Self::Observe { source, .. } => source.category(),
            Self::CniPlugin { source, .. } => source.category(),
            Self::Attachment { .. } => FailureCategory::CniRecord,
            Self::Changed { .. } => FailureCategory::HostChanged,
            Self::Lost { .. } => FailureCategory::BackupLost,
            Self::NotDone { .. } => FailureCategory::StepUndone,
        }
    }
}

impl ApplyError {
    pub(super) fn file(step: &'static str) -> impl Fn(FileError) -> Self {
        move |source| Self::File { step, source }
    }

    pub(super) fn netlink(step: &'static str) -> impl Fn(NetlinkError) -> Self {
        move |source| Self::Netlink { step, source }
    }

    pub(super) fn connections(step: &'static str) -> impl Fn(ConnectionsError) -> Self {
        move |source| Self::Connections { step, source }
    }

    pub(super) fn firewall(step: &'static str) -> impl Fn(FirewallError) -> Self {
        move |source| Self::Firewall { step, source }
    }
}
