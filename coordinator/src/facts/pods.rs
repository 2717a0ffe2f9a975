//! Pods and the budgets that protect them.

mod details;
mod request;

use std::net::IpAddr;
use std::sync::Arc;

use engine::cluster::{Needed, NotUnderstood};
use engine::drain;
use engine::labels::Labels;
use engine::ports::ContainerPort;
use engine::words::number;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};

pub use self::details::{PodDetails, details};
use self::request::Request;
use super::quantity;
use crate::lenient::Lenient;

/// Most bytes kept of a pod's labels: an object may have labels up to its size limit.
const LABEL_BYTES: usize = 16 * 1024;

/// Most names of volumes kept of a pod.
const VOLUMES: usize = 256;

/// Most ports kept of a pod.
const PORTS: usize = 256;

/// Most unreadable fields named of a pod.
const NAMED: usize = 8;

/// Grace period in seconds of a pod that does not set one.
const GRACE_SECONDS: i64 = 30;

/// Annotation of a mirror pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// The pod's addresses, one for each of its families; unreadable addresses are left out.
pub fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let status = pod.status.iter();
    status
        .flat_map(address_texts)
        .filter_map(|text| text.parse().ok())
        .collect()
}

fn address_texts(status: &PodStatus) -> Vec<&str> {
    let listed = status.pod_ips.iter().flatten().map(|address| address.ip.as_str());
    let all: Vec<&str> = listed.filter(|text| !text.is_empty()).collect();
    if all.is_empty() {
        return status
            .pod_ip
            .as_deref()
            .filter(|text| !text.is_empty())
            .into_iter()
            .collect();
    }
    all
}

/// A Pod as a drain sees it. Fields that cannot be parsed are kept by name.
pub fn pod(pod: &Pod) -> drain::Pod {
    let metadata = &pod.metadata;
    let mut not_understood = Vec::new();
    let mut addresses = Vec::new();
    for text in pod.status.iter().flat_map(address_texts) {
        match text.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => not_understood.push(super::not_understood("status.podIPs", text, Needed::Address)),
        }
    }
    let spec = pod.spec.as_ref();
    let mut request = |resource, read: fn(&Quantity) -> Option<u64>| {
        let request = Request::new(resource, read, &mut not_understood);
        spec.map_or(0, |spec| request.of(spec))
    };
    let cpu_millis = request("cpu", quantity::thousandths);
    let memory_bytes = request("memory", quantity::units);
    let labels = labels(metadata, &mut not_understood);
    let ports = spec.map_or_else(Arc::default, |spec| ports(spec, &mut not_understood));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let volumes = spec.into_iter().flat_map(|spec| spec.volumes.iter().flatten());
    addresses.shrink_to_fit();
    not_understood.truncate(NAMED);
    drain::Pod {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        node: node(pod).to_owned(),
        labels,
        host_network: spec.and_then(|spec| spec.host_network).unwrap_or(false),
        controller: controller(metadata),
        mirror: metadata
            .annotations
            .as_ref()
            .is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION)),
        pending: phase == Some("Pending"),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        ready: is_ready(pod),
        unschedulable: is_unschedulable(pod),
        made_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
        deleted_at: deleted_at(metadata),
        deletion_grace_seconds: metadata.deletion_grace_period_seconds,
        grace_seconds: grace_seconds(spec),
        addresses,
        ports,
        empty_dirs: volumes
            .filter(|volume| volume.empty_dir.is_some())
            .map(|volume| volume.name.clone())
            .take(VOLUMES)
            .collect(),
        cpu_millis,
        memory_bytes,
        priority_class: spec
            .and_then(|spec| spec.priority_class_name.clone())
            .unwrap_or_default(),
        not_understood,
    }
}

/// Time that the pod may take to terminate. The API server accepts any 64-bit number.
fn grace_seconds(spec: Option<&PodSpec>) -> u32 {
    let said = spec.and_then(|spec| spec.termination_grace_period_seconds);
    u32::try_from(said.unwrap_or(GRACE_SECONDS).max(0)).unwrap_or(u32::MAX)
}

/// The same for a pod that may not be fully readable.
pub fn read(read: &Lenient<Pod>) -> drain::Pod {
    let unclear = read.unreadable.iter().map(|unclear| NotUnderstood {
        field: unclear.field.clone(),
        found: unclear.why.clone(),
        needed: Needed::Readable,
    });
    let mut pod = pod(&read.object);
    pod.not_understood.extend(unclear);
    pod.not_understood.truncate(NAMED);
    pod
}

/// The first labels, up to the limit.
fn labels(metadata: &ObjectMeta, not_understood: &mut Vec<NotUnderstood>) -> Labels {
    let mut bytes = 0;
    let kept = |(key, value): &(&String, &String)| {
        bytes += key.len() + value.len();
        bytes <= LABEL_BYTES
    };
    let all = metadata.labels.iter().flatten();
    let kept: Vec<(&str, &str)> = all
        .clone()
        .take_while(kept)
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    if kept.len() < all.clone().count() {
        not_understood.push(NotUnderstood {
            field: "metadata.labels".to_owned(),
            found: number(all.count(), "label", "labels"),
            needed: Needed::FewerLabels,
        });
    }
    kept.into_iter().collect()
}

/// The first ports, up to the limit.
fn ports(spec: &PodSpec, not_understood: &mut Vec<NotUnderstood>) -> Arc<[ContainerPort]> {
    let all = policy::pod::ports(spec);
    if all.len() <= PORTS {
        return all;
    }
    not_understood.push(NotUnderstood {
        field: "spec.containers.ports".to_owned(),
        found: number(all.len(), "port", "ports"),
        needed: Needed::FewerPorts,
    });
    all[..PORTS].into()
}

/// The node that the pod is bound to; empty when pending.
pub fn node(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

/// A pod of the coordinator's own, reduced to the fields that are read.
pub fn pruned(pod: Pod) -> Pod {
    let mut metadata = pod.metadata;
    metadata.managed_fields = None;
    let spec = pod.spec.map(|spec| PodSpec {
        node_name: spec.node_name,
        ..PodSpec::default()
    });
    Pod {
        metadata,
        spec,
        status: pod.status,
    }
}

/// Whether the scheduler reports that no node can take the pod.
fn is_unschedulable(pod: &Pod) -> bool {
    condition(pod, "PodScheduled").is_some_and(|condition| {
        condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
    })
}

/// Reason and message of the first container that waits; the message may be empty.
pub fn waiting(status: &PodStatus) -> Option<(&str, &str)> {
    status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let message = waiting.message.as_deref().unwrap_or_default();
        Some((waiting.reason.as_deref()?, message))
    })
}

/// Phase, reason and message of the Pod itself, as far as they are set: a kubelet that rejects it gives all three.
pub fn state(status: &PodStatus, separator: &str) -> String {
    let parts = [&status.phase, &status.reason, &status.message];
    let known: Vec<&str> = parts.into_iter().filter_map(Option::as_deref).collect();
    if known.is_empty() {
        return "no status yet".to_owned();
    }
    known.join(separator)
}

/// Whether a Pod reports Ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

fn condition<'pod>(pod: &'pod Pod, kind: &str) -> Option<&'pod PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Every `PodDisruptionBudget` as a drain sees it.
pub fn budgets(found: &[Arc<PodDisruptionBudget>]) -> Vec<drain::Budget> {
    found.iter().map(|found| budget(found)).collect()
}

/// A `PodDisruptionBudget` as a drain sees it.
pub fn budget(budget: &PodDisruptionBudget) -> drain::Budget {
    let status = budget.status.clone().unwrap_or_default();
    drain::Budget {
        namespace: budget.metadata.namespace.clone().unwrap_or_default(),
        name: budget.metadata.name.clone().unwrap_or_default(),
        selector: budget
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .map(|found| selector(found).limited()),
        disruptions_allowed: status.disruptions_allowed,
        current_healthy: status.current_healthy,
        desired_healthy: status.desired_healthy,
        expected_pods: status.expected_pods,
        always_allows_unhealthy: budget
            .spec
            .as_ref()
            .and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref())
            .is_some_and(|policy| policy == "AlwaysAllow"),
    }
}

/// Converts a label selector from the API.
pub fn selector(selector: &LabelSelector) -> drain::Selector {
    drain::Selector {
        match_labels: selector.match_labels.clone().unwrap_or_default(),
        match_expressions: selector
            .match_expressions
            .iter()
            .flatten()
            .map(|term| {
                (
                    term.key.clone(),
                    term.operator.clone(),
                    term.values.clone().unwrap_or_default(),
                )
            })
            .collect(),
    }
}

/// Converts a label selector to the API.
pub fn label_selector(selector: drain::Selector) -> LabelSelector {
    let terms = selector.match_expressions.into_iter();
    let terms = terms.map(|(key, operator, values)| LabelSelectorRequirement {
        key,
        operator,
        values: Some(values),
    });
    LabelSelector {
        match_expressions: Some(terms.collect()),
        match_labels: Some(selector.match_labels),
    }
}

fn controller(metadata: &ObjectMeta) -> Option<(String, String)> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| (owner.kind.clone(), owner.name.clone()))
}

/// `deletionTimestamp` is the end of the grace period; termination started one grace period earlier.
fn deleted_at(metadata: &ObjectMeta) -> Option<jiff::Timestamp> {
    let end = metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(metadata.deletion_grace_period_seconds.unwrap_or(0));
    Some(end.checked_sub(grace).unwrap_or(end))
}

#[cfg(test)]
mod tests;
