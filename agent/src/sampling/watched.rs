//! Watches this node's own `ConnectionSample`, and no other. Reads from the API.

use std::sync::Arc;
use std::time::Duration;

use api::ConnectionSample;
use futures::StreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::host::random;
use crate::watched_object::WatchedObject;

/// The longest pause between two attempts to watch. No migration waits for a preview.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The same while the API has no such objects, or the agent may not read them: an installation that is older than the agent.
const LONGEST_PAUSE_WITHOUT_API: Duration = Duration::from_mins(10);

/// State of the watched object.
pub type WatchedSample = WatchedObject<ConnectionSample>;

/// Follows the `ConnectionSample` with the node's name until the receiver is gone.
pub async fn follow(client: Client, node: String, sender: watch::Sender<WatchedSample>) {
    let mut objects = std::pin::pin!(watch_object(Api::<ConnectionSample>::all(client), &node));
    let mut failures = Backoff::default();
    // Logged once, not at each attempt.
    let mut last_failure = String::new();
    while let Some(object) = objects.next().await {
        let seen = match object {
            Ok(Some(object)) => WatchedSample::Present(Arc::new(object)),
            Ok(None) => WatchedSample::Absent,
            Err(error) => {
                let text = runtime::error::chain(&error);
                if text != last_failure {
                    tracing::info!(%node, error = text, "watching the ConnectionSample failed; retrying");
                    last_failure = text;
                }
                let longest = match lack(&error) {
                    Some(Lack::Kind) => {
                        sender.send_replace(WatchedSample::Absent);
                        LONGEST_PAUSE_WITHOUT_API
                    }
                    Some(Lack::Right) => LONGEST_PAUSE_WITHOUT_API,
                    // The last spec stays valid.
                    None => LONGEST_PAUSE,
                };
                let random = random::number().unwrap_or_default();
                let pause = failures.after_failure(longest, random);
                tokio::select! {
                    () = tokio::time::sleep(pause) => continue,
                    () = sender.closed() => return,
                }
            }
        };
        failures.succeeded();
        last_failure.clear();
        if sender.send(seen).is_err() {
            return;
        }
    }
}

/// What an installation lacks.
enum Lack {
    /// The API server does not know the kind.
    Kind,
    /// The agent may not read it.
    Right,
}

fn lack(error: &watcher::Error) -> Option<Lack> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return None;
    };
    if status.is_forbidden() {
        Some(Lack::Right)
    } else {
        status.is_not_found().then_some(Lack::Kind)
    }
}
