//! Pods and the budgets that protect them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use calico::NODE_CONTAINER;
use engine::cluster::{self, Needed, NotUnderstood};
use engine::command_line::runs;
use engine::drain;
use engine::labels::Labels;
use engine::owner::KUBE_SYSTEM;
use engine::words::number;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use pod_cidr::facts::PIN_ANNOTATIONS;

use super::{daemon_sets, quantity};
use crate::lenient::Lenient;

/// Programs whose command lines are read.
const PROGRAMS: [&str; 2] = ["kube-apiserver", "kube-controller-manager"];

/// Most bytes kept of an annotation.
const LONGEST: usize = 4096;

/// Most bytes kept of a pod's labels: an object may have labels up to its size limit.
const LABEL_BYTES: usize = 16 * 1024;

/// Most names of volumes kept of a pod.
const VOLUMES: usize = 256;

/// Most unreadable fields named of a pod.
const NAMED: usize = 8;
/// The scheduler counts in signed 64-bit numbers: a request of this many thousandths of a CPU, or bytes, or more counts as zero,
/// and the pod gets a node (seen with v1.36.3 and `cpu: 20P`). The API server writes the same number for each larger one.
const COUNTABLE: u64 = i64::MAX as u64;

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

/// The node that the pod is bound to; empty when pending.
pub fn node(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

/// Details of a few pods, empty for most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDetails {
    /// Containers of a pod of kube-system that run an API server or a controller manager.
    pub programs: Vec<cluster::Container>,
    /// The host's address of such a pod.
    pub host_address: Option<IpAddr>,
    /// Annotations that pin the pod's address or pool, with their values.
    pub pins: Vec<(String, String)>,
    /// `ConfigMap`s mounted by a pod of kube-system: that of a name server has its Corefile.
    pub config_maps: Vec<String>,
    /// The image of the calico-node container.
    pub calico_image: Option<String>,
}

/// Details of the pod; `None` for most pods.
pub fn details(pod: &Pod) -> Option<PodDetails> {
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut more = PodDetails {
        pins: annotations
            .filter(|(key, _)| PIN_ANNOTATIONS.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), kept(value)))
            .collect(),
        ..PodDetails::default()
    };
    if let Some(spec) = &pod.spec {
        // In another namespace, its owner may run a program of any name with any arguments.
        if pod.metadata.namespace.as_deref() == Some(KUBE_SYSTEM) {
            more.programs = spec
                .containers
                .iter()
                .filter(|container| names_a_program(container))
                .map(|found| daemon_sets::container(found, false))
                .filter(|container| PROGRAMS.iter().any(|program| runs(container, program)))
                .collect();
            let volumes = spec.volumes.iter().flatten();
            more.config_maps = volumes
                .filter_map(|volume| Some(volume.config_map.as_ref()?.name.clone()))
                .collect();
        }
        let mut containers = spec.containers.iter();
        more.calico_image = containers
            .find(|container| container.name == NODE_CONTAINER)
            .and_then(|container| container.image.as_deref())
            .map(kept);
    }
    if !more.programs.is_empty() {
        let host = pod.status.as_ref().and_then(|status| status.host_ip.as_deref());
        more.host_address = host.and_then(|text| text.parse().ok());
    }
    (more != PodDetails::default()).then_some(more)
}

/// Whether the container names a program of interest: a quick filter before parsing.
fn names_a_program(container: &Container) -> bool {
    let words = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten());
    PROGRAMS
        .iter()
        .any(|program| words.clone().any(|word| word.contains(program)))
}

/// The part of a value that is kept: an annotation or an image name may be as long as a whole object.
fn kept(value: &str) -> String {
    let mut end = value.len().min(LONGEST);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].to_owned()
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

/// Whether a Pod reports Ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

fn condition<'pod>(pod: &'pod Pod, kind: &str) -> Option<&'pod PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
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

/// Amount of one resource that the scheduler reserves. An unreadable amount counts as zero, and is named.
struct Request<'pod> {
    resource: &'static str,
    read: fn(&Quantity) -> Option<u64>,
    not_understood: &'pod mut Vec<NotUnderstood>,
}

impl<'pod> Request<'pod> {
    fn new(
        resource: &'static str,
        read: fn(&Quantity) -> Option<u64>,
        not_understood: &'pod mut Vec<NotUnderstood>,
    ) -> Self {
        Self {
            resource,
            read,
            not_understood,
        }
    }

    /// The pod's own request, or the larger of its containers' sum and its init containers' peak; side-cars count in both. The
    /// runtime's overhead is added.
    fn of(mut self, spec: &PodSpec) -> u64 {
        let mut together: u64 = 0;
        for container in &spec.containers {
            together = together.saturating_add(self.of_container(container));
        }
        let mut side_cars: u64 = 0;
        let mut peak: u64 = 0;
        for container in spec.init_containers.iter().flatten() {
            let own = self.of_container(container);
            peak = peak.max(side_cars.saturating_add(own));
            if container.restart_policy.as_deref() == Some("Always") {
                side_cars = side_cars.saturating_add(own);
            }
        }
        let of_pod = self.amount(
            || "resources.requests".to_owned(),
            requests(spec.resources.as_ref()),
        );
        let overhead = self.amount(|| "overhead".to_owned(), spec.overhead.as_ref());
        of_pod
            .unwrap_or(together.saturating_add(side_cars).max(peak))
            .saturating_add(overhead.unwrap_or_default())
    }

    fn of_container(&mut self, container: &Container) -> u64 {
        let field = || format!("container {}: resources.requests", container.name);
        self.amount(field, requests(container.resources.as_ref()))
            .unwrap_or_default()
    }

    fn amount(
        &mut self,
        field: impl Fn() -> String,
        amounts: Option<&BTreeMap<String, Quantity>>,
    ) -> Option<u64> {
        let quantity = amounts?.get(self.resource)?;
        let (needed, counted) = match (self.read)(quantity) {
            None => (Needed::Quantity, None),
            Some(COUNTABLE..) => (Needed::SmallerQuantity, Some(0)),
            Some(amount) => return Some(amount),
        };
        let field = format!("{}.{}", field(), self.resource);
        self.not_understood
            .push(super::not_understood(field, &quantity.0, needed));
        counted
    }
}

fn requests(resources: Option<&ResourceRequirements>) -> Option<&BTreeMap<String, Quantity>> {
    resources?.requests.as_ref()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn from(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_field() {
        let found = pod(&from(serde_json::json!({
            "metadata": {
                "namespace": "shop", "name": "web-1", "uid": "u1", "labels": {"app": "web"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "o"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o", "controller": true},
                ],
                "deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30,
            },
            "spec": {
                "nodeName": "a",
                "priorityClassName": "high",
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}],
                "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "token", "projected": {}}],
            },
            "status": {
                "phase": "Running",
                "podIP": "10.244.1.5",
                "podIPs": [{"ip": "10.244.1.5"}, {"ip": "fd00::5"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })));
        assert_eq!(found.key(), "shop/web-1");
        assert_eq!(
            found.controller,
            Some(("ReplicaSet".to_owned(), "web".to_owned()))
        );
        assert_eq!(found.deleted_at, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(found.empty_dirs, ["cache"]);
        assert_eq!((found.cpu_millis, found.memory_bytes), (250, 64 << 20));
        assert_eq!(found.addresses.len(), 2);
        assert!(found.ready && !found.finished && !found.mirror && !found.host_network);
        assert_eq!(
            (found.node.as_str(), found.priority_class.as_str()),
            ("a", "high")
        );
    }

    #[test]
    fn a_static_pod_has_the_node_as_its_controller() {
        let found = pod(&from(serde_json::json!({
            "metadata": {
                "namespace": "kube-system", "name": "etcd-a", "annotations": {"kubernetes.io/config.mirror": "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "o", "controller": true}],
            },
            "spec": {"hostNetwork": true, "containers": []},
            "status": {"phase": "Succeeded"},
        })));
        assert!(found.mirror && found.host_network && found.finished && !found.ready);
    }

    #[test]
    fn requests_as_the_scheduler_counts_them() {
        let container = |name: &str, cpu: &str| serde_json::json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let side_car = |name: &str, cpu: &str| {
            let mut value = container(name, cpu);
            value["restartPolicy"] = "Always".into();
            value
        };
        let cpu = |spec: serde_json::Value| {
            pod(&from(
                serde_json::json!({"metadata": {"name": "p"}, "spec": spec}),
            ))
            .cpu_millis
        };
        assert_eq!(
            cpu(serde_json::json!({"containers": [container("a", "100m"), container("b", "1")]})),
            1100
        );
        assert_eq!(
            cpu(serde_json::json!({
                "containers": [container("a", "100m")],
                "initContainers": [container("i", "2"), container("j", "1")],
            })),
            2000
        );
        assert_eq!(
            cpu(serde_json::json!({
                "containers": [container("a", "500m")],
                "initContainers": [side_car("s", "200m"), container("i", "400m")],
                "overhead": {"cpu": "10m"},
            })),
            710
        );
        assert_eq!(
            cpu(serde_json::json!({
                "containers": [container("a", "500m")],
                "resources": {"requests": {"cpu": "3"}},
            })),
            3000
        );
    }

    #[rstest]
    #[case::large("1P", 1_000_000_000_000_000_000, None)]
    #[case::peta("20P", 0, Some(Needed::SmallerQuantity))]
    #[case::exponent("1e99", 0, Some(Needed::SmallerQuantity))]
    #[case::exbi("16Ei", 0, Some(Needed::SmallerQuantity))]
    #[case::negative("-1", 0, Some(Needed::Quantity))]
    #[case::word("abc", 0, Some(Needed::Quantity))]
    #[case::empty("", 0, Some(Needed::Quantity))]
    #[case::unicode("\u{ff11}", 0, Some(Needed::Quantity))]
    fn an_unreadable_request_affects_that_request_only(
        #[case] text: &str,
        #[case] amount: u64,
        #[case] needed: Option<Needed>,
    ) {
        let of = |value: serde_json::Value| pod(&from(value));
        let request = json!({"cpu": text, "memory": "1Mi"});
        for (spec, field) in [
            (
                json!({"containers": [{"name": "c", "resources": {"requests": request}}]}),
                "container c: resources.requests.cpu",
            ),
            (
                json!({"containers": [], "initContainers": [{"name": "i", "resources": {"requests": request}}]}),
                "container i: resources.requests.cpu",
            ),
            (
                json!({"containers": [], "resources": {"requests": request}}),
                "resources.requests.cpu",
            ),
            (json!({"containers": [], "overhead": request}), "overhead.cpu"),
        ] {
            let pod = of(json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"}, "spec": spec}));
            assert_eq!((pod.cpu_millis, pod.memory_bytes), (amount, 1 << 20), "{field}");
            assert_eq!((pod.key().as_str(), pod.uid.as_str()), ("n/p", "u"));
            let expected = needed.map(|needed| NotUnderstood {
                field: field.to_owned(),
                found: format!("{text:?}"),
                needed,
            });
            assert_eq!(pod.not_understood, Vec::from_iter(expected));
        }
    }

    #[test]
    fn an_uncountable_request_does_not_affect_others() {
        let container =
            |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let found = pod(&from(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [container("a", "20P"), container("b", "2")],
        }})));
        assert_eq!(found.cpu_millis, 2000);
    }

    #[rstest]
    #[case::no_quantity("abc", 2000)]
    #[case::more_than_the_scheduler_counts("20P", 0)]
    fn a_valid_pod_level_request_replaces_the_sum_of_containers(#[case] cpu: &str, #[case] millis: u64) {
        let found = pod(&from(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}], "resources": {"requests": {"cpu": cpu}},
        }})));
        assert_eq!(found.cpu_millis, millis);
    }

    #[test]
    fn sums_of_requests_saturate() {
        let container =
            |name: &str| json!({"name": name, "resources": {"requests": {"cpu": "9P", "memory": "7Ei"}}});
        let found = pod(&from(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [container("a"), container("b"), container("c")], "initContainers": [container("i")], "overhead": {"cpu": "9P"},
        }})));
        assert_eq!((found.cpu_millis, found.memory_bytes), (u64::MAX, u64::MAX));
    }

    #[rstest]
    #[case::not_said(None, 30)]
    #[case::said(Some(0), 0)]
    #[case::negative(Some(-1), 0)]
    #[case::without_an_end(Some(i64::from(i32::MAX)), 2_147_483_647)]
    #[case::the_largest(Some(i64::MAX), u32::MAX)]
    fn a_grace_period_saturates(#[case] said: Option<i64>, #[case] seconds: u32) {
        let spec = PodSpec {
            termination_grace_period_seconds: said,
            ..PodSpec::default()
        };
        assert_eq!(grace_seconds(Some(&spec)), seconds);
    }

    #[test]
    fn an_invalid_address_is_skipped_and_named() {
        let found = pod(&from(json!({
            "metadata": {"name": "p"}, "status": {"podIPs": [{"ip": "10.244.1.5"}, {"ip": "x"}]},
        })));
        assert_eq!(found.addresses, ["10.244.1.5".parse::<IpAddr>().unwrap()]);
        let [not_understood] = found.not_understood.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(
            (not_understood.field.as_str(), not_understood.needed),
            ("status.podIPs", Needed::Address)
        );
    }

    #[test]
    fn a_long_unreadable_value_is_shortened() {
        let text = "\u{e9}".repeat(5_000_000);
        let found = pod(&from(
            json!({"metadata": {"name": "p"}, "status": {"podIP": text}}),
        ));
        let told = &found.not_understood[0].found;
        assert!(
            told.len() < 256 && told.ends_with("… (10000000 bytes in total)"),
            "{told}"
        );
    }

    #[test]
    fn labels_above_the_limit_are_dropped_and_reported() {
        let labels: BTreeMap<String, String> = (0..20_000)
            .map(|number| (format!("key-{number:05}"), "v".repeat(40)))
            .collect();
        let found = pod(&from(json!({"metadata": {"name": "p", "labels": labels}})));
        let bytes: usize = found
            .labels
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        assert!(bytes <= LABEL_BYTES && bytes > LABEL_BYTES - 64, "{bytes}");
        assert_eq!(
            found.not_understood[0].to_string(),
            "metadata.labels: found 20000 labels, needed at most 16 KiB of labels"
        );
    }

    #[test]
    fn programs_count_in_kube_system_only() {
        let pod = |namespace: &str| {
            let argument = format!("--note={}", "x".repeat(100_000));
            from(json!({
                "metadata": {"namespace": namespace, "name": "kube-apiserver-a"},
                "spec": {"containers": [{"name": "c", "command": ["kube-apiserver", argument]}]},
            }))
        };
        assert_eq!(details(&pod("kube-system")).unwrap().programs.len(), 1);
        assert_eq!(details(&pod("shop")), None);
    }

    #[test]
    fn a_long_image_name_is_cut() {
        let found = details(&from(json!({
            "metadata": {"namespace": "shop", "name": "p"},
            "spec": {"containers": [{"name": NODE_CONTAINER, "image": "x".repeat(1_000_000)}]},
        })));
        assert_eq!(found.unwrap().calico_image.unwrap().len(), LONGEST);
    }

    #[test]
    fn budgets() {
        let found = budget(
            &serde_json::from_value(serde_json::json!({
                "metadata": {"namespace": "shop", "name": "web"},
                "spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {
                    "matchLabels": {"app": "web"},
                    "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
                }},
                "status": {"disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3},
            }))
            .unwrap(),
        );
        assert_eq!(
            (
                found.disruptions_allowed,
                found.desired_healthy,
                found.expected_pods
            ),
            (1, 2, 3)
        );
        assert!(found.always_allows_unhealthy);
        let labels = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let selector = found.selector.unwrap();
        assert!(selector.matches(&labels(&[("app", "web"), ("tier", "b")])));
        assert!(!selector.matches(&labels(&[("app", "web")])));
    }

    #[test]
    fn a_budget_without_selector_or_status_selects_nothing() {
        let found = budget(&serde_json::from_value(serde_json::json!({"metadata": {"name": "x"}})).unwrap());
        assert_eq!((found.selector, found.disruptions_allowed), (None, 0));
    }
}
