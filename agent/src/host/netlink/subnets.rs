//! Routes to whole IPv6 subnets of nodes, in replumb's own routing table.
//!
//! Felix adds routes to the blocks that a node has claimed, and deletes all other routes of its device in the main table. In a
//! /64 only the first few blocks are claimed; flannel's pods may have any address of the /64.

use flannel_to_calico::host::SUBNET_TABLE;
use ipnet::IpNet;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::IpVersion;

use super::Netlink;
use super::change::ROUTE_PROTOCOL;
use super::request::{NetlinkError, answer, request};
use crate::host::snapshot::{Route, Snapshot};

/// Priority of the rule for this table: before the rule for the main table, after the usual rules of users.
const SUBNET_RULE_PRIORITY: u32 = 32_700;

impl Netlink {
    /// Adds a route to the subnet of each node behind the tunnel, with the next hop of the tunnel's routes; then the rule for the
    /// table.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn add_subnet_routes(&self, tunnel: &Snapshot, length: u8) -> Result<(), NetlinkError> {
        for (end, route) in tunnel.ipv6_ends() {
            let Ok(subnet) = IpNet::new(end, length) else {
                continue;
            };
            self.add_route(&Route {
                destination: subnet.trunc(),
                protocol: ROUTE_PROTOCOL,
                table: SUBNET_TABLE,
                ..route.clone()
            })
            .await?;
        }
        if self.has_subnet_rule().await? {
            return Ok(());
        }
        let add = self.handle.rule().add().v6().table_id(SUBNET_TABLE);
        let add = add.priority(SUBNET_RULE_PRIORITY).action(RuleAction::ToTable);
        answer(add.execute())
            .await
            .map_err(|source| request(format!("add the rule to look up table {SUBNET_TABLE}"), source))
    }

    /// Deletes the rule, then the routes.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn delete_subnet_routes(&self, seen: &Snapshot) -> Result<(), NetlinkError> {
        for rule in self.subnet_rules().await? {
            answer(self.handle.rule().del(rule).execute())
                .await
                .map_err(|source| {
                    request(format!("delete the rule to look up table {SUBNET_TABLE}"), source)
                })?;
        }
        for route in &seen.subnet_routes {
            self.delete_route(route).await?;
        }
        Ok(())
    }

    pub(super) async fn has_subnet_rule(&self) -> Result<bool, NetlinkError> {
        Ok(!self.subnet_rules().await?.is_empty())
    }

    async fn subnet_rules(&self) -> Result<Vec<RuleMessage>, NetlinkError> {
        let rules = self.rules(IpVersion::V6).await?;
        Ok(rules.into_iter().filter(is_of_subnets).collect())
    }
}

fn is_of_subnets(rule: &RuleMessage) -> bool {
    let has = |wanted: &RuleAttribute| rule.attributes.contains(wanted);
    has(&RuleAttribute::Table(SUBNET_TABLE)) && has(&RuleAttribute::Priority(SUBNET_RULE_PRIORITY))
}
