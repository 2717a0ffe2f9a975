//! Leader election with a Lease; every write carries the resourceVersion on which it was decided.
//!
//! [`evaluate`] is pure: a candidate trusts its own steady clock only. It takes a Lease over when the Lease has not changed for
//! the whole lease duration (like client-go).

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::clock::Moment;

/// Time that a Lease is valid without a renewal: client-go's default for controllers.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time without a renewal after which a leader steps down, before another candidate may take over.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of reading the Lease.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// What a candidate does with the observed Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No Lease exists: create it.
    Create,
    /// This candidate holds it: renew it.
    Renew,
    /// The holder is gone or has released it: take it over.
    TakeOver,
    /// Another candidate holds it.
    Follow,
}

/// The state of a Lease after its last observed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// resourceVersion of that state.
    pub resource_version: String,
    /// The candidate's steady time of the observation.
    pub at: Instant,
}

/// Decides what to do with the Lease. `observed` is the first observation of its present state, by the steady clock.
pub fn evaluate(lease: Option<&Lease>, me: &str, observed: Option<&Observed>, now: Instant) -> Claim {
    let Some(lease) = lease else {
        return Claim::Create;
    };
    let spec = lease.spec.clone().unwrap_or_default();
    match spec.holder_identity.as_deref() {
        None | Some("") => Claim::TakeOver,
        Some(holder) if holder == me => Claim::Renew,
        Some(_) => {
            let duration = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(LEASE_DURATION, Duration::from_secs);
            match observed {
                Some(observed)
                    if Some(observed.resource_version.as_str())
                        == lease.metadata.resource_version.as_deref()
                        && now.saturating_duration_since(observed.at) >= duration =>
                {
                    Claim::TakeOver
                }
                Some(_) | None => Claim::Follow,
            }
        }
    }
}

/// A read or write of the Lease that failed.
#[derive(Debug, Error)]
#[error("{attempt} Lease {namespace}/{name}")]
pub struct LeaseError {
    attempt: &'static str,
    namespace: String,
    name: String,
    #[source]
    source: kube::Error,
}

/// A candidate for the Lease.
pub struct Candidate {
    leases: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    observed: Option<Observed>,
}

impl Candidate {
    /// A candidate with this identity for the Lease of this name.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            observed: None,
        }
    }

    /// Reads the Lease once and claims it if allowed. Returns whether this candidate holds it now.
    ///
    /// A conflict is not an error: another candidate was faster.
    ///
    /// # Errors
    ///
    /// The API server refuses a request or does not answer.
    pub async fn try_once(&mut self, now: Moment) -> Result<bool, LeaseError> {
        let lease = self
            .leases
            .get_opt(&self.name)
            .await
            .map_err(|source| self.error("reading", source))?;
        if let Some(version) = lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone())
            && self
                .observed
                .as_ref()
                .is_none_or(|observed| observed.resource_version != version)
        {
            self.observed = Some(Observed {
                resource_version: version,
                at: now.steady,
            });
        }
        let claim = evaluate(lease.as_ref(), &self.identity, self.observed.as_ref(), now.steady);
        let written = match (claim, lease) {
            (Claim::Follow, _) => return Ok(false),
            (Claim::Create, _) | (_, None) => {
                self.leases
                    .create(&PostParams::default(), &self.lease(None, now.wall))
                    .await
            }
            (Claim::Renew | Claim::TakeOver, Some(lease)) => {
                let next = self.lease(Some(&lease), now.wall);
                self.leases
                    .replace(&self.name, &PostParams::default(), &next)
                    .await
            }
        };
        match written {
            Ok(lease) => {
                if let Some(resource_version) = lease.metadata.resource_version {
                    self.observed = Some(Observed {
                        resource_version,
                        at: now.steady,
                    });
                }
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.reason == "AlreadyExists" => {
                Ok(false)
            }
            Err(source) => Err(self.error("writing", source)),
        }
    }

    /// The Lease to write: based on the old one, with its resourceVersion as the precondition.
    fn lease(&self, old: Option<&Lease>, now: Timestamp) -> Lease {
        let old_spec = old.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let is_holder = old_spec.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = old_spec.lease_transitions.unwrap_or_default();
        Lease {
            metadata: old.map_or_else(
                || ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                |lease| lease.metadata.clone(),
            ),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                acquire_time: if is_holder {
                    old_spec.acquire_time
                } else {
                    Some(MicroTime(now))
                },
                renew_time: Some(MicroTime(now)),
                lease_transitions: Some(if is_holder || old.is_none() {
                    transitions
                } else {
                    transitions + 1
                }),
                ..old_spec
            }),
        }
    }

    fn error(&self, attempt: &'static str, source: kube::Error) -> LeaseError {
        LeaseError {
            attempt,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            source,
        }
    }

    /// Releases the Lease if this candidate holds it, so that a successor need not wait for its expiry.
    ///
    /// # Errors
    ///
    /// The API server refuses a request or does not answer.
    pub async fn release(&self) -> Result<(), LeaseError> {
        let lease = self
            .leases
            .get_opt(&self.name)
            .await
            .map_err(|source| self.error("reading", source))?;
        let Some(mut lease) = lease else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut() else {
            return Ok(());
        };
        if spec.holder_identity.as_deref() != Some(self.identity.as_str()) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        match self
            .leases
            .replace(&self.name, &PostParams::default(), &lease)
            .await
        {
            Ok(_) => Ok(()),
            // Another candidate has it already.
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
            Err(source) => Err(self.error("releasing", source)),
        }
    }

    /// Claims and renews the Lease in a loop; reports through `leading` whether this candidate holds it.
    ///
    /// A leader that cannot renew steps down after [`RENEW_DEADLINE`], before the Lease may be taken over.
    pub async fn run(mut self, leading: watch::Sender<bool>) {
        let mut renewed: Option<Instant> = None;
        let mut ticks = tokio::time::interval(RETRY_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Moment::now();
            match tokio::time::timeout(Duration::from_secs(5), self.try_once(now)).await {
                Ok(Ok(true)) => {
                    renewed = Some(now.steady);
                    set(&leading, true, &self.identity);
                }
                Ok(Ok(false)) => {
                    renewed = None;
                    set(&leading, false, &self.identity);
                }
                Ok(Err(error)) => {
                    warn!(error = %runtime::error::chain(&error), "Lease not renewed");
                }
                Err(_) => warn!("Lease not renewed: no answer from the API server"),
            }
            let expired = renewed.is_none_or(|at| at.elapsed() >= RENEW_DEADLINE);
            if expired {
                set(&leading, false, &self.identity);
            }
        }
    }
}

fn set(leading: &watch::Sender<bool>, now: bool, identity: &str) {
    let changed = leading.send_if_modified(|value| {
        let changed = *value != now;
        *value = now;
        changed
    });
    if changed {
        info!(identity, leading = now, "leadership changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str, version: &str) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(15),
                ..LeaseSpec::default()
            }),
        }
    }

    fn seen(version: &str, seconds_ago: u64, now: Instant) -> Observed {
        Observed {
            resource_version: version.to_owned(),
            at: now.checked_sub(Duration::from_secs(seconds_ago)).unwrap(),
        }
    }

    #[test]
    fn a_lease_is_created_renewed_followed_or_taken_over() {
        let now = Instant::now() + Duration::from_hours(1);
        assert_eq!(evaluate(None, "me", None, now), Claim::Create);
        assert_eq!(evaluate(Some(&held_by("me", "1")), "me", None, now), Claim::Renew);
        assert_eq!(
            evaluate(Some(&held_by("", "1")), "me", None, now),
            Claim::TakeOver
        );
        let other = held_by("other", "7");
        assert_eq!(evaluate(Some(&other), "me", None, now), Claim::Follow);
        assert_eq!(
            evaluate(Some(&other), "me", Some(&seen("7", 14, now)), now),
            Claim::Follow
        );
        assert_eq!(
            evaluate(Some(&other), "me", Some(&seen("7", 15, now)), now),
            Claim::TakeOver
        );
        // The Lease changed since the observation: the holder is alive, however old the observation is.
        assert_eq!(
            evaluate(Some(&other), "me", Some(&seen("6", 60, now)), now),
            Claim::Follow
        );
    }
}
