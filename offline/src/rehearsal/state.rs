//! Everything in the cluster of a rehearsal that its parts share.

use std::sync::Arc;

use coordinator::clock::Rehearsed;
use coordinator::facts;
use engine::drain::Pod;
use memory_api::Objects;
use serde_json::Value;

use super::life::Life;
use super::pace::Pace;
use super::record::Record;
use crate::paths::{MIGRATIONS, PODS};

/// What the parts of the cluster share.
pub struct State {
    /// The objects of the API server.
    pub objects: Objects,
    /// The times of its parts.
    pub pace: Pace,
    /// The clocks.
    pub clock: Rehearsed,
    /// What happened.
    pub record: Record,
    /// What happens to pods next.
    pub life: Life,
    /// The pods at a version of the objects.
    pods: Option<(u64, Arc<[Pod]>)>,
}

impl State {
    /// A cluster with these objects, in which nothing has happened.
    pub fn of(objects: Objects, pace: Pace, clock: Rehearsed) -> Self {
        Self {
            life: Life::of(&objects),
            record: Record::default(),
            objects,
            pace,
            clock,
            pods: None,
        }
    }

    /// Every pod, as a drain sees it.
    pub fn pods(&mut self) -> Arc<[Pod]> {
        let version = self.objects.version();
        if let Some((of_version, pods)) = &self.pods
            && *of_version == version
        {
            return Arc::clone(pods);
        }
        let objects = self.objects.below(PODS);
        let parsed = objects.filter_map(|object| serde_json::from_value(object.clone()).ok());
        let pods: Arc<[Pod]> = parsed.map(|pod| facts::pods::pod(&pod)).collect();
        self.pods = Some((version, Arc::clone(&pods)));
        pods
    }

    /// The migration under way has this setting.
    pub fn setting(&self, name: &str) -> String {
        let mut migrations = self.objects.below(MIGRATIONS);
        let found = migrations
            .find_map(|migration| migration["status"]["flannelToCalico"]["settings"][name]["value"].as_str());
        found.unwrap_or_default().to_owned()
    }
}

/// The path of an object of a collection. Every object of the rehearsal has a name.
pub fn path_of(collection: &str, object: &Value) -> String {
    memory_api::path_of(collection, object).unwrap_or_default()
}
