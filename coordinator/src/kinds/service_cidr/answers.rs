//! The answers of the agents to the present question, by node. Pure.

use std::collections::BTreeMap;

use engine::found::Found;
use engine::kernel::Listed;
use service_cidr::host::{Connection, HostFacts, PodsWithSourceAddresses, ServicePort};

/// The answer of one node.
#[derive(Clone, Debug)]
pub struct Answer<'pass> {
    /// Whether the answer is to the current question.
    pub is_newest: bool,
    /// Whether the agent was asked for uses of source addresses.
    pub reports_users: bool,
    /// The report of the agent.
    pub said: &'pass HostFacts,
}

impl<'pass> Answer<'pass> {
    /// Pods of the node that were given a source address; `None` when the agent was not asked.
    pub fn with_old_addresses(&self) -> Option<&'pass Found<PodsWithSourceAddresses>> {
        self.reports_users
            .then_some(&self.said.pods_with_source_addresses)
    }

    /// Why the agent cannot report the name servers of its kubelet; `None` when it does, or was not asked.
    pub fn unknown_cluster_dns(&self) -> Option<&'pass str> {
        match &self.said.cluster_dns {
            Found::Malformed(what) => Some(what),
            Found::Present(_) | Found::Absent => None,
        }
    }

    /// Connections through the node to a source address; `None` when the agent was not asked.
    pub fn connections(&self) -> Option<&'pass Found<Listed<Connection>>> {
        self.reports_users.then_some(&self.said.connections)
    }
}

/// The answers by node; `None` for a node whose agent has not answered its present question.
pub type Answers<'pass> = BTreeMap<&'pass str, Option<Answer<'pass>>>;

/// The ports of the current question that a node has no rule for; an error is the state of a node without an answer.
pub(super) fn unknown<'pass>(answer: Option<&Answer<'pass>>) -> Result<&'pass [ServicePort], String> {
    let Some(Answer { is_newest, said, .. }) = answer else {
        return Err("has not reported".to_owned());
    };
    match &said.missing_ports {
        // An agent that cannot read the question does not answer it.
        Found::Malformed(what) => Err(format!("cannot report ({what})")),
        Found::Present(_) | Found::Absent if !is_newest => Err("is being asked".to_owned()),
        Found::Present(unknown) => Ok(unknown),
        Found::Absent => Err("has not reported".to_owned()),
    }
}
