//! The rules of other programs that name the links of flannel: read before the migration, and given twins for the links of Calico while
//! the host is migrated, if the user wants that. The twins have a mark, so that no journal is needed: they are recognized after any
//! restart, and removed once the host is on flannel again.

use std::path::Path;
use std::time::{Duration, Instant};

use api::FailureCategory;
use api::node_migration::Failure;
use engine::words::lines;
use flannel_to_calico::foreign_rules::{ForeignRules, TwinOf};
use flannel_to_calico::host::HostSettings;
use flannel_to_calico::phase::{Goal, Phase};

use crate::host::firewall::foreign;

/// Age at which the rules are read again.
const AGE: Duration = Duration::from_mins(1);
/// The same after a problem: reading takes the locks of iptables.
const AFTER_PROBLEM: Duration = Duration::from_secs(10);
/// Time limit of a task: steps and rollbacks of the host wait for it.
const LIMIT: Duration = Duration::from_secs(10);

/// What to do about the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Report them: the migration has not changed the host.
    Report,
    /// Keep twins of these kinds, and no others.
    Keep(&'static [TwinOf]),
    /// Nothing: the check is over, and steps must not wait.
    Nothing,
}

impl Task {
    /// Whether a host in this phase with this goal may change only if its rules have their twins: before its first change. Later
    /// the host needs its steps, and a rollback its way back, whatever the rules are.
    pub(super) fn is_needed(phase: Phase, goal: Goal) -> bool {
        phase == Phase::Flannel && goal.is_forward()
    }

    /// The task for a host in this phase with this goal.
    pub(super) fn of(phase: Phase, goal: Goal, settings: &HostSettings) -> Self {
        match (phase, goal) {
            (Phase::Flannel, Goal::Hold) => Self::Report,
            _ if !settings.write_firewall_twins => Self::Nothing,
            (Phase::Flannel, Goal::Flannel) => Self::Keep(&[]),
            // Pods leave the bridge, or return to it. Late pods, too, before the phase is Calico.
            _ if settings.adopt_pods && !(phase == Phase::Calico && goal != Goal::Flannel) => {
                Self::Keep(&[TwinOf::Calico, TwinOf::Passage])
            }
            // These stay until the links of Calico are gone.
            _ => Self::Keep(&[TwinOf::Calico]),
        }
    }
}

/// The rules that were read last.
#[derive(Debug, Default)]
pub(super) struct ForeignRuleKeeper {
    read: Option<Read>,
}

/// One reading.
#[derive(Debug)]
struct Read {
    at: Instant,
    /// Name of the Migration that it was for; none without one.
    migration: Option<String>,
    task: Task,
    outcome: Outcome,
}

/// The outcome of a task.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The rules to report; `None` if they are not known.
    pub rules: Option<ForeignRules>,
    /// Why the rules do not have the twins that they need.
    pub problem: Option<Failure>,
}

impl ForeignRuleKeeper {
    /// Performs the task. Read again if the last reading is old, or was for another Migration or task: the user may have corrected the
    /// rules in between.
    pub(super) async fn perform(&mut self, task: Task, migration: Option<&str>, proc: &Path) -> Outcome {
        if task == Task::Nothing {
            self.read = None;
            return Outcome::default();
        }
        let is_current = |read: &Read| {
            let age = if read.outcome.problem.is_some() {
                AFTER_PROBLEM
            } else {
                AGE
            };
            read.at.elapsed() < age && read.migration.as_deref() == migration && read.task == task
        };
        if let Some(read) = self.read.as_ref().filter(|read| is_current(read)) {
            return read.outcome.clone();
        }
        let outcome = tokio::time::timeout(LIMIT, keep(task, proc))
            .await
            .unwrap_or_else(|_| Outcome {
                rules: None,
                problem: Some(failure(
                    FailureCategory::ProgramTimedOut,
                    &format!("not done within {} s", LIMIT.as_secs()),
                )),
            });
        if let Some(problem) = &outcome.problem {
            tracing::warn!(message = problem.message, "rules of other programs");
        }
        self.read = Some(Read {
            at: Instant::now(),
            migration: migration.map(str::to_owned),
            task,
            outcome: outcome.clone(),
        });
        outcome
    }
}

/// Reads the rules, writes and removes twins, and reads the rules again if one was written or removed.
async fn keep(task: Task, proc: &Path) -> Outcome {
    let found = foreign::read(proc).await;
    let wanted = match task {
        Task::Keep(wanted) => wanted,
        // A Migration may be deleted before its agents have removed their twins.
        Task::Report | Task::Nothing => &[],
    };
    let mut problems: Vec<String> = found.report.problem.iter().cloned().collect();
    let mut found = found;
    if found.differs(wanted) {
        problems.extend(found.keep(wanted).await);
        found = foreign::read(proc).await;
        tracing::info!(
            ?wanted,
            "twins of other programs' rules were written and removed as wanted"
        );
    }
    let refused = found.report.refused > 0 && wanted.contains(&TwinOf::Calico);
    if refused && problems.is_empty() {
        problems.push(format!("{} of them cannot be written", found.report.refused));
    }
    let is_to_keep = matches!(task, Task::Keep(_));
    Outcome {
        rules: Some(found.report),
        problem: (is_to_keep && !problems.is_empty())
            .then(|| failure(FailureCategory::ProgramRefused, &lines(&problems))),
    }
}

fn failure(category: FailureCategory, problem: &str) -> Failure {
    Failure {
        category: category.into(),
        message: format!(
            "could not keep twins of other programs' rules for the links of Calico (comment replumb-twin): {problem}"
        ),
        retriable: true,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CALICO: Task = Task::Keep(&[TwinOf::Calico]);
    const BOTH: Task = Task::Keep(&[TwinOf::Calico, TwinOf::Passage]);
    const NONE: Task = Task::Keep(&[]);

    #[rstest]
    #[case::before_the_start(Phase::Flannel, Goal::Hold, true, true, Task::Report)]
    #[case::first_step(Phase::Flannel, Goal::Held, true, false, CALICO)]
    #[case::first_step_of_an_adoption(Phase::Flannel, Goal::Held, true, true, BOTH)]
    #[case::first_step_without_twins(Phase::Flannel, Goal::Held, false, true, Task::Nothing)]
    #[case::while_pods_are_adopted(Phase::Mixed, Goal::Calico, true, true, BOTH)]
    #[case::at_the_end(Phase::Calico, Goal::Calico, true, true, CALICO)]
    #[case::without_orders(Phase::Calico, Goal::Hold, true, true, CALICO)]
    #[case::pods_return(Phase::Calico, Goal::Flannel, true, true, BOTH)]
    #[case::back(Phase::Flannel, Goal::Flannel, true, true, NONE)]
    #[case::back_without_twins(Phase::Flannel, Goal::Flannel, false, true, Task::Nothing)]
    fn the_task_follows_the_host(
        #[case] phase: Phase,
        #[case] goal: Goal,
        #[case] write_firewall_twins: bool,
        #[case] adopt_pods: bool,
        #[case] expected: Task,
    ) {
        let settings = HostSettings {
            write_firewall_twins,
            adopt_pods,
            ..HostSettings::before_detection("/etc/cni/net.d")
        };
        assert_eq!(Task::of(phase, goal, &settings), expected);
        let before_the_first_change = phase == Phase::Flannel && goal == Goal::Held;
        assert_eq!(Task::is_needed(phase, goal), before_the_first_change);
    }
}
