//! The view of one pass: everything that its decision depends on.

use api::migration::CalicoDatastoreStatus;
use calico_datastore::cluster::calico::{Calico, Content, PerVersion};
use calico_datastore::cluster::manifest;
use calico_datastore::cluster::view::{
    ControllersView, ControllersWork, DaemonSetView, StoresView, View, Work,
};
use engine::check::names;
use jiff::SignedDuration;
use serde_json::Value;

use super::observe::Observed;
use super::pass::Pass;
use super::pods::{self, Waiting};
use super::saved::{Saved, on_delete, parts};

/// For this time after v3 opened, a pod without an address counts as waiting for the network.
const PATIENCE: SignedDuration = SignedDuration::from_mins(10);

impl Pass<'_> {
    /// The whole view.
    pub(super) fn view<'pass>(
        &self,
        known: &CalicoDatastoreStatus,
        observed: &'pass Observed,
        stores: Result<StoresView, String>,
        controllers: Option<ControllersView>,
        controllers_work: ControllersWork,
        work: &'pass Work,
    ) -> View<'pass> {
        let saved = self.saved;
        View {
            direction: self.direction(known),
            is_backed_up: known.backup.is_some(),
            stores,
            configuration: configuration(saved, observed.configuration.as_ref()),
            daemon_set: daemon_set(saved, &observed.daemon_set),
            nodes: &observed.nodes,
            controllers,
            controllers_work,
            work,
            without_network: self.pods_without_network_since_open(known, observed),
            now: self.now,
        }
    }

    /// The state of the controllers.
    pub(super) fn controllers(
        &self,
        known: &CalicoDatastoreStatus,
        observed: &Observed,
    ) -> Option<ControllersView> {
        controllers(self.saved, observed.controllers.as_ref(), || {
            pods::controller_pods(&observed.pods, &known.settings.controllers.value)
        })
    }

    /// Pods that have waited since before v3 opened, except those that waited before the migration. After [`PATIENCE`] the
    /// network is not the reason for their wait.
    fn pods_without_network_since_open(
        &self,
        known: &CalicoDatastoreStatus,
        observed: &Observed,
    ) -> Option<String> {
        let opened_at = known
            .opened_at
            .filter(|opened| self.now.duration_since(*opened) < PATIENCE)?;
        let waits = |waiting: &&Waiting| {
            waiting.made.is_none_or(|made| made <= opened_at)
                && !self.saved.without_network.contains(&waiting.uid)
        };
        let left: Vec<&str> = observed
            .waiting
            .iter()
            .filter(waits)
            .map(|waiting| waiting.key.as_str())
            .collect();
        (!left.is_empty()).then(|| {
            format!(
                "pods that still wait for a network: {} ({})",
                left.len(),
                names(&left)
            )
        })
    }
}

fn configuration(saved: &Saved, there: Option<&Value>) -> Option<Content> {
    let known = saved.configuration.as_ref()?;
    Some(there.map_or(Content::Missing, |there| {
        Content::of(&manifest::texts(there), known)
    }))
}

fn daemon_set(saved: &Saved, there: &Value) -> DaemonSetView {
    let now = parts(there);
    let known = &saved.daemon_set;
    let template = PerVersion {
        v2: known.v2.template.clone(),
        v3: known.v3.template.clone(),
    };
    let strategy = PerVersion {
        v2: known.v2.strategy.clone(),
        v3: known.v3.strategy.clone(),
    };
    let number = |field: &str| there["status"][field].as_u64().unwrap_or_default();
    let missing = number("desiredNumberScheduled").saturating_sub(number("currentNumberScheduled"));
    DaemonSetView {
        template: Content::of(&now.template, &template),
        strategy: Content::of(&now.strategy, &strategy),
        is_held: now.strategy["type"] == on_delete()["type"],
        missing: usize::try_from(missing).unwrap_or(usize::MAX),
    }
}

fn controllers(
    saved: &Saved,
    there: Option<&Value>,
    pods: impl FnOnce() -> usize,
) -> Option<ControllersView> {
    let known = saved.controllers.as_ref()?;
    let Some(there) = there else {
        // Deleted by another user: nothing writes, and the object is not as it has to be.
        return Some(ControllersView {
            template: Content::Missing,
            is_stopped: true,
            is_scaled: false,
            pods: 0,
            is_available: false,
        });
    };
    let template = PerVersion {
        v2: known.v2.template.clone(),
        v3: known.v3.template.clone(),
    };
    let says = Content::of(&there["spec"]["template"], &template);
    let replicas = there["spec"]["replicas"].as_i64().unwrap_or(1);
    let wanted = if says.is(Calico::V3) {
        known.v3.replicas
    } else {
        known.v2.replicas
    };
    let status = &there["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or_default();
    let is_seen =
        number("observedGeneration") >= there["metadata"]["generation"].as_i64().unwrap_or_default();
    Some(ControllersView {
        template: says,
        is_stopped: replicas == 0,
        is_scaled: replicas == wanted,
        pods: pods(),
        is_available: is_seen
            && number("updatedReplicas") >= replicas
            && number("availableReplicas") >= replicas,
    })
}
