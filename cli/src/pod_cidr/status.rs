//! How far a change of the range is.

use api::MigrationStatus;
use api::migration::{Direction, Stage};
use jiff::Timestamp;
use serde::Serialize;

use crate::age::age;

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RangeView {
    /// The stage; absent before the first change and after the last.
    pub stage: Option<Stage>,
    /// Where the pods are led; absent likewise.
    pub direction: Option<Direction>,
    /// Since when; absent likewise.
    pub since: Option<Timestamp>,
    /// The range that pods leave on the way there.
    pub from: String,
    /// The range that they come to.
    pub to: String,
    /// Pods with an address of the first.
    pub pods_in_old_range: u32,
    /// Pods with an address of the second.
    pub pods_in_new_range: u32,
    /// Blocks of Calico's IPAM in the range that is left; absent before somebody has looked.
    pub blocks_left: Option<u32>,
}

impl RangeView {
    /// What the status says of it; `None` of another kind.
    pub fn of(status: &MigrationStatus) -> Option<Self> {
        let known = status.pod_cidr.as_ref()?;
        let stage = known.stage.as_ref();
        Some(Self {
            stage: stage.map(|stage| stage.name),
            direction: stage.map(|stage| stage.direction),
            since: stage.map(|stage| stage.since),
            from: known.settings.from.value.to_string(),
            to: known.settings.to.value.to_string(),
            pods_in_old_range: known.pods_in_old_range,
            pods_in_new_range: known.pods_in_new_range,
            blocks_left: known.blocks_left,
        })
    }

    /// Lines of the status: name and text.
    pub fn rows(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut rows = Vec::new();
        if let (Some(stage), Some(direction), Some(since)) = (self.stage, self.direction, self.since) {
            let way = match direction {
                Direction::There => "",
                Direction::Back => " (on the way back)",
            };
            rows.push((
                "Stage",
                format!("{}{way} for {}", stage.as_str(), age(since, now)),
            ));
        }
        rows.push((
            "Pods",
            format!(
                "{} in {}, {} in {}",
                self.pods_in_old_range, self.from, self.pods_in_new_range, self.to
            ),
        ));
        if let Some(blocks) = self.blocks_left {
            rows.push(("Blocks", format!("{blocks} in the range that is left")));
        }
        rows
    }
}
