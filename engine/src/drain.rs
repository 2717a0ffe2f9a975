//! The pods that have to leave a node, their order, and the obstacles to their eviction.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::cluster::NotUnderstood;
use crate::labels::Labels;
use crate::ports::ContainerPort;

/// A pod, with the fields that a drain needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about one object"
)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID: a pod of the same name elsewhere is another pod (R5).
    pub uid: String,
    /// Node that the pod is bound to; empty when pending.
    pub node: String,
    /// Labels.
    pub labels: Labels,
    /// `hostNetwork`.
    pub host_network: bool,
    /// Kind and name of its controller, if any.
    pub controller: Option<(String, String)>,
    /// A static pod's mirror (annotation `kubernetes.io/config.mirror`).
    pub mirror: bool,
    /// Phase Pending.
    pub pending: bool,
    /// Phase Succeeded or Failed.
    pub finished: bool,
    /// Condition Ready is True.
    pub ready: bool,
    /// Condition `PodScheduled` is False with reason Unschedulable.
    pub unschedulable: bool,
    /// Creation time.
    pub made_at: Option<Timestamp>,
    /// Time of the deletion request of a terminating pod.
    pub deleted_at: Option<Timestamp>,
    /// `deletionGracePeriodSeconds` of a terminating pod.
    pub deletion_grace_seconds: Option<i64>,
    /// `terminationGracePeriodSeconds`.
    pub grace_seconds: u32,
    /// Its addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// Ports that its containers declare, which policies may name. A clone shares them.
    pub ports: Arc<[ContainerPort]>,
    /// Names of emptyDir volumes.
    pub empty_dirs: Vec<String>,
    /// Requested CPU in millicores. Values that are not understood count as 0.
    pub cpu_millis: u64,
    /// Requested memory in bytes. Values that are not understood count as 0.
    pub memory_bytes: u64,
    /// Priority class name.
    pub priority_class: String,
    /// Fields that were not understood.
    pub not_understood: Vec<NotUnderstood>,
}

impl Pod {
    /// Whether a kubelet runs the pod from a manifest. The annotation alone, which a tenant may write, does not start a pod: such
    /// a pod has no address.
    pub fn is_static(&self) -> bool {
        self.mirror && !self.addresses.is_empty()
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether a `DaemonSet` owns the pod.
    pub fn of_daemon_set(&self) -> bool {
        matches!(&self.controller, Some((kind, _)) if kind == "DaemonSet")
    }

    /// Whether the pod runs with a network namespace of its own, which a change of the pod network replaces.
    pub fn uses_pod_network(&self) -> bool {
        !self.host_network && !self.finished
    }
}

/// A `PodDisruptionBudget`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `spec.selector`; `None` selects nothing.
    pub selector: Option<Selector>,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// `status.currentHealthy`.
    pub current_healthy: i32,
    /// `status.desiredHealthy`.
    pub desired_healthy: i32,
    /// `status.expectedPods`.
    pub expected_pods: i32,
    /// `spec.unhealthyPodEvictionPolicy` is `AlwaysAllow`: an unready pod may always be evicted.
    pub always_allows_unhealthy: bool,
}

impl Budget {
    /// Whether the API server evicts an unready pod of this budget (`registry/core/pod/storage/eviction.go`).
    pub fn allows_unready(&self) -> bool {
        let is_healthy = self.desired_healthy > 0 && self.current_healthy >= self.desired_healthy;
        self.disruptions_allowed > 0 || self.always_allows_unhealthy || is_healthy
    }
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// `matchLabels`.
    pub match_labels: BTreeMap<String, String>,
    /// `matchExpressions`: key, operator, values.
    pub match_expressions: Vec<(String, String, Vec<String>)>,
}

/// The longest selector that is kept, in bytes: an object may have 1.5 MiB, and each term takes memory.
const LONGEST_SELECTOR: usize = 16 * 1024;
/// The operator of a selector that is too long to be kept. Like any unknown operator, it matches no pod.
const TOO_LONG: &str = "TooLong";

impl Selector {
    /// This selector, or a placeholder that [`Self::is_too_long`] recognizes.
    #[must_use]
    pub fn limited(self) -> Self {
        let of_labels = self
            .match_labels
            .iter()
            .map(|(key, value)| key.len() + value.len());
        let of_terms = self.match_expressions.iter().map(|(key, operator, values)| {
            let of_values: usize = values.iter().map(|value| value.len() + 1).sum();
            key.len() + operator.len() + of_values
        });
        let bytes: usize = of_labels.chain(of_terms).sum();
        if bytes <= LONGEST_SELECTOR {
            return self;
        }
        Self {
            match_labels: BTreeMap::new(),
            match_expressions: vec![(String::new(), TOO_LONG.to_owned(), Vec::new())],
        }
    }

    /// Whether the selector was too long to be kept: the selected pods are not known.
    pub fn is_too_long(&self) -> bool {
        matches!(self.match_expressions.as_slice(), [(_, operator, _)] if operator == TOO_LONG)
    }

    /// Whether the labels match every term. An unknown operator matches no labels.
    ///
    /// # Examples
    ///
    /// ```
    /// use engine::drain::Selector;
    ///
    /// let selector = Selector {
    ///     match_labels: [("app".to_owned(), "web".to_owned())].into(),
    ///     ..Selector::default()
    /// };
    /// let labels = |value: &str| [("app".to_owned(), value.to_owned())].into_iter().collect();
    /// assert!(selector.matches(&labels("web")));
    /// assert!(!selector.matches(&labels("db")));
    /// ```
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value.as_str()))
            && self
                .match_expressions
                .iter()
                .all(|(key, operator, values)| match operator.as_str() {
                    "In" => labels.get(key).is_some_and(|value| is_among(value, values)),
                    "NotIn" => labels.get(key).is_none_or(|value| !is_among(value, values)),
                    "Exists" => labels.contains_key(key),
                    "DoesNotExist" => !labels.contains_key(key),
                    _ => false,
                })
    }
}

fn is_among(value: &str, values: &[String]) -> bool {
    values.iter().any(|known| known == value)
}

/// The data loss that the user allows in a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Pods with emptyDir volumes may be evicted: their data is lost.
    pub delete_empty_dir_data: bool,
    /// Pods without a controller may be evicted: they are not recreated.
    pub force: bool,
}

/// The rule of the drain that forbids the eviction of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No controller recreates the pod.
    Bare,
    /// The data in these emptyDir volumes would be lost.
    EmptyDir(Vec<String>),
    /// A static pod: the kubelet owns the pod, so the API cannot evict it.
    Static,
}

/// The obstacle to the eviction of this pod, with these permissions.
///
/// Static pods on the pod network can never be evicted; the user moves their manifests out of the kubelet's folder.
pub fn obstacle(pod: &Pod, permissions: Permissions) -> Option<Obstacle> {
    if pod.is_static() {
        return Some(Obstacle::Static);
    }
    if pod.controller.is_none() && !permissions.force {
        return Some(Obstacle::Bare);
    }
    if !pod.empty_dirs.is_empty() && !permissions.delete_empty_dir_data {
        return Some(Obstacle::EmptyDir(pod.empty_dirs.clone()));
    }
    None
}

/// Pods of one node, sorted by what a drain does with them. Finished pods and hostNetwork pods are in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residents<'pods> {
    /// Evicted first: pods that are recreated on other nodes once the node is cordoned.
    pub movable: Vec<&'pods Pod>,
    /// Evicted once new pods are held: `DaemonSet` pods, which are recreated on the same node.
    pub daemon_set: Vec<&'pods Pod>,
    /// Already terminating.
    pub terminating: Vec<&'pods Pod>,
    /// Static pods on the pod network.
    pub static_pods: Vec<&'pods Pod>,
}

/// Sorts the pods of a node. Each list is ordered by namespace and name, so that all passes agree.
pub fn residents<'pods>(pods: impl IntoIterator<Item = &'pods Pod>, node: &str) -> Residents<'pods> {
    let mut residents = Residents::default();
    let mut here: Vec<&Pod> = pods
        .into_iter()
        .filter(|pod| pod.node == node && pod.uses_pod_network())
        .filter(|pod| !pod.mirror || pod.is_static())
        .collect();
    here.sort_by(|left, right| (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name)));
    for pod in here {
        if pod.is_static() {
            residents.static_pods.push(pod);
        } else if pod.deleted_at.is_some() {
            residents.terminating.push(pod);
        } else if pod.of_daemon_set() {
            residents.daemon_set.push(pod);
        } else {
            residents.movable.push(pod);
        }
    }
    residents
}

/// Budgets that select the pod.
pub fn budgets_of<'budgets>(pod: &Pod, budgets: &'budgets [Budget]) -> Vec<&'budgets Budget> {
    budgets
        .iter()
        .filter(|budget| {
            budget.namespace == pod.namespace
                && budget
                    .selector
                    .as_ref()
                    .is_some_and(|selector| selector.matches(&pod.labels))
        })
        .collect()
}
