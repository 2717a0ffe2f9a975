//! Where a change of the Services' range is, and what is done there.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ranges::DEFAULT;
use super::settings::is_cover;
use super::swap;
use engine::decision::Wait;
use engine::evict::PodName;

/// `Stage` is the stage of a change of the Service range. Stages are ordered. The name is also a metric label and the reason of
/// an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Stage {
    /// The target range becomes available.
    Range,
    /// The user restarts all API servers with the target range.
    ControlPlane,
    /// Services change their addresses: `default/kubernetes` first, then the DNS Services, then all others.
    Exchange,
    /// The source range stops to assign addresses.
    Close,
    /// The user replaces addresses of the source range in all configuration.
    FollowUp,
    /// Pods that have received an address of the source range restart.
    Restart,
    /// Both addresses of each Service answer for `soakSeconds`.
    Soak,
    /// The addresses of the source range are released.
    Release,
    /// The target range becomes the range of `ServiceCIDR` `kubernetes`. Load balancers keep their addresses.
    Default,
    /// Objects that exist only for the duration of the migration are removed.
    CleanUp,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 10] = [
        Self::Range,
        Self::ControlPlane,
        Self::Exchange,
        Self::Close,
        Self::FollowUp,
        Self::Restart,
        Self::Soak,
        Self::Release,
        Self::Default,
        Self::CleanUp,
    ];

    /// The stage as it stands in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Range => "Range",
            Self::ControlPlane => "ControlPlane",
            Self::Exchange => "Exchange",
            Self::Close => "Close",
            Self::FollowUp => "FollowUp",
            Self::Restart => "Restart",
            Self::Soak => "Soak",
            Self::Release => "Release",
            Self::Default => "Default",
            Self::CleanUp => "CleanUp",
        }
    }
}

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// These pods are evicted.
    Evict(Vec<PodName>),
    /// This is waited for.
    Answer(Wait),
}

/// One change: idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make this `ServiceCIDR`.
    CreateRange(String, Vec<IpNet>),
    /// Delete this one: it gives out nothing more, and holds what it has.
    DeleteRange(String),
    /// Make these steps, each of one Service, at the same time.
    Exchange(Vec<(String, swap::Step)>),
    /// Evict these pods.
    Evict(Vec<PodName>),
    /// Take away what is of no more use, and record that it is over.
    Complete,
}

impl Step {
    /// The step by name; bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreateRange(name, _) if is_cover(name) => "CreateCover",
            Self::CreateRange(..) => "CreateRange",
            Self::DeleteRange(name) if name == DEFAULT => "DeleteDefaultRange",
            Self::DeleteRange(name) if is_cover(name) => "DeleteCover",
            Self::DeleteRange(_) => "DeleteRange",
            Self::Exchange(_) => "Exchange",
            Self::Evict(_) => "Evict",
            Self::Complete => "Complete",
        }
    }
}
