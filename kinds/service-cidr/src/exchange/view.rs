//! One Service with its helpers, as the decision sees them.

use engine::decision::Wait;

use super::role::Parts;
use crate::side::{Side, Sides};

/// The state of the Service itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// The Service has this address.
    At(Side),
    /// The Service has no address, and its name points to this helper; `None` if it points elsewhere.
    Away(Option<Side>),
    /// The owner has given the Service another address or type, as this text states.
    Elsewhere(String),
}

/// The state of a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Helper {
    /// The helper does not exist.
    Absent,
    /// The helper has a spare address until it has the Service's endpoints: only a Service with an address gets endpoints.
    Warming(Endpoints),
    /// The helper has no address, and its name points to the other helper. It keeps its endpoints.
    Parked(Endpoints),
    /// The helper has the address of its role.
    Home(Endpoints),
}

/// The state of a part of the bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bridge {
    /// The part is not needed: the Service has no node ports, or no external addresses.
    NotNeeded,
    /// The part does not exist.
    Absent,
    /// Its status does not contain all its addresses yet.
    Silent,
    /// It answers at all its addresses, as far as it has endpoints.
    Stands(Endpoints),
}

/// Whether a helper has the endpoints of its Service, and all nodes have its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// The helper has them.
    Same,
    /// Some are missing.
    Missing(Wait),
    /// The Service has no selector: replumb has to copy the endpoints.
    ToCopy,
    /// The spec of the Service has changed since: other ports, another selector.
    Edited,
}

impl Helper {
    pub(super) fn endpoints(&self) -> Option<&Endpoints> {
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
    /// The side of its target address.
    pub goal: Side,
    /// The Service.
    pub own: Own,
    /// The helper of each address.
    pub helpers: Sides<Helper>,
    /// The bridge.
    pub bridge: Parts<Bridge>,
    /// Addresses and ports of it that other Services have.
    pub taken: Taken,
    /// Whether the Service has the annotation with its saved spec, for the time without an address.
    pub is_marked: bool,
    /// Whether its source address may still be in use.
    pub source_is_used: bool,
    /// Whether its source address can be assigned to a helper: not once the range is closed, for a late Service.
    pub source_is_assignable: bool,
    /// Whether it has an endpoint that answers.
    pub is_served: bool,
}

/// Addresses and ports of this Service that another Service has taken; each the object and what it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Either address.
    pub addresses: Sides<Option<String>>,
    /// One of its node ports, while the Service has none itself.
    pub node_port: Option<String>,
}
