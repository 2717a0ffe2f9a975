//! What differs by the kind of a migration, in one place: the loop names no kind.

use api::node_migration::{Failure, NodeMigrationSpec};
use plan::flannel_to_calico::host::HostSettings;
use tokio::sync::watch;

use crate::flannel_to_calico::work::Worker;
use crate::goal::Seen;
use crate::pod_cidr::observe::Observer;
use crate::probe::LEAST_MTU;
use crate::report::Report;

/// The agent's hands on its host, for each kind.
#[derive(Debug)]
pub struct Kinds {
    flannel_to_calico: Worker,
    pod_cidr: Observer,
}

impl Kinds {
    /// Nothing has been looked at yet.
    pub fn new(flannel_to_calico: Worker, pod_cidr: Observer) -> Self {
        Self {
            flannel_to_calico,
            pod_cidr,
        }
    }

    /// Looks at the host and does what is asked of it. `goals` says whether something else has been asked meanwhile.
    pub async fn work(&mut self, spec: Option<&NodeMigrationSpec>, goals: &watch::Receiver<Seen>) -> Report {
        let settings = spec.map(|spec| (&spec.flannel_to_calico, &spec.pod_cidr));
        match settings {
            // Orders of flannel's kind may be in its journal when nobody asks any more.
            None | Some((_, None)) => self.flannel_to_calico.work(spec, goals).await,
            Some((None, Some(settings))) => self.pod_cidr.look(settings).await,
            Some((Some(_), Some(_))) => {
                let message = "spec.flannelToCalico and spec.podCidr are both set, needed one of them; \
                               nothing is looked at and nothing is changed";
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
