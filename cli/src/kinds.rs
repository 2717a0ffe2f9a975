//! What differs by the kind of a migration, in one place.

use api::MigrationStatus;
use serde::Serialize;

use crate::{flannel_to_calico, pod_cidr};

/// What a migration works with.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum Settings<'status> {
    /// flannel → Calico.
    FlannelToCalico(&'status plan::flannel_to_calico::settings::Settings),
    /// Another range for the pods.
    PodCidr(&'status plan::pod_cidr::settings::Settings),
}

impl<'status> Settings<'status> {
    /// What the status says; `None` before anything was found.
    pub fn of(status: &'status MigrationStatus) -> Option<Self> {
        let flannel = status.flannel_to_calico.as_ref();
        let range = status.pod_cidr.as_ref();
        flannel
            .map(|known| Self::FlannelToCalico(&known.settings))
            .or_else(|| range.map(|known| Self::PodCidr(&known.settings)))
    }

    /// Every setting with its value and its source.
    pub fn rows(self) -> Vec<Vec<String>> {
        match self {
            Self::FlannelToCalico(settings) => flannel_to_calico::settings::rows(settings),
            Self::PodCidr(settings) => pod_cidr::settings::rows(settings),
        }
    }
}
