//! Dispatch by the kind of a migration, in one place.

pub mod calico_datastore;
pub mod flannel_to_calico;
pub mod pod_cidr;
pub mod service_cidr;

pub use api::Kind;
use api::MigrationStatus;
use api::migration::Direction;
use jiff::Timestamp;
use serde::Serialize;

use crate::age::age;
use crate::kinds::calico_datastore::migration as datastore;

/// The settings of a migration.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum Settings<'status> {
    /// flannel → Calico.
    FlannelToCalico(&'status ::flannel_to_calico::settings::Settings),
    /// A new range for pods.
    PodCidr(&'status ::pod_cidr::settings::Settings),
    /// A new range for Services.
    ServiceCidr(&'status ::service_cidr::settings::Settings),
    /// Calico v2 → v3.
    CalicoDatastore(&'status ::calico_datastore::cluster::settings::Settings),
}

impl<'status> Settings<'status> {
    /// The settings in the status; `None` before the detection.
    pub fn of(status: &'status MigrationStatus) -> Option<Self> {
        let flannel = status.flannel_to_calico.as_ref();
        let range = status.pod_cidr.as_ref();
        let services = status.service_cidr.as_ref();
        let datastore = status.calico_datastore.as_ref();
        flannel
            .map(|known| Self::FlannelToCalico(&known.settings))
            .or_else(|| range.map(|known| Self::PodCidr(&known.settings)))
            .or_else(|| services.map(|known| Self::ServiceCidr(&known.settings)))
            .or_else(|| datastore.map(|known| Self::CalicoDatastore(&known.settings)))
    }

    /// Every setting with its value and its source.
    pub fn rows(self) -> Vec<Vec<String>> {
        match self {
            Self::FlannelToCalico(settings) => flannel_to_calico::settings::rows(settings),
            Self::PodCidr(settings) => pod_cidr::settings::rows(settings),
            Self::ServiceCidr(settings) => service_cidr::settings::rows(settings),
            Self::CalicoDatastore(settings) => datastore::settings::rows(settings),
        }
    }
}

/// The progress of a migration of a kind with stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KindView {
    /// A new range for pods.
    Pods(pod_cidr::status::PodsView),
    /// A new range for Services.
    Services(service_cidr::status::ServicesView),
    /// Calico v2 → v3.
    Datastore(Box<datastore::status::DatastoreView>),
}

impl KindView {
    /// The progress in the status; `None` for a kind without stages.
    pub fn of(status: &MigrationStatus) -> Option<Self> {
        let services = || service_cidr::status::ServicesView::of(status).map(Self::Services);
        pod_cidr::status::PodsView::of(status)
            .map(Self::Pods)
            .or_else(services)
            .or_else(|| {
                datastore::status::DatastoreView::of(status).map(|view| Self::Datastore(Box::new(view)))
            })
    }

    fn direction(&self) -> Option<Direction> {
        match self {
            Self::Pods(view) => view.direction,
            Self::Services(view) => view.direction,
            Self::Datastore(view) => view.direction,
        }
    }

    /// Whether the migration is being rolled back.
    pub fn goes_back(&self) -> bool {
        self.direction() == Some(Direction::Rollback)
    }

    /// The stage as text; `None` before the first change and after the last.
    pub fn stage_text(&self) -> Option<String> {
        let stage = match self {
            Self::Pods(view) => view.stage?.as_str(),
            Self::Services(view) => view.stage?.as_str(),
            Self::Datastore(view) => view.stage?.as_str(),
        };
        Some(stage_text(stage, self.direction()?))
    }

    /// Rows of the status: name and text. There are no counts before the first change.
    pub fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        match self {
            Self::Pods(view) => view.rows(begun, now),
            Self::Services(view) => view.rows(begun, now),
            Self::Datastore(view) => view.rows(begun, now),
        }
    }
}

/// The row of the status for the current stage; `None` before the first stage and after the last.
fn stage_row(
    stage: Option<&str>,
    direction: Option<Direction>,
    since: Option<Timestamp>,
    now: Timestamp,
) -> Option<(&'static str, String)> {
    let stage = stage_text(stage?, direction?);
    Some(("Stage", format!("{stage} for {}", age(since?, now))))
}

/// The stage, and whether it belongs to a rollback.
fn stage_text(stage: &str, direction: Direction) -> String {
    match direction {
        Direction::Forward => stage.to_owned(),
        Direction::Rollback => format!("{stage} (rollback)"),
    }
}
