//! One step of a change of the range. Each step is idempotent, and reads its object again before it writes.

mod blocks;
mod complete;
mod tunnels;

use api::migration::PodCidrStatus;
use api::{Migration, MigrationStatus};
use crash_point::Edge;
use engine::decision::{Decision, WaitReason};
use engine::evict::PodName;
use engine::words;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::Patch;
use pod_cidr::decide::{PoolRole, RemovedNode, Step};
use pod_cidr::pools::{self, Openness};
use serde_json::{Value, json};

use super::calico_nodes;
use super::pass::Pass;
use super::read_cache::ReadCache;
use super::saved::Saved;
use crate::calico::error::CalicoStoreError;
use crate::calico::store::Store;
use crate::calico::{self, IP_POOL};
use crate::clock;
use crate::context::Context;
use crate::cordon;
use crate::evict::evict;
use crate::lenient_requests;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::read_error::ReadError;
use crate::waits::wait;
use crate::write::{WriteError, parameters};
use crate::{read, staged};

/// The inputs of a step.
pub struct StepExecutor<'pass> {
    /// Clients.
    pub context: &'pass Context,
    /// Calico's objects.
    pub store: &'pass Store,
    /// The migration of the steps.
    pub migration: &'pass Migration,
    /// The state before the migration.
    pub saved: &'pass Saved,
    /// The spec that the new pool has once it is open.
    pub new_pool_spec: &'pass Value,
    /// Grace period that overrides the pods' own, in seconds.
    pub grace_period_seconds: Option<u32>,
}

/// Outcome of a step.
#[derive(Debug)]
pub enum Outcome {
    /// The step is done; the text for the status.
    Done(String),
    /// The step is impossible as things are: what the user has to correct.
    Refused(String),
}

impl Pass<'_> {
    /// Runs the decided step, or reports the wait.
    pub(super) async fn apply(
        &self,
        memory: &mut Memory,
        decision: Decision<Step>,
        known: &mut PodCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), PassError> {
        let executor = StepExecutor {
            context: self.context,
            store: self.store,
            migration: self.migration,
            saved: self.saved,
            new_pool_spec: &pools::wanted(
                &self.saved.old_pool,
                &known.settings.to.value,
                known.settings.block_size.value,
            ),
            grace_period_seconds: self.migration.spec.drain.grace_period_seconds,
        };
        match staged::report(decision, status) {
            Some(Step::Complete) => self.complete(&executor, memory, known, status).await?,
            Some(step) => match executor.run(&step, known, memory).await? {
                Outcome::Done(message) => status.clear_reason(message),
                Outcome::Refused(why) => {
                    let message = format!("{why}; replumb retries until this is corrected");
                    wait(status, WaitReason::CalicoObjects, message);
                }
            },
            None => {}
        }
        Ok(())
    }
}

impl StepExecutor<'_> {
    /// Runs the step. [`Step::Complete`] is not run here.
    pub async fn run(
        &self,
        step: &Step,
        known: &mut PodCidrStatus,
        memory: &mut Memory,
    ) -> Result<Outcome, PassError> {
        crash_point::reach(step.name(), Edge::Announced, None).await;
        let made = match step {
            Step::CreatePool => Outcome::Done(self.create_pool(&known.settings.new_pool.value).await?),
            Step::Scale(deployment, pods) => Outcome::Done(self.scale(deployment, *pods, known).await?),
            Step::Open(which, openness) => Outcome::Done(self.open(pool_of(*which, known), *openness).await?),
            Step::Narrow(which, round) => {
                Outcome::Done(self.narrow(pool_of(*which, known), *which, *round).await?)
            }
            Step::RemoveNodes(which, nodes) => {
                let made = self.take_off(*which, nodes).await?;
                if matches!(made, Outcome::Refused(_)) {
                    // A chosen address is allocated by now: the next pass chooses another.
                    memory.kinds.of::<ReadCache>().forget_ipam();
                }
                made
            }
            Step::RestartCalicoNode(pod) => Outcome::Done(self.restart(pod, memory).await),
            Step::HoldEnds(ends) => {
                memory.kinds.of::<ReadCache>().forget_ipam();
                self.hold_addresses(ends).await?
            }
            Step::ReleaseEnds(ends) => {
                memory.kinds.of::<ReadCache>().forget_ipam();
                self.release_addresses(ends).await?
            }
            Step::Cordon(node) => Outcome::Done(self.cordon(node).await?),
            Step::Evict(pods) => Outcome::Done(self.evict(pods, memory).await),
            Step::Uncordon(node) => Outcome::Done(self.uncordon(node).await?),
            Step::ReleaseBlocks(ranges) => {
                Outcome::Done(self.release(ranges, memory.kinds.of::<ReadCache>()).await?)
            }
            Step::DeletePool(which) => {
                memory.kinds.of::<ReadCache>().forget_ipam();
                let (range, name) = match which {
                    PoolRole::Old => (known.settings.from.value, pool_of(PoolRole::Old, known)),
                    PoolRole::New => (known.settings.to.value, pool_of(PoolRole::New, known)),
                };
                Outcome::Done(self.delete_pool(name, &range).await?)
            }
            Step::Complete => Outcome::Done(String::new()),
        };
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(made)
    }

    async fn create_pool(&self, name: &str) -> Result<String, CalicoStoreError> {
        let object = pools::created(name, self.new_pool_spec);
        Ok(match self.store.create(IP_POOL, &object).await? {
            calico::Created::Now => format!("IPPool {name} created, closed"),
            calico::Created::Before => {
                format!("IPPool {name} was created by another program a moment ago; replumb reads it again")
            }
        })
    }

    async fn open(&self, name: &str, openness: Openness) -> Result<String, CalicoStoreError> {
        let Some(object) = self.store.pool(name).await? else {
            return Ok(format!(
                "IPPool {name} was deleted a moment ago; replumb reads again"
            ));
        };
        if let Some(change) = pools::patch_openness(&object.data["spec"], openness, &self.saved.old_pool) {
            self.store.patch_spec(IP_POOL, &object, &change).await?;
        }
        let how = match openness {
            Openness::Absent | Openness::Closed => {
                "is closed: pods keep their addresses, and no pod gets another"
            }
            Openness::OptIn => "is open to pods that name it",
            Openness::Narrowed | Openness::AllPods => "is open to every pod",
        };
        Ok(format!("IPPool {name} {how}"))
    }

    async fn narrow(&self, name: &str, which: PoolRole, round: u32) -> Result<String, CalicoStoreError> {
        let Some(object) = self.store.pool(name).await? else {
            return Ok(format!(
                "IPPool {name} was deleted a moment ago; replumb reads again"
            ));
        };
        let selector = pools::selector_of(&self.saved.old_pool);
        if let Some(change) = pools::patch_narrowed(&object.data["spec"], &selector, which.mark(), round) {
            self.store.patch_spec(IP_POOL, &object, &change).await?;
        }
        Ok(format!("IPPool {name}: nodes are taken off one by one"))
    }

    async fn take_off(&self, which: PoolRole, nodes: &[RemovedNode]) -> Result<Outcome, CalicoStoreError> {
        let mut refused = None;
        for off in nodes {
            let object = format!("Node {}", off.node);
            let taken_off = self.take_off_one(which, off);
            // An obstacle of one node delays no other node.
            refused = refused.or(self
                .context
                .obstacles
                .attempt(&object, taken_off)
                .await?
                .flatten());
        }
        if let Some(refused) = refused {
            return Ok(Outcome::Refused(refused));
        }
        let said = nodes.iter().map(|RemovedNode { node, ends }| {
            if ends.is_empty() {
                format!("node {node} chooses another tunnel address")
            } else {
                let ends = ends.values();
                let addresses: Vec<String> = ends.map(|end| end.allocation.address.to_string()).collect();
                format!("node {node} gets the tunnel address {}", words::names(&addresses))
            }
        });
        Ok(Outcome::Done(words::lines(&said.collect::<Vec<_>>())))
    }

    /// Takes one node off the pool, or returns the obstacle.
    async fn take_off_one(
        &self,
        which: PoolRole,
        off: &RemovedNode,
    ) -> Result<Option<String>, CalicoStoreError> {
        for end in off.ends.values() {
            if let Some(refused) = self.hold_end(end).await? {
                return Ok(Some(refused));
            }
        }
        calico_nodes::take_off(self.store, &off.node, which.mark(), &off.ends).await?;
        Ok(None)
    }

    async fn cordon(&self, name: &str) -> Result<String, WriteError> {
        // Another user may have cordoned it a moment ago, and keeps that cordon.
        if let Some(node) = read::node(&self.context.client, name)
            .await?
            .filter(|node| !cordon::is_unschedulable(node))
        {
            cordon::cordon(self.context, self.migration, &node).await?;
        }
        Ok(format!("node {name} cordoned, its pods move"))
    }

    async fn uncordon(&self, name: &str) -> Result<String, WriteError> {
        if let Some(node) = read::node(&self.context.client, name).await? {
            cordon::uncordon(self.context, self.migration, &node).await?;
        }
        Ok(format!("node {name} uncordoned: no pod on it has to move"))
    }

    /// Scales a Deployment. A pass of its own records the former number first, so that it can be restored after a crash.
    async fn scale(
        &self,
        deployment: &str,
        pods: u32,
        known: &mut PodCidrStatus,
    ) -> Result<String, WriteError> {
        let Some((namespace, name)) = deployment.split_once('/') else {
            return Ok(String::new());
        };
        let api: Api<Deployment> = Api::namespaced(self.context.client.clone(), namespace);
        let found = lenient_requests::get_opt(&api, name)
            .await
            .map_err(|source| ReadError::of("reading", format!("Deployment {deployment}"), source))?;
        let Some(found) = found else {
            return Ok(format!("Deployment {deployment} was deleted a moment ago"));
        };
        let now = found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let now = u32::try_from(now).unwrap_or_default();
        let done = format!(
            "Deployment {deployment} scaled to {} during the migration",
            words::number(pods, "pod", "pods")
        );
        if !known.raised_replicas.contains_key(deployment) {
            known.raised_replicas.insert(deployment.to_owned(), now);
            return Ok(done);
        }
        if now < pods {
            self.write_scale(&api, deployment, name, pods).await?;
        }
        Ok(done)
    }

    async fn write_scale(
        &self,
        api: &Api<Deployment>,
        deployment: &str,
        name: &str,
        pods: u32,
    ) -> Result<(), WriteError> {
        let change = json!({ "spec": { "replicas": pods } });
        api.patch_scale(name, &parameters(), &Patch::Merge(change))
            .await
            .map_err(|source| WriteError::of("scaling", format!("Deployment {deployment}"), source))?;
        Ok(())
    }

    /// Restores every scaled Deployment. A Deployment that another user has scaled meanwhile keeps its number.
    pub async fn restore_replicas(
        &self,
        known: &mut PodCidrStatus,
        raised_to: u32,
    ) -> Result<(), WriteError> {
        for (deployment, before) in known.raised_replicas.clone() {
            if let Some((namespace, name)) = deployment.split_once('/') {
                let api: Api<Deployment> = Api::namespaced(self.context.client.clone(), namespace);
                let found = lenient_requests::get_opt(&api, name)
                    .await
                    .map_err(|source| ReadError::of("reading", format!("Deployment {deployment}"), source))?;
                let now = found.and_then(|found| found.spec?.replicas);
                if now.is_some_and(|now| u32::try_from(now) == Ok(raised_to)) {
                    self.write_scale(&api, &deployment, name, before).await?;
                }
            }
            known.raised_replicas.remove(&deployment);
        }
        Ok(())
    }

    /// Evicts the pod, so that its `DaemonSet` creates another; the programmed network stays.
    async fn restart(&self, pod: &PodName, memory: &mut Memory) -> String {
        let name = format!("{}/{}", pod.namespace, pod.name);
        let refused = |memory: &Memory| memory.refusals.get(&pod.uid).cloned();
        if refused(memory).is_none_or(|refusal| refusal.next_try <= clock::now()) {
            evict(self.context, std::slice::from_ref(pod), None, memory).await;
        }
        let why = "it has not changed its tunnel address";
        match refused(memory) {
            Some(refusal) => format!(
                "pod {name} has to restart, because {why}; its eviction is refused: {}",
                refusal.message
            ),
            None => format!("pod {name} restarts: {why}"),
        }
    }

    async fn evict(&self, pods: &[PodName], memory: &mut Memory) -> String {
        evict(self.context, pods, self.grace_period_seconds, memory).await;
        let names: Vec<String> = pods
            .iter()
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect();
        format!("pods move: {}", words::names(&names))
    }
}

fn pool_of(which: PoolRole, known: &PodCidrStatus) -> &str {
    match which {
        PoolRole::Old => &known.settings.old_pool.value,
        PoolRole::New => &known.settings.new_pool.value,
    }
}
