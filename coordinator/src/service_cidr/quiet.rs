//! When a Service or its endpoints changed the last time: kube-proxy learns of that when we do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::StreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use plan::service_cidr::prime::LastChange;
use tokio::task::JoinSet;
use tracing::warn;

/// When something changed the last time. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Quiet {
    services: Seen,
    slices: Seen,
}

/// The last change of one kind of object; `None` while nobody knows.
type Seen = Arc<Mutex<Option<(Instant, String)>>>;

impl Quiet {
    /// Begins to watch, in `tasks`.
    pub fn watch(client: &Client, tasks: &mut JoinSet<()>) -> Self {
        let quiet = Self::default();
        tasks.spawn(follow::<Service>(
            Api::all(client.clone()),
            Arc::clone(&quiet.services),
        ));
        tasks.spawn(follow::<EndpointSlice>(
            Api::all(client.clone()),
            Arc::clone(&quiet.slices),
        ));
        quiet
    }

    /// How long after this moment we heard that this Service changed; `None` where we have not, or something else changed since.
    pub fn heard_of(&self, object: &str, since: Instant) -> Option<SignedDuration> {
        let seen = self
            .services
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (at, last) = seen?;
        let later = at.checked_duration_since(since).filter(|_| last == object)?;
        SignedDuration::try_from(later).ok()
    }

    /// The last change, of whichever kind.
    pub fn last(&self) -> LastChange {
        let read = |seen: &Seen| seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (Some(service), Some(slice)) = (read(&self.services), read(&self.slices)) else {
            return LastChange::Unknown;
        };
        let (at, object) = if service.0 > slice.0 { service } else { slice };
        let ago = SignedDuration::try_from(at.elapsed()).unwrap_or(SignedDuration::MAX);
        LastChange::Ago(ago, object)
    }
}

/// Notes each change, for ever. A watch that breaks is started again; until it is there nobody knows.
async fn follow<K>(api: Api<PartialObjectMeta<K>>, seen: Seen)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let kind = K::kind(&());
    let note = |change: Option<String>| {
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = change.map(|object| (Instant::now(), object));
    };
    let name = |object: &PartialObjectMeta<K>| {
        let namespace = object.namespace().unwrap_or_default();
        format!("{kind} {namespace}/{}", object.name_any())
    };
    let events = watcher(api, Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init | Event::InitApply(_)) => note(None),
            // What changed before nobody knows: it may have been just now.
            Ok(Event::InitDone) => note(Some(format!("{kind}s were read anew, and any"))),
            Ok(Event::Apply(object) | Event::Delete(object)) => note(Some(name(&object))),
            Err(error) => {
                note(None);
                warn!(%kind, error = %crate::tell::chain(&error), "watch broke");
            }
        }
    }
}
