//! The roles of helpers, and the parts of a bridge.

use strum::{EnumCount, IntoStaticStr};

use crate::side::Side;

/// The role of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
pub enum Role {
    /// It has this address.
    #[strum(transparent)]
    Address(Side),
    /// It answers while no Service has these addresses or ports.
    #[strum(transparent)]
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

    /// The text in names and labels.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A part of the bridge. Each part is a separate Service, because ports and external traffic policy differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, IntoStaticStr)]
pub enum Part {
    /// Both addresses of the Service, at its ports.
    #[strum(serialize = "bridge")]
    Addresses,
    /// Every node's addresses, at the Service's node ports.
    #[strum(serialize = "bridge-ports")]
    NodePorts,
    /// The Service's `externalIPs`, at its ports.
    #[strum(serialize = "bridge-external")]
    ExternalAddresses,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; Self::COUNT] = [Self::Addresses, Self::NodePorts, Self::ExternalAddresses];

    /// The text in names and labels.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One value for each part of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts<T> {
    /// The value of the part for addresses.
    pub addresses: T,
    /// The value of the part for node ports.
    pub node_ports: T,
    /// The value of the part for external addresses.
    pub external_addresses: T,
}

impl<T> Parts<T> {
    /// Creates a value for each part.
    pub fn each(mut make: impl FnMut(Part) -> T) -> Self {
        Self {
            addresses: make(Part::Addresses),
            node_ports: make(Part::NodePorts),
            external_addresses: make(Part::ExternalAddresses),
        }
    }

    /// The value of this part.
    pub fn of(&self, part: Part) -> &T {
        match part {
            Part::Addresses => &self.addresses,
            Part::NodePorts => &self.node_ports,
            Part::ExternalAddresses => &self.external_addresses,
        }
    }

    /// The value of this part, mutable.
    pub fn of_mut(&mut self, part: Part) -> &mut T {
        match part {
            Part::Addresses => &mut self.addresses,
            Part::NodePorts => &mut self.node_ports,
            Part::ExternalAddresses => &mut self.external_addresses,
        }
    }
}

/// Label on a helper: its role.
pub const ROLE_LABEL: &str = "replumb.dev/address";
