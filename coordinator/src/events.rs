//! Reports for users: Events, and their log lines.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use api::{EventReason, Migration, MigrationStatus, names};
use engine::words::cut;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use runtime::error::chain;
use tracing::{debug, info, warn};

/// Most bytes of a note that the API accepts.
const NOTE_BYTES: usize = 1024;

/// Publishes Events. A text is published once for each object until it changes.
pub struct EventRecorder {
    client: Client,
    reporter: Reporter,
    last: Mutex<HashMap<String, String>>,
}

/// Type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLevel {
    /// An expected event.
    Normal,
    /// An event that may need the user's attention.
    Warning,
}

impl EventRecorder {
    /// A recorder that reports as this pod.
    pub fn new(client: Client, pod_name: &str) -> Self {
        let reporter = Reporter {
            controller: names::COORDINATOR.to_owned(),
            instance: Some(pod_name.to_owned()),
        };
        Self {
            client,
            reporter,
            last: Mutex::new(HashMap::new()),
        }
    }

    /// Records an Event of a Migration.
    pub async fn migration(
        &self,
        migration: &Migration,
        tone: EventLevel,
        reason: impl Into<EventReason>,
        note: &str,
    ) {
        let reference = migration.object_ref(&());
        self.publish(reference, tone, reason.into().as_str(), note).await;
    }

    /// Records an Event of a Migration with the reason or the phase in its new status. The reason may be one that only another
    /// version knows.
    pub async fn status(&self, migration: &Migration, tone: EventLevel, status: &MigrationStatus) {
        let reference = migration.object_ref(&());
        self.publish(reference, tone, status.reason_or_phase(), &status.message)
            .await;
    }

    /// Records an Event of a Node.
    pub async fn node(&self, node: &Node, tone: EventLevel, reason: impl Into<EventReason>, note: &str) {
        // The kubelet and kubectl look up Events of a Node with its name as the UID.
        let mut reference = node.object_ref(&());
        reference.uid.clone_from(&node.metadata.name);
        self.publish(reference, tone, reason.into().as_str(), note).await;
    }

    async fn publish(&self, reference: ObjectReference, tone: EventLevel, reason: &str, note: &str) {
        let object = format!(
            "{} {}",
            reference.kind.as_deref().unwrap_or_default(),
            reference.name.as_deref().unwrap_or_default()
        );
        // Ages and counts change at every pass; the subject of an Event does not.
        let text = format!(
            "{reason} {}",
            note.split(|c: char| c.is_ascii_digit()).collect::<String>()
        );
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.get(&object) == Some(&text) {
                return;
            }
            last.insert(object.clone(), text);
        }
        match tone {
            EventLevel::Normal => info!(object, reason, note, "event"),
            EventLevel::Warning => warn!(object, reason, note, "event"),
        }
        let event = Event {
            type_: match tone {
                EventLevel::Normal => EventType::Normal,
                EventLevel::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(cut(note, NOTE_BYTES).into_owned()),
            action: reason.to_owned(),
            secondary: None,
        };
        // A long-lived recorder would count this as a repetition of the last Event with its reason, and keep the old note.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        // A failed Event is not a reason to stop: status and log have the same message.
        if let Err(error) = recorder.publish(&event, &reference).await {
            debug!(object, error = %chain(&error), "Event not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::decision::WaitReason;
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    #[tokio::test]
    async fn a_note_is_cut_to_the_limit_of_the_api() {
        let api = FakeApi::default();
        let recorder = EventRecorder::new(api.client(), "coordinator-1");
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        let note = "ä".repeat(5000);
        recorder
            .node(&node, EventLevel::Warning, WaitReason::DisruptionBudget, &note)
            .await;
        let written = api.events()[0].1["note"].as_str().unwrap().to_owned();
        assert!(written.len() <= 1024 && written.ends_with("ä…"), "{written}");
    }

    #[tokio::test]
    async fn a_repeated_note_is_published_once() {
        let api = FakeApi::default();
        let recorder = EventRecorder::new(api.client(), "coordinator-1");
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        for note in ["pod web refuses", "pod web refuses", "pod store refuses"] {
            recorder
                .node(&node, EventLevel::Warning, WaitReason::DisruptionBudget, note)
                .await;
        }
        let written: Vec<(bool, String)> = api
            .events()
            .iter()
            .map(|(call, event)| (call.starts_with("POST "), event["note"].to_string()))
            .collect();
        let own = |note: &str| (true, format!("{note:?}"));
        assert_eq!(written, [own("pod web refuses"), own("pod store refuses")]);
    }
}
