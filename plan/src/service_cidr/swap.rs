//! How one Service gets another address while both answer: the next change, from whatever state it is in.
//!
//! The API lets nobody change an address. It lets a Service become an `ExternalName`, which gives the address up, and come back
//! with another one. Two helpers see to it that nobody notices:
//!
//! - the one of the **goal** has the goal's address from before, so that kube-proxy knows it when the first client asks for it;
//! - the one of the address that is **left** takes that over, for clients that know it.
//!
//! The exchange is four writes: the Service's name leads to the goal's helper, the other helper takes the address that became
//! free, the goal's helper gives its address up, the Service takes it. At no moment does a name lead to nothing. kube-proxy is made
//! to rewrite its rules right before, and does so once a second at most: it sees the end of it alone.
//!
//! There and back are the same way with the two addresses exchanged. What is decided depends on the objects as they are: whoever
//! was killed between two writes goes on from there.

use super::side::{Side, Sides};
use crate::decision::{Decision, Halt, HaltReason, Wait};

/// Where the Service itself is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// It has this address.
    At(Side),
    /// It has none, and its name leads to this helper; `None` when it leads elsewhere.
    Away(Option<Side>),
    /// Somebody else gave it another address or type; the words say which.
    Elsewhere(String),
}

/// Where a helper is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Helper {
    /// There is none.
    Absent,
    /// It has an address that is nobody's, until it has the Service's endpoints: endpoints are made for what has an address.
    Warming(Endpoints),
    /// It has no address, and its name leads to the other helper. It keeps its endpoints.
    Parked(Endpoints),
    /// It has the address that it is for.
    Home(Endpoints),
}

/// Whether a helper has the endpoints of its Service, and every node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// It has.
    Same,
    /// This is missing.
    Missing(Wait),
    /// Nobody selects pods for it: somebody has to copy them.
    ToCopy,
    /// Its Service says something else by now than it does: other ports, another selector.
    Edited,
}

impl Helper {
    fn endpoints(&self) -> Option<&Endpoints> {
        match self {
            Self::Absent => None,
            Self::Warming(endpoints) | Self::Parked(endpoints) | Self::Home(endpoints) => Some(endpoints),
        }
    }
}

/// One Service with its helpers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// `namespace/name`.
    pub name: String,
    /// The address that it is to have.
    pub goal: Side,
    /// The Service.
    pub own: Own,
    /// The helper of each address.
    pub helpers: Sides<Helper>,
    /// What somebody else has.
    pub taken: Taken,
    /// Whether the Service carries what was saved on it for the time without an address.
    pub is_marked: bool,
    /// Whether somebody may still use the address that is left.
    pub left_is_used: bool,
    /// Why kube-proxy would be likely to rewrite its rules in the middle of an exchange; `None` when it would not.
    pub unquiet: Option<Wait>,
}

/// What somebody else has of what this Service has to get back; each the object and what it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Either address.
    pub addresses: Sides<Option<String>>,
    /// One of its node ports, while it has none itself.
    pub node_port: Option<String>,
}

/// One change. Each names which objects are written, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Make this helper with the address that it is for.
    MakeHome(Side),
    /// Make this helper with any address.
    MakeWarm(Side),
    /// Copy the Service's endpoints to this helper.
    Copy(Side),
    /// Let this helper say what its Service says by now.
    Refresh(Side),
    /// Give this helper, which has no address, any.
    Warm(Side),
    /// Take this helper's address; its name leads to the other helper.
    Park(Side),
    /// Give this helper, which has no address, the one that it is for.
    Home(Side),
    /// Give the Service, which has no address, this one.
    Own(Side),
    /// Let the name of the Service, which has no address, lead to this helper.
    Lead(Side),
    /// The whole exchange, in the second in which no rules are rewritten.
    Swap,
    /// The second half of it.
    Finish,
    /// The Service takes back the address that its helper has, in the second in which no rules are rewritten.
    Return,
    /// Take off the Service what was saved on it.
    Unmark,
    /// Delete this helper.
    Remove(Side),
}

impl Step {
    /// The step by name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MakeHome(_) | Self::MakeWarm(_) => "MakeHelper",
            Self::Copy(_) => "CopyEndpoints",
            Self::Refresh(_) => "RefreshHelper",
            Self::Warm(_) => "WarmHelper",
            Self::Park(_) => "ParkHelper",
            Self::Home(_) => "HelperTakesAddress",
            Self::Own(_) => "ServiceTakesAddress",
            Self::Lead(_) => "NameLeadsToHelper",
            Self::Swap => "Swap",
            Self::Finish => "FinishSwap",
            Self::Return => "ReturnAddress",
            Self::Unmark => "Unmark",
            Self::Remove(_) => "RemoveHelper",
        }
    }
}

/// One write to one object: what a [`Step`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// The Service becomes an `ExternalName` that leads to this helper.
    ServiceAway(Side),
    /// The Service takes this address.
    ServiceAt(Side),
    /// This helper is made with the address that it is for.
    CreateHome(Side),
    /// This helper is made with any address.
    CreateWarm(Side),
    /// This helper's copies of endpoints are written.
    CopyEndpoints(Side),
    /// This helper says what its Service says by now.
    HelperLike(Side),
    /// This helper takes any address.
    HelperWarm(Side),
    /// This helper becomes an `ExternalName` that leads to the other one.
    HelperParked(Side),
    /// This helper takes the address that it is for.
    HelperHome(Side),
    /// What was saved on the Service goes.
    ServiceUnmarked,
    /// This helper is deleted.
    Delete(Side),
}

impl Write {
    /// The write by name: where a test kills somebody.
    pub fn name(self) -> &'static str {
        match self {
            Self::ServiceAway(_) => "ServiceAway",
            Self::ServiceAt(_) => "ServiceAt",
            Self::CreateHome(_) => "CreateHome",
            Self::CreateWarm(_) => "CreateWarm",
            Self::CopyEndpoints(_) => "CopiesWritten",
            Self::HelperLike(_) => "HelperLike",
            Self::HelperWarm(_) => "HelperWarm",
            Self::HelperParked(_) => "HelperParked",
            Self::HelperHome(_) => "HelperHome",
            Self::ServiceUnmarked => "ServiceUnmarked",
            Self::Delete(_) => "HelperDeleted",
        }
    }
}

impl Step {
    /// Its writes, in order. Between any two of them the process may be killed.
    pub fn writes(self, goal: Side) -> Vec<Write> {
        let left = goal.other();
        match self {
            Self::MakeHome(side) => vec![Write::CreateHome(side)],
            Self::MakeWarm(side) => vec![Write::CreateWarm(side)],
            Self::Copy(side) => vec![Write::CopyEndpoints(side)],
            Self::Refresh(side) => vec![Write::HelperLike(side)],
            Self::Warm(side) => vec![Write::HelperWarm(side)],
            Self::Park(side) => vec![Write::HelperParked(side)],
            Self::Home(side) => vec![Write::HelperHome(side)],
            Self::Own(side) => vec![Write::ServiceAt(side)],
            Self::Lead(side) => vec![Write::ServiceAway(side)],
            Self::Swap => vec![
                Write::ServiceAway(goal),
                Write::HelperHome(left),
                Write::HelperParked(goal),
                Write::ServiceAt(goal),
            ],
            Self::Finish => vec![Write::HelperParked(goal), Write::ServiceAt(goal)],
            Self::Return => vec![Write::HelperParked(left), Write::ServiceAt(left)],
            Self::Unmark => vec![Write::ServiceUnmarked],
            Self::Remove(side) => vec![Write::Delete(side)],
        }
    }

    /// Whether kube-proxy must not rewrite its rules between two of its writes.
    pub fn is_primed(self) -> bool {
        self.writes(Side::New).len() > 1
    }
}

/// The next change of one Service.
pub fn decide(view: &View) -> Decision<Step> {
    let (goal, left) = (view.goal, view.goal.other());
    let decision = match &view.own {
        Own::Elsewhere(words) => Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message: format!(
                "Service {} {words}: somebody else changed it meanwhile, and it is left alone. Give it {} addresses as before, or delete its \
                 helpers, which carry label {ROLE_LABEL}",
                view.name,
                left.as_str()
            ),
        }),
        Own::At(side) if *side == goal => arrived(view, left),
        Own::At(_) => prepare(view, goal, left),
        Own::Away(leads_to) => come_back(view, goal, left, *leads_to),
    };
    match (&decision, &view.unquiet) {
        (Decision::Run(step), Some(unquiet)) if step.is_primed() => Decision::Wait(unquiet.clone()),
        (Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_), _) => decision,
    }
}

/// Label on a helper: which address it is for.
pub const ROLE_LABEL: &str = "replumb.dev/address";

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

    /// What somebody has to do for a helper before it answers as its Service does.
    fn mend(&self) -> Option<Step> {
        Side::ALL
            .into_iter()
            .find_map(|side| match self.helper(side).endpoints()? {
                Endpoints::ToCopy => Some(Step::Copy(side)),
                Endpoints::Edited => Some(Step::Refresh(side)),
                Endpoints::Same | Endpoints::Missing(_) => None,
            })
    }

    /// Somebody has what the Service has to get.
    fn halt(&self, taken: &str) -> Decision<Step> {
        Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message: format!(
                "Service {} cannot go on: {taken}. Delete or change that one, then `kubectl replumb resume`",
                self.name
            ),
        })
    }
}

/// It has the address that it is to have: the other one answers as long as somebody uses it.
fn arrived(view: &View, left: Side) -> Decision<Step> {
    let goal = view.goal;
    if *view.helper(goal) != Helper::Absent {
        // Its name may have been given as an answer; that answer led to the other helper, which lives.
        if view.is_home(left) || !view.left_is_used {
            return Decision::Run(Step::Remove(goal));
        }
    }
    match (view.helper(left), view.left_is_used) {
        // Its owner gave it an address meanwhile: the write that does that for us takes the mark off.
        (Helper::Absent, false) | (Helper::Home(Endpoints::Same), true) if view.is_marked => {
            Decision::Run(Step::Unmark)
        }
        (Helper::Absent, false) | (Helper::Home(Endpoints::Same), true) => Decision::Settled,
        (_, false) => Decision::Run(Step::Remove(left)),
        (Helper::Home(Endpoints::Missing(wait)), true) => Decision::Wait(wait.clone()),
        (Helper::Home(Endpoints::ToCopy), true) => Decision::Run(Step::Copy(left)),
        (Helper::Home(Endpoints::Edited), true) => Decision::Run(Step::Refresh(left)),
        (Helper::Absent | Helper::Parked(_), true) if view.taken(left).is_some() => {
            view.halt(view.taken(left).map_or("", String::as_str))
        }
        // Somebody deleted it.
        (Helper::Absent, true) => Decision::Run(Step::MakeHome(left)),
        (Helper::Parked(_), true) => Decision::Run(Step::Home(left)),
        (Helper::Warming(_), true) => Decision::Run(Step::Park(left)),
    }
}

/// It has the address that it leaves. Nothing is exchanged before both helpers have its endpoints, and every node knows the address
/// that it comes to.
fn prepare(view: &View, goal: Side, left: Side) -> Decision<Step> {
    if let Some(taken) = view.taken(goal)
        && !view.is_home(goal)
    {
        return view.halt(taken);
    }
    if let Some(step) = view.mend() {
        return Decision::Run(step);
    }
    // First the one that every node has to learn of, then the other: they get ready at the same time.
    match view.helper(goal) {
        Helper::Absent => return Decision::Run(Step::MakeHome(goal)),
        Helper::Warming(_) => return Decision::Run(Step::Park(goal)),
        Helper::Parked(_) => return Decision::Run(Step::Home(goal)),
        Helper::Home(_) => {}
    }
    match view.helper(left) {
        Helper::Absent => return Decision::Run(Step::MakeWarm(left)),
        Helper::Warming(Endpoints::Missing(wait)) => return Decision::Wait(wait.clone()),
        // The last is a slip of somebody's: the Service has that address.
        Helper::Warming(Endpoints::Same) | Helper::Home(_) => return Decision::Run(Step::Park(left)),
        // A copy needs no address.
        Helper::Warming(Endpoints::ToCopy | Endpoints::Edited)
        | Helper::Parked(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited) => {}
        Helper::Parked(Endpoints::Missing(_)) => return Decision::Run(Step::Warm(left)),
    }
    match view.helper(goal) {
        Helper::Home(Endpoints::Missing(wait)) => Decision::Wait(wait.clone()),
        Helper::Absent
        | Helper::Warming(_)
        | Helper::Parked(_)
        | Helper::Home(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited) => Decision::Run(Step::Swap),
    }
}

/// It has no address: somebody was killed in the middle of an exchange.
fn come_back(view: &View, goal: Side, left: Side, leads_to: Option<Side>) -> Decision<Step> {
    if !view.is_home(left) {
        // Clients that know the address that was left get no answer: nothing is more urgent.
        let parked = matches!(view.helper(left), Helper::Parked(_));
        return match (view.taken(left), view.taken(goal)) {
            (None, _) if parked && view.is_home(goal) && leads_to == Some(goal) => {
                Decision::Run(Step::Home(left))
            }
            (None, _) => own(view, left),
            // What was left is somebody else's now. The other address is better than none.
            (Some(_), _) if view.is_home(goal) && view.taken.node_port.is_none() => {
                Decision::Run(Step::Finish)
            }
            (Some(_), None) => own(view, goal),
            (Some(taken), Some(_)) => view.halt(taken),
        };
    }
    // Both addresses may answer, by the helpers. Now the name has to lead to one that does, and node ports are missed.
    if let Some(step) = view.mend() {
        return Decision::Run(step);
    }
    if !leads_to.is_some_and(|side| view.is_home(side)) {
        return Decision::Run(Step::Lead(left));
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

/// Gives the Service an address. While its node ports are somebody else's, a helper answers at the address at least.
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
#[path = "swap_tests.rs"]
mod tests;
