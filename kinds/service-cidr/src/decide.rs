//! The next step of the whole migration. The decision is level-triggered: the same facts give the same step, whatever was decided
//! before, so a restart or a crash changes nothing.
//!
//! The way forward and the rollback are the same sequence between two ranges: make the target range available, change the
//! address of every Service, delete the default `ServiceCIDR` so that the API servers create it again from their flag, wait
//! until no address of the source range is in use, release the source range. Until then every address answers.

mod next;
mod release;
mod view;

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

pub use next::Next;
pub use view::{Policy, ServiceView, Turn, View};

use super::covers::covers;
use super::exchange;
use super::range_name::{cover_name, range_names};
use super::ranges::{ServiceCidr, joined};
use super::side::Side;
use super::step::{Stage, Step};
use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};
use engine::words;
use next::{run, wait, waits};
use release::{release_source, replace_uses};

/// Maximum number of Services without endpoints that change their addresses at the same time, and of helpers that are removed
/// at the same time: no request depends on them.
pub const LIGHT_AT_ONCE: usize = 64;

/// Chooses the next step.
pub fn decide(view: &View<'_>, policy: &Policy) -> Next {
    let next = provide_range(view)
        .or_else(|| exchange(view, policy))
        .or_else(|| release_source(view))
        .unwrap_or_else(|| complete(view));
    let mut next = match (&next.decision, &policy.hold) {
        // A hold does not apply to Services without an address: these get one first.
        (Decision::Run(step), Some(hold)) if !restores_address(step, view) => wait(next.stage, hold.clone()),
        (Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_), _) => next,
    };
    if !matches!(next.decision, Decision::Halt(_)) {
        next.halted_services = halted(view);
    }
    if policy.hold.is_none() {
        next.helper_updates = beside(view);
        if !matches!(next.decision, Decision::Run(Step::Exchange(_))) {
            let late = in_progress(view, policy)
                .into_iter()
                .filter(|service| service.is_late && !service.has_target_address);
            next.helper_updates.extend(late.filter_map(ServiceView::step));
        }
    }
    next
}

/// Updates of helpers whose Services have their target address. No stage waits for these, because an owner may edit a Service
/// at any time.
fn beside(view: &View<'_>) -> Vec<(String, exchange::Step)> {
    let updated = view.services.iter().filter(|service| service.updates_helper());
    updated
        .filter_map(ServiceView::step)
        .take(LIGHT_AT_ONCE)
        .collect()
}

/// The Services that need the user, in one sentence.
fn halted(view: &View<'_>) -> Option<Halt> {
    let mut halts = view.services.iter().filter_map(ServiceView::halt);
    let first = halts.next()?;
    let message = match halts.count() {
        0 => format!("1 Service cannot continue: {}", first.message),
        others => format!(
            "{} cannot continue. The first: {}",
            words::number(others + 1, "Service", "Services"),
            first.message
        ),
    };
    Some(Halt {
        reason: first.reason,
        message,
    })
}

fn restores_address(step: &Step, view: &View<'_>) -> bool {
    let is_exempt = |name: &String| {
        let mut services = view.services.iter();
        services.any(|service| service.name == *name && service.ignores_hold())
    };
    matches!(step, Step::Exchange(steps) if steps.iter().all(|(name, _)| is_exempt(name)))
}

/// Creates the target range, until addresses of it can be assigned.
fn provide_range(view: &View<'_>) -> Option<Next> {
    let target = view.target();
    let gives = |range: &&ServiceCidr| range.ready && !range.terminating;
    let is_given = |wanted: &IpNet| {
        let mut giving = view.ranges.iter().filter(gives);
        giving.any(|range| range.ranges.iter().any(|range| range.contains(wanted)))
    };
    if target.iter().all(is_given) {
        return None;
    }
    // A range that is being deleted stays while its addresses are in use, and another one replaces it.
    let names = range_names(view.goal);
    let ours = names.iter().filter_map(|name| view.range(name));
    let Some(range) = ours.clone().find(|range| !range.terminating) else {
        let free = names.iter().find(|name| view.range(name).is_none());
        let all_go = || {
            let message = format!("ServiceCIDRs {} are being deleted", names.join(" and "));
            wait(Stage::Range, waits(WaitReason::ServiceRanges, message))
        };
        return Some(free.map_or_else(all_go, |name| {
            run(Stage::Range, Step::CreateRange(name.clone(), target.clone()))
        }));
    };
    Some(if range.ranges == target {
        let message = format!(
            "ServiceCIDR {} is not Ready yet: waiting for kube-controller-manager and the API servers",
            range.name
        );
        wait(Stage::Range, waits(WaitReason::ServiceRanges, message))
    } else {
        let message = format!(
            "ServiceCIDR {} has {}, needed {}: delete it, replumb creates it again",
            range.name,
            joined(&range.ranges),
            joined(&target)
        );
        let halt = Halt {
            reason: HaltReason::Drift,
            message,
        };
        Next::of(Stage::Range, Decision::Halt(halt))
    })
}

/// Changes addresses until every Service has its target address, and its source address answers or is released.
fn exchange(view: &View<'_>, policy: &Policy) -> Option<Next> {
    let missing = || view.services.iter().filter(|service| !service.has_target_address);
    let only_late = missing().all(|service| service.is_late) && view.without_address.is_empty();
    let all_arrived = only_late && missing().next().is_none();
    let is_released =
        view.soak.is_none() && view.follow_up.is_none() && view.pods_with_old_addresses.is_none();
    let stage = match (only_late, all_arrived, is_released) {
        (false, ..) => Stage::Exchange,
        (true, false, _) => Stage::Close,
        (true, true, true) => Stage::Release,
        // Updates of helpers belong to the next stage.
        (true, true, false) => release_source(view).map_or(Stage::Release, |next| next.stage),
    };
    let is_unseen = view.services.iter().any(|service| service.decision.is_none());
    if only_late && !all_arrived {
        // Otherwise owners could create Services forever and the exchange would never end. The late ones continue in parallel.
        if view.is_open() && policy.hold.is_none() {
            return None;
        }
        if let Some(cover) = late_cover(view) {
            return Some(run(stage, Step::CreateRange(cover_name(&cover), vec![cover])));
        }
        // Many late Services take long. The users of the other source addresses do not wait for them.
        let has_step = |service: &&ServiceView| service.step().is_some();
        let are_observed = in_progress(view, policy).iter().any(has_step) || !is_unseen;
        if let Some(next) = replace_uses(view).filter(|_| are_observed && !view.is_open()) {
            return Some(next);
        }
    }
    let begun = view
        .services
        .iter()
        .any(|service| service.has_target_address || service.has_no_address);
    // Forward, no Service starts while an API server with the old flag would revert the change. In a rollback both flags work
    // until the range is closed, and Services need their old addresses first.
    if view.goal == Side::New
        && !all_arrived
        && !begun
        && let Some(wait) = &view.api_servers
    {
        return Some(self::wait(Stage::ControlPlane, wait.clone()));
    }
    let mut batch = in_progress(view, policy);
    // Each Service continues independently of the others.
    let steps: Vec<(String, exchange::Step)> = batch.iter().filter_map(|service| service.step()).collect();
    if !steps.is_empty() {
        return Some(run(stage, Step::Exchange(steps)));
    }
    let follows_later = all_arrived && !is_released;
    batch.retain(|service| matches!(service.decision, Some(Decision::Wait(_))));
    if let Some(Decision::Wait(found)) = batch.first().and_then(|service| service.decision.as_ref()) {
        // A helper that is updated later does not delay the next stage.
        return (!follows_later).then(|| wait(stage, found.clone()));
    }
    if let Some(halt) = halted(view) {
        return Some(Next::of(stage, Decision::Halt(halt)));
    }
    if is_unseen && !follows_later {
        return Some(run(stage, Step::Exchange(Vec::new())));
    }
    without_room(view)
        .or_else(|| held_back(view))
        .map(|found| wait(stage, found))
}

/// A range to create so that the address of a late Service can be assigned to its helper.
fn late_cover(view: &View<'_>) -> Option<IpNet> {
    let late = view.services.iter().filter(|service| service.is_late);
    let uncovered: Vec<IpAddr> = late
        .flat_map(|service| service.uncovered.iter().copied())
        .collect();
    let there: HashSet<&str> = view.ranges.iter().map(|range| range.name.as_str()).collect();
    let mut wanted = covers(&uncovered).into_iter();
    wanted.find(|cover| !there.contains(cover_name(cover).as_str()))
}

/// The Services that are in progress in this pass.
fn in_progress<'view>(view: &View<'view>, policy: &Policy) -> Vec<&'view ServiceView> {
    let first_turn = view
        .services
        .iter()
        .filter(|service| !service.has_target_address && !service.is_rolled_back && service.halt().is_none())
        .map(|service| service.turn)
        .min();
    let is_in_turn = |service: &&ServiceView| {
        service.has_target_address
            || service.is_rolled_back
            || first_turn.is_none_or(|turn| service.turn <= turn)
    };
    let services = view.services.iter();
    let mut batch: Vec<&ServiceView> = services
        .filter(|service| service.is_in_progress() && !service.updates_helper())
        .filter(is_in_turn)
        .collect();
    // A Service without an address waits for no other, nor does one that goes back.
    batch.sort_by_key(|service| (!service.has_no_address, !service.is_rolled_back));
    // A slow Service continues when it can, and uses no slot: an owner cannot stop the other Services by delaying one.
    let (mut slots, mut light_slots) = (policy.services_at_once.max(1), LIGHT_AT_ONCE);
    // Each further address costs the API server more: many late Services must not slow down the others.
    let others_continue = batch
        .iter()
        .any(|service| !service.is_late && !service.has_target_address);
    let mut late_slots = if others_continue { slots } else { LIGHT_AT_ONCE };
    batch.retain(|service| {
        let free = match (service.is_light(), service.is_late) {
            (true, true) => &mut late_slots,
            (true, false) => &mut light_slots,
            (false, _) => &mut slots,
        };
        let has_slot = service.is_slow || *free > 0;
        *free = free.saturating_sub(usize::from(!service.is_slow));
        has_slot
    });
    // A Service without an address gets one also during a hold.
    if policy.hold.is_some() && batch.iter().any(|service| service.ignores_hold()) {
        batch.retain(|service| service.ignores_hold());
    }
    batch
}

/// Wait while Services have no address in the target ranges: until then the source ranges are not released.
fn without_room(view: &View<'_>) -> Option<Wait> {
    (!view.without_address.is_empty()).then(|| {
        let message = format!(
            "{} has no free address for {}. All other Services continue. Delete unused Services, or run `kubectl replumb \
             rollback --all` and choose a larger range",
            joined(&view.target()),
            words::counted("Service", "Services", view.without_address),
        );
        waits(WaitReason::ServiceRanges, message)
    })
}

/// Wait while Services are kept at their source addresses: until then these are not released.
fn held_back(view: &View<'_>) -> Option<Wait> {
    let held = view.services.iter().filter(|service| service.is_rolled_back);
    let names: Vec<&str> = held.map(|service| service.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let message = format!(
            "{} at the source address by spec.serviceCidr.rollbackServices: {}. Run `kubectl replumb resume` to move them too, or `kubectl \
             replumb rollback --all` to move the others back",
            words::number(names.len(), "Service is kept", "Services are kept"),
            words::names(&names)
        );
        waits(WaitReason::Paused, message)
    })
}

fn complete(_view: &View<'_>) -> Next {
    run(Stage::CleanUp, Step::Complete)
}

#[cfg(test)]
mod tests;
