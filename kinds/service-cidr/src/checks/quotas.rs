//! Quotas of namespaces: do the helpers fit in?

use std::collections::BTreeMap;

use super::{CheckName, CheckPolicy};
use crate::class::Class;
use crate::facts::ClusterFacts;
use crate::objects::bridges;
use crate::settings::Settings;
use crate::subjects::of_migration;
use engine::check::{Check, Finding, Report};

/// What quotas count that helpers are among.
const SERVICES: [&str; 2] = ["services", "count/services"];
const LOAD_BALANCERS: &str = "services.loadbalancers";

/// What is made in one namespace at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Made {
    /// Services, at the time at which there are most of them.
    services: u64,
    /// Those of them that are of type `LoadBalancer`.
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
                    "correct it: until then nobody knows whether helpers fit in",
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
            if room.left() < needed {
                report.fail(
                    "ResourceQuota",
                    format!("{}/{}", quota.namespace, quota.name),
                    Finding::new(
                        resource,
                        format!("{} of {} are used", room.used, room.hard),
                        format!("room for {needed} more, which help to exchange addresses and go again"),
                        format!(
                            "let it allow {} for the time of the migration",
                            room.used.saturating_add(needed)
                        ),
                    ),
                );
            }
        }
    }
    report.finish("every ResourceQuota", "leaves room for helpers")
}

/// Each Service keeps the helper of its old address to the end. Those that are in the middle of it have the other one as well, and
/// their bridges.
fn made<'facts>(
    settings: &Settings,
    facts: &'facts ClusterFacts,
    at_once: usize,
) -> BTreeMap<&'facts str, Made> {
    let left = settings.changed().old;
    let mut bridged: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for service in of_migration(&facts.services) {
        if matches!(Class::of(&service["spec"], &left), Class::Moves(_))
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
