//! The status of a change of the Services' range: phase, progress and messages.

use api::MigrationStatus;
use api::migration::{MigrationPhase, ServiceCidrStatus};
use engine::cluster::Malformed;
use engine::words::number;
use service_cidr::assignment::counts;
use service_cidr::decide::ServiceView;
use service_cidr::ranges::joined;
use service_cidr::side::Side;
use service_cidr::step::Stage;

use super::service_index::Index;

/// The message while Services are not listed.
pub const NOT_LISTED: &str = "Services and EndpointSlices are not listed yet: the watches have not delivered all of them. The coordinator \
                          needs permission to watch both (deploy/service-cidr)";

/// The phase of the Migration in this stage.
pub fn phase(stage: Stage, goal: Side) -> MigrationPhase {
    match (goal, stage) {
        (Side::Old, _) => MigrationPhase::RollingBack,
        (Side::New, Stage::Range | Stage::ControlPlane) => MigrationPhase::Preparing,
        (Side::New, Stage::Exchange) => MigrationPhase::Rolling,
        (
            Side::New,
            Stage::Close
            | Stage::FollowUp
            | Stage::Restart
            | Stage::Soak
            | Stage::Release
            | Stage::Default
            | Stage::CleanUp,
        ) => MigrationPhase::Finishing,
    }
}

/// Counts the Services of both ranges.
pub fn count(known: &mut ServiceCidrStatus, index: &Index) {
    let found = counts(index.services(), &known.settings);
    known.services_in_old_range = u32::try_from(found.old).unwrap_or(u32::MAX);
    known.services_in_new_range = u32::try_from(found.new).unwrap_or(u32::MAX);
}

/// Number of Services that have their target address.
pub fn progress(services: &[ServiceView], status: &mut MigrationStatus) {
    let migrated = services.iter().filter(|view| view.has_target_address).count();
    status.progress.text = format!("{migrated}/{} services", services.len());
}

/// The message while a `ServiceCIDR` is malformed.
pub fn malformed_message(malformed: &Malformed) -> String {
    format!(
        "{}: {}; replumb changes nothing until it is corrected",
        malformed.object, malformed.problem
    )
}

/// The message of a completed migration.
pub fn completed(known: &ServiceCidrStatus, goal: Side) -> String {
    let changed = known.settings.changed();
    let (source, target) = (joined(changed.of(goal.other())), joined(changed.of(goal)));
    let kept = match goal {
        Side::New => known.services_in_old_range,
        Side::Old => known.services_in_new_range,
    };
    let kept = match usize::try_from(kept).unwrap_or(usize::MAX) {
        0 => String::new(),
        kept => format!(
            " except {}",
            number(
                kept,
                "load balancer, which keeps its address",
                "load balancers, which keep their addresses"
            )
        ),
    };
    format!("every Service has an address of {target}{kept}; addresses of {source} do not answer any more")
}
