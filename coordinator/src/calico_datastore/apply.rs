//! One step of a conversion in a cluster. Each is idempotent, and each write carries the version that was read.

use api::migration::{CalicoDatastoreStatus, TurnedBack};
use crash_point::Edge;
use datastore::run::Options;
use jiff::{SignedDuration, Timestamp};
use plan::calico_datastore::cluster::calico::Calico;
use plan::calico_datastore::cluster::step::{Step, StoreWork};
use serde_json::{Value, json};

use super::backup;
use super::drive::Pass;
use super::look::{Observed, held, words};
use super::objects::{patch, spec_change};
use crate::etcd_access::problem;
use crate::evict::evict;
use crate::memory::Memory;
use crate::write::WriteError;

/// Keys of one transaction; etcd takes 128 changes, and as many conditions, by default.
const BATCH: usize = 100;

impl Pass<'_> {
    /// Makes the step, and says for people what was done. [`Step::Finish`] is not made here.
    pub(super) async fn make(
        &self,
        step: &Step,
        known: &mut CalicoDatastoreStatus,
        memory: &mut Memory,
        observed: &Observed,
    ) -> Result<String, WriteError> {
        crash_point::reach(step.name(), Edge::Announced, None).await;
        let said = match step {
            Step::BackUp => self.back_up(known, memory).await?,
            Step::StopControllers => {
                self.write(
                    observed.controllers.as_ref(),
                    json!({ "spec": { "replicas": 0 } }),
                )
                .await?;
                "calico-kube-controllers is stopped: policies that change take no effect until it is back"
                    .to_owned()
            }
            Step::Work(work) => self.begin(*work, known, memory).await,
            Step::StopWork => {
                memory.calico_datastore.worker.stop();
                "what was done on the stores is stopped".to_owned()
            }
            Step::TurnBack(why) => {
                known.turned_back = Some(TurnedBack {
                    at: self.now,
                    why: why.clone(),
                });
                format!("{why}: everything is taken back")
            }
            Step::WriteConfiguration(calico) => {
                self.write_configuration(*calico, observed.configuration.as_ref())
                    .await?;
                format!("the ConfigMap says what it says for Calico {}", calico.as_str())
            }
            Step::WriteDaemonSet(calico) => {
                let change = held(self.saved, &observed.daemon_set, *calico);
                self.write(Some(&observed.daemon_set), change).await?;
                format!(
                    "the DaemonSet of calico-node makes pods of Calico {}, node by node",
                    calico.as_str()
                )
            }
            Step::Restart(pods) => {
                let (client, metrics) = (&self.context.client, &self.context.metrics);
                evict(client, metrics, pods, None, &mut memory.refusals).await;
                let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
                let refused = pods.iter().find_map(|pod| memory.refusals.get(&pod.uid));
                match refused {
                    Some(refusal) => format!(
                        "the eviction of {} is refused: {}",
                        names.join(", "),
                        refusal.message
                    ),
                    None => format!("made again: {}", names.join(", ")),
                }
            }
            Step::WriteControllers(calico) => {
                self.write_controllers(*calico, observed.controllers.as_ref())
                    .await?;
                format!("calico-kube-controllers is that of Calico {}", calico.as_str())
            }
            Step::WriteStrategy(calico) => {
                let strategy = &self.saved.daemon_set.of(*calico).strategy;
                let change = spec_change(&observed.daemon_set, &[("updateStrategy", strategy)]);
                self.write(Some(&observed.daemon_set), change).await?;
                "the DaemonSet of calico-node rolls its pods by itself again".to_owned()
            }
            Step::Finish => String::new(),
        };
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(said)
    }

    async fn back_up(
        &self,
        known: &mut CalicoDatastoreStatus,
        memory: &mut Memory,
    ) -> Result<String, WriteError> {
        let (v2, v3) = (&known.settings.etcd_v2.value, &known.settings.etcd_v3.value);
        let stores = match memory.calico_datastore.stores(self.context, v2, v3).await {
            Ok(stores) => stores,
            Err(problem) => return Ok(format!("{}. {}", problem.message, problem.hint)),
        };
        match backup::take(self.context, &stores, self.now).await? {
            Ok(made) => {
                let said = format!(
                    "backup: Secret {}/{} ({} parts, {} keys of v2, {} of v3, sha256 {})",
                    self.context.namespace, made.name, made.parts, made.v2_keys, made.v3_keys, made.sha256
                );
                known.backup = Some(made);
                Ok(said)
            }
            Err(error) => {
                memory.calico_datastore.forget();
                let problem = problem(&error);
                Ok(format!("{}. {}", problem.message, problem.hint))
            }
        }
    }

    async fn begin(&self, work: StoreWork, known: &CalicoDatastoreStatus, memory: &mut Memory) -> String {
        let settings = &known.settings;
        let looks = &mut memory.calico_datastore;
        let stores = match looks
            .stores(self.context, &settings.etcd_v2.value, &settings.etcd_v3.value)
            .await
        {
            Ok(stores) => stores,
            Err(problem) => return format!("{}. {}", problem.message, problem.hint),
        };
        let seconds = |seconds: u32| SignedDuration::from_secs(i64::from(seconds));
        let options = Options {
            settle: seconds(settings.settle_seconds.value),
            pause_limit: seconds(settings.pause_limit_seconds.value),
            batch: BATCH,
            // Taken before Calico was paused.
            backups: None,
            holder: format!(
                "replumb's coordinator on node {}, since {}",
                self.context.node_name,
                Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
            ),
        };
        looks
            .worker
            .begin(stores, options, work, settings.ignore_v3_data.value);
        words(work).to_owned()
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

    /// Writes what is left of an object; one that is gone is looked at again.
    async fn write(&self, there: Option<&Value>, change: Value) -> Result<(), WriteError> {
        if let Some(there) = there {
            patch(self.context, there, change, false).await?;
        }
        Ok(())
    }
}
