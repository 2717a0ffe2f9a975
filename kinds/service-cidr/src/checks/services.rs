//! The Services: can each be exchanged, is there room, and who else says their addresses?

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{CheckName, CheckPolicy};
use crate::addresses::{assign, room};
use crate::class::Class;
use crate::facts::ClusterFacts;
use crate::host::MOST_KEPT;
use crate::mentions::follow_up;
use crate::ranges::listed;
use crate::settings::Settings;
use crate::side::Side;
use crate::subjects::{key, of_migration};
use crate::swap::Part;
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
                format!("the API server would refuse an exchange: {why}"),
                "that type ExternalName, and Services that carry labels of replumb.dev, are admitted for the time of the migration",
                "an admission policy or webhook decides that: let it except group system:serviceaccounts:replumb-system, or these namespaces",
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
                    "correct the name, or leave it out",
                ),
            );
        }
    }
    let left = settings.changed().old;
    let moves = of_migration(&facts.services)
        .filter(|service| matches!(Class::of(&service["spec"], &left), Class::Moves(_)))
        .count();
    let taken = match facts.untried {
        0 => "the API server takes each write, asked without effect".to_owned(),
        untried => format!(
            "the API server takes each write, asked without effect, but was not asked yet about {} made since",
            number(untried, "Service", "Services")
        ),
    };
    report.finish("Services", format!("{moves} exchange their addresses; {taken}"))
}

fn load_balancers(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::LoadBalancers);
    let left = settings.changed().old;
    let (mut count, mut kept) = (0, 0);
    for service in of_migration(&facts.services) {
        if let Class::LoadBalancer(addresses) = Class::of(&service["spec"], &left) {
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
                        "its load balancer would be deleted with an exchange: make a second Service, lead clients to it, delete this one. \
                         With keepLoadBalancers: false the old addresses are given up once that is done",
                    ),
                );
            }
        }
    }
    if policy.keep_load_balancers && kept > MOST_KEPT {
        report.fail(
            "Services",
            "of type LoadBalancer",
            Finding::new(
                "",
                format!("{kept} addresses that load balancers keep"),
                format!("at most {MOST_KEPT}"),
                "lead clients of load balancers to Services of other types, and delete these load balancers",
            ),
        );
    }
    report.finish(
        "Services of type LoadBalancer",
        format!("{count} keep their cluster addresses, and the smallest ranges that hold them stay"),
    )
}

fn rooms(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::Room);
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
                Finding::new("", no_room.to_string(), "room for each", "choose a larger range"),
            );
        } else if room(to) < needed as u128 {
            report.fail(
                "",
                to.to_string(),
                Finding::new(
                    "",
                    format!("{} addresses", room(to)),
                    format!(
                        "{needed}: {} Services, and those that are made for the time of an exchange",
                        addresses.len()
                    ),
                    "choose a larger range: new Services come, too",
                ),
            );
        }
        said.push(format!("{} of {} addresses of {to}", addresses.len(), room(to)));
    }
    report.finish(listed(changed.of(Side::New)), lines(&said))
}

fn mentions(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Mentions);
    let changed = settings.changed();
    let mut changes = follow_up(&facts.mentions, &changed.old, &changed.new);
    // However many tenants have, the cluster's are told first.
    changes.sort_by_key(|change| change.owner.tenant().is_some());
    for change in changes {
        let when = match change.owner {
            Owner::Cluster => "stage FollowUp waits for it",
            Owner::Tenant(_) => {
                "it is a tenant's, so no pod of others waits for it, and stage Soak does at its end"
            }
        };
        let fix = format!("{} Before the end: {when}", change.fix);
        let finding = Finding::new("", change.found, change.needed, fix);
        report.warn("", change.object, finding);
    }
    report.finish(
        "every place that is known to say addresses of Services",
        "says none that is left",
    )
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
                    format!("{LAMEDUCK:#} at least"),
                    "`health { lameduck 5s }`, then `kubectl rollout restart` of its Deployment: a name server that is started again in stage \
                     Restart is asked until kube-proxy has told every node, and those questions get no answer",
                ),
            );
        }
    }
    report.finish(
        "name servers",
        format!("{} Corefiles are understood", facts.corefiles.len()),
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
                "nobody would notice lost requests but the users: leave it at Watch where nothing forbids it",
            ),
        );
    }
    report.finish("spec.gates.traffic", "Watch")
}
