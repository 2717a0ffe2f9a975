//! Watches this node's own `NodeMigration`, and no other. Reads the API.

use std::sync::Arc;
use std::time::Duration;

use api::NodeMigration;
use futures::StreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The longest pause between two attempts to reach the API server: it is not asked by others for this long
/// only, and a node in work should not wait longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
        let mut pause = Duration::from_millis(500);
        while let Some(object) = objects.next().await {
            let seen = match object {
                Ok(Some(object)) => Seen::Present(Arc::new(object)),
                Ok(None) => Seen::Absent,
                Err(error) => {
                    // The last goal stands: a node in work is not stopped by an API server that is away.
                    tracing::warn!(%node, error = crate::report::chain(&error), "the NodeMigration is not watched; trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            pause = Duration::from_millis(500);
            if sender.send(seen).is_err() {
                return;
            }
        }
    });
    (receiver, task)
}
