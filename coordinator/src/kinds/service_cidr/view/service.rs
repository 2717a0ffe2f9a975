//! The view of one Service and its helpers. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use engine::decision::{Wait, WaitReason};
use serde_json::Value;
use service_cidr::class::addresses;
use service_cidr::endpoints;
use service_cidr::entry::node_ports;
use service_cidr::exchange::{Bridge, Endpoints, Helper, Own, Part, Parts, Role, Taken, View};
use service_cidr::objects::{self, BridgeFacts, Objects, helper_name};
use service_cidr::side::{Side, Sides};

use super::super::observed::{Observed, Seen, Subject};
use super::super::service_index::Slice;

/// Facts besides the Service and its helpers.
pub struct Around<'pass> {
    /// The domain of the cluster.
    pub domain: &'pass str,
    /// The settings of bridges.
    pub ground: &'pass BridgeFacts,
    /// The wait for a node that does not know this helper at its own address yet.
    pub unknown: &'pass dyn Fn(Role, &Value) -> Option<Wait>,
}

/// Observes a Service and its helpers. `None` when the Service does not exist: its helpers are deleted with it.
pub fn observe(observed: &Observed<'_>, subject: &Subject, around: &Around<'_>) -> Option<Seen> {
    let (namespace, name) = (subject.namespace.as_str(), subject.name.as_str());
    let service = observed.service(namespace, name)?.clone();
    let is_selected = service["spec"]["selector"]
        .as_object()
        .is_some_and(|selector| !selector.is_empty());
    // Another Service with a helper's name is not touched: the creation of the helper then fails, with the API server's message.
    let found = |role: Role| {
        let found = observed.service(namespace, &helper_name(name, role))?;
        objects::is_helper_of(&service, found, role).then(|| (role, found.clone()))
    };
    let helpers: BTreeMap<Role, Value> = Role::ALL.into_iter().filter_map(found).collect();
    let of_helper = |role: Role| observed.slices(namespace, &helper_name(name, role));
    let (slices, copies) = if is_selected {
        Default::default()
    } else {
        to_copy(observed, namespace, name)
    };
    let own = objects::own(&service, &subject.addresses);
    let wanted = match own {
        // A Service of type ExternalName has no endpoints: those of the helper that has its address count.
        Own::Away(_) => of_helper(Role::Address(subject.goal.other())),
        Own::At(_) | Own::Elsewhere(_) => observed.slices(namespace, name),
    };
    let objects = Objects {
        domain: around.domain,
        service: &service,
        addresses: &subject.addresses,
        spare: &subject.spare,
        ground: around.ground,
    };
    // For a bridge without endpoints no node has rules: neither the bridge nor its Service answers.
    let is_answered = any_serves(&wanted);
    // A helper that follows every edit of a restless owner would never be ready, and the other helpers would stay. The last
    // helper is updated once it is the only one.
    let is_last = own == Own::At(subject.goal) && helpers.len() <= 1;
    let is_followed = !subject.is_restless || is_last;
    let state = HelperStates {
        observed,
        subject,
        around,
        objects,
        helpers: &helpers,
        slices: &slices,
        copies: &copies,
        wanted,
        is_selected,
        is_answered,
        is_followed,
    };
    let view = View {
        name: format!("{namespace}/{name}"),
        goal: subject.goal,
        taken: taken(observed, subject, &service, &own),
        own: own.clone(),
        helpers: Sides::each(|side| state.helper(side)),
        bridge: Parts::each(|part| state.bridge(part)),
        is_marked: objects::before(&service).is_some(),
        source_is_used: subject.source_is_used,
        source_is_assignable: subject.source_is_allocated,
        is_served: is_answered,
    };
    Some(Seen {
        service,
        helpers,
        slices,
        copies,
        view,
    })
}

/// The helpers of one Service, and what their state depends on.
struct HelperStates<'look> {
    observed: &'look Observed<'look>,
    subject: &'look Subject,
    around: &'look Around<'look>,
    objects: Objects<'look>,
    helpers: &'look BTreeMap<Role, Value>,
    /// The slices that are copied, and their copies, by helper.
    slices: &'look [Value],
    copies: &'look BTreeMap<Role, Vec<Value>>,
    /// The slices that a helper's have to equal.
    wanted: Vec<&'look Slice>,
    is_selected: bool,
    is_answered: bool,
    /// Whether helpers follow the edits of the Service's owner.
    is_followed: bool,
}

impl HelperStates<'_> {
    /// The endpoints of a helper, compared with those of its Service.
    fn endpoints(&self, role: Role, helper: &Value) -> Endpoints {
        let (namespace, name) = (self.subject.namespace.as_str(), self.subject.name.as_str());
        let of_helper = || self.observed.slices(namespace, &helper_name(name, role));
        let families = self.objects.families(role);
        let families: Vec<&str> = families.iter().map(String::as_str).collect();
        if !self.is_followed && (any_serves(&of_helper()) || !self.is_answered) {
            // The helper answers with the Service's former content.
            Endpoints::Same
        } else if self.is_followed && self.objects.refresh(role, helper).is_some() {
            Endpoints::Edited
        } else if self.is_selected {
            let helpers = of_helper();
            endpoints::difference(
                self.wanted.iter().map(|slice| &slice.endpoints),
                helpers.iter().map(|slice| &slice.endpoints),
                &families,
            )
            .map_or(Endpoints::Same, |(missing, other)| {
                Endpoints::Missing(endpoints_differ(namespace, name, role, missing, other))
            })
        } else {
            let copied = self.copies.get(&role).map_or(&[][..], Vec::as_slice);
            if endpoints::copies(self.slices, helper, copied).is_empty() {
                Endpoints::Same
            } else {
                Endpoints::ToCopy
            }
        }
    }

    /// The same, once every node has to know the helper.
    fn known(&self, role: Role, helper: &Value) -> Endpoints {
        match self.endpoints(role, helper) {
            Endpoints::Same if self.is_answered => {
                (self.around.unknown)(role, helper).map_or(Endpoints::Same, Endpoints::Missing)
            }
            other => other,
        }
    }

    fn helper(&self, side: Side) -> Helper {
        let role = Role::Address(side);
        let Some(helper) = self.helpers.get(&role) else {
            return Helper::Absent;
        };
        match objects::own(helper, &self.subject.addresses) {
            // The bridge answers for the helper until every node knows it.
            Own::At(found) if found == side => Helper::Home(self.endpoints(role, helper)),
            _ if helper["spec"]["type"] == "ExternalName" => Helper::Parked(self.endpoints(role, helper)),
            Own::At(_) | Own::Away(_) | Own::Elsewhere(_) => Helper::Warming(self.known(role, helper)),
        }
    }

    fn bridge(&self, part: Part) -> Bridge {
        let role = Role::Bridge(part);
        match self.helpers.get(&role) {
            None if self.objects.needs(part) => Bridge::Absent,
            None => Bridge::NotNeeded,
            Some(bridge) if self.objects.answer(part, bridge).is_some() => Bridge::Silent,
            Some(bridge) => Bridge::Stands(self.known(role, bridge)),
        }
    }
}

/// Other Services that have what this Service needs.
fn taken(observed: &Observed<'_>, subject: &Subject, service: &Value, own: &Own) -> Taken {
    let (namespace, name) = (&subject.namespace, &subject.name);
    let helpers = Role::ALL.map(|role| format!("{namespace}/{}", helper_name(name, role)));
    let is_ours =
        |holder: &str| holder == format!("{namespace}/{name}") || helpers.iter().any(|one| one == holder);
    let before = objects::before(service).filter(|_| matches!(own, Own::Away(_)));
    // Its addresses of the other family are needed, too, and do not change.
    let all = before.as_ref().map(addresses).unwrap_or_default();
    let both = [&subject.addresses.old, &subject.addresses.new];
    let unchanged: Vec<IpAddr> = all
        .into_iter()
        .filter(|address| !both.iter().any(|side| side.contains(address)))
        .collect();
    let addresses = Sides::each(|side| {
        let mut wanted = subject.addresses.of(side).iter().chain(&unchanged);
        wanted.find_map(|address| {
            let holder = observed
                .holder(address)
                .filter(|holder| !is_ours(holder.as_str()))?;
            Some(format!("Service {holder} has address {address}"))
        })
    });
    let ports = before.as_ref().map(node_ports).unwrap_or_default();
    let node_port = ports.iter().find_map(|port| {
        let holder = observed.has_node_port(port)?;
        Some(format!("Service {holder} has node port {}/{}", port.1, port.0))
    });
    Taken { addresses, node_port }
}

/// Whole slices of a Service without a selector, and of its helpers: the copies. With a selector, kube-controller-manager writes
/// the slices.
fn to_copy(observed: &Observed<'_>, namespace: &str, name: &str) -> (Vec<Value>, BTreeMap<Role, Vec<Value>>) {
    let of_helper = |role: Role| observed.whole_slices(namespace, &helper_name(name, role));
    let copies = Role::ALL.into_iter().map(|role| (role, of_helper(role)));
    (observed.whole_slices(namespace, name), copies.collect())
}

fn any_serves(slices: &[&Slice]) -> bool {
    slices.iter().any(|slice| slice.serves)
}

fn endpoints_differ(namespace: &str, name: &str, role: Role, missing: usize, other: usize) -> Wait {
    Wait {
        reason: WaitReason::MovedPodsNotReady,
        message: format!(
            "Service {namespace}/{}: endpoints of {name} that are missing: {missing}, endpoints that {name} does not have: \
             {other}",
            helper_name(name, role)
        ),
        until: None,
    }
}
