//! Performs the steps that lead to the goal, each with its record in the journal.

use api::FailureCategory;
use api::node_migration::Failure;
use flannel_to_calico::host::{self, HostDecision, HostSettings, HostStep};
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use runtime::error::chain;
use tokio::sync::watch;

use super::{Position, Worker};
use crate::host::paths::Paths;
use crate::kinds::flannel_to_calico::apply::apply;
use crate::kinds::flannel_to_calico::journal::Journal;
use crate::kinds::flannel_to_calico::observe::Observation;
use crate::watched_object::WatchedObject;

/// More steps than any host needs: above it, another program reverts the steps.
const MOST_STEPS: usize = 64;

/// The outcome of the steps of one turn.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What the host waits for, or what it has reached.
    pub message: String,
    /// The failure that stopped the steps.
    pub failure: Option<Failure>,
    /// The host has reached its goal, and more steps may follow the report.
    pub has_reached_goal: bool,
}

impl Worker {
    /// Performs steps until the goal is reached, a step has to wait, or a step fails. With a failure from before, no step is
    /// performed. `seen` becomes the observation after the last step.
    pub(super) async fn perform_steps(
        &mut self,
        seen: &mut Observation,
        settings: &HostSettings,
        paths: &Paths,
        goal: Goal,
        goals: &watch::Receiver<WatchedObject>,
        failure: Option<Failure>,
    ) -> Outcome {
        let mut outcome = Outcome {
            message: String::new(),
            failure,
            has_reached_goal: false,
        };
        for _ in 0..MOST_STEPS {
            match host::decide(&seen.facts, settings, goal, &self.remembered()) {
                HostDecision::Run(step) => {
                    if outcome.failure.is_some() || goals.has_changed().unwrap_or(true) {
                        outcome.message = format!("next: {} ({})", step.name(), step.object());
                        break;
                    }
                    match self.perform(&step, seen, paths).await {
                        Ok(after) => {
                            *seen = after;
                            let before = self.at;
                            self.record_step(&step, seen, settings);
                            if reaches(goal, self.at) && !reaches(goal, before) {
                                outcome.has_reached_goal = true;
                                outcome.message = settled(goal);
                                break;
                            }
                        }
                        Err(problem) => outcome.failure = Some(problem),
                    }
                }
                HostDecision::Wait(what) => {
                    outcome.message = what;
                    break;
                }
                HostDecision::Settled => {
                    outcome.message = settled(goal);
                    outcome.failure = outcome.failure.or_else(|| self.close_changes(goal));
                    break;
                }
                HostDecision::Halt(why) => {
                    outcome.failure = Some(Failure {
                        category: FailureCategory::Contradiction.into(),
                        message: why,
                        retriable: false,
                    });
                    break;
                }
            }
            if outcome.failure.is_some() {
                break;
            }
        }
        if let Some(failure) = &outcome.failure {
            outcome.message.clone_from(&failure.message);
        }
        outcome
    }

    /// Records an interrupted step as finished if the facts show that it is done.
    pub(super) fn finish_interrupted(&mut self, seen: &Observation) -> Result<(), String> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let done = journal
            .open_step()
            .filter(|step| step.is_proved_by_facts() && step.is_done(&seen.facts))
            .cloned();
        let Some(step) = done else {
            return Ok(());
        };
        tracing::info!(step = step.name(), "interrupted step is done");
        journal
            .finish(&step, Timestamp::now())
            .map_err(|error| chain(&error))
    }

    /// Records a performed step. A step that is repeated in the same phase is no progress: another program reverts it.
    fn record_step(&mut self, step: &HostStep, seen: &Observation, settings: &HostSettings) {
        self.set_position(seen, settings);
        if self.performed.insert((step.name(), step.object())) {
            self.quiet.record_step();
        }
    }

    /// Closes the changes in the journal once the host is rolled back and the coordinator knows why.
    fn close_changes(&mut self, goal: Goal) -> Option<Failure> {
        let journal = self
            .journal
            .as_mut()
            .filter(|journal| journal.automatic_rollback().is_none())?;
        if goal != Goal::Flannel {
            return None;
        }
        let error = journal.record_rollback(Timestamp::now()).err()?;
        Some(Failure {
            category: error.category().into(),
            message: chain(&error),
            retriable: true,
        })
    }

    async fn perform(
        &mut self,
        step: &HostStep,
        seen: &Observation,
        paths: &Paths,
    ) -> Result<Observation, Failure> {
        let name = step.name();
        let object = step.object();
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => match Journal::open(&self.configuration.state) {
                Ok(journal) => none.insert(journal),
                Err(error) => {
                    return Err(Failure {
                        category: error.category().into(),
                        message: format!("{object}: {name} was not started: {}", chain(&error)),
                        retriable: true,
                    });
                }
            },
        };
        let began = std::time::Instant::now();
        let outcome = apply(step, seen, paths, &self.netlink, &self.processes, journal).await;
        let label = if outcome.is_ok() { "done" } else { "failed" };
        self.configuration
            .metrics
            .step_duration
            .with_label_values(&[name, label])
            .observe(began.elapsed().as_secs_f64());
        match outcome {
            Ok(after) => {
                tracing::info!(
                    step = name,
                    object,
                    milliseconds = began.elapsed().as_millis(),
                    "step done"
                );
                Ok(after)
            }
            Err(error) => Err(Failure {
                category: error.category().into(),
                message: format!("{object}: {}", chain(&error)),
                retriable: true,
            }),
        }
    }
}

/// Whether a host at this position has reached a goal on the way to Calico.
fn reaches(goal: Goal, at: Option<Position>) -> bool {
    let wanted = goal.phase().filter(|_| goal.is_forward());
    wanted
        .zip(at)
        .is_some_and(|(wanted, at)| at.phase.reaches(wanted))
}

fn settled(goal: Goal) -> String {
    match goal.phase() {
        Some(Phase::Flannel) => "host is in its state before the migration".to_owned(),
        Some(phase) => format!("host has reached phase {}", phase.as_str()),
        None => "observing, no changes".to_owned(),
    }
}
