//! The state that the records of the journal add up to. No I/O.

use std::collections::BTreeSet;

use api::node_migration::FinishedStep;
use flannel_to_calico::host::{HostStep, JournalState, Orders, Undo};
use jiff::Timestamp;

use super::record::{Before, Change, Event, Record};

/// Number of finished steps in the status: those of three migrations.
pub(super) const SHOWN_STEPS: usize = 32;

#[derive(Debug)]
pub(super) struct OpenStep {
    pub change: Change,
    since: Timestamp,
}

/// The sum of all records.
#[derive(Debug, Default)]
pub(super) struct State {
    pub sequence: u64,
    /// The step that was started and not finished.
    pub open: Option<OpenStep>,
    /// Changes that have not been undone, the newest last.
    pub standing: Vec<Change>,
    pub done: Vec<FinishedStep>,
    pub orders: Option<Orders>,
    pub fell_back: Option<String>,
    /// Sandboxes of pods whose links calico-node has not taken in time.
    pub not_taken: BTreeSet<String>,
    /// When the last record was written.
    pub last_at: Option<Timestamp>,
}

impl State {
    /// The step that was started and not recorded as finished: the process ended during it.
    pub(super) fn open_step(&self) -> Option<&HostStep> {
        self.open.as_ref().map(|open| &open.change.step)
    }

    /// The journal's state for decisions.
    pub(super) fn remembered(&self) -> JournalState {
        JournalState {
            interrupted: self.open_step().cloned(),
            unreverted: self.standing.iter().map(|change| change.step.clone()).collect(),
            without_coordinator: self.fell_back.is_some(),
            not_taken: self.not_taken.clone(),
        }
    }

    /// The state before the change that this step undoes. Several changes may have named a pod, the later ones after a crash in
    /// the middle of the first: the first one has the state from before all of them.
    pub(super) fn before_change(&self, undo: &HostStep) -> Option<Before> {
        let mut reverted = self
            .standing
            .iter()
            .rev()
            .filter(|change| undo.remainder(&change.step).as_ref() != Some(&change.step));
        let newest = reverted.next()?.before.clone();
        Some(match undo {
            HostStep::RevertPods(_) => reverted.fold(newest, |later, change| later.joined(&change.before)),
            _ => newest,
        })
    }

    /// The state before this step, if it was started and not finished.
    pub(super) fn before_interrupted(&self, step: &HostStep) -> Option<&Before> {
        self.open
            .as_ref()
            .filter(|open| open.change.step == *step)
            .map(|open| &open.change.before)
    }

    /// Summary of the records, which replaces them.
    pub(super) fn summary(&self) -> Event {
        Event::Kept {
            standing: self.standing.clone(),
            done: self.done.clone(),
            orders: self.orders.clone(),
            fell_back: self.fell_back.clone(),
            not_taken: self.not_taken.clone(),
        }
    }

    /// Adds the next record.
    pub(super) fn replay(&mut self, record: &Record) {
        self.sequence = record.sequence;
        self.last_at = Some(record.at);
        match &record.event {
            Event::Ordered(orders) => {
                let attempt = |orders: &Orders| orders.settings.adoption.resumed_at;
                if self.orders.as_ref().map(attempt) != Some(attempt(orders)) {
                    self.not_taken.clear();
                }
                self.orders = Some(orders.clone());
            }
            Event::NotTaken { sandboxes } => self.not_taken.extend(sandboxes.iter().cloned()),
            Event::FellBack { why } => self.fell_back = Some(why.clone()),
            Event::TakenNotice => self.fell_back = None,
            Event::CameBack => {
                self.standing.clear();
                self.not_taken.clear();
            }
            Event::Kept {
                standing,
                done,
                orders,
                fell_back,
                not_taken,
            } => {
                self.open = None;
                self.orders.clone_from(orders);
                self.fell_back.clone_from(fell_back);
                self.not_taken.clone_from(not_taken);
                self.standing.clone_from(standing);
                self.done.clone_from(done);
            }
            Event::Started(change) => {
                self.add_standing(change);
                self.open = Some(OpenStep {
                    change: (**change).clone(),
                    since: record.at,
                });
            }
            Event::Finished { step } => {
                self.standing = std::mem::take(&mut self.standing)
                    .into_iter()
                    .filter_map(|change| change.after(step))
                    .collect();
                if let HostStep::ForgetLegacyPod(sandbox) = step {
                    self.not_taken.remove(sandbox);
                }
                let began = self
                    .open
                    .take()
                    .filter(|open| open.change.step == *step)
                    .map_or(record.at, |open| open.since);
                self.done.push(FinishedStep {
                    name: step.name().to_owned(),
                    started_at: began,
                    finished_at: record.at,
                });
                if self.done.len() > SHOWN_STEPS {
                    self.done.remove(0);
                }
            }
        }
    }

    /// Adds a standing change. A change stands as soon as it is announced: a crash may be before or after the change itself.
    fn add_standing(&mut self, change: &Change) {
        let undo = change.step.undo();
        if let Undo::Nothing(_) = undo {
            return;
        }
        let same = self.standing.iter().position(|change| change.step.undo() == undo);
        let first = same.map(|at| self.standing.remove(at).before).unwrap_or_default();
        self.standing.push(Change {
            step: change.step.clone(),
            before: change.before.clone().merged(first),
        });
    }
}
