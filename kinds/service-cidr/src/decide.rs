//! The next step of the whole migration. Level-triggered: the same facts give the same step, whatever was decided before, so that a
//! restart or a crash changes nothing.
//!
//! There and back are the same way between two ranges: one is made to give addresses, every Service exchanges its address for one of
//! it, the default range is deleted so that the API servers make it again of their flag, what was left is seen to be used by nobody,
//! and goes. Until then every address answers.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::covers::{Kept, covers, holds};
use super::ranges::{DEFAULT, ServiceCidr, goes_with, listed};
use super::settings::{Settings, cover_name, is_ours, range_names};
use super::side::Side;
use super::step::{Missing, Stage, Step};
use super::swap::{self, Role};
use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};
use engine::words;

/// Which Services go before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// `default/kubernetes`.
    Kubernetes,
    /// The cluster's name servers.
    NameServer,
    /// All others.
    Other,
}

/// One Service that changes its address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ServiceView {
    /// `namespace/name`.
    pub name: String,
    /// When it goes.
    pub turn: Turn,
    /// Whether it has the address that it is to have.
    pub is_there: bool,
    /// Whether it has none now: somebody was killed in the middle.
    pub is_away: bool,
    /// Whether somebody wants it to have the address that the others leave: by itself it goes back, and stays.
    pub is_held_back: bool,
    /// Whether it has been on its way for so long, or its writes are refused, that another Service may take its place.
    pub is_slow: bool,
    /// Whether it came after the exchange had begun: the range is closed without it, so that no owner keeps that from its end.
    pub is_late: bool,
    /// Addresses that a helper is to ask for and that no range gives out: a `ServiceCIDR` for them alone is made.
    pub uncovered: Vec<IpAddr>,
    /// Whether an endpoint of it answers. Where none does, nothing can be lost.
    pub is_served: bool,
    /// What comes next for it; `None` where it was not looked at in this pass.
    pub decision: Option<Decision<swap::Step>>,
}

/// How many Services without endpoints exchange their addresses at the same time, and how many helpers go: no answer depends on them.
pub const LIGHT_AT_ONCE: usize = 64;

/// Everything that the decision depends on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// The address that Services are led to.
    pub goal: Side,
    /// What the migration works with.
    pub settings: &'facts Settings,
    /// Every `ServiceCIDR`.
    pub ranges: &'facts [ServiceCidr],
    /// Which API servers have another flag than the goal's, and what a person does; `None` when all have it.
    pub api_servers: Option<Wait>,
    /// Every Service that changes, in the order in which they go.
    pub services: &'facts [ServiceView],
    /// Services that have an address of a range that is left, and for which there is no room in the others: they alone wait for it.
    pub without_room: &'facts [String],
    /// Addresses of load balancers that are of a range that is left: they stay.
    pub kept: &'facts Kept,
    /// Addresses that Services have, those of helpers among them.
    pub addresses: &'facts [IpAddr],
    /// Which kubelets and other objects of the cluster say an address that is left, and who changes it. No tenant's object is among them:
    /// otherwise it would keep pods of all others from starting again.
    pub follow_up: Option<Wait>,
    /// Pods that were told an address that is left.
    pub carriers: Option<Missing>,
    /// Why the addresses that are left are not given up yet: no use of them is seen, but for a while only, or a tenant's object says
    /// one; `None` when it is time.
    pub soak: Option<Wait>,
}

/// Limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many Services exchange their addresses at the same time.
    pub services_at_once: usize,
    /// Why nothing is done now: somebody said so, or has to look first.
    pub hold: Option<Wait>,
}

/// Where the migration is, and what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Where it is.
    pub stage: Stage,
    /// What comes next.
    pub decision: Decision<Step>,
    /// Which Services cannot go on while the others do; `None` where all can.
    pub aside: Option<Halt>,
    /// What is done for Services that have their address, beside the decision: helpers say what their Services say by now.
    pub beside: Vec<(String, swap::Step)>,
}

/// Chooses the next step.
pub fn decide(view: &View<'_>, policy: &Policy) -> Next {
    let next = range_is_there(view)
        .or_else(|| exchanged(view, policy))
        .or_else(|| left(view))
        .unwrap_or_else(|| over(view));
    let mut next = match (&next.decision, &policy.hold) {
        // Who has no address is brought back first: nobody who stopped the migration meant that.
        (Decision::Run(step), Some(hold)) if !brings_back(step, view) => wait(next.stage, hold.clone()),
        (Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_), _) => next,
    };
    if !matches!(next.decision, Decision::Halt(_)) {
        next.aside = halted(view);
    }
    if policy.hold.is_none() {
        next.beside = beside(view);
        if !matches!(next.decision, Decision::Run(Step::Exchange(_))) {
            let late = on_the_way(view, policy)
                .into_iter()
                .filter(|service| service.is_late && !service.is_there);
            next.beside.extend(late.filter_map(ServiceView::step));
        }
    }
    next
}

/// What helpers of Services that have their address are told anew. No stage waits for that: an owner may edit a Service for ever.
fn beside(view: &View<'_>) -> Vec<(String, swap::Step)> {
    let mended = view.services.iter().filter(|service| service.mends());
    mended.filter_map(ServiceView::step).take(LIGHT_AT_ONCE).collect()
}

/// The Services that a person has to look at, in one sentence.
fn halted(view: &View<'_>) -> Option<Halt> {
    let mut halts = view.services.iter().filter_map(ServiceView::halt);
    let first = halts.next()?;
    let message = match halts.count() {
        0 => format!("1 Service cannot go on: {}", first.message),
        others => format!(
            "{} Services cannot go on; the first: {}",
            others + 1,
            first.message
        ),
    };
    Some(Halt {
        reason: first.reason,
        message,
    })
}

fn brings_back(step: &Step, view: &View<'_>) -> bool {
    let goes = |name: &String| {
        let mut services = view.services.iter();
        services.any(|service| service.name == *name && service.goes_although_held())
    };
    matches!(step, Step::Exchange(steps) if steps.iter().all(|(name, _)| goes(name)))
}

impl View<'_> {
    fn default_range(&self) -> Option<&ServiceCidr> {
        self.range(DEFAULT)
    }

    fn range(&self, name: &str) -> Option<&ServiceCidr> {
        self.ranges.iter().find(|range| range.name == name)
    }

    /// The ranges that Services are led to.
    fn target(&self) -> Vec<IpNet> {
        self.settings.changed().of(self.goal).clone()
    }

    /// The ranges that they leave.
    fn leaves(&self) -> Vec<IpNet> {
        self.settings.changed().of(self.goal.other()).clone()
    }

    /// Whether another range than the covers of single addresses still gives out addresses that Services are to leave.
    fn is_open(&self) -> bool {
        let leaves = self.leaves();
        let mut ranges = self.ranges.iter();
        ranges.any(|range| range.is_open_to_all(&leaves, self.kept))
    }

    /// Whether the default range is as it is to be in the end.
    fn is_default_there(&self) -> bool {
        let wanted = self.settings.defaults();
        self.default_range()
            .is_some_and(|range| range.ready && !range.terminating && range.ranges == *wanted.of(self.goal))
    }
}

impl ServiceView {
    /// Whether it goes on while everything else is held: it has no address, or whoever stopped the migration wants it back.
    fn goes_although_held(&self) -> bool {
        self.is_away || self.is_held_back
    }

    fn step(&self) -> Option<(String, swap::Step)> {
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

    fn is_on_the_way(&self) -> bool {
        self.is_away || matches!(&self.decision, Some(Decision::Run(_) | Decision::Wait(_)))
    }

    /// Whether it has its address, and a helper of it is told anew what it says.
    fn mends(&self) -> bool {
        let step = matches!(
            self.decision,
            Some(Decision::Run(swap::Step::Refresh(_) | swap::Step::Copy(_)))
        );
        self.is_there && step
    }

    /// Whether no answer depends on what comes next for it.
    fn is_light(&self) -> bool {
        let removes = Some(Decision::Run(swap::Step::Remove(Role::Address(Side::Old))));
        let removes_other = Some(Decision::Run(swap::Step::Remove(Role::Address(Side::New))));
        !self.is_served || (self.is_there && (self.decision == removes || self.decision == removes_other))
    }
}

/// What is missing until addresses can be asked for.
fn range_is_there(view: &View<'_>) -> Option<Next> {
    let target = view.target();
    let gives = |range: &&ServiceCidr| range.ready && !range.terminating;
    let is_given = |wanted: &IpNet| {
        let mut giving = view.ranges.iter().filter(gives);
        giving.any(|range| range.ranges.iter().any(|range| range.contains(wanted)))
    };
    if target.iter().all(is_given) {
        return None;
    }
    // One that is being deleted holds what it has, and goes once the other one does.
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
            "ServiceCIDR {} is not Ready yet: kube-controller-manager and the API servers see to that",
            range.name
        );
        wait(Stage::Range, waits(WaitReason::ServiceRanges, message))
    } else {
        let message = format!(
            "ServiceCIDR {} says {}, and this migration needs {}: delete it, it is made again",
            range.name,
            listed(&range.ranges),
            listed(&target)
        );
        let halt = Halt {
            reason: HaltReason::Drift,
            message,
        };
        Next::of(Stage::Range, Decision::Halt(halt))
    })
}

/// What is missing until every Service has the address that it is to have, and its other one answers or is given up.
fn exchanged(view: &View<'_>, policy: &Policy) -> Option<Next> {
    let missing = || view.services.iter().filter(|service| !service.is_there);
    let only_late = missing().all(|service| service.is_late) && view.without_room.is_empty();
    let there = only_late && missing().next().is_none();
    let is_left = view.soak.is_none() && view.follow_up.is_none() && view.carriers.is_none();
    let stage = match (only_late, there, is_left) {
        (false, ..) => Stage::Exchange,
        (true, false, _) => Stage::Close,
        (true, true, true) => Stage::Release,
        // What is mended now belongs to what comes next.
        (true, true, false) => left(view).map_or(Stage::Release, |next| next.stage),
    };
    let is_unseen = view.services.iter().any(|service| service.decision.is_none());
    if only_late && !there {
        // Otherwise more would come, and the exchange had no end. Meanwhile they go on beside.
        if view.is_open() && policy.hold.is_none() {
            return None;
        }
        if let Some(cover) = late_cover(view) {
            return Some(run(stage, Step::CreateRange(cover_name(&cover), vec![cover])));
        }
        // A crowd takes its time. The users of the addresses that the others have left do not wait for that.
        let goes = |service: &&ServiceView| service.step().is_some();
        let are_looked_at = on_the_way(view, policy).iter().any(goes) || !is_unseen;
        if let Some(next) = used(view).filter(|_| are_looked_at && !view.is_open()) {
            return Some(next);
        }
    }
    let begun = view
        .services
        .iter()
        .any(|service| service.is_there || service.is_away);
    // On the way there nobody starts with what an API server with the old flag would take back. On the way back both flags are as
    // good until the range is closed, and people need their addresses first.
    if view.goal == Side::New
        && !there
        && !begun
        && let Some(wait) = &view.api_servers
    {
        return Some(self::wait(Stage::ControlPlane, wait.clone()));
    }
    let mut batch = on_the_way(view, policy);
    // Each goes on by itself: whoever is ready does not wait for the others.
    let steps: Vec<(String, swap::Step)> = batch.iter().filter_map(|service| service.step()).collect();
    if !steps.is_empty() {
        return Some(run(stage, Step::Exchange(steps)));
    }
    let follows_later = there && !is_left;
    batch.retain(|service| matches!(service.decision, Some(Decision::Wait(_))));
    if let Some(Decision::Wait(found)) = batch.first().and_then(|service| service.decision.as_ref()) {
        // A helper that follows its Service by some moments keeps no other from what comes next.
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

/// A range that is to be made so that the address of a Service that came late can be asked for.
fn late_cover(view: &View<'_>) -> Option<IpNet> {
    let late = view.services.iter().filter(|service| service.is_late);
    let uncovered: Vec<IpAddr> = late
        .flat_map(|service| service.uncovered.iter().copied())
        .collect();
    let there: HashSet<&str> = view.ranges.iter().map(|range| range.name.as_str()).collect();
    let mut wanted = covers(&uncovered).into_iter();
    wanted.find(|cover| !there.contains(cover_name(cover).as_str()))
}

/// The Services that are on their way in this pass.
fn on_the_way<'view>(view: &View<'view>, policy: &Policy) -> Vec<&'view ServiceView> {
    let first_turn = view
        .services
        .iter()
        .filter(|service| !service.is_there && !service.is_held_back && service.halt().is_none())
        .map(|service| service.turn)
        .min();
    let is_in_turn = |service: &&ServiceView| {
        service.is_there || service.is_held_back || first_turn.is_none_or(|turn| service.turn <= turn)
    };
    let services = view.services.iter();
    let mut batch: Vec<&ServiceView> = services
        .filter(|service| service.is_on_the_way() && !service.mends())
        .filter(is_in_turn)
        .collect();
    // A Service in the middle of its exchange waits for no other, nor does one that is wanted back.
    batch.sort_by_key(|service| (!service.is_away, !service.is_held_back));
    // A slow Service goes on when it can, and takes no other Service's place: no owner stops the others by keeping one waiting.
    let (mut places, mut light_places) = (policy.services_at_once.max(1), LIGHT_AT_ONCE);
    // Each address costs the API server more, the more there are: a crowd of latecomers takes its time from no other Service.
    let others_go = batch.iter().any(|service| !service.is_late && !service.is_there);
    let mut late_places = if others_go { places } else { LIGHT_AT_ONCE };
    batch.retain(|service| {
        let left = match (service.is_light(), service.is_late) {
            (true, true) => &mut late_places,
            (true, false) => &mut light_places,
            (false, _) => &mut places,
        };
        let has_place = service.is_slow || *left > 0;
        *left = left.saturating_sub(usize::from(!service.is_slow));
        has_place
    });
    // A Service without an address is brought back, also when all else is held.
    if policy.hold.is_some() && batch.iter().any(|service| service.goes_although_held()) {
        batch.retain(|service| service.goes_although_held());
    }
    batch
}

/// Whoever has no place in the ranges that Services come to: as long as there is somebody, the others are not left.
fn without_room(view: &View<'_>) -> Option<Wait> {
    (!view.without_room.is_empty()).then(|| {
        let message = format!(
            "{} has no room for {}. All others go on. Delete Services that nobody needs, or lead all back with `kubectl replumb rollback \
             --all` and choose a larger range",
            listed(&view.target()),
            words::counted("Service", "Services", view.without_room),
        );
        waits(WaitReason::ServiceRanges, message)
    })
}

/// Who is kept at the address that the others leave: as long as there is somebody, it is not given up.
fn held_back(view: &View<'_>) -> Option<Wait> {
    let held = view.services.iter().filter(|service| service.is_held_back);
    let names: Vec<&str> = held.map(|service| service.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let message = format!(
            "{} at the address that the others leave, as spec.rollbackServices says: {}. `kubectl replumb resume` leads them on, `kubectl \
             replumb rollback --all` leads the others back",
            if names.len() == 1 { "one Service is kept".to_owned() } else { format!("{} Services are kept", names.len()) },
            words::names(&names)
        );
        waits(WaitReason::Paused, message)
    })
}

/// What is missing until nobody has or uses an address of the range that is left. Every Service has its address here.
fn left(view: &View<'_>) -> Option<Next> {
    closed(view)
        .or_else(|| used(view))
        .or_else(|| view.soak.clone().map(|found| wait(Stage::Soak, found)))
        .or_else(|| covered(view))
        .or_else(|| defaulted(view))
}

/// Until no object of the cluster and no pod says an address that is left.
fn used(view: &View<'_>) -> Option<Next> {
    let follow_up = view.follow_up.clone();
    let follow_up = follow_up.map(|found| wait(Stage::FollowUp, found));
    follow_up.or_else(|| {
        view.carriers.clone().map(|missing| match missing {
            Missing::Evict(pods) => run(Stage::Restart, Step::Evict(pods)),
            Missing::Answer(found) => wait(Stage::Restart, found),
        })
    })
}

/// Until no Service can get an address of the range that is left.
fn closed(view: &View<'_>) -> Option<Next> {
    let leaves = view.leaves();
    let is_open = |range: &&ServiceCidr| range.is_open(&leaves, view.kept);
    // The default one first: two that hold each other's addresses are never deleted together.
    let found = view.default_range().filter(is_open);
    let found = found.or_else(|| view.ranges.iter().find(is_open))?;
    if found.name == DEFAULT
        && let Some(wait) = &view.api_servers
    {
        // It would be made again of the old flag.
        return Some(self::wait(Stage::ControlPlane, wait.clone()));
    }
    Some(delete(Stage::Close, found, view))
}

/// Until load balancers keep their addresses without the range that is left.
fn covered(view: &View<'_>) -> Option<Next> {
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

/// Until the default range is the one that Services are led to, and the only one that gives addresses.
fn defaulted(view: &View<'_>) -> Option<Next> {
    if !view.is_default_there() {
        let wanted = view.settings.defaults();
        let words = match view.default_range() {
            None => "is gone; an API server makes it again within some seconds".to_owned(),
            Some(range) if range.terminating => {
                "is being deleted, and goes once no address needs it".to_owned()
            }
            Some(range) => format!(
                "has {}: an API server with another flag has made it",
                listed(&range.ranges)
            ),
        };
        let message = format!(
            "ServiceCIDR {DEFAULT} {words}. It has to have {}",
            listed(wanted.of(view.goal))
        );
        return Some(wait(Stage::Default, waits(WaitReason::ServiceRanges, message)));
    }
    // What still holds an address of a load balancer goes with that address.
    let holds_one = |range: &&ServiceCidr| {
        let held = |address: &IpAddr| range.ranges.iter().any(|range| holds(range, address));
        view.kept.addresses().iter().any(held)
    };
    let ours = |range: &&ServiceCidr| is_ours(&range.name);
    let mut mine = view.ranges.iter().filter(ours);
    if let Some(open) = mine.clone().find(|range| !range.terminating) {
        return Some(delete(Stage::Default, open, view));
    }
    let going = mine.find(|range| !holds_one(range))?;
    let message = format!(
        "ServiceCIDR {} is being deleted, and goes once no address needs it",
        going.name
    );
    Some(wait(Stage::Default, waits(WaitReason::ServiceRanges, message)))
}

fn delete(stage: Stage, range: &ServiceCidr, view: &View<'_>) -> Next {
    match goes_with(range, view.ranges, view.addresses) {
        None => run(stage, Step::DeleteRange(range.name.clone())),
        Some(other) => {
            let message = format!(
                "ServiceCIDR {} is being deleted, and overlaps {}: of two that are deleted together both go, and nobody holds their \
                 addresses then",
                other.name, range.name
            );
            wait(stage, waits(WaitReason::ServiceRanges, message))
        }
    }
}

fn over(_view: &View<'_>) -> Next {
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
            aside: None,
            beside: Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
