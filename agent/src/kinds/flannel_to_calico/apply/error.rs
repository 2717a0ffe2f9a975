//! Why a step was not performed.

use engine::cni::AttachmentError;
use flannel_to_calico::host::BRIDGE;
use thiserror::Error;

use crate::host::files::FileError;
use crate::host::firewall::FirewallError;
use crate::host::netlink::NetlinkError;
use crate::host::program::ProgramError;
use crate::kinds::flannel_to_calico::journal::JournalError;
use crate::kinds::flannel_to_calico::observe::ObserveError;

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
    /// What was there before is not in the journal, or not as it was saved.
    #[error("{step} cannot be done: {problem}")]
    Lost {
        /// Name of the step.
        step: &'static str,
        /// What is missing, and what a person does about it.
        problem: String,
    },
    /// The step ran without an error, and the host is as it was before it.
    #[error(
        "{step} ran and is undone again: {object}. Somebody else changes it; find out who (is another flanneld or \
         calico-node running?) and stop it"
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
            Self::Lost { .. } => "BackupLost",
            Self::NotDone { .. } => "StepUndone",
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

    pub(super) fn firewall(step: &'static str) -> impl Fn(FirewallError) -> Self {
        move |source| Self::Firewall { step, source }
    }
}
