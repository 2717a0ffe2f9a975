//! How far a conversion in a cluster is.

use api::MigrationStatus;
use api::migration::Direction;
use calico_datastore::cluster::step::Stage;
use jiff::Timestamp;
use serde::Serialize;

use crate::age::age;

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreView {
    /// The stage; absent before the first change and after the last.
    pub stage: Option<Stage>,
    /// Where it leads; absent likewise.
    pub direction: Option<Direction>,
    /// Since when; absent likewise.
    pub since: Option<Timestamp>,
    /// The image of calico-node before.
    pub from: String,
    /// And after.
    pub to: String,
    /// How far the conversion of the stores is; absent before it was begun.
    pub record_phase: Option<String>,
    /// Since when Calico is paused; absent while it is not.
    pub paused_since: Option<Timestamp>,
    /// When everything goes back by itself; absent likewise.
    pub paused_until: Option<Timestamp>,
    /// Pods that have a node and wait for a network.
    pub pods_without_network: u32,
    /// The most of them that were seen while Calico was paused.
    pub most_pods_without_network: u32,
    /// The Secret with the first part of the backup; absent before.
    pub backup: Option<String>,
    /// Why it goes back though nobody asked for it; absent where it does not.
    pub turned_back: Option<String>,
}

impl DatastoreView {
    /// What the status says of it; `None` of another kind.
    pub fn of(status: &MigrationStatus) -> Option<Self> {
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
            most_pods_without_network: known.most_pods_without_network,
            backup: known.backup.as_ref().map(|backup| backup.name.clone()),
            turned_back: known.turned_back.as_ref().map(|turned| turned.why.clone()),
        })
    }

    /// Lines of the status: name and text.
    pub fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut rows = vec![("Image", format!("{} → {}", self.from, self.to))];
        if !begun {
            return rows;
        }
        if let (Some(stage), Some(direction), Some(since)) = (self.stage, self.direction, self.since) {
            let back = match direction {
                Direction::There => "",
                Direction::Back => " on the way back",
            };
            rows.push((
                "Stage",
                format!("{}{back} for {}", stage.as_str(), age(since, now)),
            ));
        }
        if let Some(phase) = &self.record_phase {
            rows.push(("Stores", format!("the conversion is in phase {phase}")));
        }
        if let (Some(since), Some(until)) = (self.paused_since, self.paused_until) {
            rows.push((
                "PAUSED",
                format!(
                    "for {}, at the longest until {}: {} pods wait for a network",
                    age(since, now),
                    until.strftime("%H:%M:%SZ"),
                    self.pods_without_network
                ),
            ));
        } else if self.pods_without_network > 0 || self.most_pods_without_network > 0 {
            rows.push((
                "Pods",
                format!(
                    "{} wait for a network, {} did at most",
                    self.pods_without_network, self.most_pods_without_network
                ),
            ));
        }
        if let Some(backup) = &self.backup {
            rows.push(("Backup", format!("Secret {backup}")));
        }
        if let Some(why) = &self.turned_back {
            rows.push(("Turned back", why.clone()));
        }
        rows
    }
}
