//! Hosts with flannel: an agent's work from flannel to Calico, decided by the agent's own code.

use std::path::Path;

use ::flannel_to_calico::api::{NodeStatus, OrEmpty as _};
use agent::report::Report;
use anyhow::Result;
use api::FailureCategory;
use api::node_migration::{Failure, NodeMigrationSpec, NodeMigrationStatus};
use flannel_to_calico::host::{
    self, AdoptionSettings, HostDecision, HostSettings, HostStep, JournalState, Undo,
};
use flannel_to_calico::host_checks::{self, Subject};
use flannel_to_calico::phase::Goal;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::host::Host;
use super::steps::perform;

/// More steps than any host has.
const MOST_STEPS: usize = 64;
/// Path of the real agent's journal.
const JOURNAL: &str = "/var/lib/replumb";

/// A host with flannel, and the state of the steps made on it.
#[derive(Debug)]
pub struct Flannel {
    /// The model of the host.
    pub host: Host,
    node: String,
    standing: Vec<HostStep>,
}

impl Flannel {
    /// The host of this Node; `None` if flannel has not configured it.
    pub fn of(node: &Node, network: Ipv4Net) -> Result<Option<Self>> {
        let host = Host::of(node, network)?;
        Ok(host.map(|host| Self {
            host,
            node: node.name_any(),
            standing: Vec::new(),
        }))
    }

    /// Takes the requested step, and returns the state.
    pub(super) fn work(&mut self, spec: &NodeMigrationSpec) -> Report {
        let of_kind = spec.flannel_to_calico.or_empty();
        let settings = of_kind.host.clone().unwrap_or_else(usual_settings);
        let goal = if of_kind.host.is_some() {
            of_kind.goal
        } else {
            Goal::Hold
        };
        let mut message = String::new();
        let mut failure = None;
        for _ in 0..MOST_STEPS {
            let remembered = JournalState {
                unreverted: self.standing.clone(),
                ..JournalState::default()
            };
            match host::decide(&self.host.facts, &settings, goal, &remembered) {
                HostDecision::Run(step) => self.perform(step),
                HostDecision::Wait(what) => {
                    message = what;
                    break;
                }
                HostDecision::Settled => {
                    "hollow: no step remains".clone_into(&mut message);
                    break;
                }
                HostDecision::Halt(why) => {
                    message.clone_from(&why);
                    failure = Some(Failure {
                        category: FailureCategory::Contradiction.into(),
                        message: why,
                        retriable: false,
                    });
                    break;
                }
            }
        }
        let facts = &self.host.facts;
        let phase = host::phase(facts, &settings);
        let subject = Subject {
            node: &self.node,
            facts,
            settings: &settings,
            settings_are_known: of_kind.host.is_some(),
            phase,
            goal,
        };
        let mut checks = host_checks::checks(subject);
        checks.push(host_checks::journal(&self.node, Path::new(JOURNAL), &Ok(())));
        let of_host = NodeStatus {
            phase: Some(phase),
            leftovers: host::leftovers(facts, &settings),
            changes: host::changes(facts, &settings, &self.standing),
            goal: Some(goal),
            checks,
            facts: Some(facts.clone()),
            ..NodeStatus::default()
        };
        Report {
            message,
            failure,
            kinds: NodeMigrationStatus {
                flannel_to_calico: Some(of_host),
                ..NodeMigrationStatus::default()
            },
            ..Report::default()
        }
    }

    fn perform(&mut self, step: HostStep) {
        perform(&mut self.host, &step);
        let remaining = self
            .standing
            .iter()
            .filter_map(|standing| step.remainder(standing));
        self.standing = remaining.collect();
        match step.undo() {
            Undo::By(_) => self.standing.push(step),
            Undo::Nothing(_) => {}
        }
    }
}

/// The agent's observations before it is told a goal.
fn usual_settings() -> HostSettings {
    HostSettings {
        vni: 1,
        port: 8472,
        mtu: 1450,
        cni_configuration_directory: "/etc/cni/net.d".to_owned(),
        block_size: 26,
        node_range_length: 24,
        ipv6: None,
        adopt_pods: false,
        write_firewall_twins: false,
        adoption: AdoptionSettings::default(),
    }
}

#[cfg(test)]
mod tests {
    use flannel_to_calico::phase::Phase;
    use serde_json::json;

    use super::super::agent::{Agent, Known, Turn};
    use super::super::pods::{PodOnHost, Role, Told};
    use super::*;
    use crate::scale::{POD_NETWORK, shape, size::Kind, size::Place};

    fn agent() -> Agent {
        let node = serde_json::from_value(shape::node(Place(300), Kind::FlannelToCalico)).unwrap();
        Agent::new(&node, POD_NETWORK.parse().unwrap()).unwrap()
    }

    fn pod(role: Role) -> PodOnHost {
        PodOnHost {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            role,
            told: Told::default(),
        }
    }

    /// A pod with the address of this number in the node's range.
    fn ordinary(number: u8) -> PodOnHost {
        pod(Role::OnPodNetwork(format!("10.129.44.{number}").parse().unwrap()))
    }

    /// The agent's report after this request.
    fn report_for(agent: &mut Agent, goal: &str) -> NodeStatus {
        let object = serde_json::from_value(json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": "a"},
            "spec": {"nodeName": "a", "migration": "m", "flannelToCalico": {"goal": goal, "host": usual_settings()}},
        }))
        .unwrap();
        match agent.turn(&object, &Known::default()) {
            Turn::Write(status) => status.flannel_to_calico.unwrap(),
            other => panic!("the agent has not reported yet: {other:?}"),
        }
    }

    #[test]
    fn every_check_passes_on_a_host_with_flannel() {
        let mut agent = agent();
        agent.run("f", pod(Role::Flannel));
        agent.run("0a-1", ordinary(2));
        let status = report_for(&mut agent, "Hold");
        assert_eq!(status.phase, Some(Phase::Flannel));
        assert!(
            status
                .checks
                .iter()
                .all(|check| check.verdict == engine::check::Verdict::Pass),
            "{:?}",
            status.checks
        );
        assert_eq!(status.facts.unwrap().legacy_pods.len(), 1);
    }

    #[test]
    fn with_drain_each_phase_waits_for_its_condition() {
        let mut agent = agent();
        agent.run("f", pod(Role::Flannel));
        agent.run("0a-1", ordinary(2));
        assert_eq!(
            report_for(&mut agent, "Held").phase,
            Some(Phase::Flannel),
            "flanneld runs"
        );
        agent.end("f");
        assert_eq!(report_for(&mut agent, "Held").phase, Some(Phase::Held));
        assert_eq!(
            report_for(&mut agent, "Detached").phase,
            Some(Phase::Held),
            "a pod lives"
        );
        agent.end("0a-1");
        assert_eq!(report_for(&mut agent, "Detached").phase, Some(Phase::Detached));
        assert_eq!(
            report_for(&mut agent, "Calico").phase,
            Some(Phase::Detached),
            "calico-node does not run"
        );
        agent.run("c", pod(Role::CalicoNode));
        let status = report_for(&mut agent, "Calico");
        assert_eq!(
            (status.phase, status.leftovers.len()),
            (Some(Phase::Calico), 0),
            "{status:?}"
        );
        agent.run("0b-2", ordinary(3));
        let facts = report_for(&mut agent, "Calico").facts.unwrap();
        assert_eq!((facts.legacy_pods.len(), facts.calico.pods.len()), (0, 1));
    }

    #[test]
    fn in_place_pods_of_both_networks_run_side_by_side() {
        let mut agent = agent();
        agent.run("0a-1", ordinary(2));
        assert_eq!(report_for(&mut agent, "Held").phase, Some(Phase::Held));
        let status = report_for(&mut agent, "Swapped");
        assert_eq!(status.phase, Some(Phase::Swapped));
        assert!(status.facts.unwrap().legacy_pods[0].routed);
        agent.run("c", pod(Role::CalicoNode));
        agent.run("0b-2", ordinary(3));
        let status = report_for(&mut agent, "Mixed");
        assert_eq!(status.phase, Some(Phase::Mixed));
        let facts = status.facts.unwrap();
        assert_eq!((facts.legacy_pods.len(), facts.calico.pods.len()), (1, 1));
    }

    #[test]
    fn a_rollback_restores_the_host() {
        let mut agent = agent();
        agent.run("f", pod(Role::Flannel));
        agent.run("0a-1", ordinary(2));
        let before = report_for(&mut agent, "Hold").facts.unwrap();
        agent.end("f");
        report_for(&mut agent, "Swapped");
        agent.run("c", pod(Role::CalicoNode));
        assert_eq!(report_for(&mut agent, "Mixed").phase, Some(Phase::Mixed));
        agent.end("c");
        let status = report_for(&mut agent, "Flannel");
        assert_eq!(
            (status.phase, status.changes.len()),
            (Some(Phase::Flannel), 0),
            "{:?}",
            status.changes
        );
        agent.run("f", pod(Role::Flannel));
        assert_eq!(report_for(&mut agent, "Hold").facts.unwrap(), before);
    }
}
