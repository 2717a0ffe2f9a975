//! The progress of a serviceCidr migration.

use api::MigrationStatus;
use api::migration::Direction;
use jiff::Timestamp;
use serde::Serialize;
use service_cidr::ranges::joined;
use service_cidr::side::Side;
use service_cidr::step::Stage;

use crate::kinds::kind::KindProgress;
use crate::kinds::stage::stage_row;

/// The progress of a serviceCidr migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicesView {
    /// The stage; null before the first change and after the last.
    pub stage: Option<Stage>,
    /// The direction of the migration; null without a stage.
    pub direction: Option<Direction>,
    /// Since when; null without a stage.
    pub since: Option<Timestamp>,
    /// The old ranges.
    pub from: String,
    /// The new ranges.
    pub to: String,
    /// Services with an address of the old ranges.
    pub services_in_old_range: u32,
    /// Services with an address of the new ranges.
    pub services_in_new_range: u32,
    /// Pods that started with an address of the source range; null before they are counted.
    pub pods_told_left: Option<u32>,
    /// Connections to an address of the source range; null before they are counted.
    pub connections_to_left: Option<u32>,
}

impl KindProgress for ServicesView {
    fn of(status: &MigrationStatus) -> Option<Self> {
        let known = status.service_cidr.as_ref()?;
        let stage = known.stage.as_ref();
        let changed = known.settings.changed();
        Some(Self {
            stage: stage.map(|stage| stage.name),
            direction: stage.map(|stage| stage.direction),
            since: stage.map(|stage| stage.since),
            from: joined(changed.of(Side::Old)),
            to: joined(changed.of(Side::New)),
            services_in_old_range: known.services_in_old_range,
            services_in_new_range: known.services_in_new_range,
            pods_told_left: known.pods_with_source_addresses,
            connections_to_left: known.connections_to_source,
        })
    }

    fn stage(&self) -> Option<&'static str> {
        self.stage.map(Stage::as_str)
    }

    fn direction(&self) -> Option<Direction> {
        self.direction
    }

    fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut rows = vec![("Range", format!("{} → {}", self.from, self.to))];
        if !begun {
            return rows;
        }
        rows.extend(stage_row(self.stage(), self.direction, self.since, now));
        rows.push((
            "Services",
            format!(
                "{} in {}, {} in {}",
                self.services_in_old_range, self.from, self.services_in_new_range, self.to
            ),
        ));
        if let (Some(pods), Some(connections)) = (self.pods_told_left, self.connections_to_left) {
            rows.push((
                "Remaining",
                format!("pods with source addresses: {pods}, connections to them: {connections}"),
            ));
        }
        rows
    }
}
