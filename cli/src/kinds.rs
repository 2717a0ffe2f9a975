//! What differs by the kind of a migration, in one place.

pub mod calico_datastore;
pub mod flannel_to_calico;
pub mod pod_cidr;
pub mod service_cidr;

pub use api::Kind;
use api::MigrationStatus;
use api::migration::Direction;
use jiff::Timestamp;
use serde::Serialize;

use crate::kinds::calico_datastore::migration as datastore;

/// What a migration works with.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum Settings<'status> {
    /// flannel → Calico.
    FlannelToCalico(&'status ::flannel_to_calico::settings::Settings),
    /// Another range for the pods.
    PodCidr(&'status ::pod_cidr::settings::Settings),
    /// Another range for the Services.
    ServiceCidr(&'status ::service_cidr::settings::Settings),
    /// Calico v2 → v3.
    CalicoDatastore(&'status ::calico_datastore::cluster::settings::Settings),
}

impl<'status> Settings<'status> {
    /// What the status says; `None` before anything was found.
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

/// How far a migration is, of a kind that goes in stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KindView {
    /// Another range for the pods.
    Pods(pod_cidr::status::PodsView),
    /// Another range for the Services.
    Services(service_cidr::status::ServicesView),
    /// Calico v2 → v3.
    Datastore(Box<datastore::status::DatastoreView>),
}

impl KindView {
    /// What the status says of it; `None` of another kind.
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

    /// Whether they are led back.
    pub fn goes_back(&self) -> bool {
        self.direction() == Some(Direction::Back)
    }

    /// The stage, in words; `None` before the first change and after the last.
    pub fn stage_words(&self) -> Option<String> {
        let stage = match self {
            Self::Pods(view) => view.stage?.as_str(),
            Self::Services(view) => view.stage?.as_str(),
            Self::Datastore(view) => view.stage?.as_str(),
        };
        Some(match self.direction()? {
            Direction::There => stage.to_owned(),
            Direction::Back => format!("{stage} on the way back"),
        })
    }

    /// Lines of the status: name and text. Before the first change nobody has counted.
    pub fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        match self {
            Self::Pods(view) => view.rows(begun, now),
            Self::Services(view) => view.rows(begun, now),
            Self::Datastore(view) => view.rows(begun, now),
        }
    }
}
