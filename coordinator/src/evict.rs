//! Evictions: pods leave a node only in this way. Refusals are kept with their age, so that they can be reported.
//!
//! A request for an eviction may outlive a pass: a slow admission webhook of one tenant delays neither the pass nor the pods of
//! other tenants.

use std::collections::HashSet;
use std::time::Duration;

use engine::evict::{PodName, Refusal, grace_period};
use engine::pods::Pods;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::{Api, Client};
use serde_json::Value;
use tracing::warn;

use crate::clock;
use crate::context::Context;
use crate::evictions::{Evictions, Outcome, Refusals};
use crate::lenient_requests;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::pod_index::PodStore;
use crate::write::post_parameters;

/// Delay before a refused pod is tried again, as in kubectl drain.
const RETRY: SignedDuration = SignedDuration::from_secs(5);
/// Time that a pass waits for answers to its new requests. Nearly every answer arrives within this time.
const SETTLE: Duration = Duration::from_millis(500);
/// Time without a second request after an eviction: in a large cluster the watch shows the termination a moment later.
const SHOWN_WITHIN: SignedDuration = SignedDuration::from_secs(5);
/// A request without an answer for this long is reported like a refusal.
const SLOW: SignedDuration = SignedDuration::from_secs(2);
/// Time limit of one eviction. An admission webhook has at most 30 s, after which the API server answers.
const LIMIT: Duration = Duration::from_secs(40);
/// Time after which each request has ended, with or without an answer.
const ANSWERED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// Requests the eviction of these pods and keeps refusals. A pod with a request without an answer, or evicted a moment ago, is
/// not requested again.
pub async fn evict(
    context: &Context,
    pods: &[PodName],
    grace_period_seconds: Option<u32>,
    memory: &mut Memory,
) {
    collect(&context.metrics, memory);
    let now = clock::now();
    let mut asked = 0_usize;
    for pod in pods {
        let Evictions {
            requests,
            unanswered,
            made,
            ..
        } = &mut memory.evictions;
        if unanswered.contains_key(&pod.uid) || made.contains_key(&pod.uid) {
            continue;
        }
        unanswered.insert(pod.uid.clone(), now);
        // The client without a limit on reads: an eviction has a longer limit.
        let (client, pod) = (context.watching.clone(), pod.clone());
        requests.spawn(async move {
            let outcome = tokio::time::timeout(LIMIT, request(&client, &pod, grace_period_seconds))
                .await
                .unwrap_or_else(|_| Outcome::Error(format!("no answer within {} s", LIMIT.as_secs())));
            (pod, outcome)
        });
        asked += 1;
    }
    let answers = async {
        for _ in 0..asked {
            let Some(answer) = memory.evictions.requests.join_next().await else {
                break;
            };
            keep(
                &context.metrics,
                &mut memory.evictions,
                &mut memory.refusals,
                answer,
            );
        }
    };
    // The next pass handles requests without an answer.
    let _ = tokio::time::timeout(SETTLE, answers).await;
}

/// Keeps answers received since the last call, reports slow evictions, and forgets refusals of pods that are
/// gone.
pub fn update(context: &Context, memory: &mut Memory, pods: &Pods) {
    collect(&context.metrics, memory);
    if memory.refusals.is_empty() {
        return;
    }
    let alive: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    memory.refusals.retain(|uid, _| alive.contains(uid.as_str()));
}

/// Removes from the store each pod that the API server has not had for longer than a watch needs to show it. The watch missed the
/// event, and no other event would end the wait for the pod.
pub fn forget_missed(memory: &mut Memory, pods: &PodStore) {
    for pod in memory.evictions.lost.drain(..) {
        if pods.forget(&pod) {
            let PodName { namespace, name, uid } = pod;
            warn!(
                "the API server has no pod {namespace}/{name} with UID {uid}, but the watch of pods missed its end: the pod \
                 counts as gone"
            );
        }
    }
}

/// Keeps answers received since the last call, and reports slow evictions.
pub fn collect(metrics: &Metrics, memory: &mut Memory) {
    let Memory {
        evictions, refusals, ..
    } = memory;
    while let Some(answer) = evictions.requests.try_join_next() {
        keep(metrics, evictions, refusals, answer);
    }
    let now = clock::now();
    // By absolute age: a clock that was set back keeps no entry longer.
    let is_newer_than = |at: &Timestamp, age: SignedDuration| now.duration_since(*at).abs() < age;
    evictions.made.retain(|_, at| is_newer_than(at, SHOWN_WITHIN));
    // A pod requested again would have an answer by now.
    evictions.gone.retain(|_, at| is_newer_than(at, ANSWERED_WITHIN));
    // A request that ended without an answer: its pod is requested again.
    evictions
        .unanswered
        .retain(|_, at| is_newer_than(at, ANSWERED_WITHIN));
    for (uid, since) in &evictions.unanswered {
        let waits = now.duration_since(*since);
        if waits >= SLOW {
            let message = "no answer from the API server yet; check admission webhooks for pods/eviction: \
                           `kubectl get validatingwebhookconfigurations`"
                .to_owned();
            refuse(refusals, uid, *since, false, message, now);
        }
    }
}

fn keep(
    metrics: &Metrics,
    evictions: &mut Evictions,
    refusals: &mut Refusals,
    answer: Result<(PodName, Outcome), tokio::task::JoinError>,
) {
    // A request that ended without an answer: `collect` releases its pod for another request.
    let Ok((pod, outcome)) = answer else {
        return;
    };
    let now = clock::now();
    let asked_at = evictions.unanswered.remove(&pod.uid).unwrap_or(now);
    metrics.evictions.with_label_values(&[outcome.label()]).inc();
    match outcome {
        Outcome::Evicted => {
            refusals.remove(&pod.uid);
            evictions.made.insert(pod.uid, now);
        }
        Outcome::Gone | Outcome::Replaced => {
            refusals.remove(&pod.uid);
            evictions.made.insert(pod.uid.clone(), now);
            let first = *evictions.gone.entry(pod.uid.clone()).or_insert(now);
            if now.duration_since(first).abs() >= SHOWN_WITHIN {
                evictions.gone.remove(&pod.uid);
                evictions.lost.push(pod);
            }
        }
        Outcome::Refused { by_budget, message } => {
            refuse(refusals, &pod.uid, asked_at, by_budget, message, now);
        }
        Outcome::Error(message) => refuse(refusals, &pod.uid, asked_at, false, message, now),
    }
}

fn refuse(
    refusals: &mut Refusals,
    uid: &str,
    asked_at: Timestamp,
    by_budget: bool,
    message: String,
    now: Timestamp,
) {
    let since = refusals.get(uid).map_or(asked_at, |refusal| refusal.since);
    refusals.insert(
        uid.to_owned(),
        Refusal {
            since,
            next_try: now + RETRY,
            by_budget,
            message,
        },
    );
}

/// The body of the request. The library's own type writes `delete_options`, which the API server drops: kube-core 5.0.0.
pub fn body(pod: &PodName, grace_period_seconds: Option<u32>) -> Eviction {
    Eviction {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            grace_period_seconds: grace_period_seconds.map(grace_period),
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        }),
    }
}

async fn request(client: &Client, pod: &PodName, grace_period_seconds: Option<u32>) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let body = body(pod, grace_period_seconds);
    let answer = pods
        .create_subresource::<_, Value>("eviction", &pod.name, &post_parameters(), &body)
        .await;
    match answer {
        Ok(_) => Outcome::Evicted,
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
            current_holder(&pods, pod, &status.message).await
        }
        Err(kube::Error::Api(status)) => Outcome::Refused {
            by_budget: status.code == 429,
            message: status.message.clone(),
        },
        Err(error) => Outcome::Error(runtime::error::chain(&error)),
    }
}

/// A conflict means another UID, or a concurrent write to the pod; a 404 may come from an admission webhook. The pod that has the
/// name now decides.
async fn current_holder(pods: &Api<Pod>, pod: &PodName, message: &str) -> Outcome {
    match lenient_requests::get_metadata_opt(pods, &pod.name).await {
        Ok(None) => Outcome::Gone,
        Ok(Some(found)) if found.metadata.uid.as_ref() != Some(&pod.uid) => Outcome::Replaced,
        Ok(Some(_)) => Outcome::Refused {
            by_budget: false,
            message: message.to_owned(),
        },
        Err(error) => Outcome::Error(runtime::error::chain(&error)),
    }
}

#[cfg(test)]
mod tests;
