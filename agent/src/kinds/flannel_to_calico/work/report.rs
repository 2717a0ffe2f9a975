//! The report of one turn: the state of the host, and the change that the next observation waits for.

use ::flannel_to_calico::api::{NodeStatus, OrEmpty as _};
use api::node_migration::{NodeMigrationSpec, NodeMigrationStatus};
use flannel_to_calico::host::{self, HostSettings, Orders};
use flannel_to_calico::host_checks::{self, Subject};
use flannel_to_calico::phase::{Goal, Phase};
use tokio::sync::watch;

use super::Worker;
use super::step::Outcome;
use crate::kinds::flannel_to_calico::observe::Observation;
use crate::report::{Pending, Report};
use crate::watched_object::WatchedObject;

impl Worker {
    /// The report of a host that was read.
    pub(super) fn report(
        &mut self,
        seen: &Observation,
        settings: &HostSettings,
        orders: Option<&Orders>,
        goal: Goal,
        journal: &Result<(), String>,
        outcome: Outcome,
    ) -> Report {
        let at = self.set_position(seen, settings);
        self.awaited.clone_from(match goal {
            Goal::Flannel => &seen.calico_nodes,
            Goal::Hold | Goal::Held | Goal::Swapped | Goal::Mixed | Goal::Detached | Goal::Calico => {
                &seen.flannelds
            }
        });
        let phase = at.phase;
        let subject = Subject {
            node: &self.configuration.node,
            facts: &seen.facts,
            settings,
            settings_are_known: orders.is_some(),
            phase,
            goal,
        };
        let mut checks = host_checks::checks(subject);
        checks.push(host_checks::journal(
            &self.configuration.node,
            &self.configuration.state,
            journal,
        ));
        let fell_back = self.fell_back();
        let remembered = self.remembered();
        let facts = remembered.complete(&seen.facts, settings).into_owned();
        let of_host = NodeStatus {
            phase: Some(phase),
            leftovers: host::leftovers(&seen.facts, settings),
            changes: host::changes(&seen.facts, settings, &remembered.unreverted),
            goal: Some(goal),
            automatic_rollback: fell_back.clone(),
            checks,
            facts: Some(facts),
            ..NodeStatus::default()
        };
        Report {
            message: outcome.message,
            failure: outcome.failure,
            falls_back_in: orders
                .filter(|_| fell_back.is_none())
                .and_then(|orders| self.remaining_time(orders, at)),
            pending: if outcome.has_reached_goal {
                Pending::Steps
            } else {
                Pending::default()
            },
            kinds: report_of(of_host),
            ..Report::default()
        }
    }

    /// The report while the host cannot be read. The dead man's switch uses the last known state: once its time is over, the next
    /// successful observation starts the rollback.
    pub(super) fn report_unreadable(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        orders: Option<&Orders>,
        mut report: Report,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Report {
        if let Some(at) = self.at {
            // The next successful observation works towards the goal; an unwritable journal is no worse than an unreadable host.
            let _ = self.goal(spec, orders, at, goals);
            let of_host = report.kinds.flannel_to_calico.get_or_insert_default();
            of_host.automatic_rollback = self.fell_back();
        }
        report
    }
}

/// The status of a node with the part of this kind.
pub(super) fn report_of(of_host: NodeStatus) -> NodeMigrationStatus {
    NodeMigrationStatus {
        flannel_to_calico: Some(of_host),
        ..NodeMigrationStatus::default()
    }
}

/// The change that the next observation waits for.
pub(super) fn pending(spec: Option<&NodeMigrationSpec>, report: &Report) -> Pending {
    let goal = spec
        .map(|spec| spec.flannel_to_calico.or_empty().goal)
        .unwrap_or_default();
    let of_host = report.kinds.flannel_to_calico.or_empty();
    let reached = match goal {
        _ if of_host.automatic_rollback.is_some() => of_host.changes.is_empty(),
        Goal::Flannel => of_host.changes.is_empty(),
        _ => {
            let is_at = |wanted| of_host.phase.is_some_and(|at| at.reaches(wanted));
            goal.phase().is_none_or(is_at)
        }
    };
    let facts = of_host.facts.as_ref();
    // Pods that cannot be adopted stay for days. The kernel announces their end.
    let host = spec.and_then(|spec| spec.flannel_to_calico.or_empty().host.as_ref());
    let adopting = host
        .filter(|host| goal == Goal::Calico && host.adopt_pods)
        .zip(facts);
    let stays = adopting.is_some_and(|(host, facts)| !host::pods_that_stay(facts, host).is_empty());
    let reached = reached || stays;
    // A calico-node that starts causes events: its conflist, its link. That it ends, or takes the links of adopted pods, does not.
    let of_calico = match goal {
        Goal::Hold | Goal::Held | Goal::Swapped | Goal::Mixed | Goal::Detached => {
            of_host.automatic_rollback.is_some()
        }
        Goal::Calico => of_host.phase == Some(Phase::Mixed) || of_host.automatic_rollback.is_some(),
        Goal::Flannel => true,
    };
    let process =
        facts.is_some_and(|facts| facts.flanneld_running || (of_calico && facts.calico.node_running));
    match (reached, goal) {
        (false, _) if process => Pending::Process,
        (false, _) => Pending::Change,
        (true, Goal::Hold) => Pending::NoGoal,
        (true, _) => Pending::GoalReached,
    }
}
