//! The steps of an exchange, and the writes of each step.

use super::role::{Part, Role};
use crate::side::Side;

/// One change: a sequence of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Create this part of the bridge.
    MakeBridge(Part),
    /// Write its addresses to its status.
    Answer(Part),
    /// Create the helper of this side with its address.
    MakeHome(Side),
    /// Create the helper of this side with a spare address.
    MakeWarm(Side),
    /// Copy the Service's endpoints to this helper.
    Copy(Role),
    /// Update this helper to the current spec of its Service.
    Refresh(Role),
    /// Give the parked helper of this side a spare address.
    Warm(Side),
    /// Remove the address of this helper, and point its name to the other helper.
    Park(Side),
    /// Give the parked helper of this side its address.
    Home(Side),
    /// Give the Service, which has no address, this one.
    Own(Side),
    /// Point the name of the Service, which has no address, to this helper.
    PointName(Side),
    /// The whole exchange.
    Swap,
    /// The whole exchange of a Service without endpoints, which needs no preparation.
    Move,
    /// The same if the helper of the goal has the target address: in a rollback.
    MoveBack,
    /// The same if the source address cannot be assigned to a helper any more.
    MoveAlone,
    /// The second half of the exchange.
    Finish,
    /// The Service takes its source address back from its helper.
    Return,
    /// Remove the saved spec from the Service.
    Unmark,
    /// Delete this helper.
    Remove(Role),
}

impl Step {
    /// The name of the step.
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
            Self::PointName(_) => "NameLeadsToHelper",
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

/// One write to one object, as a part of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// The Service becomes an `ExternalName` that points to this helper.
    ServiceAway(Side),
    /// The Service takes this address.
    ServiceAt(Side),
    /// This part of the bridge is created.
    CreateBridge(Part),
    /// Its addresses are written to its status.
    BridgeAnswers(Part),
    /// The helper of this side is created with its address.
    CreateHome(Side),
    /// The helper of this side is created with a spare address.
    CreateWarm(Side),
    /// The copies of endpoints of this helper are written.
    CopyEndpoints(Role),
    /// This helper is updated to the current spec of its Service.
    HelperLike(Role),
    /// The helper of this side takes a spare address.
    HelperWarm(Side),
    /// The helper of this side becomes an `ExternalName` that points to the other helper.
    HelperParked(Side),
    /// The helper of this side takes its address.
    HelperHome(Side),
    /// The saved spec is removed from the Service.
    ServiceUnmarked,
    /// This helper is deleted.
    Delete(Role),
}

impl Write {
    /// The name of the write, by which tests choose a crash point.
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
    /// Its writes, in order. The process may be killed between any two of them.
    pub fn writes(self, goal: Side) -> Vec<Write> {
        let source = goal.other();
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
            Self::PointName(side) => vec![Write::ServiceAway(side)],
            Self::Swap => vec![
                Write::ServiceAway(goal),
                Write::HelperHome(source),
                Write::HelperParked(goal),
                Write::ServiceAt(goal),
            ],
            Self::Move => vec![
                Write::ServiceAway(source),
                Write::CreateHome(source),
                Write::ServiceAt(goal),
            ],
            Self::MoveBack => vec![
                Write::ServiceAway(goal),
                Write::CreateHome(source),
                Write::HelperParked(goal),
                Write::ServiceAt(goal),
            ],
            Self::MoveAlone => vec![Write::ServiceAway(goal), Write::ServiceAt(goal)],
            Self::Finish => vec![Write::HelperParked(goal), Write::ServiceAt(goal)],
            Self::Return => vec![Write::HelperParked(source), Write::ServiceAt(source)],
            Self::Unmark => vec![Write::ServiceUnmarked],
            Self::Remove(role) => vec![Write::Delete(role)],
        }
    }
}
