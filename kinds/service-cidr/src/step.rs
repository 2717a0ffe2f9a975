//! Where a change of the Services' range is, and what is done there.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ranges::DEFAULT;
use super::settings::is_cover;
use super::swap;
use engine::decision::Wait;
use engine::evict::PodName;

/// Where the migration is. Ordered; the name is a metric label, an Event reason and a line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Stage {
    /// Addresses of the range that Services are led to can be asked for.
    Range,
    /// Every API server has the flag of it.
    ControlPlane,
    /// Services exchange their addresses, `default/kubernetes` first, then name servers.
    Exchange,
    /// The range that is left gives out nothing more.
    Close,
    /// Whoever else says an address of it says the new one.
    FollowUp,
    /// Pods that were told addresses of it when they started are started again.
    Restart,
    /// The time in which both addresses answer and nobody is seen to use the one that is left.
    Soak,
    /// The addresses that are left are given up.
    Release,
    /// The default range is the one that Services are led to; load balancers keep what they have.
    Default,
    /// What was made for the time of the migration goes.
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
