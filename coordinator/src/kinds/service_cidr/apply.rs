//! One step of a change of the Services' range. Each step is idempotent, and each write has the version that was read.

mod complete;
pub mod exchange;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use api::MigrationStatus;
use api::migration::ServiceCidrStatus;
use crash_point::Edge;
use engine::words;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use service_cidr::decide::Next;
use service_cidr::exchange::Step as ServiceStep;
use service_cidr::objects::BridgeFacts;
use service_cidr::ranges::{DEFAULT, joined};
use service_cidr::step::Step;

use self::exchange::{Exchange, Written};
use super::ReadCache;
use super::assigned_addresses;
use super::objects::{create_range, delete_range};
use super::observed::{Seen, Subject};
use super::pass::Pass;
use super::service_index::ServiceStore;
use crate::evict::evict;
use crate::memory::Memory;
use crate::staged;
use crate::write::WriteError;

/// Number of Services whose steps run at the same time.
const AT_ONCE: usize = 32;

/// The inputs of a step.
pub(super) struct StepExecutor<'pass> {
    pub(super) pass: &'pass Pass<'pass>,
    /// The observed Services.
    pub(super) seen: BTreeMap<String, (Subject, Seen)>,
}

impl Pass<'_> {
    /// Runs the decided step, or reports the wait. `seen`: the observed Services.
    pub(super) async fn apply(
        &self,
        memory: &mut Memory,
        next: Next,
        seen: BTreeMap<String, (Subject, Seen)>,
        known: &mut ServiceCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        let mut executor = StepExecutor { pass: self, seen };
        if !next.helper_updates.is_empty() {
            Box::pin(executor.exchange(&next.helper_updates, known, memory)).await?;
        }
        match staged::report(next.decision, status) {
            Some(Step::Complete) => self.complete(memory, known, status).await?,
            Some(step) => status.clear_reason(Box::pin(executor.run(&step, known, memory)).await?),
            None => {}
        }
        if let Some(aside) = next.halted_services {
            let message = format!("{}. {}", aside.message, status.message);
            status.set_reason(aside.reason, message);
        }
        Ok(())
    }
}

impl StepExecutor<'_> {
    /// Runs the step, and describes it for the status. [`Step::Complete`] is not run here.
    pub(super) async fn run(
        &mut self,
        step: &Step,
        known: &ServiceCidrStatus,
        memory: &mut Memory,
    ) -> Result<String, WriteError> {
        let client = &self.pass.context.client;
        crash_point::reach(step.name(), Edge::Announced, None).await;
        let made = match step {
            Step::CreateRange(name, ranges) => {
                create_range(client, self.pass.version, name, ranges).await?;
                format!("ServiceCIDR {name} created: {}", joined(ranges))
            }
            Step::DeleteRange(name) => {
                delete_range(client, self.pass.version, name).await?;
                let what = if name == DEFAULT {
                    "an API server creates it again from its flag"
                } else {
                    "it disappears once no address needs it"
                };
                format!("ServiceCIDR {name} deleted: it allocates no address any more, and {what}")
            }
            Step::Exchange(steps) if steps.is_empty() => {
                // This pass has observed its maximum of Services, and none needs a step.
                self.pass.cache.wake();
                "reading Services".to_owned()
            }
            Step::Exchange(steps) => self.exchange(steps, known, memory).await?,
            Step::Evict(pods) => {
                let grace = self.pass.migration.spec.drain.grace_period_seconds;
                evict(self.pass.context, pods, grace, memory).await;
                let names: Vec<String> = pods
                    .iter()
                    .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                    .collect();
                format!("restarting pods: {}", words::names(&names))
            }
            Step::Complete => String::new(),
        };
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(made)
    }

    /// Records the Services for which a first step follows.
    async fn begin(&self, steps: &[(String, ServiceStep)], memory: &mut Memory) -> Result<(), WriteError> {
        if !steps.iter().any(|(name, _)| self.pass.untouched.contains(name)) {
            return Ok(());
        }
        let Pass {
            context,
            migration,
            assigned: booked,
            ..
        } = self.pass;
        // This pass may have started some Services before.
        let mut untouched = assigned_addresses::untouched_services(&memory.records);
        for (name, _) in steps {
            untouched.remove(name);
        }
        let records = &mut memory.records;
        assigned_addresses::write(&context.client, records, migration, &booked.book, &untouched).await?;
        crash_point::reach("WriteAddresses", Edge::Recorded, None).await;
        Ok(())
    }

    /// Runs the steps of Services independently: a failure of one does not stop the others.
    pub(super) async fn exchange(
        &mut self,
        steps: &[(String, ServiceStep)],
        known: &ServiceCidrStatus,
        memory: &mut Memory,
    ) -> Result<String, WriteError> {
        self.begin(steps, memory).await?;
        let store = self.pass.cache.of_kind::<ServiceStore>();
        let stored: Mutex<Vec<Value>> = Mutex::default();
        let exchange = Exchange {
            client: &self.pass.context.client,
            domain: &known.settings.domain.value,
            ground: &self.pass.ground(known),
            // The watches deliver these writes later: the next pass knows them already.
            on_write: &|written| match written {
                Written::Stored(service) => {
                    store.wrote(service);
                    stored
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(service.clone());
                }
                Written::Deleted(service) => store.deleted(service),
            },
        };
        let found: Vec<(Subject, Seen, ServiceStep)> = steps
            .iter()
            .filter_map(|(name, step)| {
                let (subject, seen) = self.seen.remove(name)?;
                Some((subject, seen, *step))
            })
            .collect();
        let reads = memory.kinds.of::<ReadCache>();
        for (name, step) in steps {
            reads.waits.record_step(name, *step, self.pass.now);
        }
        let (exchange, obstacles) = (&exchange, &self.pass.context.obstacles);
        let made = found.iter().map(|(subject, seen, step)| async move {
            let object = format!("Service {}/{}", subject.namespace, subject.name);
            let write = exchange.make(subject, seen.clone(), *step);
            obstacles.attempt(&object, write).await
        });
        // Each future is large. A step that would start after the time of this pass is left to the next pass.
        let made: Vec<_> = stream::iter(made).buffered(AT_ONCE).collect().await;
        for service in stored.into_inner().unwrap_or_else(PoisonError::into_inner) {
            reads.whole.wrote(service);
        }
        for ((subject, _, _), made) in found.iter().zip(&made) {
            if !matches!(made, Ok(Some(()))) {
                reads.whole.forget(&subject.namespace, &subject.name);
            }
        }
        made.into_iter().collect::<Result<Vec<Option<()>>, _>>()?;
        let names: Vec<String> = steps
            .iter()
            .map(|(name, step)| format!("{name} {}", step.name()))
            .collect();
        Ok(format!("Services: {}", words::names(&names)))
    }
}

impl Pass<'_> {
    /// The settings of bridges.
    pub(super) fn ground(&self, known: &ServiceCidrStatus) -> BridgeFacts {
        BridgeFacts {
            policy: known.settings.bridge_policy.value,
            node_addresses: self
                .snapshot
                .nodes
                .values()
                .flat_map(|node| addresses(node))
                .collect(),
        }
    }
}

/// Addresses by which clients reach a node port of a Node.
fn addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    let said = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    said.filter(|address| ["InternalIP", "ExternalIP"].contains(&address.type_.as_str()))
        .filter_map(|address| address.address.parse().ok())
}
