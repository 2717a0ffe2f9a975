//! Watches this node's own `NodeMigration`, and no other. Reads the API.

use std::sync::Arc;
use std::time::Duration;

use api::NodeMigration;
use futures::StreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use plan::flannel_to_calico::phase::Goal;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backoff::Backoff;
use crate::host::random;

/// The longest pause between two attempts to reach the API server while something is asked of the node, which should not wait longer.
pub const LONGEST_PAUSE_IN_WORK: Duration = Duration::from_secs(5);
/// The same while nothing is: that is so for most nodes of a large cluster, and all of them lose the API server at the same moment.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What is known of the object.
#[derive(Clone, Debug, Default)]
pub enum Seen {
    /// The API server has not answered yet.
    #[default]
    NotYet,
    /// There is none for this node.
    Absent,
    /// The object.
    Present(Arc<NodeMigration>),
}

/// Follows the `NodeMigration` with the node's name until the process ends.
pub fn follow(client: Client, node: &str) -> (watch::Receiver<Seen>, JoinHandle<()>) {
    let (sender, receiver) = watch::channel(Seen::NotYet);
    let node = node.to_owned();
    let task = tokio::spawn(async move {
        let mut objects = std::pin::pin!(watch_object(Api::<NodeMigration>::all(client), &node));
        let mut failures = Backoff::default();
        let mut longest = LONGEST_PAUSE;
        while let Some(object) = objects.next().await {
            let seen = match object {
                Ok(Some(object)) => Seen::Present(Arc::new(object)),
                Ok(None) => Seen::Absent,
                Err(error) => {
                    // The last goal stands: a node in work is not stopped by an API server that is away.
                    tracing::warn!(%node, error = crate::report::chain(&error), "the NodeMigration is not watched; trying again");
                    let random = random::number().unwrap_or_default();
                    tokio::time::sleep(failures.after_failure(longest, random)).await;
                    continue;
                }
            };
            failures.succeeded();
            longest = longest_pause(&seen);
            if sender.send(seen).is_err() {
                return;
            }
        }
    });
    (receiver, task)
}

fn longest_pause(seen: &Seen) -> Duration {
    match seen {
        Seen::Present(object) if object.spec.admitted || object.spec.goal != Goal::Hold => {
            LONGEST_PAUSE_IN_WORK
        }
        Seen::NotYet | Seen::Absent | Seen::Present(_) => LONGEST_PAUSE,
    }
}
