//! API servers whose flag or certificate the user has to change.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::migration::ServiceCidrStatus;
use engine::decision::{Wait, WaitReason};
use engine::words::{self, lines};
use service_cidr::addresses::first;
use service_cidr::facts::ApiServer;
use service_cidr::ranges::joined;
use service_cidr::side::Side;

use super::super::pass::Pass;

impl Pass<'_> {
    /// The wait for API servers without the needed flag or certificate.
    pub(super) fn api_servers(
        &self,
        servers: &BTreeMap<IpAddr, ApiServer>,
        known: &ServiceCidrStatus,
    ) -> Option<Wait> {
        let defaults = known.settings.defaults();
        let wanted = defaults.of(self.goal);
        let changed = known.settings.changed();
        let firsts: Vec<IpAddr> = Side::ALL
            .into_iter()
            .flat_map(|side| changed.of(side).iter().filter_map(first))
            .collect();
        let mut missing = Vec::new();
        if servers.is_empty() {
            missing.push("Service default/kubernetes has no API server".to_owned());
        }
        for (address, server) in servers {
            match &server.ranges {
                Ok(ranges) if ranges == wanted => {}
                Ok(ranges) => missing.push(format!(
                    "API server {address}: found --service-cluster-ip-range={}, needed {}",
                    joined(ranges),
                    joined(wanted)
                )),
                Err(why) => missing.push(format!(
                    "API server {address}: --service-cluster-ip-range is unknown: {why}"
                )),
            }
            match &server.addresses {
                Ok(names) => {
                    let lacks: Vec<String> = firsts
                        .iter()
                        .filter(|first| !names.contains(first))
                        .map(ToString::to_string)
                        .collect();
                    if !lacks.is_empty() {
                        missing.push(format!(
                            "API server {address}: its certificate is not for {}",
                            words::names(&lacks)
                        ));
                    }
                }
                Err(why) => missing.push(format!("API server {address}: its certificate is unknown: {why}")),
            }
        }
        (!missing.is_empty()).then(|| Wait {
            reason: WaitReason::ApiServers,
            message: format!("waiting for changes by the user: {}", lines(&missing)),
            until: None,
        })
    }
}
