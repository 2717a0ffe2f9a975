//! The goal of the host, also while the API server is unreachable; and the dead man's switch.

use std::time::Duration;

use ::flannel_to_calico::api::OrEmpty as _;
use api::FailureCategory;
use api::node_migration::{Failure, NodeMigrationSpec};
use flannel_to_calico::host::{self, Orders};
use flannel_to_calico::phase::Goal;
use jiff::Timestamp;
use runtime::error::chain;
use tokio::sync::watch;

use super::{Position, Worker};
use crate::kinds::flannel_to_calico::journal::Journal;
use crate::watched_object::WatchedObject;

impl Worker {
    /// The spec, if it is complete. A NodeMigration that was recreated after a deletion is incomplete until it has settings and a
    /// goal: until then a host that may be between the two networks follows the journal.
    pub(super) fn effective_spec<'spec>(
        &self,
        spec: Option<&'spec NodeMigrationSpec>,
    ) -> Option<&'spec NodeMigrationSpec> {
        let is_complete = |spec: &NodeMigrationSpec| {
            let of_kind = spec.flannel_to_calico.or_empty();
            of_kind.host.is_some() && of_kind.goal != Goal::Hold
        };
        spec.filter(|spec| is_complete(spec) || !self.was_moved_between())
    }

    /// Whether this host has a forward goal in the journal, and was between the two networks at the last observation or was never
    /// observed.
    fn was_moved_between(&self) -> bool {
        let orders = self.journal.as_ref().and_then(Journal::orders);
        orders.is_some_and(|orders| orders.goal.is_forward()) && self.quiet.between() != Some(false)
    }

    /// The same for a host whose journal may not have been opened yet.
    pub fn may_be_between(&mut self) -> bool {
        if self.journal.is_none() && !Journal::exists(&self.configuration.state) {
            return false;
        }
        // A journal that cannot be opened has no known goal.
        let _ = self.open_journal();
        self.was_moved_between()
    }

    /// Whether the host was between the two networks at the last observation.
    pub fn is_between(&self) -> bool {
        self.quiet.between() == Some(true)
    }

    /// The goal and settings: from the object; without one, because it was deleted or the API server is unreachable, from the
    /// journal.
    pub(super) fn orders(&self, spec: Option<&NodeMigrationSpec>) -> Option<Orders> {
        match spec {
            // Without the settings nothing is changed: they identify flannel's link.
            Some(spec) => spec
                .flannel_to_calico
                .or_empty()
                .host
                .clone()
                .map(|settings| Orders {
                    goal: spec.flannel_to_calico.or_empty().goal,
                    settings,
                    time_limit: spec.step.as_ref().and_then(|step| step.time_limit.clone()),
                }),
            None => self.journal.as_ref().and_then(Journal::orders).cloned(),
        }
    }

    pub(super) fn missing_settings(&self, spec: Option<&NodeMigrationSpec>) -> Option<Failure> {
        let spec = spec.filter(|spec| {
            let of_kind = spec.flannel_to_calico.or_empty();
            of_kind.host.is_none() && of_kind.goal != Goal::Hold
        })?;
        Some(Failure {
            category: FailureCategory::SettingsMissing.into(),
            message: format!(
                "NodeMigration {}: spec.flannelToCalico.goal is {:?}, but spec.flannelToCalico.host is missing: the coordinator has to write it",
                self.configuration.node,
                spec.flannel_to_calico.or_empty().goal
            ),
            retriable: true,
        })
    }

    /// The goal to work towards: the given one, or the rollback once there was no progress for too long.
    pub(super) fn goal(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        orders: Option<&Orders>,
        at: Position,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Result<Goal, Failure> {
        let Some(orders) = orders else {
            return Ok(Goal::Hold);
        };
        let now = Timestamp::now();
        if spec.is_some() {
            self.quiet.set_time_limit(orders.time_limit.as_ref());
        }
        let quiet = self.quiet.elapsed();
        // A spec that arrived during the observation is handled first.
        let is_news = goals.has_changed().unwrap_or(true);
        let expired = !is_news && self.remaining_time(orders, at) == Some(Duration::ZERO);
        let Some(journal) = &mut self.journal else {
            // The earlier changes of the host are unknown: a rollback would be incomplete.
            if orders.goal == Goal::Flannel {
                return Err(Failure {
                    category: FailureCategory::JournalFile.into(),
                    message:
                        "host cannot be rolled back: its journal could not be read; see the check Journal"
                            .to_owned(),
                    retriable: true,
                });
            }
            return Ok(orders.goal);
        };
        let known = if spec.is_some() && orders.goal == Goal::Flannel {
            journal.acknowledge_rollback(now)
        } else {
            Ok(())
        };
        let idle = orders.goal == Goal::Hold && journal.orders().is_none();
        let written = known.and_then(|()| {
            if idle || spec.is_none() {
                return Ok(());
            }
            journal.record_goal(orders.clone(), now)
        });
        let written = written.and_then(|()| {
            if !expired || journal.automatic_rollback().is_some() {
                return Ok(());
            }
            let why = format!(
                "no progress for {} s: the host is in phase {}, where new pods get no network (goal {:?})",
                quiet.as_secs(),
                at.phase.as_str(),
                orders.goal
            );
            journal.record_automatic_rollback(why.clone(), now)?;
            tracing::warn!(why, "rolling back to the old network");
            Ok(())
        });
        written.map_err(|error| Failure {
            category: error.category().into(),
            message: format!("the goal cannot be saved: {}", chain(&error)),
            retriable: true,
        })?;
        Ok(match (journal.automatic_rollback(), spec) {
            (Some(_), _) => Goal::Flannel,
            (None, Some(_)) => orders.goal,
            // A node in rollback is rolled back completely; any other goal may have been revoked since, and is not continued.
            (None, None) if orders.goal == Goal::Flannel => Goal::Flannel,
            (None, None) => Goal::Hold,
        })
    }

    pub(super) fn remaining_time(&self, orders: &Orders, at: Position) -> Option<Duration> {
        host::remaining_time(at.service, orders.goal, orders.time_limit(), self.quiet.elapsed())
    }
}
