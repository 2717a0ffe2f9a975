//! What is wanted of the host, also while nobody can be asked; and the dead man's switch.

use std::time::Duration;

use api::node_migration::{Failure, NodeMigrationSpec};
use flannel_to_calico::host::{self, Orders};
use flannel_to_calico::phase::Goal;
use jiff::Timestamp;
use runtime::error::chain;
use tokio::sync::watch;

use super::{Place, Worker};
use crate::goal::Seen;
use crate::kinds::flannel_to_calico::journal::Journal;

impl Worker {
    /// The object, where it says anything of this host. One that was made again after a person deleted it says nothing until it has settings and
    /// a goal: a host that was led on its way, and may be between the two networks, stays under the orders of the journal until then.
    pub(super) fn heard<'spec>(
        &self,
        spec: Option<&'spec NodeMigrationSpec>,
    ) -> Option<&'spec NodeMigrationSpec> {
        let says_something =
            |spec: &NodeMigrationSpec| spec.flannel_to_calico.is_some() && spec.goal != Goal::Hold;
        spec.filter(|spec| says_something(spec) || !self.was_led_between())
    }

    /// Whether this host was led on its way, and was between the two networks at the last look or has not been looked at.
    fn was_led_between(&self) -> bool {
        let orders = self.journal.as_ref().and_then(Journal::orders);
        orders.is_some_and(|orders| orders.goal.is_forward()) && self.quiet.between() != Some(false)
    }

    /// The same of a host whose journal may not have been opened yet.
    pub fn may_be_between(&mut self) -> bool {
        if self.journal.is_none() && !Journal::is_there(&self.configuration.state) {
            return false;
        }
        // One that cannot be opened knows of no orders.
        let _ = self.open_journal();
        self.was_led_between()
    }

    /// Whether it was between the two networks at the last look.
    pub fn is_between(&self) -> bool {
        self.quiet.between() == Some(true)
    }

    /// What is wanted: by the object; or, where there is none, because nobody can be asked or because it was deleted, by the
    /// journal.
    pub(super) fn orders(&self, spec: Option<&NodeMigrationSpec>) -> Option<Orders> {
        match spec {
            // Without the settings nothing is changed: they say which link is flannel's.
            Some(spec) => spec.flannel_to_calico.clone().map(|settings| Orders {
                goal: spec.goal,
                settings,
                patience: spec.step.as_ref().and_then(|step| step.patience.clone()),
            }),
            None => self.journal.as_ref().and_then(Journal::orders).cloned(),
        }
    }

    pub(super) fn missing(&self, spec: Option<&NodeMigrationSpec>) -> Option<Failure> {
        let spec = spec.filter(|spec| spec.flannel_to_calico.is_none() && spec.goal != Goal::Hold)?;
        Some(Failure {
            category: "SettingsMissing".to_owned(),
            message: format!(
                "NodeMigration {}: goal {:?} is set and spec.flannelToCalico is not; the coordinator has to write it",
                self.configuration.node, spec.goal
            ),
            retriable: true,
        })
    }

    /// The goal to work towards: the one that was given, or the way back once nobody has done anything for too long.
    pub(super) fn switch(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        orders: Option<&Orders>,
        at: Place,
        goals: &watch::Receiver<Seen>,
    ) -> Result<Goal, Failure> {
        let Some(orders) = orders else {
            return Ok(Goal::Hold);
        };
        let now = Timestamp::now();
        if spec.is_some() {
            self.quiet.told(orders.patience.as_ref());
        }
        let quiet = self.quiet.lasted();
        // What was said during the look is heard first.
        let is_news = goals.has_changed().unwrap_or(true);
        let expired = !is_news && self.left_to_wait(orders, at) == Some(Duration::ZERO);
        let Some(journal) = &mut self.journal else {
            // Nobody knows what was changed on the host: the way back would take what is there for all there is.
            if orders.goal == Goal::Flannel {
                return Err(Failure {
                    category: "JournalFile".to_owned(),
                    message: "the host cannot be put back: its journal cannot be read; see the check Journal"
                        .to_owned(),
                    retriable: true,
                });
            }
            return Ok(orders.goal);
        };
        let known = if spec.is_some() && orders.goal == Goal::Flannel {
            journal.take_notice(now)
        } else {
            Ok(())
        };
        let idle = orders.goal == Goal::Hold && journal.orders().is_none();
        let written = known.and_then(|()| {
            if idle || spec.is_none() {
                return Ok(());
            }
            journal.order(orders.clone(), now)
        });
        let written = written.and_then(|()| {
            if !expired || journal.fell_back().is_some() {
                return Ok(());
            }
            let why = format!(
                "for {} s nobody has done anything on this host, which is at {} and gives new pods no network (goal {:?})",
                quiet.as_secs(),
                at.phase.as_str(),
                orders.goal
            );
            journal.fall_back(why.clone(), now)?;
            tracing::warn!(why, "the old network is put back");
            Ok(())
        });
        written.map_err(|error| Failure {
            category: error.category().to_owned(),
            message: format!("the goal cannot be remembered: {}", chain(&error)),
            retriable: true,
        })?;
        Ok(match (journal.fell_back(), spec) {
            (Some(_), _) => Goal::Flannel,
            (None, Some(_)) => orders.goal,
            // A node that has turned around goes all the way back; what else was ordered may have been taken back since, and is
            // not gone on with.
            (None, None) if orders.goal == Goal::Flannel => Goal::Flannel,
            (None, None) => Goal::Hold,
        })
    }

    pub(super) fn left_to_wait(&self, orders: &Orders, at: Place) -> Option<Duration> {
        host::left_to_wait(at.service, orders.goal, orders.patience(), self.quiet.lasted())
    }
}
