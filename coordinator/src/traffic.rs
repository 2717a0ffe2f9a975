//! Traffic as the gate: a traffic pod of each network on every node, who sends to whom, and what stops the rollout.

mod ends;
mod pods;
mod reports;
mod services;
mod silences;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::migration::Desired;
use api::traffic::{GateBreach, Gates, TrafficGate};
use api::{Migration, MigrationStatus, NodeMigration};
use engine::decision::{HaltReason, Wait};
use engine::traffic::mesh::{self, Endpoint};
use engine::traffic::pods::Fate;
use engine::traffic::{Flow, Generation, watch};
use jiff::Timestamp;

pub use ends::{end, ending};
use pods::Staying;
pub use pods::{create, is_traffic_pod};
use reports::{Reports, breaches, states, sums};
use services::Services;
use silences::Silences;

use crate::context::Context;
use crate::drafts::Drafts;
use crate::since::Since;
use crate::snapshot::Snapshot;
use crate::tell::Tone;
use crate::write::WriteError;
use crate::{facts, own_pods};

/// More writes than this are left to the next pass: a pass that takes minutes looks at nothing else meanwhile.
const WRITES_AT_ONCE: usize = 100;

/// The two networks between which pods move.
#[derive(Clone, Debug, Default)]
pub struct Networks {
    /// The one that pods leave.
    pub old: Network,
    /// The one that they come to.
    pub new: Network,
}

/// What makes a traffic pod one of a network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// What it is called in the names and labels of its traffic pods.
    pub name: &'static str,
    /// Annotations by which they get an address of it.
    pub annotations: BTreeMap<String, String>,
}

/// What becomes of the traffic pods of every node.
pub type Fates<'snapshot> = BTreeMap<(&'snapshot str, Generation), Fate>;

/// What outlives a pass. Lost at a restart: then it is looked at anew.
#[derive(Debug, Default)]
pub struct Known {
    services: Services,
    /// Which traffic pods do not report, and since when.
    pub silences: Silences,
    /// Nodes whose agents have not told yet, at the end, what they counted last.
    untold: Since<String>,
}

/// What traffic says in this pass.
#[derive(Debug, Default)]
pub struct Watched {
    /// Why nobody can say yet what is lost; `None` when so many nodes watch that traffic is a gate ([`watch`]).
    pub unwatched: Option<Wait>,
    /// Paths that lose more than they may, in words.
    pub breaches: Vec<String>,
}

#[cfg(test)]
impl Known {
    /// Agents have been silent for long, at the end too.
    pub fn hurry(&mut self) {
        self.silences.hurry();
        self.untold.age(silences::PATIENCE);
    }
}

impl Watched {
    /// Why nothing may be begun before traffic is watched. On the way back nothing waits for that.
    pub fn hold(self, migration: &Migration) -> Option<Wait> {
        self.unwatched
            .filter(|_| migration.spec.desired != Desired::Rollback)
    }
}

/// Brings pods to what they should be, and reads what the agents found. Returns as well what agents have to be asked to send, where they are
/// not asked for that yet: the caller writes it, perhaps together with more.
pub async fn watch(
    context: &Context,
    known: &mut Known,
    migration: &Migration,
    networks: &Networks,
    wanted: Fates<'_>,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<(Watched, Drafts), WriteError> {
    let rules = &migration.spec.gates;
    let fates = match rules.traffic {
        TrafficGate::Watch => wanted,
        TrafficGate::Ignore => BTreeMap::new(),
    };
    let staying = Staying::of(&snapshot.traffic_pods, networks, &fates);
    let flows = match rules.traffic {
        TrafficGate::Watch => {
            known.services.look(context).await?;
            wanted_flows(snapshot, networks, &staying, &known.services)
        }
        TrafficGate::Ignore => BTreeMap::new(),
    };
    let judged_since = migration.spec.resumed_at;
    let asks = ask(snapshot, &flows, rules.gates(), judged_since);
    // Nobody sends to a pod any more when it goes.
    let sent_to = targets(snapshot);
    for pod in &snapshot.traffic_pods {
        let is_sent_to = pod
            .metadata
            .uid
            .as_deref()
            .is_some_and(|uid| sent_to.contains(uid));
        if pods::fate_of(pod, networks, &fates) == Fate::Unwanted && !is_sent_to {
            own_pods::delete(context, pod).await?;
        }
    }
    let mut missing = Vec::new();
    for ((node, generation), fate) in &fates {
        let there = || staying.on(node, networks, *generation).is_some();
        if *fate == Fate::Wanted && !there() {
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
    let watched = Watched {
        unwatched: watch::missing(&states(&reports, &mut known.silences)),
        breaches: breaches(snapshot, &flows, judged_since),
    };
    Ok((watched, asks))
}

/// UIDs of the pods that agents are asked to send to, by what is written.
fn targets(snapshot: &Snapshot) -> BTreeSet<&str> {
    let flows = snapshot
        .node_migrations
        .values()
        .flat_map(|object| &object.spec.flows);
    flows.filter_map(|flow| flow.pod_uid.as_deref()).collect()
}

/// Writes down that traffic stops the rollout, once, and says whether it does. Only what goes forward is stopped.
pub async fn stop(
    context: &Context,
    migration: &Migration,
    watched: &Watched,
    status: &mut MigrationStatus,
    now: Timestamp,
) -> bool {
    if migration.spec.desired != Desired::Run || migration.spec.gates.traffic == TrafficGate::Ignore {
        return false;
    }
    let resumed_at = migration.spec.resumed_at;
    // Another time is a new word: whose clock it was does not matter.
    if status
        .breach
        .as_ref()
        .is_some_and(|breach| breach.resumed_at == resumed_at)
    {
        return true;
    }
    let Some(first) = watched.breaches.first() else {
        if let Some(breach) = status.breach.as_mut()
            && watched.unwatched.is_none()
        {
            breach.clean_since = breach.clean_since.or(Some(now));
        }
        return false;
    };
    let others = match watched.breaches.len() - 1 {
        0 => String::new(),
        others => format!(" (and {others} more paths)"),
    };
    let message = format!(
        "traffic is lost: {first}{others}. No node is started; those in work are finished. Mend it, then `kubectl replumb resume`, \
         or go back with `kubectl replumb abort`"
    );
    context
        .teller
        .migration(
            migration,
            Tone::Warning,
            HaltReason::GateBreached.as_str(),
            &message,
        )
        .await;
    status.breach = Some(GateBreach {
        at: now,
        message,
        resumed_at,
        clean_since: None,
    });
    true
}

/// Who sends to whom, by the node that sends. What was asked for already and still means the same stays.
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
        // One that answers for the first time is Ready; later it is for its senders to say whether it answers.
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
            .filter(|address| source.speaks_to(address));
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
        let there = known.filter(|service| source.speaks_to(&service.address));
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

/// What every agent has to be asked that is not asked for that.
fn ask(
    snapshot: &Snapshot,
    flows: &BTreeMap<String, Vec<Flow>>,
    gates: Gates,
    judged_since: Option<Timestamp>,
) -> Drafts {
    let mut asks = Drafts::default();
    let mut left = WRITES_AT_ONCE;
    for (node, object) in &snapshot.node_migrations {
        let wanted = flows.get(node).cloned().unwrap_or_default();
        let limits = (!wanted.is_empty()).then_some(gates);
        let judged_since = judged_since.filter(|_| limits.is_some());
        if ask_one(&mut asks, object, wanted, limits, judged_since) {
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    asks
}

/// Says whether the agent is not asked for that yet.
fn ask_one(
    asks: &mut Drafts,
    object: &Arc<NodeMigration>,
    flows: Vec<Flow>,
    gates: Option<Gates>,
    judged_since: Option<Timestamp>,
) -> bool {
    let there = &object.spec;
    // Every pass asks this of every node: nothing is copied for it.
    if there.flows == flows && there.gates == gates && there.judged_since == judged_since {
        return false;
    }
    asks.change(object, |spec| {
        spec.flows = flows;
        spec.gates = gates;
        spec.judged_since = judged_since;
    });
    true
}
