//! The rules of other programs that name the links of flannel: read before the migration, and given twins for the links of Calico while
//! the host is migrated, if the user wants that. The twins have a mark, so that no journal is needed: they are recognized after any
//! restart, and removed once the host is on flannel again.

use std::path::Path;
use std::time::{Duration, Instant};

use api::node_migration::Failure;
use flannel_to_calico::foreign_rules::ForeignRules;
use flannel_to_calico::phase::{Goal, Phase};
use runtime::error::chain;

use crate::host::firewall::foreign::{self, Foreign};
use crate::host::program::ProgramError;

/// Age at which the rules are read again.
const AGE: Duration = Duration::from_mins(1);

/// The state of the host, and what the user wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'spec> {
    /// The state of the host.
    pub phase: Phase,
    /// What the host is brought to.
    pub goal: Goal,
    /// Whether the agent writes twins.
    pub writes_twins: bool,
    /// Name of the Migration; none without one.
    pub migration: Option<&'spec str>,
}

/// What to do about the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Report them: the migration has not changed the host.
    Report,
    /// Write the missing twins, and report.
    Write,
    /// Remove the written twins: the host is back on flannel.
    Remove,
    /// Nothing: the check is over, and steps must not wait.
    Nothing,
}

impl Situation<'_> {
    fn task(self) -> Task {
        let Self {
            phase,
            goal,
            writes_twins,
            migration: _,
        } = self;
        match (phase, goal) {
            (Phase::Flannel, Goal::Hold) => Task::Report,
            _ if !writes_twins => Task::Nothing,
            (Phase::Flannel, Goal::Flannel) => Task::Remove,
            // The twins stay until the links of Calico are gone.
            _ => Task::Write,
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
    rules: ForeignRules,
}

impl ForeignRuleKeeper {
    /// Does what the situation asks for, and returns the rules to report. Read again if the last reading is old, or was for another
    /// Migration or task: the user may have corrected the rules in between.
    ///
    /// # Errors
    ///
    /// A twin cannot be written or removed, or the rules cannot be read in order to do so.
    pub(super) async fn keep(
        &mut self,
        situation: Situation<'_>,
        proc: &Path,
    ) -> Result<Option<ForeignRules>, Failure> {
        let task = situation.task();
        if task == Task::Nothing {
            self.read = None;
            return Ok(None);
        }
        let is_current = |read: &Read| {
            read.at.elapsed() < AGE && read.migration.as_deref() == situation.migration && read.task == task
        };
        if !self.read.as_ref().is_some_and(is_current) {
            self.read = None;
            let found = perform(task, foreign::read(proc).await, proc).await?;
            self.read = Some(Read {
                at: Instant::now(),
                migration: situation.migration.map(str::to_owned),
                task,
                rules: found.report,
            });
        }
        let rules = self.read.as_ref().map(|read| read.rules.clone());
        Ok(rules.filter(|_| task != Task::Remove))
    }
}

/// Writes or removes twins, and returns the rules after that.
async fn perform(task: Task, found: Foreign, proc: &Path) -> Result<Foreign, Failure> {
    let is_to_change = match task {
        Task::Write => found.lacks_twins(),
        // A Migration may be deleted before it has removed them.
        Task::Remove | Task::Report => found.has_written_twins(),
        Task::Nothing => false,
    };
    if let (Task::Write | Task::Remove, Some(problem)) = (task, &found.report.problem) {
        return Err(Failure {
            category: api::FailureCategory::ProgramAnswer.into(),
            message: format!("rules of other programs, for their twins: {problem}"),
            retriable: true,
        });
    }
    if !is_to_change {
        return Ok(found);
    }
    let (changed, what) = if task == Task::Write {
        (found.write_twins().await, "writing")
    } else {
        (found.remove_twins().await, "removing")
    };
    changed.map_err(|error| failure(what, &error))?;
    tracing::info!(what, "twins of rules of other programs: done");
    Ok(foreign::read(proc).await)
}

fn failure(what: &str, error: &ProgramError) -> Failure {
    Failure {
        category: error.category().into(),
        message: format!(
            "{what} twins of other programs' rules for the links of Calico (comment replumb-twin): {}",
            chain(error)
        ),
        retriable: true,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::before_the_start(Phase::Flannel, Goal::Hold, true, Task::Report)]
    #[case::first_step(Phase::Flannel, Goal::Held, true, Task::Write)]
    #[case::first_step_without_twins(Phase::Flannel, Goal::Held, false, Task::Nothing)]
    #[case::at_the_end(Phase::Calico, Goal::Calico, true, Task::Write)]
    #[case::without_orders(Phase::Calico, Goal::Hold, true, Task::Write)]
    #[case::on_the_way_back(Phase::Held, Goal::Flannel, true, Task::Write)]
    #[case::back(Phase::Flannel, Goal::Flannel, true, Task::Remove)]
    #[case::back_without_twins(Phase::Flannel, Goal::Flannel, false, Task::Nothing)]
    fn the_task_follows_the_host(
        #[case] phase: Phase,
        #[case] goal: Goal,
        #[case] writes_twins: bool,
        #[case] expected: Task,
    ) {
        let situation = Situation {
            phase,
            goal,
            writes_twins,
            migration: Some("m"),
        };
        assert_eq!(situation.task(), expected);
    }
}
