//! The state that the records of the journal add up to. No I/O.

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
        }
    }

    /// The state before the change that this step undoes.
    pub(super) fn before_change(&self, undo: &HostStep) -> Option<&Before> {
        self.standing
            .iter()
            .rev()
            .find(|change| undo.reverts(&change.step))
            .map(|change| &change.before)
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
        }
    }

    /// Adds the next record.
    pub(super) fn replay(&mut self, record: &Record) {
        self.sequence = record.sequence;
        self.last_at = Some(record.at);
        match &record.event {
            Event::Ordered(orders) => self.orders = Some(orders.clone()),
            Event::FellBack { why } => self.fell_back = Some(why.clone()),
            Event::TakenNotice => self.fell_back = None,
            Event::CameBack => self.standing.clear(),
            Event::Kept {
                standing,
                done,
                orders,
                fell_back,
            } => {
                self.open = None;
                self.orders.clone_from(orders);
                self.fell_back.clone_from(fell_back);
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
                self.standing.retain(|change| !step.reverts(&change.step));
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
