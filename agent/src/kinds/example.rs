//! The kind of docs/adding-a-kind.md on this host: reports the release of the kernel, and changes nothing.

use api::FailureCategory;
use api::node_migration::{NodeMigrationSpec, NodeMigrationStatus};
use example::api::{NodeSpec, NodeStatus};
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
    type Spec = NodeSpec;
    type Watched = ();

    fn watch(_client: &Client, _goals: &watch::Receiver<WatchedObject>) -> ((), Option<JoinHandle<()>>) {
        ((), None)
    }

    fn start(_parts: &HostParts, (): ()) -> anyhow::Result<Self> {
        Ok(Self)
    }

    async fn work(&mut self, _spec: &NodeMigrationSpec, _goals: &watch::Receiver<WatchedObject>) -> Report {
        match nix::sys::utsname::uname() {
            Ok(name) => Report {
                message: "observing the kernel, no changes".to_owned(),
                kinds: NodeMigrationStatus {
                    example: Some(NodeStatus {
                        kernel: name.release().to_string_lossy().into_owned(),
                    }),
                    ..NodeMigrationStatus::default()
                },
                ..Report::default()
            },
            Err(error) => Report::unreadable(FailureCategory::SysctlFile, &error),
        }
    }
}
