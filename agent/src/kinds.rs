//! What differs by the kind of a migration, in one place: the loop names no kind.

pub mod flannel_to_calico;
pub mod pod_cidr;
pub mod service_cidr;

use ::flannel_to_calico::host::HostSettings;
use ::pod_cidr::host::HostSettings as PodCidrSettings;
use ::service_cidr::host::HostSettings as ServiceCidrSettings;
use api::node_migration::{Failure, NodeMigrationSpec};
use runtime::error::chain;
use tokio::sync::watch;

use crate::goal::Seen;
use crate::kinds::flannel_to_calico::work::Worker;
use crate::probe::LEAST_MTU;
use crate::report::Report;

/// The agent's hands on its host, for each kind.
#[derive(Debug)]
pub struct Kinds {
    flannel_to_calico: Worker,
    pod_cidr: pod_cidr::observe::Observer,
    service_cidr: service_cidr::observe::Observer,
    /// Whether nothing of a change of range is on the host any more.
    released: bool,
}

impl Kinds {
    /// Nothing has been looked at yet.
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

    /// The host's thread stood still.
    pub fn stood_still(&mut self) {
        self.flannel_to_calico.stood_still();
    }

    /// Waits until something is asked of all agents that no `NodeMigration` says.
    pub async fn are_asked_anew(&mut self) {
        self.service_cidr.is_asked_anew().await;
    }

    /// Looks at the host and does what is asked of it. `goals` says whether something else has been asked meanwhile.
    pub async fn work(&mut self, spec: Option<&NodeMigrationSpec>, goals: &watch::Receiver<Seen>) -> Report {
        let asked = Asked::of(spec);
        if !matches!(asked, Asked::ServiceCidr(_)) {
            // Whoever asks next wants to know what is there then.
            self.service_cidr.forget();
        }
        // What is asked for another kind says nothing of a host that a migration from flannel has left between two networks.
        if !matches!(asked, Asked::FlannelToCalicoOrNothing) && self.flannel_to_calico.may_be_between() {
            let report = self.flannel_to_calico.work(None, goals).await;
            if self.flannel_to_calico.is_between() {
                return report;
            }
        }
        match asked {
            // Orders of flannel's kind may be in its journal when nobody asks any more.
            Asked::FlannelToCalicoOrNothing => {
                let report = self.flannel_to_calico.work(spec, goals).await;
                // Nobody knows yet what is asked for: an agent that starts in the middle of it takes nothing away.
                if matches!(*goals.borrow(), Seen::NotYet) {
                    return report;
                }
                self.release(report).await
            }
            Asked::PodCidr(settings) => {
                self.released = false;
                self.pod_cidr.look(settings).await
            }
            Asked::ServiceCidr(settings) => {
                let report = self.service_cidr.look(settings).await;
                self.release(report).await
            }
            // Of the host nothing changes: it is there for the traffic.
            Asked::CalicoDatastore => self.release(Report::default()).await,
            Asked::Several => {
                let message = "more than one of spec.flannelToCalico, spec.podCidr, spec.serviceCidr and spec.calicoDatastore is set, needed \
                               one of them; nothing is looked at and nothing is changed";
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

/// What is asked of an agent.
enum Asked<'spec> {
    /// What a migration from flannel asks; or nothing, and it looks what is left of such a one.
    FlannelToCalicoOrNothing,
    PodCidr(&'spec PodCidrSettings),
    ServiceCidr(&'spec ServiceCidrSettings),
    CalicoDatastore,
    /// More than one thing.
    Several,
}

impl<'spec> Asked<'spec> {
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
    /// Takes from the host what was there for a change of range: its Migration may have been deleted on the way.
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
                        "what was kept for a change of range is on the host still: {}",
                        chain(&error)
                    ),
                    retriable: true,
                });
            }
        }
        report
    }
}

/// The MTU that pods have on this node; the least there is while nobody knows.
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
