//! What happens to pods next.

use std::collections::BTreeMap;
use std::time::Duration;

use memory_api::Objects;
use serde_json::Value;

use crate::paths::{NODES, PODS};
use crate::snapshot::Addresses;

/// What happens to pods next, by path.
pub struct Life {
    /// When a pod is gone.
    pub ends: BTreeMap<String, Duration>,
    /// When the kubelet starts a pod.
    pub starts: BTreeMap<String, Duration>,
    /// The addresses of pods.
    pub addresses: Addresses,
    /// The number of pods that controllers have created.
    pub made: u64,
}

impl Life {
    /// The pods of this cluster run.
    pub fn of(objects: &Objects) -> Self {
        let nodes: Vec<Value> = objects.below(NODES).cloned().collect();
        let pods: Vec<Value> = objects.below(PODS).cloned().collect();
        Self {
            ends: BTreeMap::new(),
            starts: BTreeMap::new(),
            addresses: Addresses::of(&nodes, &pods),
            made: 0,
        }
    }

    /// The time of the next event.
    pub fn next(&self) -> Option<Duration> {
        self.ends.values().chain(self.starts.values()).min().copied()
    }

    /// The kubelet starts this pod then, once its node has a network.
    pub fn start_at(&mut self, path: &str, at: Duration) {
        self.starts.insert(path.to_owned(), at);
    }
}
