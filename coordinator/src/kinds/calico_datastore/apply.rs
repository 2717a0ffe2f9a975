//! One step of a conversion in a cluster. Each step is idempotent, and each write has the version that was read.

mod backup;
mod complete;

use api::MigrationStatus;
use api::migration::{AutomaticRollback, CalicoDatastoreStatus, Direction};
use calico_datastore::cluster::calico::Calico;
use calico_datastore::cluster::step::{Step, StoreWork};
use crash_point::Edge;
use datastore::run::Options;
use engine::decision::{Decision, Wait, WaitReason};
use engine::evict::PodName;
use engine::words;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::ReadCache;
use super::objects::{patch, spec_change};
use super::observe::Observed;
use super::pass::Pass;
use super::saved::{Saved, on_delete};
use super::stores::{self, Patience};
use crate::clock;
use crate::evict::evict;
use crate::failure::Failure as _;
use crate::memory::Memory;
use crate::staged;
use crate::waits::wait;
use crate::write::WriteError;

/// Keys of one transaction: etcd accepts 128 changes, and as many conditions, by default.
const BATCH: usize = 100;

/// Outcome of a step.
enum Outcome {
    /// The step is done; the text for the status.
    Done(String),
    /// The step has to wait.
    Waits(Wait),
}

impl Outcome {
    fn waits(reason: WaitReason, message: String) -> Self {
        Self::Waits(Wait {
            reason,
            message,
            until: None,
        })
    }
}

impl Pass<'_> {
    /// Runs the decided step on the stores, or reports the wait.
    pub(super) async fn apply_to_stores(
        &self,
        decision: Decision<Step>,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        if let Some(step) = staged::report(decision, status) {
            let outcome = self.run_on_stores(&step, known, memory).await;
            report_outcome(Ok(outcome), status)?;
        }
        Ok(())
    }

    /// Runs the decided step, or reports the wait.
    pub(super) async fn apply(
        &self,
        decision: Decision<Step>,
        direction: Direction,
        observed: &Observed,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        match staged::report(decision, status) {
            Some(Step::Finish) => self.complete(direction, memory, known, status).await?,
            Some(step) => {
                let made = Box::pin(self.run(&step, known, memory, observed)).await;
                report_outcome(made, status)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Runs a step that needs only the stores, and nothing from the cluster.
    async fn run_on_stores(
        &self,
        step: &Step,
        known: &mut CalicoDatastoreStatus,
        memory: &mut Memory,
    ) -> Outcome {
        crash_point::reach(step.name(), Edge::Announced, None).await;
        let made = match step {
            Step::RollBack(why) => {
                known.automatic_rollback = Some(AutomaticRollback {
                    at: self.now,
                    reason: why.clone(),
                });
                // Not in the next pass: the API server may be unreachable by then.
                let begun = self
                    .begin(StoreWork::Abort { nodes_of_v3: true }, known, memory)
                    .await;
                match begun {
                    Outcome::Done(_) => Outcome::Done(format!("{why}: rolling everything back")),
                    waits @ Outcome::Waits(_) => waits,
                }
            }
            Step::StopWork => {
                memory.kinds.of::<ReadCache>().worker.stop();
                Outcome::Done("the work on the stores is stopped".to_owned())
            }
            Step::Work(work) => self.begin(*work, known, memory).await,
            Step::BackUp
            | Step::StopControllers
            | Step::WriteConfiguration(_)
            | Step::WriteDaemonSet(_)
            | Step::Restart(_)
            | Step::WriteControllers(_)
            | Step::WriteStrategy(_)
            | Step::Finish => Outcome::Done(String::new()),
        };
        crash_point::reach(step.name(), Edge::Changed, None).await;
        made
    }

    /// Runs the step, and describes it for the status. [`Step::Finish`] is not run here.
    async fn run(
        &self,
        step: &Step,
        known: &mut CalicoDatastoreStatus,
        memory: &mut Memory,
        observed: &Observed,
    ) -> Result<Outcome, WriteError> {
        if matches!(step, Step::RollBack(_) | Step::StopWork | Step::Work(_)) {
            return Ok(self.run_on_stores(step, known, memory).await);
        }
        crash_point::reach(step.name(), Edge::Announced, None).await;
        let made = match step {
            Step::BackUp => self.back_up(known, memory).await?,
            Step::Restart(pods) => self.restart(pods, memory).await,
            Step::StopControllers => {
                let change = json!({ "spec": { "replicas": 0 } });
                self.write(observed.controllers.as_ref(), change).await?;
                Outcome::Done(
                    "calico-kube-controllers is scaled to 0: changed policies have no effect until it runs again".to_owned(),
                )
            }
            Step::WriteConfiguration(calico) => {
                self.write_configuration(*calico, observed.configuration.as_ref())
                    .await?;
                Outcome::Done(format!(
                    "the ConfigMap has the data of Calico {}",
                    calico.as_str()
                ))
            }
            Step::WriteDaemonSet(calico) => {
                let change = held_patch(self.saved, &observed.daemon_set, *calico);
                self.write(Some(&observed.daemon_set), change).await?;
                Outcome::Done(format!(
                    "the DaemonSet of calico-node has the template of Calico {}: pods restart node by node",
                    calico.as_str()
                ))
            }
            Step::WriteControllers(calico) => {
                self.write_controllers(*calico, observed.controllers.as_ref())
                    .await?;
                Outcome::Done(format!(
                    "calico-kube-controllers has the template of Calico {}",
                    calico.as_str()
                ))
            }
            Step::WriteStrategy(calico) => {
                let strategy = &self.saved.daemon_set.of(*calico).strategy;
                let change = spec_change(&observed.daemon_set, &[("updateStrategy", strategy)]);
                self.write(Some(&observed.daemon_set), change).await?;
                Outcome::Done("the DaemonSet of calico-node has its update strategy again".to_owned())
            }
            Step::RollBack(_) | Step::StopWork | Step::Work(_) | Step::Finish => Outcome::Done(String::new()),
        };
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(made)
    }

    /// Evicts pods of calico-node, so that they start again. A refused eviction is requested again when it is due.
    async fn restart(&self, pods: &[PodName], memory: &mut Memory) -> Outcome {
        let is_due = |pod: &&PodName| {
            let refusal = memory.refusals.get(&pod.uid);
            refusal.is_none_or(|refusal| refusal.next_try <= self.now)
        };
        let due: Vec<PodName> = pods.iter().filter(is_due).cloned().collect();
        evict(self.context, &due, None, memory).await;
        let refused = pods
            .iter()
            .find_map(|pod| Some((pod, memory.refusals.get(&pod.uid)?)));
        if let Some((pod, refusal)) = refused {
            let reason = if refusal.by_budget {
                WaitReason::DisruptionBudget
            } else {
                WaitReason::EvictionRefused
            };
            let message = format!(
                "eviction of pod {}/{} refused: {}",
                pod.namespace, pod.name, refusal.message
            );
            return Outcome::waits(reason, message);
        }
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        Outcome::Done(format!("restarted: {}", words::names(&names)))
    }

    async fn back_up(
        &self,
        known: &mut CalicoDatastoreStatus,
        memory: &mut Memory,
    ) -> Result<Outcome, WriteError> {
        let read = match self.ask(memory, known, backup::read).await {
            Ok(read) => read,
            Err(why) => return Ok(Outcome::waits(WaitReason::Datastore, why)),
        };
        // The same time at each attempt, so that the next attempt finds the Secrets of one that was not recorded.
        let begun = self
            .migration
            .status
            .as_ref()
            .and_then(|status| status.started_at);
        let made = backup::keep(self.context, &read, begun.unwrap_or(self.now)).await?;
        let said = format!(
            "backup: Secret {}/{} (parts: {}, keys of v2: {}, of v3: {}, sha256 {})",
            self.context.namespace, made.name, made.parts, made.v2_keys, made.v3_keys, made.sha256
        );
        known.backup = Some(made);
        Ok(Outcome::Done(said))
    }

    async fn begin(&self, work: StoreWork, known: &CalicoDatastoreStatus, memory: &mut Memory) -> Outcome {
        let settings = &known.settings;
        // A connection of its own: in the middle of the work a request waits for the store.
        let (v2, v3) = (&settings.etcd_v2.value, &settings.etcd_v3.value);
        let stores = match stores::connect(self.context, v2, v3, Patience::Wait).await {
            Ok(stores) => stores,
            Err(problem) => return Outcome::waits(WaitReason::Datastore, problem.to_string()),
        };
        let seconds = |seconds: u32| SignedDuration::from_secs(i64::from(seconds));
        let options = Options {
            settle: seconds(settings.settle_seconds.value),
            pause_limit: seconds(settings.pause_limit_seconds.value),
            batch: BATCH,
            // The backup was made before Calico was paused.
            backups: None,
            no_nodes_of_v3: matches!(work, StoreWork::Abort { nodes_of_v3: false }),
            holder: format!(
                "replumb's coordinator on node {}, since {}",
                self.context.node_name,
                clock::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
            ),
        };
        let over_existing = settings.ignore_v3_data.value;
        memory
            .kinds
            .of::<ReadCache>()
            .worker
            .begin(stores, options, work, over_existing);
        Outcome::Done(describe(work).to_owned())
    }

    async fn write_configuration(&self, calico: Calico, there: Option<&Value>) -> Result<(), WriteError> {
        let (Some(known), Some(there)) = (&self.saved.configuration, there) else {
            return Ok(());
        };
        let wanted = json!(known.of(calico));
        let Some(change) = ::api::merge::difference(&there["data"], &wanted) else {
            return Ok(());
        };
        self.write(Some(there), json!({ "data": change })).await
    }

    async fn write_controllers(&self, calico: Calico, there: Option<&Value>) -> Result<(), WriteError> {
        let (Some(known), Some(there)) = (&self.saved.controllers, there) else {
            return Ok(());
        };
        let wanted = known.of(calico);
        let mut change = spec_change(there, &[("template", &wanted.template)]);
        change["spec"]["replicas"] = json!(wanted.replicas);
        self.write(Some(there), change).await
    }

    /// Writes the change to an object. The decision has dealt with a missing object before.
    async fn write(&self, there: Option<&Value>, change: Value) -> Result<(), WriteError> {
        if let Some(there) = there {
            patch(self.context, there, change, false).await?;
        }
        Ok(())
    }
}

/// Writes the outcome of a step to the status. A refusal of the API server does not end with another pass.
fn report_outcome(made: Result<Outcome, WriteError>, status: &mut MigrationStatus) -> Result<(), WriteError> {
    match made {
        Ok(Outcome::Done(message)) => status.clear_reason(message),
        Ok(Outcome::Waits(found)) => wait(status, found.reason, found.message),
        Err(error) => match error.refusal() {
            Some(why) => {
                let message = format!("{error}: refused by the API server: {why}");
                wait(status, WaitReason::CheckFailing, message);
            }
            None => return Err(error),
        },
    }
    Ok(())
}

/// Description of the work on the stores, for the status.
fn describe(work: StoreWork) -> &'static str {
    match work {
        StoreWork::Convert => "pausing Calico and converting its data",
        StoreWork::AnnounceNodes => "recording that calico-node of v3 may run",
        StoreWork::Complete => "opening etcd v3 for Calico",
        StoreWork::Abort { nodes_of_v3: true } => "opening etcd v2 for Calico again",
        StoreWork::Abort { nodes_of_v3: false } => "restoring etcd v3",
    }
}

/// The patch of the `DaemonSet` that sets the template of this Calico and restarts no pod.
fn held_patch(saved: &Saved, there: &Value, calico: Calico) -> Value {
    let mut change = spec_change(there, &[("template", &saved.daemon_set.of(calico).template)]);
    change["spec"]["updateStrategy"] = json!({ "type": on_delete()["type"], "rollingUpdate": null });
    change
}
