//! What differs by the kind of a migration, in one place: the loop names no kind.

use api::node_migration::NodeMigrationSpec;
use plan::flannel_to_calico::host::HostSettings;
use tokio::sync::watch;

use crate::flannel_to_calico::work::Worker;
use crate::goal::Seen;
use crate::probe::LEAST_MTU;
use crate::report::Report;

/// The agent's hands on its host, for each kind.
#[derive(Debug)]
pub struct Kinds {
    flannel_to_calico: Worker,
}

impl Kinds {
    /// Nothing has been looked at yet.
    pub fn new(flannel_to_calico: Worker) -> Self {
        Self { flannel_to_calico }
    }

    /// Looks at the host and does what is asked of it. `goals` says whether something else has been asked meanwhile.
    pub async fn work(&mut self, spec: Option<&NodeMigrationSpec>, goals: &watch::Receiver<Seen>) -> Report {
        self.flannel_to_calico.work(spec, goals).await
    }
}

/// The MTU that pods have on this node; the least there is while nobody knows.
pub fn pod_mtu(spec: Option<&NodeMigrationSpec>) -> u32 {
    spec.and_then(|spec| spec.flannel_to_calico.as_ref())
        .map_or(LEAST_MTU, HostSettings::pod_mtu)
}
