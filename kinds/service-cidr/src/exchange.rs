//! The change of a Service's address while both addresses answer: the next step, from any state.
//!
//! The API does not allow a change of the address. It allows a Service to become an `ExternalName`, which releases the address,
//! and to become a Service with another address again. Helpers keep requests working meanwhile:
//!
//! - the helper of the **goal** has the target address from the start: the Service's name points to it meanwhile;
//! - the helper of the **source** address takes that over, for clients that know it;
//! - a **bridge** answers at both addresses, other bridges at the node ports and at external addresses, whatever object has them:
//!   a bridge is of type `LoadBalancer`, of a class without a controller, and its status contains these addresses.
//!
//! The exchange is four writes: the Service's name points to the goal's helper, the other helper takes the free source address,
//! the goal's helper releases its address, the Service takes it. The name always points to an address that answers, and
//! whenever kube-proxy writes its rules, the bridge completes them.
//!
//! A rollback is the same with the two addresses swapped. The decision depends on the objects only: after a crash between two
//! writes the exchange continues from there.

mod role;
mod step;
mod view;

pub use role::{Part, Parts, ROLE_LABEL, Role};
pub use step::{Step, Write};
pub use view::{Bridge, Endpoints, Helper, Own, Taken, View};

use super::side::Side;
use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};

/// The reason of a wait for a range with the source address. A Service waits for no other range.
const SOURCE_IS_CLOSED: WaitReason = WaitReason::ServiceRanges;

/// Whether a `ServiceCIDR` has to be created for the source address of this Service.
pub fn waits_for_source(decision: &Decision<Step>) -> bool {
    matches!(decision, Decision::Wait(wait) if wait.reason == SOURCE_IS_CLOSED)
}

/// The next change of one Service.
///
/// # Examples
///
/// ```
/// use engine::decision::Decision;
/// use service_cidr::exchange::{Bridge, Helper, Own, Parts, Step, Taken, View, decide};
/// use service_cidr::side::{Side, Sides};
///
/// // A Service at its old address, with an endpoint, and without helpers.
/// let view = View {
///     name: "shop/web".to_owned(),
///     goal: Side::New,
///     own: Own::At(Side::Old),
///     helpers: Sides::each(|_| Helper::Absent),
///     bridge: Parts::each(|_| Bridge::NotNeeded),
///     taken: Taken::default(),
///     is_marked: false,
///     source_is_used: true,
///     source_is_assignable: true,
///     is_served: true,
/// };
/// // First a helper answers at the new address.
/// assert_eq!(decide(&view), Decision::Run(Step::MakeHome(Side::New)));
/// // No request reaches a Service without endpoints: it moves at once.
/// assert_eq!(decide(&View { is_served: false, ..view }), Decision::Run(Step::Move));
/// ```
pub fn decide(view: &View) -> Decision<Step> {
    let (goal, source) = (view.goal, view.goal.other());
    match &view.own {
        Own::Elsewhere(_) => remove_helpers(view, goal, source),
        Own::At(side) if *side == goal => arrived(view, source),
        Own::At(_) => prepare(view, goal, source),
        Own::Away(points_to) => restore_address(view, goal, source, *points_to),
    }
}

/// The owner has changed type or address of the Service, so it has nothing to exchange. Its helpers are removed, except for one
/// that answers at the source address while clients may use it.
fn remove_helpers(view: &View, goal: Side, source: Side) -> Decision<Step> {
    if let Some(part) = view.existing_bridge() {
        return Decision::Run(Step::Remove(Role::Bridge(part)));
    }
    if *view.helper(goal) != Helper::Absent {
        return Decision::Run(Step::Remove(Role::Address(goal)));
    }
    match view.helper(source) {
        Helper::Absent => Decision::Settled,
        Helper::Home(_) if view.source_is_used => Decision::Settled,
        Helper::Home(_) | Helper::Parked(_) | Helper::Warming(_) => {
            Decision::Run(Step::Remove(Role::Address(source)))
        }
    }
}

impl View {
    fn helper(&self, side: Side) -> &Helper {
        self.helpers.of(side)
    }

    fn is_home(&self, side: Side) -> bool {
        matches!(self.helper(side), Helper::Home(_))
    }

    fn taken(&self, side: Side) -> Option<&String> {
        self.taken.addresses.of(side).as_ref()
    }

    /// The step after which the helpers of addresses answer as their Service does.
    fn update_helpers(&self) -> Option<Step> {
        Side::ALL
            .into_iter()
            .find_map(|side| update_helper(Role::Address(side), self.helper(side).endpoints()?))
    }

    /// The next step until the bridge answers without any other object.
    fn build_bridge(&self) -> Option<Step> {
        Part::ALL.into_iter().find_map(|part| match self.bridge.of(part) {
            Bridge::NotNeeded => None,
            Bridge::Absent => Some(Step::MakeBridge(part)),
            Bridge::Silent => Some(Step::Answer(part)),
            Bridge::Stands(endpoints) => update_helper(Role::Bridge(part), endpoints),
        })
    }

    /// The wait of the bridge.
    fn bridge_waits(&self) -> Option<&Wait> {
        Part::ALL.into_iter().find_map(|part| match self.bridge.of(part) {
            Bridge::Stands(Endpoints::Missing(wait)) => Some(wait),
            Bridge::Stands(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited)
            | Bridge::NotNeeded
            | Bridge::Absent
            | Bridge::Silent => None,
        })
    }

    /// A part of the bridge that exists.
    fn existing_bridge(&self) -> Option<Part> {
        Part::ALL
            .into_iter()
            .find(|part| matches!(self.bridge.of(*part), Bridge::Silent | Bridge::Stands(_)))
    }

    /// Another Service has an address of the bridge, and this Service has its own address: the bridge must not answer for the
    /// other Service.
    fn halt_without_bridge(&self, taken: &str) -> Decision<Step> {
        match self.existing_bridge() {
            Some(part) => Decision::Run(Step::Remove(Role::Bridge(part))),
            None => self.halt(taken),
        }
    }

    /// A helper needs the source address, and no range assigns it.
    fn wait_for_left(&self) -> Decision<Step> {
        Decision::Wait(Wait {
            reason: SOURCE_IS_CLOSED,
            message: format!(
                "Service {} was created after the start of the exchange, and its range is closed: the ServiceCIDR for its \
                 address is not Ready yet",
                self.name
            ),
            until: None,
        })
    }

    /// Another Service has an address or port that this Service needs.
    fn halt(&self, taken: &str) -> Decision<Step> {
        Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message: format!(
                "Service {} cannot continue: {taken}. Delete or change that Service, then run `kubectl replumb resume`",
                self.name
            ),
        })
    }
}

fn update_helper(role: Role, endpoints: &Endpoints) -> Option<Step> {
    match endpoints {
        Endpoints::ToCopy => Some(Step::Copy(role)),
        Endpoints::Edited => Some(Step::Refresh(role)),
        Endpoints::Same | Endpoints::Missing(_) => None,
    }
}

/// The Service has its target address: the source address answers while it is in use.
fn arrived(view: &View, source: Side) -> Decision<Step> {
    let goal = view.goal;
    // A source address that no helper has, and that cannot be assigned, is released: it has never answered.
    let left_is_used = view.source_is_used && (view.source_is_assignable || view.is_home(source));
    if left_is_used {
        match view.helper(source) {
            // The address has never answered, so no client misses it.
            Helper::Absent if view.taken(source).is_some() && !view.is_served => {}
            Helper::Absent | Helper::Parked(_) if view.taken(source).is_some() => {
                return view.halt_without_bridge(view.taken(source).map_or("", String::as_str));
            }
            // Another client has deleted the helper.
            Helper::Absent => return Decision::Run(Step::MakeHome(source)),
            Helper::Parked(_) => return Decision::Run(Step::Home(source)),
            Helper::Warming(_) => return Decision::Run(Step::Park(source)),
            Helper::Home(endpoints) => {
                if let Some(step) = update_helper(Role::Address(source), endpoints) {
                    return Decision::Run(step);
                }
                // The bridge has the endpoints meanwhile.
                if let Endpoints::Missing(wait) = endpoints {
                    return Decision::Wait(wait.clone());
                }
            }
        }
    }
    // kube-proxy sees changes in order: a node that sees this deletion has seen the Service's new address.
    if let Some(part) = view.existing_bridge() {
        return Decision::Run(Step::Remove(Role::Bridge(part)));
    }
    // Clients may have the goal's helper from a DNS answer; its name points to the other helper, which still exists.
    if *view.helper(goal) != Helper::Absent {
        return Decision::Run(Step::Remove(Role::Address(goal)));
    }
    if !left_is_used && *view.helper(source) != Helper::Absent {
        return Decision::Run(Step::Remove(Role::Address(source)));
    }
    // The owner has given the Service its address: otherwise that write would have removed the saved spec.
    if view.is_marked {
        return Decision::Run(Step::Unmark);
    }
    Decision::Settled
}

/// The Service has its source address. The exchange starts once every helper has its endpoints, and all nodes have rules for
/// the bridge and for the helper that takes the source address.
fn prepare(view: &View, goal: Side, source: Side) -> Decision<Step> {
    if let Some(taken) = view.taken(goal)
        && !view.is_home(goal)
    {
        return view.halt_without_bridge(taken);
    }
    if !view.is_served && view.existing_bridge().is_none() && *view.helper(source) == Helper::Absent {
        match view.helper(goal) {
            Helper::Absent if !view.source_is_assignable => return Decision::Run(Step::MoveAlone),
            Helper::Absent => return Decision::Run(Step::Move),
            Helper::Home(_) if !view.source_is_assignable => return view.wait_for_left(),
            Helper::Home(_) => return Decision::Run(Step::MoveBack),
            Helper::Parked(_) | Helper::Warming(_) => {}
        }
    }
    // All helpers get ready at the same time.
    if let Some(step) = view.build_bridge() {
        return Decision::Run(step);
    }
    if let Some(step) = view.update_helpers() {
        return Decision::Run(step);
    }
    match view.helper(goal) {
        Helper::Absent => return Decision::Run(Step::MakeHome(goal)),
        Helper::Warming(_) => return Decision::Run(Step::Park(goal)),
        Helper::Parked(_) => return Decision::Run(Step::Home(goal)),
        Helper::Home(_) => {}
    }
    if *view.helper(source) == Helper::Absent {
        return Decision::Run(Step::MakeWarm(source));
    }
    if let Some(wait) = view.bridge_waits() {
        return Decision::Wait(wait.clone());
    }
    if let Helper::Home(Endpoints::Missing(wait)) = view.helper(goal) {
        return Decision::Wait(wait.clone());
    }
    // This helper comes last: without an address its endpoints are not updated.
    match view.helper(source) {
        Helper::Warming(Endpoints::Missing(wait)) => Decision::Wait(wait.clone()),
        // `Home` is a mistake of another client: the Service has that address.
        Helper::Warming(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited) | Helper::Home(_) => {
            Decision::Run(Step::Park(source))
        }
        Helper::Parked(Endpoints::Missing(_)) => Decision::Run(Step::Warm(source)),
        Helper::Parked(_) | Helper::Absent if !view.source_is_assignable => view.wait_for_left(),
        Helper::Parked(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited) | Helper::Absent => {
            Decision::Run(Step::Swap)
        }
    }
}

/// The Service has no address, because a process was killed in the middle of an exchange.
fn restore_address(view: &View, goal: Side, source: Side, points_to: Option<Side>) -> Decision<Step> {
    if !view.is_home(source) {
        // Clients with the source address get no answer: this is urgent.
        let parked = matches!(view.helper(source), Helper::Parked(_));
        if !view.source_is_assignable && view.taken(source).is_none() {
            return restore_late(view, goal, source);
        }
        return match (view.taken(source), view.taken(goal)) {
            (None, _) if parked && view.is_home(goal) && points_to == Some(goal) => {
                Decision::Run(Step::Home(source))
            }
            (None, _) => own(view, source),
            // Another Service has the source address. The target address is better than none.
            (Some(_), _) if view.is_home(goal) && view.taken.node_port.is_none() => {
                Decision::Run(Step::Finish)
            }
            (Some(_), None) => own(view, goal),
            (Some(taken), Some(_)) => view.halt(taken),
        };
    }
    // The helpers may answer at both addresses. Now the name has to point to one of them, and node ports do not answer.
    if let Some(step) = view.update_helpers() {
        return Decision::Run(step);
    }
    if !points_to.is_some_and(|side| view.is_home(side)) {
        return Decision::Run(Step::PointName(source));
    }
    if let Some(taken) = &view.taken.node_port {
        return view.halt(taken);
    }
    if view.taken(goal).is_some() {
        return Decision::Run(Step::Return);
    }
    match view.helper(goal) {
        Helper::Home(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited) => Decision::Run(Step::Finish),
        Helper::Home(Endpoints::Missing(wait)) => Decision::Wait(wait.clone()),
        Helper::Parked(_) => Decision::Run(Step::Home(goal)),
        Helper::Warming(_) => Decision::Run(Step::Park(goal)),
        Helper::Absent => Decision::Run(Step::MakeHome(goal)),
    }
}

/// The Service has no address, and its source address cannot be assigned. If a helper needs that address, the migration waits;
/// if not, the address has never answered.
fn restore_late(view: &View, goal: Side, source: Side) -> Decision<Step> {
    match (view.helper(source), view.helper(goal), view.taken(goal)) {
        (Helper::Absent, Helper::Home(_), _) if view.taken.node_port.is_none() => Decision::Run(Step::Finish),
        (Helper::Absent, Helper::Absent | Helper::Parked(_) | Helper::Warming(_), None) => own(view, goal),
        _ => view.wait_for_left(),
    }
}

/// Gives the Service an address. While another Service has its node ports, a helper answers at least at the address.
fn own(view: &View, side: Side) -> Decision<Step> {
    let Some(taken) = &view.taken.node_port else {
        return Decision::Run(Step::Own(side));
    };
    match view.helper(side) {
        Helper::Absent => Decision::Run(Step::MakeHome(side)),
        Helper::Warming(_) => Decision::Run(Step::Park(side)),
        Helper::Parked(_) => Decision::Run(Step::Home(side)),
        Helper::Home(_) => view.halt(taken),
    }
}

#[cfg(test)]
mod tests;
