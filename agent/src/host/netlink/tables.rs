//! All routes of all tables, and the rules that select a table.

use std::net::IpAddr;

use engine::kernel::{RouteKind, Rule};
use futures::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteFlags, RouteMessage, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::IpVersion;

use super::Netlink;
use super::messages::any_route;
use super::request::{NetlinkError, answer, reading};
use crate::host::snapshot::{Route, Tables};

impl Netlink {
    /// Reads links, addresses, routes of all tables, and rules.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn tables(&self) -> Result<Tables, NetlinkError> {
        let mut routes = self.route_messages(AddressFamily::Inet).await?;
        routes.extend(self.route_messages(AddressFamily::Inet6).await?);
        let mut rules = self.rules(IpVersion::V4).await?;
        rules.extend(self.rules(IpVersion::V6).await?);
        Ok(Tables {
            links: self.links().await?,
            addresses: self.addresses().await?,
            routes: routes.iter().filter_map(route).collect(),
            rules: rules.iter().map(rule).collect(),
        })
    }

    pub(super) async fn rules(&self, version: IpVersion) -> Result<Vec<RuleMessage>, NetlinkError> {
        let family = match version {
            IpVersion::V4 => "IPv4 rules",
            IpVersion::V6 => "IPv6 rules",
        };
        match answer(self.handle.rule().get(version).execute().try_collect()).await {
            Ok(rules) => Ok(rules),
            // The kernel has no IPv6, or no IPv6 policy routing.
            Err(rtnetlink::Error::NetlinkError(message))
                if message.raw_code() == -(nix::errno::Errno::EAFNOSUPPORT as i32) =>
            {
                Ok(Vec::new())
            }
            Err(source) => Err(reading(family, source)),
        }
    }
}

/// Converts a route. A cloned route, which the kernel keeps for a learned MTU or gateway of one destination, is not one.
fn route(message: &RouteMessage) -> Option<(RouteKind, Route)> {
    let learned = message.header.flags.contains(RouteFlags::Cloned);
    let route = any_route(message).filter(|_| !learned)?;
    Some((kind(message.header.kind), route))
}

fn kind(kind: RouteType) -> RouteKind {
    match kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local => RouteKind::Local,
        RouteType::Broadcast => RouteKind::Broadcast,
        RouteType::Anycast => RouteKind::Anycast,
        RouteType::Multicast => RouteKind::Multicast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        RouteType::Throw => RouteKind::Throw,
        RouteType::Unspec | RouteType::Nat | RouteType::ExternalResolve | RouteType::Other(_) => {
            RouteKind::Other
        }
        // The library may add more types.
        _ => RouteKind::Other,
    }
}

fn rule(message: &RuleMessage) -> Rule {
    let mut rule = Rule {
        priority: 0,
        from: None,
        to: None,
        table: None,
    };
    let mut table = u32::from(message.header.table);
    let network = |address: &IpAddr, length| IpNet::new(*address, length).ok();
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(address) => rule.from = network(address, message.header.src_len),
            RuleAttribute::Destination(address) => rule.to = network(address, message.header.dst_len),
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Table(number) => table = *number,
            _ => {}
        }
    }
    rule.table = (message.header.action == RuleAction::ToTable).then_some(table);
    rule
}
