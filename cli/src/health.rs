//! Finds missing programs when there is no progress: an active coordinator, agents that report.

use std::time::Duration;

use api::names;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use crate::age::age;
use crate::cluster::Cluster;
use crate::error::CliError;

/// A coordinator renews its Lease every 2 s, and steps down after 10 s without a renewal. Without a renewal for longer than this,
/// no coordinator is active.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(12);
/// The interval of reads of the Lease.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// With a difference of the clocks up to this, the time of a renewal is trusted.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(5);

/// Checks that a coordinator is active; the error has the state of the Lease. Observes the Lease if its time is not conclusive.
///
/// Without an active coordinator the status is outdated, and must not be presented as current.
pub async fn leader(cluster: &Cluster) -> Result<(), CliError> {
    let first = cluster.lease().await?;
    if recently_renewed(first.as_ref(), Timestamp::now()) {
        return Ok(());
    }
    let seen = version(first.as_ref());
    let deadline = Instant::now() + RENEWAL_TIMEOUT;
    let mut last = first;
    while Instant::now() < deadline {
        tokio::time::sleep(POLL_INTERVAL).await;
        last = cluster.lease().await?;
        if holder(last.as_ref()).is_some() && version(last.as_ref()) != seen {
            return Ok(());
        }
    }
    Err(CliError::NoLeader {
        found: describe(last.as_ref(), &cluster.namespace, Timestamp::now()),
        namespace: cluster.namespace.clone(),
    })
}

fn holder(lease: Option<&Lease>) -> Option<String> {
    lease?
        .spec
        .as_ref()?
        .holder_identity
        .clone()
        .filter(|holder| !holder.is_empty())
}

fn version(lease: Option<&Lease>) -> Option<String> {
    lease?.metadata.resource_version.clone()
}

fn recently_renewed(lease: Option<&Lease>, now: Timestamp) -> bool {
    let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0));
    holder(lease).is_some() && renewed.is_some_and(|at| now.duration_since(at).abs() <= CLOCK_SKEW)
}

fn describe(lease: Option<&Lease>, namespace: &str, now: Timestamp) -> String {
    let object = format!("Lease {namespace}/{}", names::COORDINATOR);
    let Some(lease) = lease else {
        return format!("{object} does not exist, so no coordinator has run in this namespace");
    };
    let renewed = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref())
        .map(|time| age(time.0, now));
    match (holder(Some(lease)), renewed) {
        (Some(holder), Some(renewed)) => format!("{object} is held by {holder}, last renewed {renewed} ago"),
        (Some(holder), None) => format!("{object} is held by {holder} and was never renewed"),
        (None, _) => format!("{object} has no holder"),
    }
}

/// The missing programs, each with the command that shows or fixes the problem.
pub async fn missing(cluster: &Cluster) -> Vec<String> {
    let mut found = Vec::new();
    if let Err(error) = leader(cluster).await {
        found.push(match error.hint() {
            Some(hint) => format!("{error}: {hint}"),
            None => error.to_string(),
        });
    }
    let namespace = &cluster.namespace;
    match cluster.agents().await {
        Ok(None) => found.push(format!(
            "DaemonSet {namespace}/{} does not exist: `kubectl apply --server-side -k deploy/base`",
            names::AGENT
        )),
        Ok(Some(set)) => {
            let status = set.status.unwrap_or_default();
            if status.number_ready < status.desired_number_scheduled || status.desired_number_scheduled == 0 {
                found.push(format!(
                    "DaemonSet {namespace}/{}: {} of {} agents Ready: `kubectl -n {namespace} get pods -l \
                     app.kubernetes.io/component=agent -o wide`",
                    names::AGENT,
                    status.number_ready,
                    status.desired_number_scheduled
                ));
            }
        }
        Err(error) => found.push(format!("the state of the agents is unknown: {error}")),
    }
    found
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    fn lease(holder: &str, renewed: Timestamp) -> Lease {
        Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                renew_time: Some(MicroTime(renewed)),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    #[test]
    fn a_recently_renewed_lease_is_trusted() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let ago = |seconds| now - SignedDuration::from_secs(seconds);
        assert!(recently_renewed(Some(&lease("one", ago(2))), now));
        assert!(!recently_renewed(Some(&lease("", ago(2))), now));
        assert!(!recently_renewed(Some(&lease("one", ago(60))), now));
        assert!(!recently_renewed(None, now));
        // With a large difference of the clocks, the time of the renewal is not trusted.
        assert!(!recently_renewed(Some(&lease("one", ago(-600))), now));
    }

    #[test]
    fn an_expired_lease_is_described_with_holder_and_age() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let dead = lease("coordinator-1", now - SignedDuration::from_mins(3));
        assert_eq!(
            describe(Some(&dead), "replumb-system", now),
            "Lease replumb-system/replumb-coordinator is held by coordinator-1, last renewed 3m0s ago"
        );
        assert!(describe(None, "x", now).contains("does not exist"));
        assert!(describe(Some(&lease("", now)), "x", now).contains("has no holder"));
    }
}
