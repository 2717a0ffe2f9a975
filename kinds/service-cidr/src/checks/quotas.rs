//! Quotas of namespaces, which must allow the helpers.

use std::collections::BTreeMap;

use super::{CheckName, CheckPolicy};
use crate::assignment::of_migration;
use crate::class::Class;
use crate::facts::ClusterFacts;
use crate::objects::bridges;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};

/// Resources of quotas that count helpers.
const SERVICES: [&str; 2] = ["services", "count/services"];
const LOAD_BALANCERS: &str = "services.loadbalancers";

/// The maximum number of helpers in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Made {
    /// Maximum number of Services at the same time.
    services: u64,
    /// Maximum number of these of type `LoadBalancer`.
    load_balancers: u64,
}

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::Quotas);
    let made = made(settings, facts, policy.services_at_once);
    for quota in &facts.quotas {
        let Some(made) = made.get(quota.namespace.as_str()) else {
            continue;
        };
        for field in &quota.not_understood {
            report.warn(
                "ResourceQuota",
                format!("{}/{}", quota.namespace, quota.name),
                Finding::new(
                    &field.field,
                    &field.found,
                    field.needed.to_string(),
                    "correct it: until then it is unknown whether the quota allows helpers",
                ),
            );
        }
        for (resource, room) in &quota.rooms {
            let needed = if SERVICES.contains(&resource.as_str()) {
                made.services
            } else if resource == LOAD_BALANCERS {
                made.load_balancers
            } else {
                continue;
            };
            if room.remaining() < needed {
                report.fail(
                    "ResourceQuota",
                    format!("{}/{}", quota.namespace, quota.name),
                    Finding::new(
                        resource,
                        format!("{} of {} in use", room.used, room.hard),
                        format!("{needed} free for temporary helpers"),
                        format!(
                            "set it to {} during the migration",
                            room.used.saturating_add(needed)
                        ),
                    ),
                );
            }
        }
    }
    report.finish("every ResourceQuota", "allows helpers")
}

/// Each Service has the helper of its old address to the end. During its exchange a Service also has the other helper, and its
/// bridges.
fn made<'facts>(
    settings: &Settings,
    facts: &'facts ClusterFacts,
    at_once: usize,
) -> BTreeMap<&'facts str, Made> {
    let source = settings.changed().old;
    let mut bridged: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for service in of_migration(&facts.services) {
        if matches!(Class::of(&service["spec"], &source), Class::Moves(_))
            && let Some(namespace) = service["metadata"]["namespace"].as_str()
        {
            let count = bridges(service).len() as u64;
            bridged.entry(namespace).or_default().push(count);
        }
    }
    bridged
        .into_iter()
        .map(|(namespace, mut counts)| {
            counts.sort_unstable_by(|left, right| right.cmp(left));
            let at_once = counts.iter().take(at_once);
            let (exchanging, load_balancers) = (at_once.len() as u64, at_once.sum());
            let made = Made {
                services: counts.len() as u64 + exchanging + load_balancers,
                load_balancers,
            };
            (namespace, made)
        })
        .collect()
}
