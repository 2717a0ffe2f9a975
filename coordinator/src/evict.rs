//! Eviction: the only way out for a pod. Refusals are kept with their age, so that they can be named.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, Preconditions};
use kube::{Api, Client};
use plan::evict::{PodName, Refusal};

use crate::metrics::Metrics;
use crate::tell;

/// How long after a refusal the same pod is tried again. kubectl's drain waits as long.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Refused evictions by pod UID. Lost at a restart: the first refusal after it counts anew.
pub type Refusals = BTreeMap<String, Refusal>;

/// Asks for the eviction of these pods and keeps what was refused.
pub async fn evict(
    client: &Client,
    metrics: &Metrics,
    pods: &[PodName],
    grace_period_seconds: Option<u32>,
    refusals: &mut Refusals,
) {
    for pod in pods {
        let result = request(client, pod, grace_period_seconds).await;
        let now = Timestamp::now();
        let label = match &result {
            Outcome::Evicted => "evicted",
            Outcome::Gone => "gone",
            Outcome::Refused { by_budget: true, .. } => "refused_by_budget",
            Outcome::Refused { by_budget: false, .. } => "refused",
            Outcome::Error(_) => "error",
        };
        metrics.evictions.with_label_values(&[label]).inc();
        match result {
            Outcome::Evicted | Outcome::Gone => {
                refusals.remove(&pod.uid);
            }
            Outcome::Refused { by_budget, message } => {
                refuse(refusals, pod, by_budget, message, now);
            }
            Outcome::Error(message) => refuse(refusals, pod, false, message, now),
        }
    }
}

/// Forgets refusals of pods that are gone.
pub fn forget(refusals: &mut Refusals, alive: impl Fn(&str) -> bool) {
    refusals.retain(|uid, _| alive(uid));
}

fn refuse(refusals: &mut Refusals, pod: &PodName, by_budget: bool, message: String, now: Timestamp) {
    let since = refusals.get(&pod.uid).map_or(now, |refusal| refusal.since);
    refusals.insert(
        pod.uid.clone(),
        Refusal {
            since,
            next_try: now + RETRY,
            by_budget,
            message,
        },
    );
}

enum Outcome {
    Evicted,
    Gone,
    Refused { by_budget: bool, message: String },
    Error(String),
}

async fn request(client: &Client, pod: &PodName, grace_period_seconds: Option<u32>) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let delete_options = DeleteParams {
        grace_period_seconds,
        // A pod of the same name that was created meanwhile is another pod, perhaps on another node (R5).
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let parameters = EvictParams {
        delete_options: Some(delete_options),
        ..EvictParams::default()
    };
    match pods.evict(&pod.name, &parameters).await {
        Ok(_) => Outcome::Evicted,
        Err(kube::Error::Api(status)) if status.is_not_found() => Outcome::Gone,
        // The UID did not match: that pod is gone.
        Err(kube::Error::Api(status)) if status.is_conflict() => Outcome::Gone,
        Err(kube::Error::Api(status)) => Outcome::Refused {
            by_budget: status.code == 429,
            message: status.message.clone(),
        },
        Err(error) => Outcome::Error(tell::chain(&error)),
    }
}
