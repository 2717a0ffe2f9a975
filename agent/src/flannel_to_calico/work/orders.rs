//! What is wanted of the host, also while nobody can be asked; and the dead man's switch.

use std::time::Duration;

use api::node_migration::{Failure, NodeMigrationSpec};
use jiff::Timestamp;
use plan::flannel_to_calico::host::{self, Orders};
use plan::flannel_to_calico::phase::{Goal, Phase};

use super::Worker;
use crate::flannel_to_calico::journal::Journal;
use crate::report::chain;

impl Worker {
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
        phase: Phase,
    ) -> Result<Goal, Failure> {
        let Some(orders) = orders else {
            return Ok(Goal::Hold);
        };
        let now = Timestamp::now();
        if spec.is_some() {
            self.quiet.told(orders.patience.as_ref());
        }
        self.quiet.looked(host::is_between(phase));
        let quiet = self.quiet.lasted();
        let expired = self.left_to_wait(orders, phase) == Some(Duration::ZERO);
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
        let known = if spec.is_none() || orders.goal.is_forward() {
            Ok(())
        } else {
            journal.take_notice(now)
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
                phase.as_str(),
                orders.goal
            );
            tracing::warn!(why, "the old network is put back");
            journal.fall_back(why, now)
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

    pub(super) fn left_to_wait(&self, orders: &Orders, phase: Phase) -> Option<Duration> {
        host::left_to_wait(phase, orders.goal, orders.patience(), self.quiet.lasted())
    }
}
