//! One Service and its helpers as one view, from what was read. Pure.

use plan::decision::{Wait, WaitReason};
use plan::service_cidr::endpoints;
use plan::service_cidr::objects::{self, Objects, family, helper_name};
use plan::service_cidr::side::{Side, Sides};
use plan::service_cidr::swap::{Endpoints, Helper, Own, Taken, View};
use serde_json::Value;

use super::exchange::{Seen, Subject};
use super::observed::Observed;

/// What is known of the nodes.
pub struct Nodes<'pass> {
    /// Which node does not know the address of a side yet.
    pub unknown: &'pass dyn Fn(Side) -> Option<Wait>,
    /// Why rules would be written in the middle of an exchange.
    pub unquiet: Option<Wait>,
}

/// Looks at a Service and its helpers. `None` when the Service is gone: its helpers go with it.
pub fn look(observed: &Observed, domain: &str, subject: &Subject, nodes: &Nodes<'_>) -> Option<Seen> {
    let (namespace, name) = (subject.namespace.as_str(), subject.name.as_str());
    let service = observed.service(namespace, name)?.clone();
    let slices = observed.slices(namespace, name).to_vec();
    let helpers = Sides::each(|side| observed.service(namespace, &helper_name(name, side)).cloned());
    let of_helpers = Sides::each(|side| observed.slices(namespace, &helper_name(name, side)).to_vec());
    let is_selected = service["spec"]["selector"]
        .as_object()
        .is_some_and(|selector| !selector.is_empty());
    let own = objects::own(&service, &subject.addresses);
    let families: Vec<&str> = subject.addresses.old.iter().map(family).collect();
    let wanted = match own {
        // Nobody keeps the endpoints of a name: those of the helper that has an address are what they would be.
        Own::Away(_) => of_helpers.of(subject.goal.other()),
        Own::At(_) | Own::Elsewhere(_) => &slices,
    };
    let objects = Objects {
        domain,
        service: &service,
        addresses: &subject.addresses,
        spare: &subject.spare,
    };
    let endpoints = |side: Side, helper: &Value| {
        let of_helper = of_helpers.of(side);
        if objects.refresh(helper).is_some() {
            Endpoints::Edited
        } else if is_selected {
            endpoints::difference(wanted, of_helper, &families).map_or(Endpoints::Same, |(missing, other)| {
                Endpoints::Missing(not_yet(namespace, name, side, missing, other))
            })
        } else if endpoints::copies(&slices, helper, of_helper).is_empty() {
            Endpoints::Same
        } else {
            Endpoints::ToCopy
        }
    };
    let state = |side: Side| {
        let Some(helper) = helpers.of(side) else {
            return Helper::Absent;
        };
        let endpoints = endpoints(side, helper);
        match objects::own(helper, &subject.addresses) {
            Own::At(found) if found == side => Helper::Home(match ((nodes.unknown)(side), endpoints) {
                (Some(unknown), Endpoints::Same) => Endpoints::Missing(unknown),
                (_, endpoints) => endpoints,
            }),
            _ if helper["spec"]["type"] == "ExternalName" => Helper::Parked(endpoints),
            Own::At(_) | Own::Away(_) | Own::Elsewhere(_) => Helper::Warming(endpoints),
        }
    };
    let view = View {
        name: format!("{namespace}/{name}"),
        goal: subject.goal,
        taken: taken(observed, subject, &service, &own),
        own,
        helpers: Sides::each(state),
        is_marked: objects::before(&service).is_some(),
        left_is_used: subject.left_is_used,
        unquiet: nodes.unquiet.clone(),
    };
    Some(Seen {
        service,
        helpers,
        slices,
        of_helpers,
        view,
    })
}

/// Who else has what this Service has to get.
fn taken(observed: &Observed, subject: &Subject, service: &Value, own: &Own) -> Taken {
    let (namespace, name) = (&subject.namespace, &subject.name);
    let helpers = Side::ALL.map(|side| format!("{namespace}/{}", helper_name(name, side)));
    let is_ours =
        |holder: &str| holder == format!("{namespace}/{name}") || helpers.iter().any(|one| one == holder);
    let addresses = Sides::each(|side| {
        subject.addresses.of(side).iter().find_map(|address| {
            let holder = observed.holder(address).filter(|holder| !is_ours(holder))?;
            Some(format!("Service {holder} has address {address}"))
        })
    });
    let node_port = match (own, objects::before(service)) {
        (Own::Away(_), Some(before)) => {
            let ports = node_ports(&before);
            observed.services().find_map(|other| has_one_of(other, &ports))
        }
        _ => None,
    };
    Taken { addresses, node_port }
}

fn not_yet(namespace: &str, name: &str, side: Side, missing: usize, other: usize) -> Wait {
    Wait {
        reason: WaitReason::MovedPodsNotReady,
        message: format!(
            "Service {namespace}/{} has {missing} endpoints less than {name}, and {other} that {name} has not",
            helper_name(name, side)
        ),
        until: None,
    }
}

fn node_ports(spec: &Value) -> Vec<(String, u64)> {
    let ports = spec["ports"].as_array().into_iter().flatten();
    ports
        .filter_map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            Some((protocol, port["nodePort"].as_u64()?))
        })
        .collect()
}

/// Which of these node ports this Service has.
fn has_one_of(service: &Value, ports: &[(String, u64)]) -> Option<String> {
    let has = node_ports(&service["spec"]);
    let (protocol, port) = ports.iter().find(|port| has.contains(port))?;
    let text = |field: &str| service["metadata"][field].as_str().unwrap_or_default();
    Some(format!(
        "Service {}/{} has node port {port}/{protocol}",
        text("namespace"),
        text("name")
    ))
}
