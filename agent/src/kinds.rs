//! Selects the kind of the migration: the loop names no kind.

pub mod flannel_to_calico;
pub mod pod_cidr;
pub mod service_cidr;

use ::flannel_to_calico::host::HostSettings;
use ::pod_cidr::host::HostSettings as PodCidrSettings;
use ::service_cidr::host::HostSettings as ServiceCidrSettings;
use api::node_migration::{Failure, NodeMigrationSpec};
use runtime::error::chain;
use tokio::sync::watch;

use crate::goal::WatchedObject;
use crate::kinds::flannel_to_calico::work::Worker;
use crate::probe::LEAST_MTU;
use crate::report::Report;

/// The workers and observers of each kind.
#[derive(Debug)]
pub struct Kinds {
    flannel_to_calico: Worker,
    pod_cidr: pod_cidr::observe::Observer,
    service_cidr: service_cidr::observe::Observer,
    /// Whether no files and routes that a podCidr migration kept are on the host.
    released: bool,
}

impl Kinds {
    /// Nothing has been observed yet.
    pub fn new(
        flannel_to_calico: Worker,
        pod_cidr: pod_cidr::observe::Observer,
        service_cidr: service_cidr::observe::Observer,
    ) -> Self {
        Self {
            flannel_to_calico,
            pod_cidr,
            service_cidr,
            released: false,
        }
    }

    /// The host thread was suspended.
    pub fn record_suspension(&mut self) {
        self.flannel_to_calico.record_suspension();
    }

    /// Waits until a `MigrationRecord` has a new question to all agents.
    pub async fn question_changed(&mut self) {
        self.service_cidr.question_changed().await;
    }

    /// Observes the host and works towards the spec. `goals` shows whether the spec has changed meanwhile.
    pub async fn work(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Report {
        let requested = Requested::of(spec);
        if !matches!(requested, Requested::ServiceCidr(_)) {
            // The next serviceCidr migration needs a new observation.
            self.service_cidr.clear_cache();
        }
        // A spec of another kind does not say how to continue a host that a flannelToCalico migration left between two networks.
        if !matches!(requested, Requested::FlannelToCalicoOrNothing)
            && self.flannel_to_calico.may_be_between()
        {
            let report = self.flannel_to_calico.work(None, goals).await;
            if self.flannel_to_calico.is_between() {
                return report;
            }
        }
        match requested {
            // The journal of flannelToCalico may have a goal although the spec has none any more.
            Requested::FlannelToCalicoOrNothing => {
                let report = self.flannel_to_calico.work(spec, goals).await;
                // The spec is not known yet: an agent that starts in the middle of a migration removes nothing.
                if matches!(*goals.borrow(), WatchedObject::Unknown) {
                    return report;
                }
                self.release(report).await
            }
            Requested::PodCidr(settings) => {
                self.released = false;
                self.pod_cidr.report(settings).await
            }
            Requested::ServiceCidr(settings) => {
                let report = self.service_cidr.report(settings).await;
                self.release(report).await
            }
            // The host does not change: the agent only watches the traffic.
            Requested::CalicoDatastore => self.release(Report::default()).await,
            Requested::Several => {
                let message = "more than one of spec.flannelToCalico, spec.podCidr, spec.serviceCidr and spec.calicoDatastore is set, needed \
                               exactly one; the agent observes and changes nothing";
                Report {
                    message: message.to_owned(),
                    failure: Some(Failure {
                        category: "Contradiction".to_owned(),
                        message: message.to_owned(),
                        retriable: false,
                    }),
                    ..Report::default()
                }
            }
        }
    }
}

/// The kind that the spec requests.
enum Requested<'spec> {
    /// flannelToCalico; or none, and the agent observes the remains of such a migration.
    FlannelToCalicoOrNothing,
    PodCidr(&'spec PodCidrSettings),
    ServiceCidr(&'spec ServiceCidrSettings),
    CalicoDatastore,
    /// More than one kind.
    Several,
}

impl<'spec> Requested<'spec> {
    fn of(spec: Option<&'spec NodeMigrationSpec>) -> Self {
        let Some(spec) = spec else {
            return Self::FlannelToCalicoOrNothing;
        };
        match (
            &spec.flannel_to_calico,
            &spec.pod_cidr,
            &spec.service_cidr,
            &spec.calico_datastore,
        ) {
            (_, None, None, None) => Self::FlannelToCalicoOrNothing,
            (None, Some(settings), None, None) => Self::PodCidr(settings),
            (None, None, Some(settings), None) => Self::ServiceCidr(settings),
            (None, None, None, Some(_)) => Self::CalicoDatastore,
            (_, _, _, _) => Self::Several,
        }
    }
}

impl Kinds {
    /// Removes from the host what was kept for a podCidr migration, which may have been deleted before its end.
    async fn release(&mut self, mut report: Report) -> Report {
        if self.released {
            return report;
        }
        match self.pod_cidr.release().await {
            Ok(()) => self.released = true,
            Err(error) => {
                report.failure.get_or_insert_with(|| Failure {
                    category: error.category().to_owned(),
                    message: format!(
                        "could not remove from the host what was kept for a podCidr migration: {}",
                        chain(&error)
                    ),
                    retriable: true,
                });
            }
        }
        report
    }
}

/// The MTU of pods on this node; the smallest possible one while the settings do not say it.
pub fn pod_mtu(spec: Option<&NodeMigrationSpec>) -> u32 {
    let of_kind = |spec: &NodeMigrationSpec| match (&spec.flannel_to_calico, &spec.pod_cidr) {
        (Some(settings), _) => Some(HostSettings::pod_mtu(settings)),
        (None, Some(settings)) => settings.mtu,
        (None, None) => None,
    };
    spec.and_then(of_kind).unwrap_or(LEAST_MTU)
}

#[cfg(test)]
#[path = "kinds_tests.rs"]
mod tests;
