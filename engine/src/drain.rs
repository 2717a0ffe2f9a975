//! Which pods have to leave a node, in which order, and what blocks them.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::cluster::NotUnderstood;
use crate::labels::Labels;
use crate::pods::Pods;

/// A pod, as far as a drain needs it.
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
    /// Node that it is bound to; empty when pending.
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
    /// The scheduler has looked, and found no node that takes it.
    pub unschedulable: bool,
    /// When it was made.
    pub made_at: Option<Timestamp>,
    /// When it began to terminate.
    pub deleted_at: Option<Timestamp>,
    /// `deletionGracePeriodSeconds` of a terminating pod.
    pub deletion_grace_seconds: Option<i64>,
    /// `terminationGracePeriodSeconds`: how long it may take to end.
    pub grace_seconds: u32,
    /// Its addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// Names of emptyDir volumes.
    pub empty_dirs: Vec<String>,
    /// Requested CPU in millicores. What is not understood of it counts as nothing.
    pub cpu_millis: u64,
    /// Requested memory in bytes. What is not understood of it counts as nothing.
    pub memory_bytes: u64,
    /// Priority class name.
    pub priority_class: String,
    /// What its fields say that was not understood.
    pub not_understood: Vec<NotUnderstood>,
}

impl Pod {
    /// Whether a kubelet runs it of a manifest. The annotation alone, which a tenant may write, makes none run it: it has no address then.
    pub fn is_static(&self) -> bool {
        self.mirror && !self.addresses.is_empty()
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether a `DaemonSet` owns it.
    pub fn of_daemon_set(&self) -> bool {
        matches!(&self.controller, Some((kind, _)) if kind == "DaemonSet")
    }

    /// Whether it has a network namespace of its own that a change of the pod network takes away.
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
    /// `spec.unhealthyPodEvictionPolicy` is `AlwaysAllow`: a pod that is not Ready may go in any case.
    pub lets_unhealthy_go: bool,
}

impl Budget {
    /// Whether a pod of it that is not Ready is let go, as the API server decides it (`registry/core/pod/storage/eviction.go`).
    pub fn lets_go_unready(&self) -> bool {
        let is_healthy = self.desired_healthy > 0 && self.current_healthy >= self.desired_healthy;
        self.disruptions_allowed > 0 || self.lets_unhealthy_go || is_healthy
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

/// No longer selector is kept, in bytes. Each term of one costs its object some, and an object may have 1.5 MiB.
const LONGEST_SELECTOR: usize = 16 * 1024;
/// The operator of a selector that is too long to be kept: as an unknown one it satisfies nothing.
const TOO_LONG: &str = "TooLong";

impl Selector {
    /// This selector, or one that is [`Self::is_too_long`] in its place.
    #[must_use]
    pub fn kept(self) -> Self {
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

    /// Whether what it was is too long to be kept: whom it selects is not known.
    pub fn is_too_long(&self) -> bool {
        matches!(self.match_expressions.as_slice(), [(_, operator, _)] if operator == TOO_LONG)
    }

    /// Whether the labels satisfy every term. An unknown operator satisfies nothing.
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

/// What the user allows a drain to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Pods with emptyDir volumes may be evicted: their data is lost.
    pub delete_empty_dir_data: bool,
    /// Pods without a controller may be evicted: nobody creates them again.
    pub force: bool,
}

/// Why a pod may not be evicted by the drain's own rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No controller would create it again.
    Bare,
    /// Its emptyDir volumes (names) would be lost.
    EmptyDir(Vec<String>),
    /// A static pod: the kubelet owns it, the API cannot evict it.
    Static,
}

/// What stands in the way of evicting this pod, with these permissions.
///
/// Static pods on the pod network can never be evicted; whoever owns the node's manifest folder moves them.
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
    /// To be evicted first: everything that is created elsewhere once the node is cordoned.
    pub movable: Vec<&'pods Pod>,
    /// To be evicted once new pods are held: `DaemonSet` pods, which come back on the same node.
    pub daemon_set: Vec<&'pods Pod>,
    /// Terminating already.
    pub terminating: Vec<&'pods Pod>,
    /// Static pods on the pod network.
    pub static_pods: Vec<&'pods Pod>,
}

/// The pods of each node. Who asks for every node asks once.
pub fn by_node(pods: &Pods) -> BTreeMap<&str, Vec<&Pod>> {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    by_node
}

/// Sorts the pods of a node. Order within each list is by namespace and name, so that two looks agree.
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
