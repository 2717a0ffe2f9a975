//! How one Service gets another address while both answer: the next change, from whatever state it is in.
//!
//! The API lets nobody change an address. It lets a Service become an `ExternalName`, which gives the address up, and come back
//! with another one. Helpers see to it that nobody notices:
//!
//! - the one of the **goal** has the goal's address from before: the Service's name leads to it meanwhile;
//! - the one of the address that is **left** takes that over, for clients that know it;
//! - a **bridge** answers at both addresses, others at the node ports and at external addresses, whoever has them: it is of type
//!   `LoadBalancer`, of a class that nobody serves, and its status names them.
//!
//! The exchange is four writes: the Service's name leads to the goal's helper, the other helper takes the address that became
//! free, the goal's helper gives its address up, the Service takes it. At no moment does a name lead to nothing, and whenever
//! kube-proxy writes its rules, the bridge has them lead somewhere.
//!
//! There and back are the same way with the two addresses exchanged. What is decided depends on the objects as they are: whoever
//! was killed between two writes goes on from there.

use super::side::{Side, Sides};
use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};

/// What a helper is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// To have this address.
    Address(Side),
    /// To answer while nobody has what it answers at.
    Bridge(Part),
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [
        Self::Address(Side::Old),
        Self::Address(Side::New),
        Self::Bridge(Part::Addresses),
        Self::Bridge(Part::NodePorts),
        Self::Bridge(Part::ExternalAddresses),
    ];

    /// As it stands in names and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address(side) => side.as_str(),
            Self::Bridge(part) => part.as_str(),
        }
    }
}

/// What a bridge answers at. Each is a Service of its own: they have other ports, or lead who asks from outside otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Both addresses of the Service, at its ports.
    Addresses,
    /// Every node's addresses, at the Service's node ports.
    NodePorts,
    /// The Service's `externalIPs`, at its ports.
    ExternalAddresses,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 3] = [Self::Addresses, Self::NodePorts, Self::ExternalAddresses];

    /// As it stands in names and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Addresses => "bridge",
            Self::NodePorts => "bridge-ports",
            Self::ExternalAddresses => "bridge-external",
        }
    }
}

/// One of something for each part of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts<T> {
    /// Of the part for addresses.
    pub addresses: T,
    /// Of the part for node ports.
    pub node_ports: T,
    /// Of the part for external addresses.
    pub external_addresses: T,
}

impl<T> Parts<T> {
    /// Makes one for each.
    pub fn each(mut make: impl FnMut(Part) -> T) -> Self {
        Self {
            addresses: make(Part::Addresses),
            node_ports: make(Part::NodePorts),
            external_addresses: make(Part::ExternalAddresses),
        }
    }

    /// That of this part.
    pub fn of(&self, part: Part) -> &T {
        match part {
            Part::Addresses => &self.addresses,
            Part::NodePorts => &self.node_ports,
            Part::ExternalAddresses => &self.external_addresses,
        }
    }

    /// That of this part, to be changed.
    pub fn of_mut(&mut self, part: Part) -> &mut T {
        match part {
            Part::Addresses => &mut self.addresses,
            Part::NodePorts => &mut self.node_ports,
            Part::ExternalAddresses => &mut self.external_addresses,
        }
    }
}

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

/// Where a part of the bridge is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bridge {
    /// There is none, and none is needed: the Service has no node ports, or no external addresses.
    NotNeeded,
    /// There is none.
    Absent,
    /// It does not say yet where it answers, or not everywhere.
    Silent,
    /// It answers where it is to, as far as it has endpoints.
    Stands(Endpoints),
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
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct View {
    /// `namespace/name`.
    pub name: String,
    /// The address that it is to have.
    pub goal: Side,
    /// The Service.
    pub own: Own,
    /// The helper of each address.
    pub helpers: Sides<Helper>,
    /// The bridge.
    pub bridge: Parts<Bridge>,
    /// What somebody else has.
    pub taken: Taken,
    /// Whether the Service carries what was saved on it for the time without an address.
    pub is_marked: bool,
    /// Whether somebody may still use the address that is left.
    pub left_is_used: bool,
    /// Whether a helper can ask for that address: not once the range of it is closed, for a Service that came late.
    pub left_is_given: bool,
    /// Whether an endpoint of it answers.
    pub is_served: bool,
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
    /// Make this part of the bridge.
    MakeBridge(Part),
    /// Let it say where it answers.
    Answer(Part),
    /// Make the helper of this address with it.
    MakeHome(Side),
    /// Make it with any address.
    MakeWarm(Side),
    /// Copy the Service's endpoints to this helper.
    Copy(Role),
    /// Let this helper say what its Service says by now.
    Refresh(Role),
    /// Give the helper of this address, which has none, any.
    Warm(Side),
    /// Take the address of this helper; its name leads to the other helper.
    Park(Side),
    /// Give the helper of this address, which has none, the one that it is for.
    Home(Side),
    /// Give the Service, which has no address, this one.
    Own(Side),
    /// Let the name of the Service, which has no address, lead to this helper.
    Lead(Side),
    /// The whole exchange.
    Swap,
    /// The whole exchange of a Service that no endpoint answers for: nothing has to be ready before.
    Move,
    /// The same, where the helper of the goal's address has that: on the way back.
    MoveBack,
    /// The same, where no helper can ask for the address that is left any more.
    MoveAlone,
    /// The second half of it.
    Finish,
    /// The Service takes back the address that its helper has.
    Return,
    /// Take off the Service what was saved on it.
    Unmark,
    /// Delete this helper.
    Remove(Role),
}

impl Step {
    /// The step by name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MakeBridge(_) => "MakeBridge",
            Self::Answer(_) => "BridgeAnswers",
            Self::MakeHome(_) | Self::MakeWarm(_) => "MakeHelper",
            Self::Copy(_) => "CopyEndpoints",
            Self::Refresh(_) => "RefreshHelper",
            Self::Warm(_) => "WarmHelper",
            Self::Park(_) => "ParkHelper",
            Self::Home(_) => "HelperTakesAddress",
            Self::Own(_) => "ServiceTakesAddress",
            Self::Lead(_) => "NameLeadsToHelper",
            Self::Swap => "Swap",
            Self::Move => "Move",
            Self::MoveBack => "MoveBack",
            Self::MoveAlone => "MoveAlone",
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
    /// This part of the bridge is made.
    CreateBridge(Part),
    /// It says where it answers.
    BridgeAnswers(Part),
    /// The helper of this address is made with it.
    CreateHome(Side),
    /// It is made with any address.
    CreateWarm(Side),
    /// This helper's copies of endpoints are written.
    CopyEndpoints(Role),
    /// This helper says what its Service says by now.
    HelperLike(Role),
    /// The helper of this address takes any.
    HelperWarm(Side),
    /// It becomes an `ExternalName` that leads to the other one.
    HelperParked(Side),
    /// It takes the address that it is for.
    HelperHome(Side),
    /// What was saved on the Service goes.
    ServiceUnmarked,
    /// This helper is deleted.
    Delete(Role),
}

impl Write {
    /// The write by name: where a test kills somebody.
    pub fn name(self) -> &'static str {
        match self {
            Self::ServiceAway(_) => "ServiceAway",
            Self::ServiceAt(_) => "ServiceAt",
            Self::CreateBridge(_) => "CreateBridge",
            Self::BridgeAnswers(_) => "BridgeAnswersWritten",
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
            Self::MakeBridge(part) => vec![Write::CreateBridge(part), Write::BridgeAnswers(part)],
            Self::Answer(part) => vec![Write::BridgeAnswers(part)],
            Self::MakeHome(side) => vec![Write::CreateHome(side)],
            Self::MakeWarm(side) => vec![Write::CreateWarm(side)],
            Self::Copy(role) => vec![Write::CopyEndpoints(role)],
            Self::Refresh(role) => vec![Write::HelperLike(role)],
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
            Self::Move => vec![
                Write::ServiceAway(left),
                Write::CreateHome(left),
                Write::ServiceAt(goal),
            ],
            Self::MoveBack => vec![
                Write::ServiceAway(goal),
                Write::CreateHome(left),
                Write::HelperParked(goal),
                Write::ServiceAt(goal),
            ],
            Self::MoveAlone => vec![Write::ServiceAway(goal), Write::ServiceAt(goal)],
            Self::Finish => vec![Write::HelperParked(goal), Write::ServiceAt(goal)],
            Self::Return => vec![Write::HelperParked(left), Write::ServiceAt(left)],
            Self::Unmark => vec![Write::ServiceUnmarked],
            Self::Remove(role) => vec![Write::Delete(role)],
        }
    }
}

/// Why a Service waits for a range that gives out the address that it leaves. It waits for no other range.
const LEFT_IS_CLOSED: WaitReason = WaitReason::ServiceRanges;

/// Whether a `ServiceCIDR` has to be made for the address that this Service leaves.
pub fn waits_for_left(decision: &Decision<Step>) -> bool {
    matches!(decision, Decision::Wait(wait) if wait.reason == LEFT_IS_CLOSED)
}

/// The next change of one Service.
pub fn decide(view: &View) -> Decision<Step> {
    let (goal, left) = (view.goal, view.goal.other());
    match &view.own {
        Own::Elsewhere(_) => elsewhere(view, goal, left),
        Own::At(side) if *side == goal => arrived(view, left),
        Own::At(_) => prepare(view, goal, left),
        Own::Away(leads_to) => come_back(view, goal, left, *leads_to),
    }
}

/// The owner has made something else of the Service: there is nothing to exchange. Its helpers go, but for one that answers at the address
/// that is left as long as a client may use that.
fn elsewhere(view: &View, goal: Side, left: Side) -> Decision<Step> {
    if let Some(part) = view.standing() {
        return Decision::Run(Step::Remove(Role::Bridge(part)));
    }
    if *view.helper(goal) != Helper::Absent {
        return Decision::Run(Step::Remove(Role::Address(goal)));
    }
    match view.helper(left) {
        Helper::Absent => Decision::Settled,
        Helper::Home(_) if view.left_is_used => Decision::Settled,
        Helper::Home(_) | Helper::Parked(_) | Helper::Warming(_) => {
            Decision::Run(Step::Remove(Role::Address(left)))
        }
    }
}

/// Label on a helper: what it is for.
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

    /// What somebody has to do for a helper of an address before it answers as its Service does.
    fn mend(&self) -> Option<Step> {
        Side::ALL
            .into_iter()
            .find_map(|side| mend(Role::Address(side), self.helper(side).endpoints()?))
    }

    /// What is missing of the bridge before nobody has to have an address for it to answer.
    fn bridged(&self) -> Option<Step> {
        Part::ALL.into_iter().find_map(|part| match self.bridge.of(part) {
            Bridge::NotNeeded => None,
            Bridge::Absent => Some(Step::MakeBridge(part)),
            Bridge::Silent => Some(Step::Answer(part)),
            Bridge::Stands(endpoints) => mend(Role::Bridge(part), endpoints),
        })
    }

    /// What the bridge waits for.
    fn bridge_waits(&self) -> Option<&Wait> {
        Part::ALL.into_iter().find_map(|part| match self.bridge.of(part) {
            Bridge::Stands(Endpoints::Missing(wait)) => Some(wait),
            Bridge::Stands(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited)
            | Bridge::NotNeeded
            | Bridge::Absent
            | Bridge::Silent => None,
        })
    }

    /// A part of the bridge that is there.
    fn standing(&self) -> Option<Part> {
        Part::ALL
            .into_iter()
            .find(|part| matches!(self.bridge.of(*part), Bridge::Silent | Bridge::Stands(_)))
    }

    /// Somebody has an address that the bridge answers at, and the Service has one of its own: no bridge answers in somebody's place.
    fn halt_bridgeless(&self, taken: &str) -> Decision<Step> {
        match self.standing() {
            Some(part) => Decision::Run(Step::Remove(Role::Bridge(part))),
            None => self.halt(taken),
        }
    }

    /// A helper is to ask for the address that is left, and no range gives it out.
    fn wait_for_left(&self) -> Decision<Step> {
        Decision::Wait(Wait {
            reason: LEFT_IS_CLOSED,
            message: format!(
                "Service {} was created after the exchange had begun, and its range is closed: a ServiceCIDR for its address alone is not Ready yet",
                self.name
            ),
            until: None,
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

fn mend(role: Role, endpoints: &Endpoints) -> Option<Step> {
    match endpoints {
        Endpoints::ToCopy => Some(Step::Copy(role)),
        Endpoints::Edited => Some(Step::Refresh(role)),
        Endpoints::Same | Endpoints::Missing(_) => None,
    }
}

/// It has the address that it is to have: the other one answers as long as somebody uses it.
fn arrived(view: &View, left: Side) -> Decision<Step> {
    let goal = view.goal;
    // An address that no helper has, and that none can ask for, is given up: no client has got an answer there.
    let left_is_used = view.left_is_used && (view.left_is_given || view.is_home(left));
    if left_is_used {
        match view.helper(left) {
            // Nothing has answered there that a client could miss.
            Helper::Absent if view.taken(left).is_some() && !view.is_served => {}
            Helper::Absent | Helper::Parked(_) if view.taken(left).is_some() => {
                return view.halt_bridgeless(view.taken(left).map_or("", String::as_str));
            }
            // Somebody deleted it.
            Helper::Absent => return Decision::Run(Step::MakeHome(left)),
            Helper::Parked(_) => return Decision::Run(Step::Home(left)),
            Helper::Warming(_) => return Decision::Run(Step::Park(left)),
            Helper::Home(endpoints) => {
                if let Some(step) = mend(Role::Address(left), endpoints) {
                    return Decision::Run(step);
                }
                // The bridge has them.
                if let Endpoints::Missing(wait) = endpoints {
                    return Decision::Wait(wait.clone());
                }
            }
        }
    }
    // kube-proxy learns of one Service after the other: who sees these go has seen the Service come.
    if let Some(part) = view.standing() {
        return Decision::Run(Step::Remove(Role::Bridge(part)));
    }
    // The name of the goal's helper may have been given as an answer; that answer led to the other helper, which lives.
    if *view.helper(goal) != Helper::Absent {
        return Decision::Run(Step::Remove(Role::Address(goal)));
    }
    if !left_is_used && *view.helper(left) != Helper::Absent {
        return Decision::Run(Step::Remove(Role::Address(left)));
    }
    // Its owner gave it an address meanwhile: the write that does that for us takes the mark off.
    if view.is_marked {
        return Decision::Run(Step::Unmark);
    }
    Decision::Settled
}

/// It has the address that it leaves. Nothing is exchanged before every helper has its endpoints, and every node knows the bridge and
/// whoever is to have the address that is left.
fn prepare(view: &View, goal: Side, left: Side) -> Decision<Step> {
    if let Some(taken) = view.taken(goal)
        && !view.is_home(goal)
    {
        return view.halt_bridgeless(taken);
    }
    if !view.is_served && view.standing().is_none() && *view.helper(left) == Helper::Absent {
        match view.helper(goal) {
            Helper::Absent if !view.left_is_given => return Decision::Run(Step::MoveAlone),
            Helper::Absent => return Decision::Run(Step::Move),
            Helper::Home(_) if !view.left_is_given => return view.wait_for_left(),
            Helper::Home(_) => return Decision::Run(Step::MoveBack),
            Helper::Parked(_) | Helper::Warming(_) => {}
        }
    }
    // All of them get ready at the same time.
    if let Some(step) = view.bridged() {
        return Decision::Run(step);
    }
    if let Some(step) = view.mend() {
        return Decision::Run(step);
    }
    match view.helper(goal) {
        Helper::Absent => return Decision::Run(Step::MakeHome(goal)),
        Helper::Warming(_) => return Decision::Run(Step::Park(goal)),
        Helper::Parked(_) => return Decision::Run(Step::Home(goal)),
        Helper::Home(_) => {}
    }
    if *view.helper(left) == Helper::Absent {
        return Decision::Run(Step::MakeWarm(left));
    }
    if let Some(wait) = view.bridge_waits() {
        return Decision::Wait(wait.clone());
    }
    if let Helper::Home(Endpoints::Missing(wait)) = view.helper(goal) {
        return Decision::Wait(wait.clone());
    }
    // Last: without an address its endpoints are not kept.
    match view.helper(left) {
        Helper::Warming(Endpoints::Missing(wait)) => Decision::Wait(wait.clone()),
        // The last is a slip of somebody's: the Service has that address.
        Helper::Warming(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited) | Helper::Home(_) => {
            Decision::Run(Step::Park(left))
        }
        Helper::Parked(Endpoints::Missing(_)) => Decision::Run(Step::Warm(left)),
        Helper::Parked(_) | Helper::Absent if !view.left_is_given => view.wait_for_left(),
        Helper::Parked(Endpoints::Same | Endpoints::ToCopy | Endpoints::Edited) | Helper::Absent => {
            Decision::Run(Step::Swap)
        }
    }
}

/// It has no address: somebody was killed in the middle of an exchange.
fn come_back(view: &View, goal: Side, left: Side, leads_to: Option<Side>) -> Decision<Step> {
    if !view.is_home(left) {
        // Clients that know the address that was left get no answer: nothing is more urgent.
        let parked = matches!(view.helper(left), Helper::Parked(_));
        if !view.left_is_given && view.taken(left).is_none() {
            return come_back_late(view, goal, left);
        }
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

/// It has no address, and cannot get back the one that it left. Where a helper is to have that, it is waited for; where none is, no
/// client has got an answer there.
fn come_back_late(view: &View, goal: Side, left: Side) -> Decision<Step> {
    match (view.helper(left), view.helper(goal), view.taken(goal)) {
        (Helper::Absent, Helper::Home(_), _) if view.taken.node_port.is_none() => Decision::Run(Step::Finish),
        (Helper::Absent, Helper::Absent | Helper::Parked(_) | Helper::Warming(_), None) => own(view, goal),
        _ => view.wait_for_left(),
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
