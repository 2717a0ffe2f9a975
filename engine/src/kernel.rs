//! The network state of a host's kernel: routes, addresses, rules, links, written as `ip route`, `ip address` and `ip rule` do.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// The number of the main routing table.
pub const MAIN_TABLE: u32 = 254;
/// Protocol of routes that the kernel installs together with an address.
pub const KERNEL: u8 = 2;
/// Protocol of routes that BIRD installs, Calico's or another one.
pub const BIRD: u8 = 12;
/// Protocol of routes that Felix, Calico's agent, installs.
pub const FELIX: u8 = 80;

/// The largest number of entries that are listed one by one.
const MOST: usize = 20;

/// `Listed` is a list of which only the first items are reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listed<T> {
    /// `items` is the list of the first items. At most 20.
    pub items: Vec<T>,
    /// `remaining` is the number of further items. Unset if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remaining: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            remaining: 0,
        }
    }
}

impl<T> Listed<T> {
    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The number of items, including those that are not listed.
    pub fn count(&self) -> usize {
        self.items.len() + usize::try_from(self.remaining).unwrap_or(usize::MAX)
    }
}

impl<T> FromIterator<T> for Listed<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut entries = entries.into_iter();
        Self {
            items: entries.by_ref().take(MOST).collect(),
            remaining: u32::try_from(entries.count()).unwrap_or(u32::MAX),
        }
    }
}

impl<T: Display> Listed<T> {
    /// Each listed item as text, and the number of further items; `what` is their plural.
    pub fn words(&self, what: &str) -> Vec<String> {
        let mut words: Vec<String> = self.items.iter().map(ToString::to_string).collect();
        if self.remaining > 0 {
            words.push(format!("{} more {what}", self.remaining));
        }
        words
    }
}

/// `RouteKind` is the type of a route, as in `ip route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum RouteKind {
    /// Packets are sent to the next hop.
    Unicast,
    /// The destination is an address of the host.
    Local,
    /// The destination is a broadcast address.
    Broadcast,
    /// The destination is an anycast address.
    Anycast,
    /// The destination is a multicast group.
    Multicast,
    /// Packets are dropped.
    Blackhole,
    /// Packets are rejected as unreachable.
    Unreachable,
    /// Packets are rejected as prohibited.
    Prohibit,
    /// The lookup continues in the next table.
    Throw,
    /// Another type.
    Other,
}

impl RouteKind {
    /// The type, as `ip route` writes it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether such a route drops or rejects packets.
    pub fn discards(self) -> bool {
        match self {
            Self::Blackhole | Self::Unreachable | Self::Prohibit | Self::Throw => true,
            Self::Unicast | Self::Local | Self::Broadcast | Self::Anycast | Self::Multicast | Self::Other => {
                false
            }
        }
    }
}

/// `Hop` is the next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// `gateway` is the address of the gateway. Unset if the destination is directly on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub gateway: Option<IpAddr>,
    /// `link` is the name of the link. Unset if the kernel reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// `Route` is a route of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// `kind` is the type of the route, as in `ip route`.
    pub kind: RouteKind,
    /// `destination` is the destination, in CIDR notation.
    #[schemars(with = "String")]
    pub destination: IpNet,
    /// `hops` is the list of next hops. Empty if packets are not forwarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<Hop>,
    /// `table` is the number of the routing table. Unset for the main table, 254.
    #[serde(default = "main_table", skip_serializing_if = "is_main_table")]
    pub table: u32,
    /// `protocol` is the number of the routing protocol that has installed the route: 2 for the kernel, 12 for BIRD, 80 for
    /// Calico's Felix.
    pub protocol: u8,
    /// `metric` is the metric of the route. Unset if 0.
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

/// `Address` is an address of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// `address` is the address with its prefix length.
    #[schemars(with = "String")]
    pub address: IpNet,
    /// `link` is the name of the link.
    pub link: String,
}

impl Display for Address {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{} dev {}", self.address, self.link)
    }
}

/// `Rule` is a policy routing rule, as in `ip rule`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// `priority` is the priority of the rule. The kernel tries the rule with the lowest value first.
    pub priority: u32,
    /// `from` is the source range that the rule applies to. Unset for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub from: Option<IpNet>,
    /// `to` is the destination range that the rule applies to. Unset for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub to: Option<IpNet>,
    /// `table` is the number of the routing table to look up. Unset if the rule has another action.
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

/// `Device` is a link with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// `name` is the name of the link.
    pub name: String,
    /// `mtu` is the MTU in bytes.
    pub mtu: u32,
    /// `up` is whether the link is administratively up.
    pub up: bool,
    /// `addresses` is the list of addresses of the link, with their prefix lengths, without IPv6 link-local addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
}

/// Links, routes and rules of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Every link.
    pub devices: Vec<Device>,
    /// Every route of every table, both families.
    pub routes: Vec<Route>,
    /// Every rule, both families.
    pub rules: Vec<Rule>,
}
