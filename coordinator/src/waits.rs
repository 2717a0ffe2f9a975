//! Waits of the whole migration in its status.

use api::MigrationStatus;
use engine::decision::WaitReason;
use engine::reason::Reason;

use crate::context::Context;

/// Sets the wait of the whole migration in the status.
pub(crate) fn wait(status: &mut MigrationStatus, reason: WaitReason, message: String) {
    status.set_reason(reason, message);
}

/// Whether this pass has written all objects so far. If the time of the pass was too short, the status says so.
pub(crate) fn is_written(context: &Context, status: &mut MigrationStatus) -> bool {
    let postponed = context.obstacles.postponed();
    if postponed > 0 {
        status.clear_reason(match postponed {
            1 => "1 more object is written in the next pass".to_owned(),
            many => format!("{many} more objects are written in the next passes"),
        });
    }
    context.obstacles.is_clear()
}

/// Reports objects that cannot be written, unless the status already asks for an action of the user.
pub(crate) fn report_refusals(context: &Context, status: &mut MigrationStatus) {
    let needs_user = !status.reason.is_empty() && status.known_reason().is_none_or(Reason::needs_user);
    if let Some(refused) = context.obstacles.wait()
        && !needs_user
        && !status.phase.is_over()
    {
        status.set_reason(refused.reason, refused.message);
    }
}
