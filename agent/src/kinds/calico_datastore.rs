//! Calico's datastore from v2 to v3 on this host: nothing. The coordinator itself observes calico-node, and the agent watches the
//! traffic, as for every kind.

use api::node_migration::{NodeMigrationSpec, NodeMigrationStatus};
use calico_datastore::api::{CalicoDatastoreHost, CalicoDatastoreHostStatus};
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::kinds::{AgentKind, HostParts};
use crate::report::Report;
use crate::watched_object::WatchedObject;

/// The kind on this host.
#[derive(Debug)]
pub struct Agent;

impl AgentKind for Agent {
    type Spec = CalicoDatastoreHost;
    type Watched = ();

    fn watch(_client: &Client, _goals: &watch::Receiver<WatchedObject>) -> ((), Option<JoinHandle<()>>) {
        ((), None)
    }

    fn start(_parts: &HostParts, (): ()) -> anyhow::Result<Self> {
        Ok(Self)
    }

    async fn work(&mut self, _spec: &NodeMigrationSpec, _goals: &watch::Receiver<WatchedObject>) -> Report {
        Report {
            kinds: NodeMigrationStatus {
                calico_datastore: Some(CalicoDatastoreHostStatus {}),
                ..NodeMigrationStatus::default()
            },
            ..Report::default()
        }
    }
}
