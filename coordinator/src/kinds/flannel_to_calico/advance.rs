//! One pass: cluster-wide objects before the first node, the rollout, the end, each with observe → view → decide → apply →
//! report.

use api::migration::{Desired, MigrationPhase};
use api::{MigrationStatus, names};
use engine::decision::WaitReason;
use engine::reason::{BlockReason, Reason};

use super::apply::finish::finish;
use super::apply::prepare::prepare;
use super::observe::daemon_set;
use super::pass::Pass;
use super::rollout;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::waits::wait;

/// One pass of a started migration. Returns the reasons for which nodes in the rollout wait.
pub(super) async fn advance(
    pass: &Pass<'_>,
    memory: &mut Memory,
    status: &mut MigrationStatus,
) -> Result<Vec<Reason>, PassError> {
    let desired = pass.migration.spec.desired;
    match (desired, status.phase) {
        (_, MigrationPhase::Completed | MigrationPhase::RolledBack) => return Ok(Vec::new()),
        (Desired::Rollback, _) => {
            if let Some(message) = past_return(pass) {
                // A rollback needs flannel, which is not installed any more.
                status.set_reason(BlockReason::PastReturn, message);
                return Ok(Vec::new());
            }
            status.phase = MigrationPhase::RollingBack;
        }
        // The migration continues or stops after a rollback: restored cluster-wide objects are written again before any node
        // changes.
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, _)
            if status.rollback_started_at.is_some() =>
        {
            status.phase = MigrationPhase::Preparing;
        }
        // A finished node is to be rolled back: this must happen before the end.
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, MigrationPhase::Finishing)
            if rollout::is_rollback_requested(pass) =>
        {
            if let Some(message) = past_return(pass) {
                status.set_reason(BlockReason::PastReturn, message);
                return Ok(Vec::new());
            }
            status.phase = MigrationPhase::Rolling;
        }
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, _) => {}
    }
    let between_nodes = matches!(
        status.phase,
        MigrationPhase::Preparing | MigrationPhase::Finishing
    );
    if between_nodes && status.paused {
        let message = "paused: no node is in progress. Continue with `kubectl replumb resume`";
        wait(status, WaitReason::Paused, message.to_owned());
        return Ok(Vec::new());
    }
    match status.phase {
        MigrationPhase::Preparing => prepare(pass, status).await?,
        MigrationPhase::Finishing => finish(pass, memory, status).await?,
        MigrationPhase::Completed | MigrationPhase::RolledBack => {}
        MigrationPhase::RollingBack
        | MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Rolling
        | MigrationPhase::Mixed
        | MigrationPhase::Halted => {
            return rollout::advance(pass, memory, status).await;
        }
    }
    Ok(Vec::new())
}

/// Why a rollback is impossible: flannel's `DaemonSet` is deleted, or being deleted.
fn past_return(pass: &Pass<'_>) -> Option<String> {
    let settings = pass.settings;
    let (namespace, name) = (
        &settings.flannel_daemon_set_namespace.value,
        &settings.flannel_daemon_set_name.value,
    );
    let set = daemon_set(pass.cache, namespace, name);
    set.is_none_or(|set| set.metadata.deletion_timestamp.is_some())
        .then(|| {
            format!(
                "DaemonSet {namespace}/{name} is deleted: the migration is past its point of no return. Finish it with \
                 `kubectl replumb resume`; or apply flannel's manifest again with the node selector \
                 {}={}, and the rollback continues",
                names::NODE_NETWORK_LABEL,
                names::NETWORK_FLANNEL
            )
        })
}
