//! The stages and steps of a change of the Service range.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use super::exchange;
use super::range_name::is_cover;
use super::ranges::DEFAULT;
use engine::decision::Wait;
use engine::evict::PodName;

/// `Stage` is the stage of a change of the Service range. Stages are ordered. The name is also a metric label and the reason of
/// an Event.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
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
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The stage as written in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An unmet condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The pods to evict.
    Evict(Vec<PodName>),
    /// The wait for it.
    Answer(Wait),
}

/// One idempotent change.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum Step {
    /// Create this `ServiceCIDR`.
    CreateRange(String, Vec<IpNet>),
    /// Delete this `ServiceCIDR`: it assigns no more addresses, and stays while addresses of it are in use.
    DeleteRange(String),
    /// Perform these steps, each of one Service, at the same time.
    Exchange(Vec<(String, exchange::Step)>),
    /// Evict these pods.
    Evict(Vec<PodName>),
    /// Remove temporary objects, and record the migration as complete.
    Complete,
}

impl Step {
    /// The name of the step, bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreateRange(name, _) if is_cover(name) => "CreateCover",
            Self::DeleteRange(name) if name == DEFAULT => "DeleteDefaultRange",
            Self::DeleteRange(name) if is_cover(name) => "DeleteCover",
            step => step.into(),
        }
    }
}
