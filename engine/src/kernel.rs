//! What the kernel of a host has: routes, addresses, rules, links. In the words of `ip route`, `ip address` and `ip rule`.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kernel's number of its main table of routes.
pub const MAIN_TABLE: u32 = 254;
/// Who installed a route: the kernel itself, together with an address.
pub const KERNEL: u8 = 2;
/// Who installed a route: a BIRD, of Calico's or another one.
pub const BIRD: u8 = 12;
/// Who installed a route: Felix, Calico's agent.
pub const FELIX: u8 = 80;

/// Most entries that are listed one by one.
const MOST: usize = 20;

/// The first few of many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listed<T> {
    /// The first 20.
    pub first: Vec<T>,
    /// Number of those behind them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self {
            first: Vec::new(),
            more: 0,
        }
    }
}

impl<T> Listed<T> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.first.len() + usize::try_from(self.more).unwrap_or(usize::MAX)
    }
}

impl<T> FromIterator<T> for Listed<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut entries = entries.into_iter();
        Self {
            first: entries.by_ref().take(MOST).collect(),
            more: u32::try_from(entries.count()).unwrap_or(u32::MAX),
        }
    }
}

impl<T: Display> Listed<T> {
    /// Each in words, and how many more there are; `what` names several of them.
    pub fn words(&self, what: &str) -> Vec<String> {
        let mut words: Vec<String> = self.first.iter().map(ToString::to_string).collect();
        if self.more > 0 {
            words.push(format!("{} more {what}", self.more));
        }
        words
    }
}

/// What the kernel does with a packet for which it finds a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RouteKind {
    /// Sends it on.
    Unicast,
    /// Takes it for the host's own.
    Local,
    /// Takes it for one to everybody on a link.
    Broadcast,
    /// Takes it for one to the nearest of many.
    Anycast,
    /// Sends it to a group.
    Multicast,
    /// Drops it.
    Blackhole,
    /// Drops it and says that the destination is unreachable.
    Unreachable,
    /// Drops it and says that it is prohibited.
    Prohibit,
    /// Goes on with the next table.
    Throw,
    /// Anything else.
    Other,
}

impl RouteKind {
    /// As `ip route` has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Local => "local",
            Self::Broadcast => "broadcast",
            Self::Anycast => "anycast",
            Self::Multicast => "multicast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Throw => "throw",
            Self::Other => "other",
        }
    }

    /// Whether a packet goes nowhere by such a route.
    pub fn discards(self) -> bool {
        match self {
            Self::Blackhole | Self::Unreachable | Self::Prohibit | Self::Throw => true,
            Self::Unicast | Self::Local | Self::Broadcast | Self::Anycast | Self::Multicast | Self::Other => {
                false
            }
        }
    }
}

/// Where a route leads next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// The gateway; absent where the destination is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub gateway: Option<IpAddr>,
    /// Name of the link; absent where the kernel names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// A route of any table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// What happens to a packet.
    pub kind: RouteKind,
    /// Destination.
    #[schemars(with = "String")]
    pub destination: IpNet,
    /// Next hops; empty where packets go nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<Hop>,
    /// The kernel's number of the table; absent on the wire for the main one.
    #[serde(default = "main_table", skip_serializing_if = "is_main_table")]
    pub table: u32,
    /// The kernel's number of who installed it.
    pub protocol: u8,
    /// Metric.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub metric: u32,
}

fn main_table() -> u32 {
    MAIN_TABLE
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_main_table(table: &u32) -> bool {
    *table == MAIN_TABLE
}

impl Display for Route {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if self.kind != RouteKind::Unicast {
            write!(out, "{} ", self.kind.as_str())?;
        }
        write!(out, "{}", self.destination)?;
        for hop in &self.hops {
            if self.hops.len() > 1 {
                write!(out, " nexthop")?;
            }
            if let Some(gateway) = hop.gateway {
                write!(out, " via {gateway}")?;
            }
            if let Some(link) = &hop.link {
                write!(out, " dev {link}")?;
            }
        }
        match self.table {
            MAIN_TABLE => Ok(()),
            253 => write!(out, " table default"),
            255 => write!(out, " table local"),
            table => write!(out, " table {table}"),
        }
    }
}

/// An address of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// Address with the length of its prefix.
    #[schemars(with = "String")]
    pub address: IpNet,
    /// Name of the link.
    pub link: String,
}

impl Display for Address {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{} dev {}", self.address, self.link)
    }
}

/// A rule by which the kernel chooses a table of routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Rank: the lowest is asked first.
    pub priority: u32,
    /// Sources that it is for; absent where it is for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub from: Option<IpNet>,
    /// Destinations that it is for; absent where it is for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub to: Option<IpNet>,
    /// The table that is looked up; absent where something else is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
}

impl Display for Rule {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "rule {}: from ", self.priority)?;
        match self.from {
            Some(from) => write!(out, "{from}")?,
            None => write!(out, "all")?,
        }
        if let Some(to) = self.to {
            write!(out, " to {to}")?;
        }
        match self.table {
            Some(table) => write!(out, " lookup {table}"),
            None => Ok(()),
        }
    }
}

/// A link with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Addresses on it, link-local ones of IPv6 aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
}

/// The kernel's tables of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Every link.
    pub devices: Vec<Device>,
    /// Every route of every table, both families.
    pub routes: Vec<Route>,
    /// Every rule, both families.
    pub rules: Vec<Rule>,
}
