//! The preview of network policies, before the start of a migration: in rounds beside the passes, at most every 30 s. A pass starts
//! a round when one is due, and reads the last result.
//!
//! A round reads the policies, finds the pods that they select (`policy::dormant`), tells the agents which connections to sample,
//! and judges what they have seen (`policy::tally`). [`flannel_to_calico::preview`] is the result.

mod lists;
mod pods;
mod round;
mod samples;

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Migration;
use api::migration::Desired;
use flannel_to_calico::facts::{ClusterFacts, PreviewState};
use flannel_to_calico::policy_facts;
use flannel_to_calico::settings::Settings;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource as _, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use self::round::{Found, Kept, Round};
use self::samples::Owner;
use crate::cache::Cache;
use crate::context::Context;
use crate::kind_memory::KindMemory;
use crate::node_migrations::linux_nodes;

/// Shortest time between the ends of two rounds.
const PAUSE: Duration = Duration::from_secs(30);
/// Share of time for rounds: one part in this number, unless that makes the time between two rounds longer than this.
const SHARE: u32 = 10;
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// Time that a pass waits for the result of the very first round, and of the first one after the start was ordered: a cluster without
/// policies is planned, and started, at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// A result of this age is not known any more: rounds fail or hang.
const STALE: Duration = Duration::from_mins(15);

/// The preview between passes. Lost at a restart: pods that ended before are not known then.
pub(super) struct PreviewMemory {
    /// Shortest time between two rounds, and in parts of the time that a round took.
    pause: (Duration, u32),
    round: Option<Running>,
    /// The last round: its end, and how long it took.
    ended: Option<(Instant, Duration)>,
    kept: Option<Kept>,
    found: watch::Sender<Option<Found>>,
    /// What the result is about: the UID of the Migration, and whether connections are observed.
    about: Option<(String, bool)>,
    /// The version of the spec that orders the start, and when it was seen first. A start needs a round that begins later: the user
    /// may have created a policy just before.
    ordered: Option<(Option<i64>, Instant)>,
    /// Samples are deleted, or are being deleted.
    removal: Removal,
}

struct Running {
    task: Task<Kept>,
    since: Instant,
}

/// Work beside the passes. It ends with its owner: another coordinator may lead from then on.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The removal of all samples, once the migration has started.
#[derive(Default)]
enum Removal {
    #[default]
    NotBegun,
    Running(Task<bool>),
    /// It failed then, and is tried again later.
    Failed(Instant),
    Done,
}

impl Default for PreviewMemory {
    fn default() -> Self {
        Self {
            pause: (PAUSE, SHARE),
            round: None,
            ended: None,
            kept: None,
            found: watch::Sender::new(None),
            about: None,
            ordered: None,
            removal: Removal::NotBegun,
        }
    }
}

impl KindMemory for PreviewMemory {
    fn stop(&mut self) {
        *self = Self {
            pause: self.pause,
            ..Self::default()
        };
    }
}

impl PreviewMemory {
    /// Starts a round if one is due, and returns the last result.
    pub async fn observe(
        &mut self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
        settings: &Settings,
        facts: &ClusterFacts,
    ) -> PreviewState {
        let kind = migration.spec.flannel_to_calico.as_ref();
        let observes = kind.is_some_and(|kind| kind.policy_preview.observe_seconds > 0);
        let about = (migration.uid().unwrap_or_default(), observes);
        if self.about.as_ref() != Some(&about) {
            // Another Migration, or another order: the next round begins at once.
            self.stop();
            self.about = Some(about);
        }
        let order = (migration.spec.desired == Desired::Run).then_some(migration.metadata.generation);
        if self.ordered.map(|(generation, _)| generation) != order {
            self.ordered = order.map(|generation| (generation, Instant::now()));
        }
        self.take_ended().await;
        if self.is_due() {
            self.begin(context, cache, migration, settings, facts, observes);
            if !self.is_current() {
                let ordered = self.ordered;
                let mut found = self.found.subscribe();
                let found = found.wait_for(|found| is_current(found.as_ref(), ordered));
                let _ = tokio::time::timeout(PATIENCE, found).await;
                self.take_ended().await;
            }
        }
        let state = match &*self.found.borrow() {
            Some(found) if is_current(Some(found), self.ordered) => {
                if found.at.elapsed() >= STALE {
                    PreviewState::Unread
                } else {
                    PreviewState::Known(Arc::clone(&found.preview))
                }
            }
            // A round that fails publishes nothing.
            Some(_) | None => {
                let ordered = self.ordered.map(|(_, seen)| seen);
                if ordered.is_some_and(|seen| seen.elapsed() >= STALE) {
                    PreviewState::Unread
                } else {
                    PreviewState::Reading
                }
            }
        };
        count(context, &state);
        state
    }

    /// The next round begins without a pause, or with the usual one.
    #[cfg(test)]
    pub fn set_pause(&mut self, is_usual: bool) {
        self.pause = if is_usual {
            (PAUSE, SHARE)
        } else {
            (Duration::ZERO, 0)
        };
    }

    fn is_due(&self) -> bool {
        let (shortest, share) = self.pause;
        let is_over = |(at, took): (Instant, Duration)| {
            let pause = took.saturating_mul(share).min(LONGEST_PAUSE);
            at.elapsed() >= pause.max(shortest)
        };
        // The first round after the order begins without a pause.
        let is_before_order =
            |(at, took): (Instant, Duration)| self.ordered.is_some_and(|(_, seen)| at < seen + took);
        self.round.is_none()
            && self
                .ended
                .is_none_or(|last| is_before_order(last) || is_over(last))
    }

    /// Whether there is a result, and its round began after the start was ordered.
    fn is_current(&self) -> bool {
        is_current(self.found.borrow().as_ref(), self.ordered)
    }

    /// Takes what an ended round leaves.
    async fn take_ended(&mut self) {
        let Some(mut round) = self.round.take_if(|round| round.task.0.is_finished()) else {
            return;
        };
        self.ended = Some((Instant::now(), round.since.elapsed()));
        match (&mut round.task.0).await {
            Ok(kept) => self.kept = Some(kept),
            Err(error) => warn!(%error, "a round of the policy preview failed"),
        }
    }

    fn begin(
        &mut self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
        settings: &Settings,
        facts: &ClusterFacts,
        observes: bool,
    ) {
        let Some(reference) = migration.controller_owner_ref(&()) else {
            return;
        };
        let nodes: Vec<policy::Node> = {
            let linux = linux_nodes(cache);
            let mut nodes = policy_facts::nodes(facts);
            nodes.retain(|node| linux.contains_key(&*node.name));
            nodes
        };
        let round = Round {
            client: context.background.clone(),
            owner: Owner {
                name: migration.name_any(),
                reference: OwnerReference {
                    block_owner_deletion: Some(false),
                    ..reference
                },
            },
            index: cache.pods.index(),
            nodes,
            settings: settings.clone(),
            // Pods and objects are shared or left out: Felix' settings need Calico's DaemonSet only.
            facts: ClusterFacts {
                daemon_sets: facts.daemon_sets.clone(),
                config_maps: facts.config_maps.clone(),
                ..ClusterFacts::default()
            },
            observes,
            found: self.found.clone(),
        };
        let kept = self.kept.take().unwrap_or_default();
        self.removal = Removal::NotBegun;
        self.round = Some(Running {
            task: Task(tokio::spawn(round.run(kept))),
            since: Instant::now(),
        });
    }

    /// The migration has started: ends the rounds and deletes the samples, beside the passes.
    pub async fn end(&mut self, context: &Context) {
        self.round = None;
        self.removal = match std::mem::take(&mut self.removal) {
            Removal::Done => Removal::Done,
            Removal::Running(mut task) if task.0.is_finished() => match (&mut task.0).await {
                Ok(true) => Removal::Done,
                Ok(false) | Err(_) => Removal::Failed(Instant::now()),
            },
            Removal::Running(task) => Removal::Running(task),
            Removal::Failed(at) if at.elapsed() < self.pause.0 => Removal::Failed(at),
            Removal::NotBegun | Removal::Failed(_) => {
                let client = context.background.clone();
                let removal = async move { samples::are_deleted(&client).await };
                Removal::Running(Task(tokio::spawn(removal)))
            }
        };
    }
}

/// Whether there is a result, and its round began after this order.
fn is_current(found: Option<&Found>, ordered: Option<(Option<i64>, Instant)>) -> bool {
    found.is_some_and(|found| ordered.is_none_or(|(_, seen)| found.begun >= seen))
}

/// Shows the result as metrics.
fn count(context: &Context, state: &PreviewState) {
    let metrics = &context.metrics;
    metrics.preview_connections.reset();
    let PreviewState::Known(preview) = state else {
        return;
    };
    let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    metrics.dormant_policies.set(gauge(preview.policies as u64));
    let Some(observation) = &preview.observation else {
        return;
    };
    let counts = observation.tally.counts();
    for (verdict, number) in [
        ("Allowed", counts.allowed),
        ("Refused", counts.refused),
        ("Unknown", counts.unknown),
        ("Unanswered", counts.unanswered),
    ] {
        let connections = metrics.preview_connections.with_label_values(&[verdict]);
        connections.set(gauge(number));
    }
}
