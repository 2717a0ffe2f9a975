//! The parts of a bridge: which ones a Service needs, their specs, and the addresses at which they answer.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::family::{family, of_families};
use super::merge::merge;
use super::{BRIDGE_CLASS, BridgeFacts, EXTERNAL_TRAFFIC_POLICY, Objects, Spare, TRAFFIC_POLICY};
use crate::class::addresses;
use crate::exchange::{Part, Role};
use crate::side::{Side, Sides};

/// Parts of the bridge that a Service needs.
pub fn bridges(service: &Value) -> Vec<Part> {
    let objects = Objects {
        domain: "",
        service,
        addresses: &Sides::each(|_| Vec::new()),
        spare: &Spare::default(),
        ground: &BridgeFacts::default(),
    };
    let needed = |part: &Part| objects.needs(*part);
    Part::ALL.into_iter().filter(needed).collect()
}

impl Objects<'_> {
    /// Whether this part of a bridge is needed.
    pub fn needs(&self, part: Part) -> bool {
        match part {
            Part::Addresses => true,
            Part::NodePorts => !self.ports(Role::Bridge(part)).is_empty(),
            Part::ExternalAddresses => !self.external_addresses().is_empty(),
        }
    }

    fn external_addresses(&self) -> Vec<IpAddr> {
        let said = self.service["spec"]["externalIPs"]
            .as_array()
            .into_iter()
            .flatten();
        said.filter_map(|address| address.as_str()?.parse().ok())
            .collect()
    }

    /// A part of the bridge, without node ports and with a class that has no controller.
    pub(super) fn bridge(&self, part: Part) -> Value {
        let role = Role::Bridge(part);
        let mut spec = self.with_address(self.spare.bridge.of(part));
        merge(&mut spec["spec"], &of_families(&self.families(role)));
        spec["spec"]["type"] = json!("LoadBalancer");
        spec["spec"]["loadBalancerClass"] = json!(BRIDGE_CLASS);
        spec["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
        spec["spec"][EXTERNAL_TRAFFIC_POLICY] = self.policy(part);
        spec["spec"][TRAFFIC_POLICY] = json!("Cluster");
        self.helper(role, &spec)
    }

    pub(super) fn policy(&self, part: Part) -> Value {
        match part {
            Part::Addresses => json!(self.ground.policy.as_str()),
            // External traffic keeps its policy.
            Part::NodePorts | Part::ExternalAddresses => match self.spec().get(EXTERNAL_TRAFFIC_POLICY) {
                Some(policy) => policy.clone(),
                None => json!("Cluster"),
            },
        }
    }

    /// The addresses at which this part of the bridge answers, including its own address, by which the rules of nodes are
    /// checked.
    fn answered(&self, part: Part, bridge: &Value) -> Vec<IpAddr> {
        let mut answered = addresses(&bridge["spec"]);
        match part {
            Part::Addresses => {
                let unchanged = addresses(&self.spec());
                for address in self
                    .of(Side::Old)
                    .iter()
                    .chain(self.of(Side::New))
                    .chain(&unchanged)
                {
                    if !answered.contains(address) {
                        answered.push(*address);
                    }
                }
            }
            Part::NodePorts => {
                let families = self.families(Role::Bridge(part));
                let of_nodes = self.ground.node_addresses.iter();
                answered.extend(of_nodes.filter(|address| families.iter().any(|one| one == family(address))));
            }
            Part::ExternalAddresses => answered.extend(self.external_addresses()),
        }
        answered
    }

    /// The status of this part of the bridge; `None` if it is complete already.
    pub fn answer(&self, part: Part, bridge: &Value) -> Option<Value> {
        let said: Vec<IpAddr> = bridge["status"]["loadBalancer"]["ingress"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|ingress| ingress["ip"].as_str()?.parse().ok())
            .collect();
        let wanted = self.answered(part, bridge);
        let known: BTreeSet<&IpAddr> = said.iter().collect();
        if wanted.iter().all(|address| known.contains(address)) {
            return None;
        }
        let ingress: Vec<Value> = wanted.iter().map(|address| json!({ "ip": address })).collect();
        Some(json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
    }
}
