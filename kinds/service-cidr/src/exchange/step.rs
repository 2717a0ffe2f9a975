//! The steps of an exchange, and the writes of each step.

use strum::IntoStaticStr;

use super::role::{Part, Role};
use crate::side::Side;

/// One change: a sequence of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
pub enum Step {
    /// Create this part of the bridge.
    MakeBridge(Part),
    /// Write its addresses to its status.
    #[strum(serialize = "BridgeAnswers")]
    Answer(Part),
    /// Create the helper of this side with its address.
    #[strum(serialize = "MakeHelper")]
    MakeHome(Side),
    /// Create the helper of this side with a spare address.
    #[strum(serialize = "MakeHelper")]
    MakeWarm(Side),
    /// Copy the Service's endpoints to this helper.
    #[strum(serialize = "CopyEndpoints")]
    Copy(Role),
    /// Update this helper to the current spec of its Service.
    #[strum(serialize = "RefreshHelper")]
    Refresh(Role),
    /// Give the parked helper of this side a spare address.
    #[strum(serialize = "WarmHelper")]
    Warm(Side),
    /// Remove the address of this helper, and point its name to the other helper.
    #[strum(serialize = "ParkHelper")]
    Park(Side),
    /// Give the parked helper of this side its address.
    #[strum(serialize = "HelperTakesAddress")]
    Home(Side),
    /// Give the Service, which has no address, this one.
    #[strum(serialize = "ServiceTakesAddress")]
    Own(Side),
    /// Point the name of the Service, which has no address, to this helper.
    #[strum(serialize = "NameLeadsToHelper")]
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
    #[strum(serialize = "FinishSwap")]
    Finish,
    /// The Service takes its source address back from its helper.
    #[strum(serialize = "ReturnAddress")]
    Return,
    /// Remove the saved spec from the Service.
    Unmark,
    /// Delete this helper.
    #[strum(serialize = "RemoveHelper")]
    Remove(Role),
}

impl Step {
    /// The name of the step.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One write to one object, as a part of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
pub enum Write {
    /// The Service becomes an `ExternalName` that points to this helper.
    ServiceAway(Side),
    /// The Service takes this address.
    ServiceAt(Side),
    /// This part of the bridge is created.
    CreateBridge(Part),
    /// Its addresses are written to its status.
    #[strum(serialize = "BridgeAnswersWritten")]
    BridgeAnswers(Part),
    /// The helper of this side is created with its address.
    CreateHome(Side),
    /// The helper of this side is created with a spare address.
    CreateWarm(Side),
    /// The copies of endpoints of this helper are written.
    #[strum(serialize = "CopiesWritten")]
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
    #[strum(serialize = "HelperDeleted")]
    Delete(Role),
}

impl Write {
    /// The name of the write, by which tests choose a crash point.
    pub fn name(self) -> &'static str {
        self.into()
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
