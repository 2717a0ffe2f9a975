//! The progress of a calicoDatastore migration.

use api::MigrationStatus;
use api::migration::Direction;
use calico_datastore::cluster::step::Stage;
use jiff::Timestamp;
use serde::Serialize;

use crate::age::age;
use crate::kinds::kind::KindProgress;
use crate::kinds::stage::stage_row;

/// The progress of a calicoDatastore migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreView {
    /// The stage; null before the first change and after the last.
    pub stage: Option<Stage>,
    /// The direction of the migration; null without a stage.
    pub direction: Option<Direction>,
    /// Since when; null without a stage.
    pub since: Option<Timestamp>,
    /// The old image of calico-node.
    pub from: String,
    /// The new image of calico-node.
    pub to: String,
    /// The phase of the conversion of the stores; null before its start.
    pub record_phase: Option<String>,
    /// Since when Calico is paused; null while it is not paused.
    pub paused_since: Option<Timestamp>,
    /// When the migration is rolled back automatically; null while Calico is not paused.
    pub paused_until: Option<Timestamp>,
    /// Scheduled pods that wait for a network.
    pub pods_without_network: u32,
    /// The highest number of such pods while Calico was paused.
    pub most_pods_without_network: u32,
    /// The Secret with the first part of the backup; null before the backup.
    pub backup: Option<String>,
    /// Why the migration is rolled back automatically; null otherwise.
    pub turned_back: Option<String>,
}

impl KindProgress for DatastoreView {
    fn of(status: &MigrationStatus) -> Option<Self> {
        let known = status.calico_datastore.as_ref()?;
        let stage = known.stage.as_ref();
        Some(Self {
            stage: stage.map(|stage| stage.name),
            direction: stage.map(|stage| stage.direction),
            since: stage.map(|stage| stage.since),
            from: known.settings.from_image.value.clone(),
            to: known.settings.to_image.value.clone(),
            record_phase: known.record_phase.clone(),
            paused_since: known.paused_since,
            paused_until: known.paused_until,
            pods_without_network: known.pods_without_network,
            most_pods_without_network: known.max_pods_without_network,
            backup: known.backup.as_ref().map(|backup| backup.name.clone()),
            turned_back: known
                .automatic_rollback
                .as_ref()
                .map(|turned| turned.reason.clone()),
        })
    }

    fn stage(&self) -> Option<&'static str> {
        self.stage.map(Stage::as_str)
    }

    fn direction(&self) -> Option<Direction> {
        self.direction
    }

    fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut rows = vec![("Image", format!("{} → {}", self.from, self.to))];
        if !begun {
            return rows;
        }
        rows.extend(stage_row(self.stage(), self.direction, self.since, now));
        if let Some(phase) = &self.record_phase {
            rows.push(("Stores", format!("conversion in phase {phase}")));
        }
        if let (Some(since), Some(until)) = (self.paused_since, self.paused_until) {
            rows.push((
                "PAUSED",
                format!(
                    "for {}, at most until {}; pods without a network: {}",
                    age(since, now),
                    until.strftime("%H:%M:%SZ"),
                    self.pods_without_network
                ),
            ));
        } else if self.pods_without_network > 0 || self.most_pods_without_network > 0 {
            rows.push((
                "Pods",
                format!(
                    "without a network: {}, at most {}",
                    self.pods_without_network, self.most_pods_without_network
                ),
            ));
        }
        if let Some(backup) = &self.backup {
            rows.push(("Backup", format!("Secret {backup}")));
        }
        if let Some(why) = &self.turned_back {
            rows.push(("Rolled back", why.clone()));
        }
        rows
    }
}
