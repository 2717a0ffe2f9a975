//! Limits and permissions of the spec, with their defaults.

use api::Migration;
use api::migration::{Desired, OnBlocked as WireOnBlocked};
use engine::drain::Permissions;
use engine::evict::OnBlocked;
use engine::rollout::{self, MaxUnavailable, Rules};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Default time limit of one stage, in seconds.
const STEP_TIMEOUT_SECONDS: u32 = 600;
/// Default time limit for draining one node, in seconds.
const DRAIN_TIMEOUT_SECONDS: u32 = 900;

/// Time limit of one stage of a node, and of a wait of the whole migration without progress.
pub fn step_timeout(migration: &Migration) -> SignedDuration {
    seconds(migration.spec.rollout.step_timeout_seconds, STEP_TIMEOUT_SECONDS)
}

fn seconds(value: Option<u32>, default: u32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(value.unwrap_or(default)))
}

/// Time limit for draining one node.
pub fn drain_timeout(migration: &Migration) -> SignedDuration {
    seconds(migration.spec.drain.timeout_seconds, DRAIN_TIMEOUT_SECONDS)
}

/// What happens after that time.
pub fn on_blocked(migration: &Migration) -> OnBlocked {
    match migration.spec.drain.on_blocked {
        WireOnBlocked::Pause => OnBlocked::Pause,
        WireOnBlocked::Wait => OnBlocked::Wait,
        WireOnBlocked::Skip => OnBlocked::Skip,
    }
}

/// Side effects that a drain may have.
pub fn permissions(migration: &Migration) -> Permissions {
    let drain = &migration.spec.drain;
    Permissions {
        delete_empty_dir_data: drain.delete_empty_dir_data,
        force: drain.force,
    }
}

/// The rules of the spec. A check has refused an invalid `maxUnavailable`; 1 is the safe value here.
pub fn rules(migration: &Migration) -> Rules {
    let rollout = &migration.spec.rollout;
    let canary = rollout.canary.clone().unwrap_or_default();
    Rules {
        max_unavailable: max_unavailable(migration).unwrap_or(MaxUnavailable::Nodes(1)),
        canary_nodes: usize::try_from(canary.nodes).unwrap_or(usize::MAX),
        canary_soak: SignedDuration::from_secs(i64::from(canary.soak_seconds)),
        interval: SignedDuration::from_secs(i64::from(rollout.interval_seconds)),
        paused: migration.spec.desired != Desired::Run,
        hold: None,
        clean_since: None,
    }
}

/// `rollout.maxUnavailable`; 1 if not set.
///
/// # Errors
///
/// The value is neither a number from 1 nor a percentage from `1%` to `100%`.
pub fn max_unavailable(migration: &Migration) -> Result<MaxUnavailable, rollout::MaxUnavailableError> {
    let wanted = migration.spec.rollout.max_unavailable.as_ref();
    wanted.map_or(Ok(MaxUnavailable::Nodes(1)), number_or_share)
}

/// A number or a percentage, as in the API.
///
/// # Errors
///
/// The value is neither a number from 1 nor a percentage from `1%` to `100%`.
pub fn number_or_share(value: &IntOrString) -> Result<MaxUnavailable, rollout::MaxUnavailableError> {
    match value {
        IntOrString::Int(number) => MaxUnavailable::parse(&number.to_string()),
        IntOrString::String(text) => MaxUnavailable::parse(text),
    }
}
