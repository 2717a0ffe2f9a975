//! One step of a change of the Services' range. Each is idempotent, and each write carries the version that was read.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::migration::ServiceCidrStatus;
use crash_point::Edge;
use jiff::SignedDuration;
use plan::decision::{Wait, WaitReason};
use plan::service_cidr::ranges::{DEFAULT, listed};
use plan::service_cidr::step::Step;
use plan::service_cidr::swap;

use super::batch::{Moment, Work};
use super::drive::Pass;
use super::exchange::{Exchange, Seen, Subject};
use super::objects::{create_range, delete_range};
use super::prime::{self, Prime};
use crate::evict::evict;
use crate::memory::Memory;
use crate::write::WriteError;

/// What a step is made with.
pub(super) struct Hands<'pass> {
    pub(super) pass: &'pass Pass<'pass>,
    /// Every Service that changes, as it was read.
    pub(super) seen: BTreeMap<String, (Subject, Seen)>,
}

impl Hands<'_> {
    /// Makes the step, and says for people what was done; or why it cannot be made now. [`Step::Complete`] is not made here.
    pub(super) async fn make(
        self,
        step: &Step,
        known: &ServiceCidrStatus,
        memory: &mut Memory,
    ) -> Result<Result<String, Wait>, WriteError> {
        let client = &self.pass.context.client;
        crash_point::reach(step.name(), Edge::Announced, None).await;
        let made = match step {
            Step::CreateRange(name, ranges) => {
                create_range(client, self.pass.version, name, ranges).await?;
                Ok(format!("ServiceCIDR {name} is made: {}", listed(ranges)))
            }
            Step::DeleteRange(name) => {
                delete_range(client, self.pass.version, name).await?;
                let what = if name == DEFAULT {
                    "an API server makes it again of its flag once it is gone"
                } else {
                    "it goes once no address needs it"
                };
                Ok(format!(
                    "ServiceCIDR {name} is deleted: it gives out nothing more, and {what}"
                ))
            }
            Step::Exchange(steps) => self.exchange(steps, known, memory).await?,
            Step::Evict(pods) => {
                let grace = self.pass.migration.spec.drain.grace_period_seconds;
                evict(
                    client,
                    &self.pass.context.metrics,
                    pods,
                    grace,
                    &mut memory.refusals,
                )
                .await;
                let names: Vec<String> = pods
                    .iter()
                    .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                    .collect();
                Ok(format!("pods start again: {}", names.join(", ")))
            }
            Step::Complete => Ok(String::new()),
        };
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(made)
    }

    async fn exchange(
        mut self,
        steps: &[(String, swap::Step)],
        known: &ServiceCidrStatus,
        memory: &mut Memory,
    ) -> Result<Result<String, Wait>, WriteError> {
        let context = self.pass.context;
        let Some(address) = self.pass.prime_address(known) else {
            return Ok(Err(Wait {
                reason: WaitReason::ServiceRanges,
                message: format!(
                    "{} has no free address for the Service that makes kube-proxy write its rules",
                    listed(known.settings.changed().of(self.pass.goal))
                ),
                until: None,
            }));
        };
        // Who turned around has left one: its address holds the range that is left now.
        prime::remove(&context.client, &context.namespace, self.pass.goal.other()).await?;
        let moment = Moment {
            quiet: &memory.service_cidr.quiet(context),
            prime: Prime {
                client: &context.client,
                namespace: &context.namespace,
                goal: self.pass.goal,
                address,
            },
            period: period(known),
        };
        let exchange = Exchange {
            client: &context.client,
            domain: &known.settings.domain.value,
        };
        let found: Vec<(Subject, Seen, swap::Step)> = steps
            .iter()
            .filter_map(|(name, step)| {
                let (subject, seen) = self.seen.remove(name)?;
                Some((subject, seen, *step))
            })
            .collect();
        let names: Vec<String> = steps
            .iter()
            .map(|(name, step)| format!("{name} {}", step.name()))
            .collect();
        let work = found.iter().map(|(subject, seen, step)| Work {
            subject,
            seen: seen.clone(),
            step: *step,
        });
        let waits = moment.make(&exchange, work.collect()).await?;
        Ok(waits.map_or_else(|| Ok(format!("Services: {}", names.join(", "))), Err))
    }
}

impl Pass<'_> {
    /// The address of the Service that makes kube-proxy write its rules.
    fn prime_address(&self, known: &ServiceCidrStatus) -> Option<IpAddr> {
        let spare = self.spare(known, 1);
        spare.first()?.first().copied()
    }
}

/// kube-proxy's `minSyncPeriod`.
pub(super) fn period(known: &ServiceCidrStatus) -> SignedDuration {
    SignedDuration::from_millis(i64::from(known.settings.min_sync_period_milliseconds.value))
}
