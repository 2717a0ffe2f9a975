//! The next step of the whole migration. The decision is level-triggered: the same facts give the same step, whatever was decided
//! before, so a restart or a crash changes nothing.
//!
//! The way forward and the rollback are the same sequence between two ranges: make the target range available, change the
//! address of every Service, delete the default `ServiceCIDR` so that the API servers create it again from their flag, wait
//! until no address of the source range is in use, release the source range. Until then every address answers.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::covers::{Kept, contains, covers};
use super::exchange::{self, Role};
use super::ranges::{DEFAULT, ServiceCidr, deleted_together_with, joined};
use super::settings::{Settings, cover_name, is_ours, range_names};
use super::side::Side;
use super::step::{Missing, Stage, Step};
use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};
use engine::words;

/// The order of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// `default/kubernetes`.
    Kubernetes,
    /// The Services of the cluster DNS.
    NameServer,
    /// All other Services.
    Other,
}

/// One Service that changes its address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ServiceView {
    /// `namespace/name`.
    pub name: String,
    /// Its turn.
    pub turn: Turn,
    /// Whether it has its target address.
    pub has_target_address: bool,
    /// Whether it has no address now, because a process was killed in the middle of the change.
    pub has_no_address: bool,
    /// Whether it is in `spec.rollbackServices`: it goes back to its source address, and stays there.
    pub is_rolled_back: bool,
    /// Whether it has been in progress for so long, or its writes are refused, that another Service may use its slot.
    pub is_slow: bool,
    /// Whether it was created after the exchange had started: the range is closed without it, so that no owner can prevent that.
    pub is_late: bool,
    /// Addresses that a helper needs and that no range assigns: a `ServiceCIDR` for these addresses is created.
    pub uncovered: Vec<IpAddr>,
    /// Whether it has an endpoint that answers. Without one, no request can be lost.
    pub is_served: bool,
    /// The decision for it; `None` if it was not observed in this pass.
    pub decision: Option<Decision<exchange::Step>>,
}

/// Maximum number of Services without endpoints that change their addresses at the same time, and of helpers that are removed
/// at the same time: no request depends on them.
pub const LIGHT_AT_ONCE: usize = 64;

/// All inputs of the decision.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// The side of the target addresses.
    pub goal: Side,
    /// The settings of the migration.
    pub settings: &'facts Settings,
    /// Every `ServiceCIDR`.
    pub ranges: &'facts [ServiceCidr],
    /// Wait until all API servers have the flag of the target, with the fix; `None` once all have it.
    pub api_servers: Option<Wait>,
    /// Every Service that changes its address, in rollout order.
    pub services: &'facts [ServiceView],
    /// Services with an address of a source range for which the target range has no free address. Only these wait.
    pub without_address: &'facts [String],
    /// Addresses of the source ranges that load balancers keep.
    pub kept: &'facts Kept,
    /// Addresses of Services, helpers included.
    pub addresses: &'facts [IpAddr],
    /// Wait for kubelets and objects of the cluster that contain a source address, with the fix. Objects of tenants are not
    /// included, because they must not delay the restart of other pods.
    pub follow_up: Option<Wait>,
    /// Pods that have received a source address.
    pub pods_with_old_addresses: Option<Missing>,
    /// Wait before the source addresses are released: their soak time has not passed, or an object of a tenant contains one;
    /// `None` once they may be released.
    pub soak: Option<Wait>,
}

/// Limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum number of Services that change their addresses at the same time.
    pub services_at_once: usize,
    /// Why no step may run now: the user has paused the migration, or has to review it first.
    pub hold: Option<Wait>,
}

/// The stage of the migration, and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The current stage.
    pub stage: Stage,
    /// The next step, wait or halt.
    pub decision: Decision<Step>,
    /// Services that cannot continue while the others do; `None` if all can.
    pub halted_services: Option<Halt>,
    /// Steps in addition to the decision, for Services that have their target address: helpers are updated to the spec of their
    /// Service.
    pub helper_updates: Vec<(String, exchange::Step)>,
}

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
            "{} Services cannot continue. The first: {}",
            others + 1,
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

impl View<'_> {
    fn default_range(&self) -> Option<&ServiceCidr> {
        self.range(DEFAULT)
    }

    fn range(&self, name: &str) -> Option<&ServiceCidr> {
        self.ranges.iter().find(|range| range.name == name)
    }

    /// The target ranges.
    fn target(&self) -> Vec<IpNet> {
        self.settings.changed().of(self.goal).clone()
    }

    /// The source ranges.
    fn source(&self) -> Vec<IpNet> {
        self.settings.changed().of(self.goal.other()).clone()
    }

    /// Whether a range other than the covers of single addresses still assigns source addresses.
    fn is_open(&self) -> bool {
        let source = self.source();
        let mut ranges = self.ranges.iter();
        ranges.any(|range| range.is_open_to_all(&source, self.kept))
    }

    /// Whether the default range has its final state.
    fn is_default_there(&self) -> bool {
        let wanted = self.settings.defaults();
        self.default_range()
            .is_some_and(|range| range.ready && !range.terminating && range.ranges == *wanted.of(self.goal))
    }
}

impl ServiceView {
    /// Whether it continues during a hold: it has no address, or the user wants it back.
    fn ignores_hold(&self) -> bool {
        self.has_no_address || self.is_rolled_back
    }

    fn step(&self) -> Option<(String, exchange::Step)> {
        match &self.decision {
            Some(Decision::Run(step)) => Some((self.name.clone(), *step)),
            Some(Decision::Wait(_) | Decision::Settled | Decision::Halt(_)) | None => None,
        }
    }

    fn halt(&self) -> Option<&Halt> {
        match &self.decision {
            Some(Decision::Halt(halt)) => Some(halt),
            Some(Decision::Run(_) | Decision::Wait(_) | Decision::Settled) | None => None,
        }
    }

    fn is_in_progress(&self) -> bool {
        self.has_no_address || matches!(&self.decision, Some(Decision::Run(_) | Decision::Wait(_)))
    }

    /// Whether it has its target address, and the next step updates one of its helpers.
    fn updates_helper(&self) -> bool {
        let step = matches!(
            self.decision,
            Some(Decision::Run(
                exchange::Step::Refresh(_) | exchange::Step::Copy(_)
            ))
        );
        self.has_target_address && step
    }

    /// Whether no request depends on its next step.
    fn is_light(&self) -> bool {
        let removes = Some(Decision::Run(exchange::Step::Remove(Role::Address(Side::Old))));
        let removes_other = Some(Decision::Run(exchange::Step::Remove(Role::Address(Side::New))));
        !self.is_served
            || (self.has_target_address && (self.decision == removes || self.decision == removes_other))
    }
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
            "{} at the source address by spec.rollbackServices: {}. Run `kubectl replumb resume` to move them too, or `kubectl \
             replumb rollback --all` to move the others back",
            if names.len() == 1 { "1 Service is kept".to_owned() } else { format!("{} Services are kept", names.len()) },
            words::names(&names)
        );
        waits(WaitReason::Paused, message)
    })
}

/// Releases the source ranges, once every Service has its target address.
fn release_source(view: &View<'_>) -> Option<Next> {
    close_source(view)
        .or_else(|| replace_uses(view))
        .or_else(|| view.soak.clone().map(|found| wait(Stage::Soak, found)))
        .or_else(|| cover_kept(view))
        .or_else(|| restore_default(view))
}

/// Until no object of the cluster and no pod contains a source address.
fn replace_uses(view: &View<'_>) -> Option<Next> {
    let follow_up = view.follow_up.clone();
    let follow_up = follow_up.map(|found| wait(Stage::FollowUp, found));
    follow_up.or_else(|| {
        view.pods_with_old_addresses.clone().map(|missing| match missing {
            Missing::Evict(pods) => run(Stage::Restart, Step::Evict(pods)),
            Missing::Answer(found) => wait(Stage::Restart, found),
        })
    })
}

/// Until no Service can get a source address.
fn close_source(view: &View<'_>) -> Option<Next> {
    let source = view.source();
    let is_open = |range: &&ServiceCidr| range.is_open(&source, view.kept);
    // The default one first: two overlapping ones are never deleted together.
    let found = view.default_range().filter(is_open);
    let found = found.or_else(|| view.ranges.iter().find(is_open))?;
    if found.name == DEFAULT
        && let Some(wait) = &view.api_servers
    {
        // An API server with the old flag would create it again.
        return Some(self::wait(Stage::ControlPlane, wait.clone()));
    }
    Some(delete(Stage::Close, found, view))
}

/// Until load balancers can keep their addresses without the source range.
fn cover_kept(view: &View<'_>) -> Option<Next> {
    if view.is_default_there() {
        return None;
    }
    let ranges = view.ranges.iter();
    let ready = ranges.filter(|range| range.ready && !range.terminating);
    let ready: HashSet<&str> = ready.map(|range| range.name.as_str()).collect();
    let mut wanted = view.kept.covers().iter();
    let missing = wanted.find(|cover| !ready.contains(cover_name(cover).as_str()))?;
    let name = cover_name(missing);
    Some(match view.range(&name) {
        None => run(Stage::Default, Step::CreateRange(name, vec![*missing])),
        Some(_) => wait(
            Stage::Default,
            waits(
                WaitReason::ServiceRanges,
                format!("ServiceCIDR {name} is not Ready yet"),
            ),
        ),
    })
}

/// Until the default range is the target range, and the only one that assigns addresses.
fn restore_default(view: &View<'_>) -> Option<Next> {
    if !view.is_default_there() {
        let wanted = view.settings.defaults();
        let words = match view.default_range() {
            None => "is deleted; an API server creates it again within seconds".to_owned(),
            Some(range) if range.terminating => {
                "is being deleted, which completes once no address needs it".to_owned()
            }
            Some(range) => format!(
                "has {}: an API server with another flag has created it",
                joined(&range.ranges)
            ),
        };
        let message = format!(
            "ServiceCIDR {DEFAULT} {words}. Needed: {}",
            joined(wanted.of(view.goal))
        );
        return Some(wait(Stage::Default, waits(WaitReason::ServiceRanges, message)));
    }
    // A range with the address of a load balancer is removed together with that address.
    let holds_one = |range: &&ServiceCidr| {
        let held = |address: &IpAddr| range.ranges.iter().any(|range| contains(range, address));
        view.kept.addresses().iter().any(held)
    };
    let ours = |range: &&ServiceCidr| is_ours(&range.name);
    let mut mine = view.ranges.iter().filter(ours);
    if let Some(open) = mine.clone().find(|range| !range.terminating) {
        return Some(delete(Stage::Default, open, view));
    }
    let going = mine.find(|range| !holds_one(range))?;
    let message = format!(
        "ServiceCIDR {} is being deleted, which completes once no address needs it",
        going.name
    );
    Some(wait(Stage::Default, waits(WaitReason::ServiceRanges, message)))
}

fn delete(stage: Stage, range: &ServiceCidr, view: &View<'_>) -> Next {
    match deleted_together_with(range, view.ranges, view.addresses) {
        None => run(stage, Step::DeleteRange(range.name.clone())),
        Some(other) => {
            let message = format!(
                "ServiceCIDR {} is being deleted and overlaps {}: if both were deleted together, no range would contain their \
                 addresses",
                other.name, range.name
            );
            wait(stage, waits(WaitReason::ServiceRanges, message))
        }
    }
}

fn complete(_view: &View<'_>) -> Next {
    run(Stage::CleanUp, Step::Complete)
}

fn waits(reason: WaitReason, message: String) -> Wait {
    Wait {
        reason,
        message,
        until: None,
    }
}

fn run(stage: Stage, step: Step) -> Next {
    Next::of(stage, Decision::Run(step))
}

fn wait(stage: Stage, wait: Wait) -> Next {
    Next::of(stage, Decision::Wait(wait))
}

impl Next {
    fn of(stage: Stage, decision: Decision<Step>) -> Self {
        Self {
            stage,
            decision,
            halted_services: None,
            helper_updates: Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
