//! New pod range on this host: observes both ranges. The only changes are addresses that are kept temporarily; their label
//! replaces a journal.

pub mod apply;
pub mod observe;
mod report;

use api::node_migration::{Failure, NodeMigrationSpec};
use kube::Client;
use pod_cidr::host::HostSettings;
use runtime::error::chain;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::observe::Observer;
use crate::kinds::{AgentKind, HostParts};
use crate::report::Report;
use crate::watched_object::WatchedObject;

/// The kind on this host.
#[derive(Debug)]
pub struct Agent {
    observer: Observer,
    /// Whether no files and routes that a podCidr migration kept are on the host.
    is_released: bool,
}

impl AgentKind for Agent {
    type Spec = HostSettings;
    type Watched = ();

    fn watch(_client: &Client, _goals: &watch::Receiver<WatchedObject>) -> ((), Option<JoinHandle<()>>) {
        ((), None)
    }

    fn start(parts: &HostParts, (): ()) -> anyhow::Result<Self> {
        Ok(Self {
            observer: Observer::new(parts),
            is_released: false,
        })
    }

    async fn work(&mut self, spec: &NodeMigrationSpec, _goals: &watch::Receiver<WatchedObject>) -> Report {
        self.is_released = false;
        match &spec.pod_cidr {
            Some(settings) => self.observer.report(settings).await,
            None => Report::default(),
        }
    }

    /// Removes from the host what was kept for a podCidr migration, which may have been deleted before its end.
    async fn release(&mut self) -> Result<(), Failure> {
        if self.is_released {
            return Ok(());
        }
        self.observer.release().await.map_err(|error| Failure {
            category: error.category().into(),
            message: format!(
                "could not remove from the host what was kept for a podCidr migration: {}",
                chain(&error)
            ),
            retriable: true,
        })?;
        self.is_released = true;
        Ok(())
    }

    fn pod_mtu(spec: &HostSettings) -> Option<u32> {
        spec.mtu
    }
}
