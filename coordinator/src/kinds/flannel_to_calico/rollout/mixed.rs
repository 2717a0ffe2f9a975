//! In place, once every node is on Calico: legacy pods stay beside Calico's pods, or are restarted.

use std::sync::Arc;

use ::flannel_to_calico::api::OrEmpty as _;
use api::MigrationStatus;
use api::migration::{Desired, LegacyPods, MigrationPhase, Strategy};
use engine::decision::{Decision, Wait, WaitReason};
use engine::drain::Pod;
use flannel_to_calico::node::{NodeStep, NodeView, Policy, restart};
use flannel_to_calico::phase::Phase;
use jiff::Timestamp;
use kube::ResourceExt;

use super::super::apply::node::StepExecutor;
use super::super::pass::Pass;
use super::super::view::view;
use super::round::Round;
use crate::limits::rules;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::summary::WaitReport;
use crate::traffic::is_traffic_pod;
use crate::write;

/// Whether legacy pods are to be restarted now.
pub(super) fn restarts(pass: &Pass<'_>) -> bool {
    pass.kind.strategy == Strategy::InPlace
        && pass.kind.legacy_pods == LegacyPods::Restart
        && pass.migration.spec.desired == Desired::Run
}

/// Evicts legacy pods, on at most as many nodes at a time as may be unavailable. Returns the wait to report: of the first
/// node that needs the user, or else of the first node in progress.
pub(super) async fn restart_pods(
    round: &Round<'_>,
    memory: &mut Memory,
    order: &[String],
) -> Result<Option<WaitReport>, PassError> {
    let Round {
        pass,
        snapshot,
        policy,
        ..
    } = *round;
    let Pass {
        context,
        migration,
        settings,
        now,
        ..
    } = *pass;
    let limit = rules(migration).max_unavailable.resolve(order.len());
    let (mut held, mut unavailable) = (Vec::new(), 0);
    for node in order {
        if unavailable >= limit {
            break;
        }
        let name = migration.name_any();
        let view = view(snapshot, settings, node, &name, &memory.refusals, Vec::new());
        let (Some(view), Some(node_object), Some(object)) =
            (view, snapshot.nodes.get(node), snapshot.node_migrations.get(node))
        else {
            continue;
        };
        if view.legacy_pods.is_empty() {
            continue;
        }
        let in_work = Wait {
            reason: WaitReason::PodsTerminating,
            message: format!("node {node}: legacy pods to evict: {}", view.legacy_pods.len()),
            until: None,
        };
        let decision = restart(&view, policy, now);
        unavailable += usize::from(is_unavailable(&view, decision.as_ref(), policy, now));
        match decision {
            Some(Decision::Run(step)) => {
                let mut spec = object.spec.clone();
                let mut executor = StepExecutor {
                    pass,
                    memory: &mut *memory,
                    node: node_object,
                    object: Arc::clone(object),
                    policy,
                };
                let eviction = executor.run(&step, &mut spec);
                let object = write::describe(node_object.as_ref());
                let _ = context.obstacles.attempt(&object, eviction).await?;
                held.push(WaitReport::waiting(&in_work));
            }
            Some(Decision::Wait(wait)) => held.push(WaitReport::waiting(&wait)),
            Some(Decision::Halt(halt)) => held.push(WaitReport::halted(&halt)),
            Some(Decision::Settled) | None => held.push(WaitReport::waiting(&in_work)),
        }
    }
    let first = held.iter().position(|held| held.needs_user).unwrap_or_default();
    Ok((!held.is_empty()).then(|| held.swap_remove(first)))
}

/// Whether legacy pods leave this node now. A node does not count if each remaining one is refused, or has exceeded the time of a
/// drain: one budget, or one endless grace period, does not delay pods of other nodes.
fn is_unavailable(
    view: &NodeView<'_>,
    decision: Option<&Decision<NodeStep>>,
    policy: &Policy,
    now: Timestamp,
) -> bool {
    let terminating = &view.residents.terminating;
    let is_leaving = |pod: &&Pod| {
        let since = pod.deleted_at;
        since.is_some_and(|since| now.duration_since(since) < policy.drain_timeout)
    };
    let is_in_work = match decision {
        Some(Decision::Run(_)) => true,
        Some(Decision::Wait(_) | Decision::Halt(_) | Decision::Settled) => false,
        // The API server has deleted them, and the agent still reports one.
        None => terminating.is_empty() && view.legacy_pods.iter().any(|pod| pod.attached),
    };
    is_in_work || terminating.iter().any(is_leaving)
}

/// Ends the rollout when every node is finished and the soak time has passed. In place, the old network's objects stay while a
/// legacy pod lives: they cost nothing, and a rollback needs them.
pub(super) fn finish_or_stay(
    round: &Round<'_>,
    restarting: Option<WaitReport>,
    status: &mut MigrationStatus,
) {
    let Round { pass, snapshot, .. } = *round;
    let namespace = &pass.context.namespace;
    let mixed: Vec<(&str, usize)> = snapshot
        .node_migrations
        .iter()
        .filter(|(node, _)| snapshot.nodes.contains_key(*node))
        .filter_map(|(node, object)| {
            // An agent without a report does not count as one without legacy pods.
            let report = object.status.clone().unwrap_or_default();
            let pods = report
                .flannel_to_calico
                .or_empty()
                .facts
                .iter()
                .flat_map(|facts| &facts.legacy_pods);
            let pods = pods
                .filter(|pod| !is_traffic_pod(&pod.namespace, &pod.name, namespace))
                .count();
            let imported = &object.spec.flannel_to_calico.or_empty().imported_addresses;
            // The addresses of adopted pods stay in Calico's IPAM.
            let is_released = imported.is_empty() || report.flannel_to_calico.or_empty().has_adopted_pods();
            (report.flannel_to_calico.or_empty().phase != Some(Phase::Calico) || !is_released)
                .then_some((node.as_str(), pods))
        })
        .collect();
    if pass.kind.strategy == Strategy::Drain || mixed.is_empty() {
        if let Some(message) = soak(pass, snapshot) {
            status.phase = MigrationPhase::Rolling;
            status.set_reason(WaitReason::NetworkSoak, message);
            return;
        }
        status.phase = MigrationPhase::Finishing;
        "every node is on Calico; removing flannel's objects".clone_into(&mut status.message);
        return;
    }
    status.phase = MigrationPhase::Mixed;
    if let Some(held) = restarting {
        status.set_reason(held.reason, held.message);
        return;
    }
    status.clear_reason(format!(
        "every node is on Calico. Legacy pods that keep their addresses: {} (nodes: {}). A node is cleaned up once its last \
         legacy pod is gone",
        mixed.iter().map(|(_, pods)| pods).sum::<usize>(),
        mixed.len()
    ));
}

/// The message until the end of the soak time, which starts when the last node is done; `None` after its end. The time of another clock
/// counts from now at the latest.
fn soak(pass: &Pass<'_>, snapshot: &Snapshot) -> Option<String> {
    let nodes = snapshot.node_migrations.iter();
    let existing = nodes.filter(|(node, _)| snapshot.nodes.contains_key(*node));
    let last = existing.filter_map(|(_, object)| object.spec.finished_at).max()?;
    let until = last.min(pass.now).checked_add(pass.kind.soak()).ok()?;
    (pass.now < until).then(|| {
        format!(
            "every node is on Calico; DaemonSet {}/{} is kept until {until:.0} for a rollback",
            pass.settings.flannel_daemon_set_namespace.value, pass.settings.flannel_daemon_set_name.value
        )
    })
}
