//! The way without replumb: Services are deleted and created again with another address. Its losses are counted for comparison
//! with the migration, in the same cluster under the same load.

use std::net::Ipv4Addr;
use std::time::Duration;

use ::traffic::report::Report;
use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::sample;
use crate::cluster::Cluster;
use crate::cluster::control_plane::DNS_SERVICE;
use crate::cluster::wait::{Observation, until};
use crate::demo::traffic;

/// Number of Services.
const SERVICES: u8 = 3;
/// Their new range: neither the source range nor the target range of the migration.
const RANGE: &str = "172.29.0.0/24";
const RANGE_NAME: &str = "by-hand";
const PROBER: &str = "recreated-addresses";
/// Milliseconds between two probes.
const INTERVAL: u64 = 10;
/// Time of probing before the first deletion, and after the last creation.
const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_mins(2);

/// The losses.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recreation {
    /// Number of Services that were deleted and created again.
    pub services: u8,
    /// Requests to their old addresses.
    pub at_old_addresses: Counted,
    /// Requests to their new addresses, from the first answer on.
    pub at_new_addresses: Counted,
    /// DNS queries for the name of one of them.
    pub by_name: Counted,
}

/// Requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counted {
    /// Number of requests.
    pub sent: u64,
    /// Number of requests without an answer.
    pub lost: u64,
}

/// Creates Services, deletes them, creates them again with other addresses, and removes them.
pub async fn count(cluster: &Cluster, image: &str) -> Result<Recreation> {
    let api = cluster.api();
    let network: Ipv4Net = RANGE.parse().context("the range of this comparison")?;
    let range = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": { "name": RANGE_NAME }, "spec": { "cidrs": [network] },
    });
    api.apply(&range.to_string()).await?;
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    until(
        "the range of the comparison is Ready",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let text = api
                .kubectl(&["get", "servicecidr", RANGE_NAME, "-o", path])
                .await?;
            Ok(if text == "True" {
                Observation::Done(())
            } else {
                Observation::NotYet(text)
            })
        },
    )
    .await?;
    let mut targets = Vec::new();
    for number in 0..SERVICES {
        let name = name(number);
        api.apply(&sample::service(&name, &json!({})).to_string()).await?;
        let path = "jsonpath={.spec.clusterIP}";
        let old = api
            .kubectl(&["-n", sample::NAMESPACE, "get", "service", &name, "-o", path])
            .await?;
        targets.push(format!("{name}@old={old}:{}", sample::PORT));
        targets.push(format!(
            "{name}@new={}:{}",
            new_address(network, number),
            sample::PORT
        ));
    }
    let resolved = format!("{}.{}.svc.cluster.local", name(0), sample::NAMESPACE);
    let prober = sample::prober(&sample::Prober {
        on_host: false,
        name: PROBER,
        image,
        targets: &targets,
        resolved: &resolved,
        name_server: DNS_SERVICE,
        interval: INTERVAL,
    });
    api.apply(&prober.to_string()).await?;
    api.rolled_out(&format!("deployment/{PROBER}"), "traffic", LIMIT)
        .await?;
    tokio::time::sleep(BEFORE).await;
    for number in 0..SERVICES {
        let name = name(number);
        api.kubectl(&["-n", sample::NAMESPACE, "delete", "service", &name])
            .await?;
        let spec = json!({ "clusterIP": new_address(network, number) });
        api.apply(&sample::service(&name, &spec).to_string()).await?;
    }
    tokio::time::sleep(AFTER).await;
    let deployment = format!("deployment/{PROBER}");
    api.kubectl(&["-n", "traffic", "delete", &deployment, "--cascade=foreground"])
        .await?;
    let found = counted(&traffic::take(cluster, PROBER).await?);
    for number in 0..SERVICES {
        api.kubectl(&["-n", sample::NAMESPACE, "delete", "service", &name(number)])
            .await?;
    }
    api.kubectl(&["delete", "servicecidr", RANGE_NAME]).await?;
    Ok(found)
}

fn name(number: u8) -> String {
    format!("recreated-{number}")
}

fn new_address(network: Ipv4Net, number: u8) -> Ipv4Addr {
    let [first, second, third, _] = network.network().octets();
    Ipv4Addr::new(first, second, third, 10 + number)
}

fn counted(reports: &[Report]) -> Recreation {
    let mut found = Recreation {
        services: SERVICES,
        ..Recreation::default()
    };
    for flow in reports.iter().flat_map(|report| &report.flows) {
        let of = if flow.target.ends_with("@old") {
            &mut found.at_old_addresses
        } else if flow.target.ends_with("@new") {
            &mut found.at_new_addresses
        } else {
            &mut found.by_name
        };
        of.sent += flow.counts.sent;
        of.lost += flow.counts.lost;
    }
    found
}

/// The losses as text.
pub fn text(found: &Recreation) -> String {
    let Recreation {
        services,
        at_old_addresses: old,
        at_new_addresses: new,
        by_name,
    } = found;
    format!(
        "for comparison, Services deleted and created again: {services}; lost requests to their old addresses: {} of {}, to \
         their new addresses: {} of {}, DNS queries: {} of {}",
        old.lost, old.sent, new.lost, new.sent, by_name.lost, by_name.sent
    )
}

/// Whether the comparison is valid: requests to the old addresses must be lost.
pub fn is_valid(found: &Recreation) -> bool {
    found.at_old_addresses.lost > 0
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_service_has_another_address() {
        let network = RANGE.parse().unwrap();
        let all: std::collections::BTreeSet<Ipv4Addr> =
            (0..SERVICES).map(|number| new_address(network, number)).collect();
        assert_eq!(all.len(), usize::from(SERVICES));
        assert!(all.iter().all(|address| network.contains(address)));
    }

    #[test]
    fn losses_are_counted_by_address_and_name() {
        let flow = |target: &str, sent: u64, lost: u64| {
            json!({
                "class": "pod-to-service", "target": target, "address": "", "outages": [],
                "sent": sent, "answered": 0, "lost": lost, "pending": 0, "late": 0, "duplicates": 0, "strays": 0,
                "longestGapMs": 0, "slowestAnswerMs": 0,
            })
        };
        let report: Value = json!({
            "prober": PROBER, "node": "n", "started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z", "finished": true,
            "intervalMs": 10, "timeoutMs": 4000, "longestPauseMs": 0,
            "flows": [
                flow("recreated-0@old", 9, 5), flow("recreated-1@old", 9, 4), flow("recreated-0@new", 7, 1), flow("a.name", 3, 2),
            ],
        });
        let found = counted(&[serde_json::from_value(report).unwrap()]);
        assert_eq!(found.at_old_addresses, Counted { sent: 18, lost: 9 });
        assert_eq!(found.at_new_addresses, Counted { sent: 7, lost: 1 });
        assert_eq!(found.by_name, Counted { sent: 3, lost: 2 });
        assert!(is_valid(&found) && !is_valid(&Recreation::default()));
    }
}
