//! New Service range on this host: observes kube-proxy's rules, the kubelet's cluster DNS addresses, and pods with old addresses.
//! Changes nothing.

pub mod connections;
pub mod expected;
pub mod kubelet;
pub mod observe;
mod old_addresses;
pub mod pods_with_old_addresses;
mod report;

use api::node_migration::{Failure, NodeMigrationSpec};
use kube::Client;
use service_cidr::host::HostSettings;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::expected::WatchedRecord;
use self::observe::Observer;
use crate::kinds::{AgentKind, HostParts};
use crate::report::Report;
use crate::watched_object::WatchedObject;

/// The kind on this host.
#[derive(Debug)]
pub struct Agent(Observer);

impl AgentKind for Agent {
    type Spec = HostSettings;
    /// The question to all agents.
    type Watched = watch::Receiver<WatchedRecord>;

    fn watch(
        client: &Client,
        goals: &watch::Receiver<WatchedObject>,
    ) -> (Self::Watched, Option<JoinHandle<()>>) {
        let (expected, task) = expected::follow(client.clone(), goals.clone());
        (expected, Some(task))
    }

    fn start(parts: &HostParts, expected: Self::Watched) -> anyhow::Result<Self> {
        Ok(Self(Observer::new(parts, expected)))
    }

    async fn work(&mut self, spec: &NodeMigrationSpec, _goals: &watch::Receiver<WatchedObject>) -> Report {
        match &spec.service_cidr {
            Some(settings) => self.0.report(settings).await,
            None => Report::default(),
        }
    }

    /// The next serviceCidr migration needs a new observation.
    async fn release(&mut self) -> Result<(), Failure> {
        self.0.clear_cache();
        Ok(())
    }

    async fn question_changed(&mut self) {
        self.0.question_changed().await;
    }
}
