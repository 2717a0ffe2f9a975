//! Traffic as the gate: a traffic pod for each network on every node, the paths between them, and losses that stop the rollout.

mod ends;
mod masquerades;
mod pods;
mod reports;
mod services;
mod silences;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::migration::Desired;
use api::traffic::{GateBreach, Gates, SourceAddressGate, TrafficGate};
use api::{Migration, MigrationStatus, NodeMigration};
use engine::decision::{HaltReason, Wait};
use engine::traffic::mesh::{self, Endpoint};
use engine::traffic::pods::PodDecision;
use engine::traffic::{Flow, Generation, watch};
use jiff::Timestamp;

pub use ends::{end, ending};
use masquerades::Sender;
use pods::Staying;
pub use pods::{create, is_traffic_pod};
use reports::{Reports, breaches, states, sums};
use services::Services;
use silences::Silences;

use crate::context::Context;
use crate::drafts::Drafts;
use crate::events::EventLevel;
use crate::pass_error::PassError;
use crate::since::Since;
use crate::snapshot::Snapshot;
use crate::{facts, own_pods};

/// Most writes of one pass; further writes are left to the next pass, so that a pass does not take minutes.
const WRITES_AT_ONCE: usize = 100;

/// The two networks between which pods move.
#[derive(Clone, Debug, Default)]
pub struct Networks {
    /// The network that pods leave.
    pub old: Network,
    /// The network that pods move to.
    pub new: Network,
}

/// Properties of a network's traffic pods.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Its name in names and labels of its traffic pods.
    pub name: &'static str,
    /// Annotations that request an address from it.
    pub annotations: BTreeMap<String, String>,
}

/// Fate of the traffic pods of every node.
pub type Fates<'snapshot> = BTreeMap<(&'snapshot str, Generation), PodDecision>;

/// State that outlives a pass. Lost at a restart: then it is read again.
#[derive(Debug, Default)]
pub struct TrafficMemory {
    services: Services,
    /// Traffic pods that do not report, and since when.
    pub silences: Silences,
    /// Nodes whose agents have not reported their last counts yet, at the end.
    unreported: Since<String>,
}

/// Result of traffic in this pass.
#[derive(Debug, Default)]
pub struct TrafficResult {
    /// Why losses are not known yet; `None` when enough nodes watch for traffic to be a gate ([`watch()`]).
    pub wait: Option<Wait>,
    /// Messages about paths that lose more than allowed.
    pub breaches: Vec<String>,
    /// The wait while packets of the new network arrive from other addresses than those of their pods.
    pub masqueraded: Option<Wait>,
}

#[cfg(test)]
impl TrafficMemory {
    /// Ages all silences, including those at the end.
    pub fn hurry(&mut self) {
        self.silences.hurry();
        self.unreported.age(silences::PATIENCE);
    }
}

impl TrafficResult {
    /// The wait until traffic is watched. A rollback does not wait for that.
    pub fn hold(&self, migration: &Migration) -> Option<Wait> {
        let wait = self.wait.clone().or_else(|| self.masqueraded.clone());
        wait.filter(|_| migration.spec.desired != Desired::Rollback)
    }

    /// The wait while packets of the new network are masqueraded. A rollback does not wait for that.
    pub fn masquerade(&self, migration: &Migration) -> Option<Wait> {
        let wait = self.masqueraded.clone();
        wait.filter(|_| migration.spec.desired != Desired::Rollback)
    }
}

/// Creates and deletes traffic pods as wanted, and reads the agents' findings. Also returns the changes to the agents' orders:
/// the caller writes them, perhaps together with other changes.
///
/// # Errors
///
/// The API server refuses a request for another reason than the object itself, or does not answer.
pub async fn watch(
    context: &Context,
    known: &mut TrafficMemory,
    migration: &Migration,
    networks: &Networks,
    wanted: Fates<'_>,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<(TrafficResult, Drafts), PassError> {
    let rules = &migration.spec.gates;
    let fates = match rules.traffic {
        TrafficGate::Watch => wanted,
        TrafficGate::Ignore => BTreeMap::new(),
    };
    let staying = Staying::of(&snapshot.traffic_pods, networks, &fates);
    let flows = match rules.traffic {
        TrafficGate::Watch => {
            known.services.refresh(context).await?;
            wanted_flows(snapshot, networks, &staying, &known.services)
        }
        TrafficGate::Ignore => BTreeMap::new(),
    };
    let judged_since = migration.spec.resumed_at;
    let asks = ask(snapshot, &flows, rules.gates(), judged_since);
    // A pod is deleted once no other pod sends to it.
    let sent_to = targets(snapshot);
    for pod in &snapshot.traffic_pods {
        let is_sent_to = pod
            .metadata
            .uid
            .as_deref()
            .is_some_and(|uid| sent_to.contains(uid));
        if pods::fate_of(pod, networks, &fates) == PodDecision::Unwanted && !is_sent_to {
            own_pods::delete(context, pod).await?;
        }
    }
    let mut missing = Vec::new();
    for ((node, generation), fate) in &fates {
        let there = || staying.on(node, networks, *generation).is_some();
        if *fate == PodDecision::Wanted && !there() {
            missing.push((*node, *generation));
        }
    }
    for (node, generation) in missing.iter().take(WRITES_AT_ONCE) {
        let object = format!("traffic pod of node {node}");
        let creation = pods::create(context, migration, networks, node, *generation);
        context.obstacles.attempt(&object, creation).await?;
    }
    status.traffic = sums(snapshot, &status.traffic);
    let reports = Reports {
        snapshot,
        networks,
        fates: &fates,
        staying: &staying,
        flows: &flows,
        judged_since,
    };
    let watched = TrafficResult {
        wait: watch::missing(&states(&reports, &mut known.silences)),
        breaches: breaches(snapshot, &flows, judged_since),
        masqueraded: match rules.source_addresses {
            SourceAddressGate::Keep => {
                masquerades::wait(snapshot, &senders(&staying, networks), &flows, judged_since)
            }
            SourceAddressGate::Ignore => None,
        },
    };
    Ok((watched, asks))
}

/// The running traffic pods, by UID.
fn senders<'pods>(staying: &Staying<'pods>, networks: &Networks) -> BTreeMap<&'pods str, Sender> {
    let running = staying.iter().filter_map(|pod| pods::running(pod, networks));
    running
        .map(|pod| {
            let sender = Sender {
                generation: pod.endpoint.generation,
                addresses: pod.addresses,
            };
            (pod.endpoint.uid, sender)
        })
        .collect()
}

/// UIDs of the pods that agents are asked to send to, as written.
fn targets(snapshot: &Snapshot) -> BTreeSet<&str> {
    let flows = snapshot
        .node_migrations
        .values()
        .flat_map(|object| &object.spec.flows);
    flows.filter_map(|flow| flow.pod_uid.as_deref()).collect()
}

/// Records once that lost traffic stops the rollout, and returns whether it does. A rollback is not stopped.
pub async fn stop(
    context: &Context,
    migration: &Migration,
    watched: &TrafficResult,
    status: &mut MigrationStatus,
    now: Timestamp,
) -> bool {
    if migration.spec.desired != Desired::Run || migration.spec.gates.traffic == TrafficGate::Ignore {
        return false;
    }
    let resumed_at = migration.spec.resumed_at;
    // Any different time counts as a new request, from any clock.
    if status
        .breach
        .as_ref()
        .is_some_and(|breach| breach.resumed_at == resumed_at)
    {
        return true;
    }
    let Some(first) = watched.breaches.first() else {
        if let Some(breach) = status.breach.as_mut()
            && watched.wait.is_none()
        {
            breach.clean_since = breach.clean_since.or(Some(now));
        }
        return false;
    };
    let others = match watched.breaches.len() - 1 {
        0 => String::new(),
        others => format!(" (further paths: {others})"),
    };
    let message = format!(
        "traffic is lost: {first}{others}. No further node is started; started nodes are finished. Fix the cause, then run \
         `kubectl replumb resume`, or go back with `kubectl replumb abort`"
    );
    context
        .events
        .migration(migration, EventLevel::Warning, HaltReason::GateBreached, &message)
        .await;
    status.breach = Some(GateBreach {
        at: now,
        message,
        resumed_at,
        clean_since: None,
    });
    true
}

/// Wanted paths by sending node. A path that exists and still means the same stays.
fn wanted_flows(
    snapshot: &Snapshot,
    networks: &Networks,
    staying: &Staying<'_>,
    services: &Services,
) -> BTreeMap<String, Vec<Flow>> {
    let asked: BTreeSet<&str> = snapshot
        .node_migrations
        .values()
        .flat_map(|object| &object.spec.flows)
        .map(|flow| flow.source.as_str())
        .collect();
    let running: BTreeMap<&str, pods::Running<'_>> = staying
        .iter()
        .filter_map(|pod| pods::running(pod, networks))
        // A new pod counts once it is Ready; later its senders report whether it answers.
        .filter(|pod| pod.ready || asked.contains(pod.endpoint.uid))
        .filter(|pod| {
            let node = snapshot.nodes.get(pod.endpoint.node);
            node.is_some_and(|node| facts::nodes::is_ready(node))
        })
        .map(|pod| (pod.endpoint.uid, pod))
        .collect();
    let endpoints: Vec<Endpoint<'_>> = running.values().map(|pod| pod.endpoint).collect();
    let current: BTreeSet<(&str, &str)> = snapshot
        .node_migrations
        .values()
        .flat_map(|object| &object.spec.flows)
        .filter_map(|flow| Some((flow.source.as_str(), flow.pod_uid.as_deref()?)))
        .collect();
    let mut flows: BTreeMap<String, Vec<Flow>> = BTreeMap::new();
    for pair in mesh::assign(&endpoints, &current) {
        let (Some(source), Some(target)) = (running.get(pair.source), running.get(pair.target)) else {
            continue;
        };
        let there = target
            .addresses
            .iter()
            .filter(|address| source.can_reach(address));
        let new = there.map(|address| Flow {
            class: pair.class,
            source: pair.source.to_owned(),
            to: format!("node {}", target.endpoint.node),
            address: *address,
            port: api::names::PROBE_PORT,
            pod_uid: Some(pair.target.to_owned()),
        });
        flows
            .entry(source.endpoint.node.to_owned())
            .or_default()
            .extend(new);
    }
    for source in running.values() {
        let known = services.known().iter();
        let there = known.filter(|service| source.can_reach(&service.address));
        let new = there.map(|service| Flow {
            class: service.class,
            source: source.endpoint.uid.to_owned(),
            to: service.name.clone(),
            address: service.address,
            port: service.port,
            pod_uid: None,
        });
        flows
            .entry(source.endpoint.node.to_owned())
            .or_default()
            .extend(new);
    }
    for flows in flows.values_mut() {
        flows.sort();
    }
    flows
}

/// Changes to the agents' orders.
fn ask(
    snapshot: &Snapshot,
    flows: &BTreeMap<String, Vec<Flow>>,
    gates: Gates,
    judged_since: Option<Timestamp>,
) -> Drafts {
    let mut asks = Drafts::default();
    let mut remaining = WRITES_AT_ONCE;
    for (node, object) in &snapshot.node_migrations {
        let wanted = flows.get(node).cloned().unwrap_or_default();
        let limits = (!wanted.is_empty()).then_some(gates);
        let judged_since = judged_since.filter(|_| limits.is_some());
        if ask_one(&mut asks, object, wanted, limits, judged_since) {
            remaining -= 1;
        }
        if remaining == 0 {
            break;
        }
    }
    asks
}

/// Adds the change for one agent; returns whether there is one.
fn ask_one(
    asks: &mut Drafts,
    object: &Arc<NodeMigration>,
    flows: Vec<Flow>,
    gates: Option<Gates>,
    judged_since: Option<Timestamp>,
) -> bool {
    let there = &object.spec;
    // Called for every node in every pass: nothing is cloned here.
    if there.flows == flows && there.gates == gates && there.losses_counted_since == judged_since {
        return false;
    }
    asks.change(object, |spec| {
        spec.flows = flows;
        spec.gates = gates;
        spec.losses_counted_since = judged_since;
    });
    true
}
