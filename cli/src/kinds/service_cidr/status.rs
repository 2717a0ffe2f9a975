//! How far a change of the Services' range is.

use api::MigrationStatus;
use api::migration::Direction;
use jiff::Timestamp;
use serde::Serialize;
use service_cidr::ranges::listed;
use service_cidr::side::Side;
use service_cidr::step::Stage;

use crate::age::age;

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicesView {
    /// The stage; absent before the first change and after the last.
    pub stage: Option<Stage>,
    /// Where the Services are led; absent likewise.
    pub direction: Option<Direction>,
    /// Since when; absent likewise.
    pub since: Option<Timestamp>,
    /// The ranges that Services leave on the way there.
    pub from: String,
    /// The ranges that they come to.
    pub to: String,
    /// Services with an address of the first.
    pub services_in_old_range: u32,
    /// Services with an address of the second.
    pub services_in_new_range: u32,
    /// Pods that were told an address of the range that is left; absent before somebody has looked.
    pub pods_told_left: Option<u32>,
    /// Connections to an address of it; absent likewise.
    pub connections_to_left: Option<u32>,
}

impl ServicesView {
    /// What the status says of it; `None` of another kind.
    pub fn of(status: &MigrationStatus) -> Option<Self> {
        let known = status.service_cidr.as_ref()?;
        let stage = known.stage.as_ref();
        let changed = known.settings.changed();
        Some(Self {
            stage: stage.map(|stage| stage.name),
            direction: stage.map(|stage| stage.direction),
            since: stage.map(|stage| stage.since),
            from: listed(changed.of(Side::Old)),
            to: listed(changed.of(Side::New)),
            services_in_old_range: known.services_in_old_range,
            services_in_new_range: known.services_in_new_range,
            pods_told_left: known.pods_told_left,
            connections_to_left: known.connections_to_left,
        })
    }

    /// Lines of the status: name and text. Before the first change nobody has counted.
    pub fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut rows = vec![("Range", format!("{} → {}", self.from, self.to))];
        if !begun {
            return rows;
        }
        if let (Some(stage), Some(direction), Some(since)) = (self.stage, self.direction, self.since) {
            let back = if direction == Direction::Back {
                " on the way back"
            } else {
                ""
            };
            rows.push((
                "Stage",
                format!("{}{back} for {}", stage.as_str(), age(since, now)),
            ));
        }
        rows.push((
            "Services",
            format!(
                "{} in {}, {} in {}",
                self.services_in_old_range, self.from, self.services_in_new_range, self.to
            ),
        ));
        if let (Some(pods), Some(connections)) = (self.pods_told_left, self.connections_to_left) {
            rows.push((
                "Left",
                format!(
                    "{pods} pods were told addresses that are left, {connections} connections lead to them"
                ),
            ));
        }
        rows
    }
}
