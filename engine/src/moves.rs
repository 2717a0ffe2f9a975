//! Which pods have to move, or to start again, in which order, and who may go now.
//!
//! A pod goes by eviction, so a `PodDisruptionBudget` holds; and where there is none, one of a workload goes only while every other
//! one of it is Ready.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use crate::decision::{Wait, WaitReason};
use crate::drain::{self, Budget, Permissions, Pod};
use crate::evict::{self, Leaving, Refusal};

/// Who makes a pod again once it is gone: what people know it by, a `ReplicaSet`'s Deployment and not the `ReplicaSet`.
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

/// What others need a pod for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is the coordinator itself.
    Coordinator,
    /// It is one of the cluster's name servers.
    NameServer,
    /// It stands behind an admission webhook that fails closed.
    Admission,
    /// Nobody knows.
    Any,
}

/// A pod with whoever makes it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident<'facts> {
    /// The pod.
    pub pod: &'facts Pod,
    /// Its workload; `None` when nobody makes it again.
    pub workload: Option<&'facts Workload>,
    /// What others need it for.
    pub role: Role,
    /// Whether it was made after nobody was to be given any more what it has to lose: whoever gave it that would give it again.
    pub made_since: bool,
}

/// A workload that makes pods again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadFacts {
    /// How many pods it has to have.
    pub wanted: usize,
    /// When it was made.
    pub made_at: Option<Timestamp>,
    /// Whether its controller replaces no pod by itself (`OnDelete`).
    pub on_delete: bool,
    /// How many of its pods may be away at the same time, where it says so: a `DaemonSet`'s `maxUnavailable`. Of another one it is 1.
    pub at_once: usize,
}

/// What is known of a workload that was there before the first pod moved. One that came later keeps nobody waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// How many pods it has to have now.
    pub wanted: usize,
    /// How many of them were not Ready before the first pod moved: so many may still not be.
    pub ill: usize,
    /// How many of them may be away at the same time; 0 is 1.
    pub at_once: usize,
    /// Whether it lacks pods for so long that no other waits for it any more ([`crate::stalls`]).
    pub stalled: bool,
}

/// In which order pods move: what others need comes first, what has to be counted comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wave {
    /// The coordinator's own pod: from then on it is on the path that the others take.
    Coordinator,
    /// The cluster's name servers.
    NameServers,
    /// Behind admission webhooks that fail closed: without them nobody's successor is admitted.
    Admission,
    /// Pods of `DaemonSet`s, node by node.
    DaemonSets,
    /// Pods of Deployments, `ReplicaSet`s and whatever else makes equal ones again.
    Stateless,
    /// Pods of `StatefulSet`s, the highest ordinal first.
    Stateful,
    /// Pods of Jobs: they end by themselves.
    Jobs,
    /// Pods that nobody makes again.
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

    /// Whether its pods are evicted. What the migration leaves to people goes in its own time: it loses nothing by it, and no budget
    /// is asked.
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

    /// Whether pods of all others need its pods, and wait for them.
    pub fn is_needed(self) -> bool {
        self <= Self::Admission
    }

    /// Of this pod.
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

    /// For people.
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

/// What the moves depend on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Every pod of the cluster.
    pub residents: &'facts [Resident<'facts>],
    /// Which of them have to go.
    pub movers: Movers<'facts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// Workloads that were there before the first pod moved.
    pub workloads: &'facts BTreeMap<Workload, Health>,
    /// Nodes whose pods may go now; `None` where it does not matter on which one a pod is.
    pub only: Option<&'facts BTreeSet<&'facts str>>,
}

/// Limits and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many pods may be on their way at the same time.
    pub pods_at_once: usize,
    /// What an eviction may cost.
    pub permissions: Permissions,
    /// Whether pods that nobody makes again are evicted.
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

/// Which pods have to go.
#[derive(Clone, Copy, Debug)]
pub enum Movers<'facts> {
    /// Whoever has an address of a family of these ranges, and not of one of them: those of every pool that stays, of the one that
    /// pods are led to and of those that the migration is not about.
    OutOf(&'facts [IpNet]),
    /// Whoever has an address of this range, which is left: while the range of a pool that stays is not known, a pod elsewhere may be of
    /// that pool.
    Within(&'facts IpNet),
    /// Whoever was told an address of a Service that is left, by UID.
    Told(&'facts BTreeSet<String>),
}

impl Movers<'_> {
    /// Whether this pod has to go.
    pub fn has(self, pod: &Pod) -> bool {
        self.counts(pod)
            && match self {
                Self::OutOf(targets) => is_out_of(pod, targets),
                Self::Within(range) => pod.addresses.iter().any(|address| range.contains(address)),
                Self::Told(uids) => uids.contains(&pod.uid),
            }
    }

    /// Whether this pod is one of those that others of its workload are Ready beside.
    fn counts(self, pod: &Pod) -> bool {
        match self {
            Self::OutOf(_) | Self::Within(_) => pod.uses_pod_network() && !pod.mirror,
            // One on the host's network was told addresses of Services, too.
            Self::Told(_) => !pod.finished && !pod.mirror,
        }
    }

    /// What they leave, for people.
    fn place(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "the old range",
            Self::Told(_) => "what they were told",
        }
    }

    /// What is the matter with them, for people.
    fn matter(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "have addresses of the old range",
            Self::Told(_) => "were told addresses of the old range when they started",
        }
    }

    /// The field by which somebody says that bare pods are deleted.
    fn field(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "podCidr.deleteBarePods",
            Self::Told(_) => "serviceCidr.deleteBarePods",
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

/// Pods that have to go still, by wave.
pub fn left<'facts>(
    residents: &'facts [Resident<'facts>],
    movers: Movers<'_>,
) -> BTreeMap<Wave, Vec<&'facts Resident<'facts>>> {
    let mut left: BTreeMap<Wave, Vec<&Resident<'_>>> = BTreeMap::new();
    for resident in residents {
        if movers.has(resident.pod) {
            left.entry(Wave::of(resident)).or_default().push(resident);
        }
    }
    for (wave, residents) in &mut left {
        residents.sort_by(|left, right| order(*wave, left).cmp(&order(*wave, right)));
    }
    left
}

/// By workload; within a `StatefulSet` the highest ordinal first, as its own controller does it.
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

/// For so long a refused eviction keeps the waves after it waiting. A budget that others of its own use up for a moment yields sooner.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// What comes next; `None` once no pod has to move. A pod that cannot go, or a workload that does not become Ready ([`Health::stalled`]), holds
/// up no other: it is told once no other can go.
pub fn next(view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<evict::Next> {
    let mut left = left(view.residents, view.movers);
    if let Some(nodes) = view.only {
        for residents in left.values_mut() {
            residents.retain(|resident| nodes.contains(resident.pod.node.as_str()));
        }
        left.retain(|_, residents| !residents.is_empty());
    }
    let count: usize = left.values().map(Vec::len).sum();
    let first = left.values().flatten().next()?;
    let health = health(view, now);
    let seats = policy.pods_at_once.max(1).saturating_sub(health.seats());
    let (mut again, mut told) = (Vec::new(), None);
    for (wave, pods) in &left {
        if pods.iter().all(|resident| resident.pod.deleted_at.is_some()) {
            continue;
        }
        // What was moved in the waves before is Ready before others go.
        if let Some(first) = health.holding().find(|lacking| lacking.wave < *wave) {
            return Some(evict::Next::Wait(first.wait(&health)));
        }
        match of_wave(*wave, pods, &health, seats, view, policy, now) {
            Turn::Asked(mut pods) => {
                // Those that were refused are asked again where there is room.
                pods.extend(again);
                pods.truncate(seats.max(1));
                return ask(&pods, view, policy, now);
            }
            Turn::Waits(found) => return Some(evict::Next::Wait(found)),
            Turn::Held { due, found } => {
                again.extend(due);
                told = told.or(Some(found));
            }
        }
    }
    if !again.is_empty() {
        again.truncate(seats.max(1));
        return ask(&again, view, policy, now);
    }
    let terminate = || {
        let message = format!("{count} pods terminate; the first is {}", first.pod.key());
        wait(WaitReason::PodsTerminating, message)
    };
    Some(told.map_or_else(terminate, evict::Next::Wait))
}

/// What is done about the pods of one wave.
enum Turn<'facts> {
    /// These are asked to go.
    Asked(Vec<&'facts Pod>),
    /// Others wait for this.
    Waits(Wait),
    /// None of them can go, and others do not wait for that. Those that are due were refused for long and are asked again.
    Held { due: Vec<&'facts Pod>, found: Wait },
}

fn of_wave<'facts>(
    wave: Wave,
    pods: &[&Resident<'facts>],
    health: &HealthNow<'facts>,
    seats: usize,
    view: &View<'facts>,
    policy: &Policy,
    now: Timestamp,
) -> Turn<'facts> {
    let (ours, left_alone): (Vec<&Resident<'_>>, Vec<&Resident<'_>>) = pods
        .iter()
        .copied()
        .partition(|resident| is_ours(wave, resident, policy));
    let chosen = whose_turn(wave, &ours, &health.busy, view.workloads);
    let permissions = policy.evicts();
    let is_due = |pod: &&Pod| {
        let refusal = view.refusals.get(&pod.uid);
        drain::obstacle(pod, permissions).is_none() && refusal.is_none_or(|refusal| refusal.next_try <= now)
    };
    let (held, free): (Vec<&Pod>, Vec<&Pod>) = chosen
        .into_iter()
        .partition(|pod| is_held(pod, view, policy, now));
    let (mut go, refused): (Vec<&Pod>, Vec<&Pod>) = free.into_iter().partition(is_due);
    // Those that were refused a moment ago take no place of others.
    go.sort_by_key(|pod| view.refusals.contains_key(&pod.uid));
    if !go.is_empty() && seats > 0 {
        return Turn::Asked(go.into_iter().take(seats).collect());
    }
    if let Some(first) = health.holding().next() {
        return Turn::Waits(first.wait(health));
    }
    let words = |pods: &[&Pod]| match evict::next(&leaving(pods, view, permissions, true), now) {
        Some(evict::Next::Wait(found)) => Some(found),
        Some(evict::Next::Evict(_)) | None => None,
    };
    if let Some(found) = words(&refused) {
        return Turn::Waits(found);
    }
    let found = not_ours(wave, &left_alone, view.movers, policy).or_else(|| words(&held));
    let is_first = |resident: &&&Resident<'_>| resident.pod.deleted_at.is_none();
    let others = || {
        let first = ours
            .iter()
            .find(is_first)
            .map_or_else(String::new, |first| first.pod.key());
        let message = format!(
            "{} pods have to move still, and others of their workloads are not Ready; the first is {first}",
            ours.len()
        );
        waits(WaitReason::MovedPodsNotReady, message)
    };
    let found = found.unwrap_or_else(others);
    let due: Vec<&Pod> = held.into_iter().filter(is_due).collect();
    match (wave.is_needed(), due.is_empty()) {
        (true, true) => Turn::Waits(found),
        (true, false) => Turn::Asked(due),
        (false, _) => Turn::Held { due, found },
    }
}

/// Whether nothing that the migration does makes this pod go by now: it may not be evicted, or was refused for long.
fn is_held(pod: &Pod, view: &View<'_>, policy: &Policy, now: Timestamp) -> bool {
    let refusal = view.refusals.get(&pod.uid);
    drain::obstacle(pod, policy.evicts()).is_some()
        || refusal.is_some_and(|refusal| now.duration_since(refusal.since) >= PATIENCE)
}

/// Whether the migration evicts this pod: it comes again, and comes elsewhere.
fn is_ours(wave: Wave, resident: &Resident<'_>, policy: &Policy) -> bool {
    wave.is_evicted(policy.delete_bare_pods) && !resident.made_since
}

/// Whether no other pod waits for this one, though it has to move still.
pub fn holds_up_none(
    wave: Wave,
    resident: &Resident<'_>,
    view: &View<'_>,
    policy: &Policy,
    now: Timestamp,
) -> bool {
    // No pod of a workload goes while another one is not Ready.
    let is_given_up = || {
        let known = resident
            .workload
            .and_then(|workload| view.workloads.get(workload));
        known.is_some_and(|known| known.stalled)
    };
    let is_stuck =
        || is_stuck(resident.pod, now) || is_given_up() || is_held(resident.pod, view, policy, now);
    !is_ours(wave, resident, policy) || (!wave.is_needed() && is_stuck())
}

/// A pod that terminates for so long keeps no other from moving: its owner decides when it ends, by its grace period and its finalizers.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// Whether a pod terminates for longer than others wait for it.
fn is_stuck(pod: &Pod, now: Timestamp) -> bool {
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

/// Pods that were moved and are not Ready again.
#[derive(Clone, Debug)]
pub struct OnTheirWay {
    /// Why others wait: the first of them.
    pub wait: Wait,
    /// The scheduler finds no node for one of them.
    pub finds_no_node: bool,
}

/// Which pods that were moved are not Ready again; `None` when each is, or is not waited for.
pub fn on_their_way(view: &View<'_>, now: Timestamp) -> Option<OnTheirWay> {
    let health = health(view, now);
    let first = health.holding().next()?;
    Some(OnTheirWay {
        wait: first.wait(&health),
        finds_no_node: health.holding().any(|lacking| lacking.unschedulable),
    })
}

/// Workloads of whose pods some were moved and are not Ready again, or are not there, and what is the matter with the first of them.
pub fn lacking<'facts>(view: &View<'facts>, now: Timestamp) -> Vec<(&'facts Workload, Wave, String)> {
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

/// Those whose turn it is: of a workload one, and only while every other one of it is Ready. One that is not Ready serves
/// nobody, and waits for nobody; but one of a `StatefulSet` may hold what the others need. Of a `DaemonSet` as many go as may be away by
/// its own words, those that are away already among them, and none from a node on which another one of it is on its way.
fn whose_turn<'facts>(
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
    let mut left: BTreeSet<(&Workload, &str)> = pods
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
            if wave == Wave::DaemonSets && !left.insert((workload, &pod.node)) {
                continue;
            }
            // One that is not Ready is counted as away already.
            if pod.ready || wave == Wave::Stateful || away.is_none() {
                *taken += 1;
            }
        }
        chosen.push(pod);
    }
    chosen
}

/// Pods that are not evicted, and what a person does about them.
fn not_ours(wave: Wave, pods: &[&Resident<'_>], movers: Movers<'_>, policy: &Policy) -> Option<Wait> {
    if let Some(again) = pods.iter().find(|resident| resident.made_since) {
        let key = again.pod.key();
        return Some(refused(match movers {
            Movers::OutOf(_) | Movers::Within(_) => format!(
                "pod {key} was made after the pool was closed, and has an address of it all the same: evicted, it would get another such. \
                 See its annotations `cni.projectcalico.org/ipAddrs` and `…/ipv4pools`, and those of its namespace"
            ),
            Movers::Told(_) => format!(
                "pod {key} was made after every Service had its new address, and was told an old one all the same: evicted, it would be told \
                 it again. Its own manifest says it, in its environment or its dnsConfig: change it there"
            ),
        }));
    }
    let matter = movers.matter();
    let first = pods.first()?;
    match wave {
        Wave::Jobs => Some(refused(format!(
            "{} pods of Jobs {matter} and end by themselves; the first is {}. Wait for it, or delete it",
            pods.len(),
            first.pod.key()
        ))),
        Wave::Bare if !policy.delete_bare_pods => Some(refused(format!(
            "{} pods {matter} and have no controller that makes them again; the first is {}. Delete them, or set {}",
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

/// What others wait for: pods of one workload that are on their way, or not there yet.
struct Lacking<'facts> {
    wave: Wave,
    /// `None` for a pod without one, which terminates.
    workload: Option<&'facts Workload>,
    /// How many there are.
    count: usize,
    /// How many of the pods that may be on their way at the same time they are. A workload is given up for at most as many as go of it at once,
    /// however many its owner wants it to have.
    seats: usize,
    /// What is the matter with the first of them.
    what: String,
    /// No node takes one of them.
    unschedulable: bool,
    /// No other waits for them.
    stalled: bool,
}

impl Lacking<'_> {
    fn wait(&self, health: &HealthNow<'_>) -> Wait {
        let whose = self
            .workload
            .map_or_else(|| "without a controller".to_owned(), Workload::key);
        let count = health.holding().map(|lacking| lacking.count).sum::<usize>();
        let message = format!("{count} pods are on their way; the first: {whose}, {}", self.what);
        waits(WaitReason::MovedPodsNotReady, message)
    }
}

/// How the workloads are.
struct HealthNow<'facts> {
    /// How many pods are not Ready or not there, in whichever range, of each of which one is so.
    busy: BTreeMap<&'facts Workload, usize>,
    /// Pods that were moved and are not Ready again, in the order of the waves.
    lacking: Vec<Lacking<'facts>>,
}

impl<'facts> HealthNow<'facts> {
    /// What others wait for.
    fn holding(&self) -> impl Iterator<Item = &Lacking<'facts>> {
        self.lacking.iter().filter(|lacking| !lacking.stalled)
    }

    /// How many of the pods that may be on their way at the same time are.
    fn seats(&self) -> usize {
        self.holding().map(|lacking| lacking.seats).sum()
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
            Some(_) if is_stuck(resident.pod, now) => {}
            Some(workload) => of_workload.entry(workload).or_default().push(resident),
            None if resident.pod.deleted_at.is_some() && view.movers.has(resident.pod) => {
                lacking.push(Lacking {
                    wave: Wave::of(resident),
                    workload: None,
                    count: 1,
                    seats: 1,
                    what: format!("pod {} terminates", resident.pod.key()),
                    unschedulable: false,
                    stalled: is_stuck(resident.pod, now),
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
        // Whoever was ill before does not keep the others of its workload.
        let as_ill_as_before = known.is_some_and(|known| {
            known.ill > 0 && there == pods.len() && missing == 0 && there - ready <= known.ill
        });
        if (ready < pods.len() || missing > 0) && !as_ill_as_before {
            busy.insert(workload, (pods.len() - ready).saturating_add(missing));
        }
        if let Some(known) = known.filter(|_| wave != Wave::Jobs) {
            lacking.extend(of_workload_lacking(view, workload, wave, &pods, known));
        }
    }
    lacking.sort_by(|left, right| (left.wave, left.workload).cmp(&(right.wave, right.workload)));
    HealthNow { busy, lacking }
}

/// What is missing of a workload; `None` when nothing is.
fn of_workload_lacking<'facts>(
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
    // As many as were ill before may be ill still.
    let unready: Vec<&Pod> = pods
        .iter()
        .filter(unready)
        .skip(known.ill)
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
        None if missing > 0 => format!("{there} of {} pods are there", known.wanted),
        None => return None,
    };
    Some(Lacking {
        wave,
        workload: Some(workload),
        count: unready.len().saturating_add(missing),
        seats: unready.len() + missing.min(known.at_once.max(1).max(terminating)),
        what,
        unschedulable: unready.iter().any(|pod| pod.unschedulable),
        stalled: known.stalled,
    })
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
