//! The pods that have to move or to restart: their order, and which of them are evicted now.
//!
//! Pods are moved by eviction, so `PodDisruptionBudget`s hold. Without a budget, a pod of a workload is evicted only while every
//! other pod of the workload is Ready.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use crate::decision::{Wait, WaitReason};
use crate::drain::{self, Budget, Permissions, Pod};
use crate::evict::{self, Leaving, Refusal};

/// The workload that recreates a pod, as users know it: the Deployment of a `ReplicaSet`, not the `ReplicaSet`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    /// Kind: Deployment, StatefulSet, DaemonSet, Job, …
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Workload {
    /// `Kind namespace/name`.
    pub fn key(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The role of a pod for other pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The coordinator itself.
    Coordinator,
    /// One of the cluster's name servers.
    NameServer,
    /// A backend of an admission webhook that fails closed.
    Admission,
    /// No known role.
    Any,
}

/// A pod with its workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident<'facts> {
    /// The pod.
    pub pod: &'facts Pod,
    /// Its workload; `None` when no controller recreates the pod.
    pub workload: Option<&'facts Workload>,
    /// The role of the pod for other pods.
    pub role: Role,
    /// Whether the pod was created after no new pod was to get an old address: an evicted pod would get an old address again.
    pub created_after_close: bool,
}

/// The facts of a workload that recreates pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadFacts {
    /// The number of pods that it has to have.
    pub wanted: usize,
    /// When it was created.
    pub made_at: Option<Timestamp>,
    /// Whether the controller replaces only deleted pods (`OnDelete`).
    pub on_delete: bool,
    /// How many of its pods may be unavailable at the same time: the `maxUnavailable` of a `DaemonSet`; 1 for other workloads.
    pub at_once: usize,
}

/// The state of a workload that existed before the first pod moved. No pod waits for a workload that was created later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The number of pods that it has to have now.
    pub wanted: usize,
    /// How many of its pods were not Ready before the first pod moved: as many may still be unready.
    pub unready_before_start: usize,
    /// How many of its pods may be unavailable at the same time; 0 counts as 1.
    pub at_once: usize,
    /// Whether the workload has lacked pods for so long that no other pod waits for it ([`crate::stalls`]).
    pub stalled: bool,
}

/// The order in which pods move: first the pods that others need, last the pods that have a number of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wave {
    /// The coordinator's own pod: the coordinator then uses the new network before other pods do.
    Coordinator,
    /// The cluster's name servers.
    NameServers,
    /// Backends of admission webhooks that fail closed: without them no new pod is admitted.
    Admission,
    /// Pods of `DaemonSet`s, node by node.
    DaemonSets,
    /// Pods of Deployments, `ReplicaSet`s and other controllers that create interchangeable pods.
    Stateless,
    /// Pods of `StatefulSet`s, the highest ordinal first.
    Stateful,
    /// Pods of Jobs: they complete without an eviction.
    Jobs,
    /// Pods without a controller.
    Bare,
}

impl Wave {
    /// Every wave, in order.
    pub const ALL: [Self; 8] = [
        Self::Coordinator,
        Self::NameServers,
        Self::Admission,
        Self::DaemonSets,
        Self::Stateless,
        Self::Stateful,
        Self::Jobs,
        Self::Bare,
    ];

    /// Whether its pods are evicted. The user moves the other pods: no data is lost, and no budget is used.
    pub fn is_evicted(self, delete_bare_pods: bool) -> bool {
        match self {
            Self::Jobs => false,
            Self::Bare => delete_bare_pods,
            Self::Coordinator
            | Self::NameServers
            | Self::Admission
            | Self::DaemonSets
            | Self::Stateless
            | Self::Stateful => true,
        }
    }

    /// Whether all later waves need its pods and wait for them.
    pub fn is_needed(self) -> bool {
        self <= Self::Admission
    }

    /// The wave of this pod.
    pub fn of(resident: &Resident<'_>) -> Self {
        match resident.role {
            Role::Coordinator => return Self::Coordinator,
            Role::NameServer => return Self::NameServers,
            Role::Admission => return Self::Admission,
            Role::Any => {}
        }
        match resident.workload.map(|workload| workload.kind.as_str()) {
            None => Self::Bare,
            Some("DaemonSet") => Self::DaemonSets,
            Some("StatefulSet") => Self::Stateful,
            Some("Job" | "CronJob") => Self::Jobs,
            Some(_) => Self::Stateless,
        }
    }

    /// The wave, for messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Coordinator => "the coordinator",
            Self::NameServers => "name servers",
            Self::Admission => "admission webhooks",
            Self::DaemonSets => "pods of DaemonSets",
            Self::Stateless => "pods of Deployments",
            Self::Stateful => "pods of StatefulSets",
            Self::Jobs => "pods of Jobs",
            Self::Bare => "pods without a controller",
        }
    }
}

/// The facts that the moves depend on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Every pod of the cluster.
    pub residents: &'facts [Resident<'facts>],
    /// Which of them have to move.
    pub movers: Movers<'facts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// Workloads that existed before the first pod moved.
    pub workloads: &'facts BTreeMap<Workload, Health>,
    /// Nodes whose pods may move now; `None` for all nodes.
    pub only: Option<&'facts BTreeSet<&'facts str>>,
}

/// Limits and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many pods may be moving at the same time.
    pub pods_at_once: usize,
    /// What the user allows an eviction to destroy.
    pub permissions: Permissions,
    /// Whether pods without a controller are evicted.
    pub delete_bare_pods: bool,
}

impl Policy {
    fn evicts(&self) -> Permissions {
        Permissions {
            force: self.permissions.force || self.delete_bare_pods,
            ..self.permissions
        }
    }
}

/// Which pods have to move.
#[derive(Clone, Copy, Debug)]
pub enum Movers<'facts> {
    /// Pods with an address outside these ranges, in a family of these ranges. The ranges are those of every pool that stays: the
    /// target pool, and pools that the migration does not touch.
    OutOf(&'facts [IpNet]),
    /// Pods with an address in this range, the source range: while the range of a pool that stays is not known, a pod with
    /// another address may be of that pool.
    Within(&'facts IpNet),
    /// Pods that started with an old address of a Service, by UID.
    StartedWithOldAddress(&'facts BTreeSet<String>),
}

impl Movers<'_> {
    /// Whether this pod has to move.
    pub fn has(self, pod: &Pod) -> bool {
        self.counts(pod)
            && match self {
                Self::OutOf(targets) => is_out_of(pod, targets),
                Self::Within(range) => pod.addresses.iter().any(|address| range.contains(address)),
                Self::StartedWithOldAddress(uids) => uids.contains(&pod.uid),
            }
    }

    /// Whether this pod counts among the pods of its workload that have to be Ready.
    fn counts(self, pod: &Pod) -> bool {
        match self {
            Self::OutOf(_) | Self::Within(_) => pod.uses_pod_network() && !pod.mirror,
            // A hostNetwork pod starts with addresses of Services, too.
            Self::StartedWithOldAddress(_) => !pod.finished && !pod.mirror,
        }
    }

    /// The source that the pods leave, for messages.
    fn place(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "the old range",
            Self::StartedWithOldAddress(_) => "old Service addresses",
        }
    }

    /// Why the pods have to move, for messages.
    fn matter(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "have addresses of the old range",
            Self::StartedWithOldAddress(_) => "have started with addresses of the old range",
        }
    }

    /// The spec field that allows to delete bare pods.
    fn field(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "podCidr.deleteBarePods",
            Self::StartedWithOldAddress(_) => "serviceCidr.deleteBarePods",
        }
    }
}

fn is_out_of(pod: &Pod, targets: &[IpNet]) -> bool {
    let of_a_family = |address: &std::net::IpAddr| {
        targets
            .iter()
            .any(|target| target.addr().is_ipv4() == address.is_ipv4())
    };
    let in_target = |address: &std::net::IpAddr| targets.iter().any(|target| target.contains(address));
    let mut addresses = pod.addresses.iter();
    addresses.any(|address| of_a_family(address) && !in_target(address))
}

/// The pods that still have to move, by wave.
pub fn remaining_pods<'facts>(
    residents: &'facts [Resident<'facts>],
    movers: Movers<'_>,
) -> BTreeMap<Wave, Vec<&'facts Resident<'facts>>> {
    let mut remaining: BTreeMap<Wave, Vec<&Resident<'_>>> = BTreeMap::new();
    for resident in residents {
        if movers.has(resident.pod) {
            remaining.entry(Wave::of(resident)).or_default().push(resident);
        }
    }
    for (wave, residents) in &mut remaining {
        residents.sort_by(|left, right| order(*wave, left).cmp(&order(*wave, right)));
    }
    remaining
}

/// By workload; within a `StatefulSet` the highest ordinal first, as the StatefulSet controller does.
fn order<'facts>(
    wave: Wave,
    resident: &'facts Resident<'_>,
) -> (Option<&'facts Workload>, std::cmp::Reverse<u64>, &'facts str) {
    let ordinal = resident
        .pod
        .name
        .rsplit_once('-')
        .and_then(|(_, ordinal)| ordinal.parse().ok())
        .filter(|_| wave == Wave::Stateful)
        .unwrap_or_default();
    (
        resident.workload,
        std::cmp::Reverse(ordinal),
        resident.pod.name.as_str(),
    )
}

/// For this time a refused eviction delays the later waves. A budget that is used up by other pods of the workload allows the
/// next disruption sooner.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// The next action; `None` once no pod has to move. A pod that cannot be evicted, or a workload that does not become Ready
/// ([`Health::stalled`]), delays no other pod: it is reported once no other pod can move.
pub fn next(view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<evict::Next> {
    let mut remaining = remaining_pods(view.residents, view.movers);
    if let Some(nodes) = view.only {
        for residents in remaining.values_mut() {
            residents.retain(|resident| nodes.contains(resident.pod.node.as_str()));
        }
        remaining.retain(|_, residents| !residents.is_empty());
    }
    let count: usize = remaining.values().map(Vec::len).sum();
    let first = remaining.values().flatten().next()?;
    let health = health(view, now);
    let slots = policy.pods_at_once.max(1).saturating_sub(health.slots());
    let (mut again, mut deferred) = (Vec::new(), None);
    for (wave, pods) in &remaining {
        if pods.iter().all(|resident| resident.pod.deleted_at.is_some()) {
            continue;
        }
        // Moved pods of earlier waves are Ready before pods of this wave move.
        if let Some(first) = health.holding().find(|lacking| lacking.wave < *wave) {
            return Some(evict::Next::Wait(first.wait(&health)));
        }
        match decide_wave(*wave, pods, &health, slots, view, policy, now) {
            Turn::Asked(mut pods) => {
                // Refused evictions are tried again in free slots.
                pods.extend(again);
                pods.truncate(slots.max(1));
                return ask(&pods, view, policy, now);
            }
            Turn::Waits(blocker) => return Some(evict::Next::Wait(blocker)),
            Turn::Held { due, blocker } => {
                again.extend(due);
                deferred = deferred.or(Some(blocker));
            }
        }
    }
    if !again.is_empty() {
        again.truncate(slots.max(1));
        return ask(&again, view, policy, now);
    }
    let terminate = || {
        let message = format!("pods terminating: {count}; the first is {}", first.pod.key());
        wait(WaitReason::PodsTerminating, message)
    };
    Some(deferred.map_or_else(terminate, evict::Next::Wait))
}

/// The decision for the pods of one wave.
enum Turn<'facts> {
    /// These pods are evicted.
    Asked(Vec<&'facts Pod>),
    /// This wait, and later waves wait, too.
    Waits(Wait),
    /// No pod can move, and later waves do not wait for that. Pods that are due have been refused for long and are tried again.
    Held { due: Vec<&'facts Pod>, blocker: Wait },
}

fn decide_wave<'facts>(
    wave: Wave,
    pods: &[&Resident<'facts>],
    health: &HealthNow<'facts>,
    slots: usize,
    view: &View<'facts>,
    policy: &Policy,
    now: Timestamp,
) -> Turn<'facts> {
    let (evictable, kept): (Vec<&Resident<'_>>, Vec<&Resident<'_>>) = pods
        .iter()
        .copied()
        .partition(|resident| is_evictable(wave, resident, policy));
    let chosen = choose_pods(wave, &evictable, &health.busy, view.workloads);
    let permissions = policy.evicts();
    let is_due = |pod: &&Pod| {
        let refusal = view.refusals.get(&pod.uid);
        drain::obstacle(pod, permissions).is_none() && refusal.is_none_or(|refusal| refusal.next_try <= now)
    };
    let (held, free): (Vec<&Pod>, Vec<&Pod>) = chosen
        .into_iter()
        .partition(|pod| is_held(pod, view, policy, now));
    let (mut go, refused): (Vec<&Pod>, Vec<&Pod>) = free.into_iter().partition(is_due);
    // Pods that were refused a moment ago take no slot of other pods.
    go.sort_by_key(|pod| view.refusals.contains_key(&pod.uid));
    if !go.is_empty() && slots > 0 {
        return Turn::Asked(go.into_iter().take(slots).collect());
    }
    if let Some(first) = health.holding().next() {
        return Turn::Waits(first.wait(health));
    }
    let words = |pods: &[&Pod]| match evict::next(&leaving(pods, view, permissions, true), now) {
        Some(evict::Next::Wait(blocker)) => Some(blocker),
        Some(evict::Next::Evict(_)) | None => None,
    };
    if let Some(blocker) = words(&refused) {
        return Turn::Waits(blocker);
    }
    let blocker = describe_kept(wave, &kept, view.movers, policy).or_else(|| words(&held));
    let is_first = |resident: &&&Resident<'_>| resident.pod.deleted_at.is_none();
    let others = || {
        let first = evictable
            .iter()
            .find(is_first)
            .map_or_else(String::new, |first| first.pod.key());
        let message = format!(
            "pods to move: {}; the first is {first}; other pods of their workloads are not Ready",
            evictable.len()
        );
        waits(WaitReason::MovedPodsNotReady, message)
    };
    let blocker = blocker.unwrap_or_else(others);
    let due: Vec<&Pod> = held.into_iter().filter(is_due).collect();
    match (wave.is_needed(), due.is_empty()) {
        (true, true) => Turn::Waits(blocker),
        (true, false) => Turn::Asked(due),
        (false, _) => Turn::Held { due, blocker },
    }
}

/// Whether the migration cannot make this pod move: the pod may not be evicted, or the eviction has been refused for long.
fn is_held(pod: &Pod, view: &View<'_>, policy: &Policy, now: Timestamp) -> bool {
    let refusal = view.refusals.get(&pod.uid);
    drain::obstacle(pod, policy.evicts()).is_some()
        || refusal.is_some_and(|refusal| now.duration_since(refusal.since) >= PATIENCE)
}

/// Whether the migration evicts this pod: a controller recreates it, and the new pod gets a new address.
fn is_evictable(wave: Wave, resident: &Resident<'_>, policy: &Policy) -> bool {
    wave.is_evicted(policy.delete_bare_pods) && !resident.created_after_close
}

/// Whether no other pod waits for this pod, which still has to move.
pub fn delays_no_other_pod(
    wave: Wave,
    resident: &Resident<'_>,
    view: &View<'_>,
    policy: &Policy,
    now: Timestamp,
) -> bool {
    // No pod of a workload moves while another pod of the workload is not Ready.
    let is_given_up = || {
        let known = resident
            .workload
            .and_then(|workload| view.workloads.get(workload));
        known.is_some_and(|known| known.stalled)
    };
    let is_stuck = || {
        terminates_too_long(resident.pod, now) || is_given_up() || is_held(resident.pod, view, policy, now)
    };
    !is_evictable(wave, resident, policy) || (!wave.is_needed() && is_stuck())
}

/// A pod that has been terminating for this time delays no other pod: its owner decides when it ends, by grace period and
/// finalizers.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// Whether a pod has been terminating for longer than other pods wait for it.
fn terminates_too_long(pod: &Pod, now: Timestamp) -> bool {
    pod.deleted_at
        .is_some_and(|began| now.duration_since(began) >= ENDS_WITHIN)
}

fn leaving<'facts>(
    pods: &'facts [&'facts Pod],
    view: &View<'facts>,
    permissions: Permissions,
    overdue: bool,
) -> Leaving<'facts> {
    Leaving {
        place: view.movers.place(),
        pods,
        terminating: &[],
        static_pods: &[],
        budgets: view.budgets,
        refusals: view.refusals,
        permissions,
        grace_period_seconds: None,
        overdue,
    }
}

fn ask(pods: &[&Pod], view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<evict::Next> {
    evict::next(&leaving(pods, view, policy.evicts(), false), now)
}

/// Moved pods that are not Ready again.
#[derive(Clone, Debug)]
pub struct MovedNotReady {
    /// Why other pods wait: the first of these pods.
    pub wait: Wait,
    /// Whether one of these pods is unschedulable.
    pub finds_no_node: bool,
}

/// The moved pods that are not Ready again; `None` when all are Ready, or no pod waits for them.
pub fn moved_not_ready(view: &View<'_>, now: Timestamp) -> Option<MovedNotReady> {
    let health = health(view, now);
    let first = health.holding().next()?;
    Some(MovedNotReady {
        wait: first.wait(&health),
        finds_no_node: health.holding().any(|lacking| lacking.unschedulable),
    })
}

/// Workloads with moved pods that are not Ready again or do not exist, each with the first such pod.
pub fn workloads_not_ready<'facts>(
    view: &View<'facts>,
    now: Timestamp,
) -> Vec<(&'facts Workload, Wave, String)> {
    let lacking = health(view, now).lacking.into_iter();
    lacking
        .filter_map(|lacking| Some((lacking.workload?, lacking.wave, lacking.what)))
        .collect()
}

fn waits(reason: WaitReason, message: String) -> Wait {
    Wait {
        reason,
        message,
        until: None,
    }
}

fn wait(reason: WaitReason, message: String) -> evict::Next {
    evict::Next::Wait(waits(reason, message))
}

/// The pods that may move now: one of each workload, and only while every other pod of the workload is Ready. An unready pod
/// serves no traffic and does not wait, except in a `StatefulSet`, where other pods may need its data. Of a `DaemonSet`, as many
/// pods move as its `maxUnavailable` allows, including those that are unavailable already, and none from a node where another pod
/// of it is moving.
fn choose_pods<'facts>(
    wave: Wave,
    pods: &[&Resident<'facts>],
    busy: &BTreeMap<&Workload, usize>,
    workloads: &BTreeMap<Workload, Health>,
) -> Vec<&'facts Pod> {
    let at_once = |workload: &Workload| {
        let known = workloads.get(workload).filter(|_| wave == Wave::DaemonSets);
        known.map_or(1, |known| known.at_once.max(1))
    };
    let mut taken: BTreeMap<&Workload, usize> = BTreeMap::new();
    let mut busy_nodes: BTreeSet<(&Workload, &str)> = pods
        .iter()
        .filter(|resident| wave == Wave::DaemonSets && resident.pod.deleted_at.is_some())
        .filter_map(|resident| Some((resident.workload?, resident.pod.node.as_str())))
        .collect();
    let mut chosen = Vec::new();
    for resident in pods {
        let pod = resident.pod;
        if pod.deleted_at.is_some() {
            continue;
        }
        if let Some(workload) = resident.workload {
            let away = busy.get(workload).copied();
            let taken = taken.entry(workload).or_default();
            let of_others = away.filter(|_| pod.ready).unwrap_or_default();
            let is_full = *taken + of_others >= at_once(workload);
            if is_full && (pod.ready || wave == Wave::Stateful) {
                continue;
            }
            if wave == Wave::DaemonSets && !busy_nodes.insert((workload, &pod.node)) {
                continue;
            }
            // A pod that is not Ready is already counted as unavailable.
            if pod.ready || wave == Wave::Stateful || away.is_none() {
                *taken += 1;
            }
        }
        chosen.push(pod);
    }
    chosen
}

/// The wait for pods that the migration does not evict, with the fix.
fn describe_kept(wave: Wave, pods: &[&Resident<'_>], movers: Movers<'_>, policy: &Policy) -> Option<Wait> {
    if let Some(again) = pods.iter().find(|resident| resident.created_after_close) {
        let key = again.pod.key();
        return Some(refused(match movers {
            Movers::OutOf(_) | Movers::Within(_) => format!(
                "pod {key} was created after the old pool was closed, and still has an address of it: a new pod would get one, \
                 too. Check the annotations `cni.projectcalico.org/ipAddrs` and `…/ipv4pools` of the pod and of its namespace"
            ),
            Movers::StartedWithOldAddress(_) => format!(
                "pod {key} was created after every Service had its new address, and still started with an old one: a new pod \
                 would, too. The address is in its own manifest, in the environment or dnsConfig: change it there"
            ),
        }));
    }
    let matter = movers.matter();
    let first = pods.first()?;
    match wave {
        Wave::Jobs => Some(refused(format!(
            "pods of Jobs {matter} and are not evicted: {}; the first is {}. Wait until the Jobs complete, or delete the pods",
            pods.len(),
            first.pod.key()
        ))),
        Wave::Bare if !policy.delete_bare_pods => Some(refused(format!(
            "pods {matter} and have no controller to recreate them: {}; the first is {}. Delete the pods, or set {}",
            pods.len(),
            first.pod.key(),
            movers.field()
        ))),
        Wave::Bare
        | Wave::Coordinator
        | Wave::NameServers
        | Wave::Admission
        | Wave::DaemonSets
        | Wave::Stateless
        | Wave::Stateful => None,
    }
}

fn refused(message: String) -> Wait {
    waits(WaitReason::EvictionRefused, message)
}

/// Pods of one workload that other pods wait for: pods that are not Ready again, or do not exist yet.
struct Lacking<'facts> {
    wave: Wave,
    /// `None` for a terminating pod without a controller.
    workload: Option<&'facts Workload>,
    /// The number of these pods.
    count: usize,
    /// How many of the pods that may move at the same time these are. A workload takes at most as many slots as pods of it may
    /// move at once, whatever its number of replicas is.
    slots: usize,
    /// The state of the first of these pods.
    what: String,
    /// Whether one of these pods is unschedulable.
    unschedulable: bool,
    /// Whether no other pod waits for these pods.
    stalled: bool,
}

impl Lacking<'_> {
    fn wait(&self, health: &HealthNow<'_>) -> Wait {
        let whose = self
            .workload
            .map_or_else(|| "without a controller".to_owned(), Workload::key);
        let count = health.holding().map(|lacking| lacking.count).sum::<usize>();
        let message = format!("moved pods not Ready: {count}; the first: {whose}, {}", self.what);
        waits(WaitReason::MovedPodsNotReady, message)
    }
}

/// The state of the workloads.
struct HealthNow<'facts> {
    /// Workloads with pods that are not Ready or do not exist, in any range: the number of these pods.
    busy: BTreeMap<&'facts Workload, usize>,
    /// Moved pods that are not Ready again, in the order of the waves.
    lacking: Vec<Lacking<'facts>>,
}

impl<'facts> HealthNow<'facts> {
    /// The pods that other pods wait for.
    fn holding(&self) -> impl Iterator<Item = &Lacking<'facts>> {
        self.lacking.iter().filter(|lacking| !lacking.stalled)
    }

    /// How many of the pods that may move at the same time are moving.
    fn slots(&self) -> usize {
        self.holding().map(|lacking| lacking.slots).sum()
    }
}

fn health<'facts>(view: &View<'facts>, now: Timestamp) -> HealthNow<'facts> {
    let mut busy = BTreeMap::new();
    let mut lacking = Vec::new();
    let mut of_workload: BTreeMap<&Workload, Vec<&Resident<'_>>> = BTreeMap::new();
    for resident in view.residents {
        if !view.movers.counts(resident.pod) {
            continue;
        }
        match resident.workload {
            Some(_) if terminates_too_long(resident.pod, now) => {}
            Some(workload) => of_workload.entry(workload).or_default().push(resident),
            None if resident.pod.deleted_at.is_some() && view.movers.has(resident.pod) => {
                lacking.push(Lacking {
                    wave: Wave::of(resident),
                    workload: None,
                    count: 1,
                    slots: 1,
                    what: format!("pod {} terminates", resident.pod.key()),
                    unschedulable: false,
                    stalled: terminates_too_long(resident.pod, now),
                });
            }
            None => {}
        }
    }
    for (workload, pods) in of_workload {
        let wave = pods
            .iter()
            .map(|pod| Wave::of(pod))
            .min()
            .unwrap_or(Wave::Stateless);
        let there = pods.iter().filter(|pod| pod.pod.deleted_at.is_none()).count();
        let ready = pods
            .iter()
            .filter(|pod| pod.pod.deleted_at.is_none() && pod.pod.ready)
            .count();
        let known = view.workloads.get(workload);
        let missing = known.map_or(0, |known| known.wanted.saturating_sub(there));
        // A pod that was unready before does not delay the other pods of its workload.
        let as_unready_as_before = known.is_some_and(|known| {
            known.unready_before_start > 0
                && there == pods.len()
                && missing == 0
                && there - ready <= known.unready_before_start
        });
        if (ready < pods.len() || missing > 0) && !as_unready_as_before {
            busy.insert(workload, (pods.len() - ready).saturating_add(missing));
        }
        if let Some(known) = known.filter(|_| wave != Wave::Jobs) {
            lacking.extend(workload_lacking(view, workload, wave, &pods, known));
        }
    }
    lacking.sort_by(|left, right| (left.wave, left.workload).cmp(&(right.wave, right.workload)));
    HealthNow { busy, lacking }
}

/// The pods that a workload lacks; `None` when it lacks none.
fn workload_lacking<'facts>(
    view: &View<'facts>,
    workload: &'facts Workload,
    wave: Wave,
    pods: &[&Resident<'_>],
    known: &Health,
) -> Option<Lacking<'facts>> {
    let unready = |resident: &&&Resident<'_>| {
        let pod = resident.pod;
        pod.deleted_at.is_none() && !pod.ready && !view.movers.has(pod)
    };
    // As many pods as were unready before the first move may still be unready.
    let unready: Vec<&Pod> = pods
        .iter()
        .filter(unready)
        .skip(known.unready_before_start)
        .map(|resident| resident.pod)
        .collect();
    let terminating = pods
        .iter()
        .filter(|resident| resident.pod.deleted_at.is_some())
        .count();
    let there = pods.len() - terminating;
    let missing = known.wanted.saturating_sub(there);
    let what = match unready.first() {
        Some(first) if first.unschedulable => {
            format!(
                "pod {} is not Ready: the scheduler finds no node for it",
                first.key()
            )
        }
        Some(first) => format!("pod {} is not Ready", first.key()),
        None if missing > 0 => format!("{there} of {} pods exist", known.wanted),
        None => return None,
    };
    Some(Lacking {
        wave,
        workload: Some(workload),
        count: unready.len().saturating_add(missing),
        slots: unready.len() + missing.min(known.at_once.max(1).max(terminating)),
        what,
        unschedulable: unready.iter().any(|pod| pod.unschedulable),
        stalled: known.stalled,
    })
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
