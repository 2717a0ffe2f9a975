//! The Services: each can change its address, the new ranges are large enough, and other configuration with their addresses is
//! known.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{CheckName, CheckPolicy};
use crate::addresses::{assign, room};
use crate::assignment::{key, of_migration};
use crate::class::Class;
use crate::exchange::Part;
use crate::facts::ClusterFacts;
use crate::host::MAX_EXCLUDED;
use crate::mentions::follow_up;
use crate::ranges::joined;
use crate::settings::Settings;
use crate::side::Side;
use engine::check::{Check, Finding, Report};
use engine::corefile::{LAMEDUCK, lameduck};
use engine::owner::Owner;
use engine::words::{lines, number};

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [
        services(settings, facts, policy),
        load_balancers(settings, facts, policy),
        rooms(settings, facts, policy),
        mentions(settings, facts),
        name_servers(facts),
        traffic_gate(policy),
    ]
    .concat()
}

fn services(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::Services);
    for (object, why) in &facts.refused {
        report.fail(
            "",
            object,
            Finding::new(
                "",
                format!("the API server would refuse the change of its address: {why}"),
                "type ExternalName and Services with labels of replumb.dev allowed during the migration",
                "exempt group system:serviceaccounts:replumb-system, or these namespaces, from the admission policy or webhook \
                 that refuses",
            ),
        );
    }
    let names: BTreeSet<String> = facts.services.iter().map(key).collect();
    for (place, name) in policy.order.iter().enumerate() {
        if !names.contains(name) {
            report.fail(
                "",
                format!("spec.serviceCidr.order[{place}]"),
                Finding::new(
                    "",
                    name,
                    "namespace/name of a Service",
                    "correct or remove the name",
                ),
            );
        }
    }
    let source = settings.changed().old;
    let moves = of_migration(&facts.services)
        .filter(|service| matches!(Class::of(&service["spec"], &source), Class::Moves(_)))
        .count();
    let accepted = match facts.untried {
        0 => "the API server accepts each write in a dry run".to_owned(),
        untried => format!(
            "the API server accepts each write in a dry run; without a dry run so far: {} created since",
            number(untried, "Service", "Services")
        ),
    };
    report.finish("Services", format!("{moves} change their addresses; {accepted}"))
}

fn load_balancers(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::LoadBalancers);
    let source = settings.changed().old;
    let (mut count, mut kept) = (0, 0);
    for service in of_migration(&facts.services) {
        if let Class::LoadBalancer(addresses) = Class::of(&service["spec"], &source) {
            count += 1;
            kept += addresses.len();
            if !policy.keep_load_balancers {
                let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
                report.warn(
                    "Service",
                    key(service),
                    Finding::new(
                        "",
                        texts.join(","),
                        "an address of the new range",
                        "create a second Service, move clients to it, and delete this one: a change of its address would delete \
                         its load balancer. With keepLoadBalancers: false the old addresses are released once that is done",
                    ),
                );
            }
        }
    }
    if policy.keep_load_balancers && kept > MAX_EXCLUDED {
        report.fail(
            "Services",
            "of type LoadBalancer",
            Finding::new(
                "",
                format!(
                    "{} that load balancers keep",
                    number(kept, "address", "addresses")
                ),
                format!("at most {MAX_EXCLUDED}"),
                "move clients of load balancers to Services of other types, and delete these load balancers",
            ),
        );
    }
    report.finish(
        "Services of type LoadBalancer",
        format!("{count} keep their cluster IPs, and the smallest ranges around these stay"),
    )
}

fn rooms(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::InsufficientAddresses);
    let changed = settings.changed();
    let mut said = Vec::new();
    for (from, to) in changed.old.iter().zip(&changed.new) {
        let mine = |address: &IpAddr| from.contains(address);
        let addresses: BTreeSet<IpAddr> = of_migration(&facts.services)
            .filter_map(
                |service| match Class::of(&service["spec"], std::slice::from_ref(from)) {
                    Class::Moves(addresses) => Some(addresses),
                    Class::LoadBalancer(_) | Class::Headless | Class::ExternalName | Class::Elsewhere => None,
                },
            )
            .flatten()
            .filter(mine)
            .collect();
        let needed = addresses.len() + policy.services_at_once * (1 + Part::ALL.len());
        if let Err(no_room) = assign(&addresses, from, to, &BTreeSet::new()) {
            report.fail(
                "",
                to.to_string(),
                Finding::new(
                    "",
                    no_room.to_string(),
                    "one address per Service",
                    "choose a larger range",
                ),
            );
        } else if room(to) < needed as u128 {
            report.fail(
                "",
                to.to_string(),
                Finding::new(
                    "",
                    number(room(to), "address", "addresses"),
                    format!(
                        "{needed}: {} helpers during the exchange",
                        number(addresses.len(), "Service, and its", "Services, and their")
                    ),
                    "choose a larger range, also for new Services",
                ),
            );
        }
        said.push(format!("{} of {} addresses of {to}", addresses.len(), room(to)));
    }
    report.finish(joined(changed.of(Side::New)), lines(&said))
}

fn mentions(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::HardcodedAddresses);
    let changed = settings.changed();
    let mut changes = follow_up(&facts.mentions, &changed.old, &changed.new);
    // Objects of the cluster come first, however many tenants have.
    changes.sort_by_key(|change| change.owner.tenant().is_some());
    for change in changes {
        let when = match change.owner {
            Owner::Cluster => "stage FollowUp waits for this change",
            Owner::Tenant(_) => {
                "stage Soak waits for this change of a tenant's object, and no pod of others does"
            }
        };
        let fix = format!("{} ({when})", change.fix);
        let finding = Finding::new("", change.found, change.needed, fix);
        report.warn("", change.object, finding);
    }
    report.finish("known objects with addresses of Services", "no old address")
}

fn name_servers(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NameServers);
    for (object, corefile) in &facts.corefiles {
        let found = lameduck(corefile);
        if found < LAMEDUCK {
            report.warn(
                "",
                object,
                Finding::new(
                    "Corefile: health, lameduck",
                    format!("{found:#}"),
                    format!("at least {LAMEDUCK:#}"),
                    "set `health { lameduck 5s }` and run `kubectl rollout restart` of its Deployment: otherwise queries during \
                     stage Restart get no answer until kube-proxy on every node has removed the terminated pod",
                ),
            );
        }
    }
    report.finish(
        "name servers",
        format!(
            "Corefiles with a lameduck time of {LAMEDUCK:#} or more: {}",
            facts.corefiles.len()
        ),
    )
}

fn traffic_gate(policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::TrafficGate);
    if policy.is_unwatched {
        report.warn(
            "",
            "spec.gates.traffic",
            Finding::new(
                "",
                "Ignore",
                "Watch",
                "omit gates.traffic: with Ignore, lost requests do not stop the migration",
            ),
        );
    }
    report.finish("spec.gates.traffic", "Watch")
}
