//! One hollow agent: a turn as the real agent makes it, on the model of its host.

use std::path::Path;
use std::time::{Duration, Instant};

use agent::report::{self, Report};
use api::NodeMigration;
use api::node_migration::{Failure, NodeMigrationSpec, NodeMigrationStatus, ProbeResult};
use api::traffic::{ClassCount, TrafficReport};
use jiff::Timestamp;
use plan::flannel_to_calico::host::{self, HostDecision, HostSettings, HostStep, Remembered, Undo};
use plan::flannel_to_calico::host_checks::{self, Subject};
use plan::flannel_to_calico::phase::Goal;
use plan::traffic::stream::Totals;

use super::host::Host;
use super::steps::perform;

/// More steps than any host has.
const MOST_STEPS: usize = 64;
/// How long a change of mere facts may wait for its write, as with the real agent.
const LAZY_WRITE: Duration = Duration::from_secs(10);
/// Where the real agent keeps its journal.
const JOURNAL: &str = "/var/lib/replumb";

/// One agent without a host.
#[derive(Debug)]
pub struct Agent {
    /// The model of the host.
    pub host: Host,
    node: String,
    standing: Vec<HostStep>,
    wrote_at: Option<Instant>,
}

/// What a turn asks for.
#[derive(Debug)]
pub enum Turn {
    /// The object says it already.
    Nothing,
    /// The object is to say this.
    Write(Box<NodeMigrationStatus>),
    /// The same, after this time.
    Later(Duration),
}

impl Agent {
    /// An agent that has not looked yet.
    pub fn new(node: String, host: Host) -> Self {
        Self {
            host,
            node,
            standing: Vec::new(),
            wrote_at: None,
        }
    }

    /// Looks, does what is asked, and says what is to be written.
    pub fn turn(&mut self, object: &NodeMigration) -> Turn {
        let report = self.work(&object.spec);
        let old = object.status.clone().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let wanted = report::status(&report, generation, &old, Timestamp::now());
        if object.status.as_ref() == Some(&wanted) {
            return Turn::Nothing;
        }
        if let Some(wrote_at) = self.wrote_at
            && object.status.is_some()
            && !report::is_urgent(&old, &wanted)
            && wrote_at.elapsed() < LAZY_WRITE
        {
            return Turn::Later(LAZY_WRITE.saturating_sub(wrote_at.elapsed()));
        }
        self.wrote_at = Some(Instant::now());
        Turn::Write(Box::new(wanted))
    }

    fn work(&mut self, spec: &NodeMigrationSpec) -> Report {
        let settings = spec.flannel_to_calico.clone().unwrap_or_else(usual_settings);
        let goal = if spec.flannel_to_calico.is_some() {
            spec.goal
        } else {
            Goal::Hold
        };
        let mut message = String::new();
        let mut failure = None;
        for _ in 0..MOST_STEPS {
            let remembered = Remembered {
                interrupted: None,
                standing: self.standing.clone(),
                alone: false,
            };
            match host::decide(&self.host.facts, &settings, goal, &remembered) {
                HostDecision::Run(step) => self.perform(step),
                HostDecision::Wait(what) => {
                    message = what;
                    break;
                }
                HostDecision::Settled => {
                    "hollow: nothing is left to do".clone_into(&mut message);
                    break;
                }
                HostDecision::Halt(why) => {
                    message.clone_from(&why);
                    failure = Some(Failure {
                        category: "Contradiction".to_owned(),
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
            settings_are_known: spec.flannel_to_calico.is_some(),
            phase,
            goal,
        };
        let mut checks = host_checks::checks(subject);
        checks.push(host_checks::journal(&self.node, Path::new(JOURNAL), &Ok(())));
        Report {
            phase: Some(phase),
            message,
            failure,
            leftovers: host::leftovers(facts, &settings),
            changes: host::changes(facts, &settings, &self.standing),
            goal: Some(goal),
            checks,
            facts: Some(facts.clone()),
            probes: probes(spec),
            traffic: traffic(spec),
            ..Report::default()
        }
    }

    fn perform(&mut self, step: HostStep) {
        perform(&mut self.host, &step);
        self.standing.retain(|standing| !step.takes_back(standing));
        match step.undo() {
            Undo::By(_) => self.standing.push(step),
            Undo::Nothing(_) => {}
        }
    }
}

/// Every target answers at once.
fn probes(spec: &NodeMigrationSpec) -> Vec<ProbeResult> {
    let now = Timestamp::now();
    let answered = |target: &api::node_migration::ProbeTarget| ProbeResult {
        target: target.clone(),
        reached: true,
        message: "hollow: UDP, TCP and a full-MTU datagram are taken for answered".to_owned(),
        at: now,
    };
    spec.probes.iter().map(answered).collect()
}

/// Every pod that is to send reports, and loses nothing.
fn traffic(spec: &NodeMigrationSpec) -> Option<TrafficReport> {
    if spec.flows.is_empty() {
        return None;
    }
    let mut reporting: Vec<String> = spec.flows.iter().map(|flow| flow.source.clone()).collect();
    reporting.sort();
    reporting.dedup();
    let mut classes: Vec<_> = spec.flows.iter().map(|flow| flow.class).collect();
    classes.sort();
    classes.dedup();
    let totals = Totals {
        sent: 1,
        lost: 0,
        longest_gap_milliseconds: 0,
    };
    Some(TrafficReport {
        flows: u32::try_from(spec.flows.len()).unwrap_or(u32::MAX),
        judged_since: spec.judged_since,
        reporting,
        classes: classes
            .into_iter()
            .map(|class| ClassCount { class, totals })
            .collect(),
        breaches: Vec::new(),
        floods: Vec::new(),
        at: Timestamp::now(),
    })
}

/// What an agent looks for until it is told.
fn usual_settings() -> HostSettings {
    HostSettings {
        vni: 1,
        port: 8472,
        mtu: 1450,
        cni_configuration_directory: "/etc/cni/net.d".to_owned(),
        block_size: 26,
        node_range_length: 24,
        ipv6: None,
    }
}

#[cfg(test)]
mod tests {
    use plan::flannel_to_calico::phase::Phase;
    use serde_json::json;

    use super::super::host::{PodOnHost, Role};
    use super::*;
    use crate::scale::{POD_NETWORK, shape, size::Place};

    fn agent() -> Agent {
        let node = serde_json::from_value(shape::node(Place(300))).unwrap();
        let host = Host::of(&node, POD_NETWORK.parse().unwrap()).unwrap();
        Agent::new("a".to_owned(), host)
    }

    fn pod(role: Role) -> PodOnHost {
        PodOnHost {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            role,
        }
    }

    /// One that has an address of this number of the node's range.
    fn ordinary(number: u8) -> PodOnHost {
        pod(Role::OnPodNetwork(format!("10.129.44.{number}").parse().unwrap()))
    }

    /// What the agent says once it is asked for this.
    fn says(agent: &mut Agent, goal: &str) -> NodeMigrationStatus {
        agent.wrote_at = None;
        let object = serde_json::from_value(json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": "a"},
            "spec": {"nodeName": "a", "migration": "m", "goal": goal, "flannelToCalico": usual_settings()},
        }))
        .unwrap();
        match agent.turn(&object) {
            Turn::Write(status) => *status,
            other => panic!("it has said nothing yet: {other:?}"),
        }
    }

    #[test]
    fn every_check_passes_on_a_host_that_flannel_serves() {
        let mut agent = agent();
        agent.host.run("f", pod(Role::Flannel));
        agent.host.run("0a-1", ordinary(2));
        let status = says(&mut agent, "Hold");
        assert_eq!(status.phase, Some(Phase::Flannel));
        assert!(
            status
                .checks
                .iter()
                .all(|check| check.verdict == plan::check::Verdict::Pass),
            "{:?}",
            status.checks
        );
        assert_eq!(status.facts.unwrap().legacy_pods.len(), 1);
    }

    #[test]
    fn by_drain_each_phase_waits_for_what_it_needs() {
        let mut agent = agent();
        agent.host.run("f", pod(Role::Flannel));
        agent.host.run("0a-1", ordinary(2));
        assert_eq!(
            says(&mut agent, "Held").phase,
            Some(Phase::Flannel),
            "flanneld runs"
        );
        agent.host.end("f");
        assert_eq!(says(&mut agent, "Held").phase, Some(Phase::Held));
        assert_eq!(
            says(&mut agent, "Detached").phase,
            Some(Phase::Held),
            "a pod lives"
        );
        agent.host.end("0a-1");
        assert_eq!(says(&mut agent, "Detached").phase, Some(Phase::Detached));
        assert_eq!(
            says(&mut agent, "Calico").phase,
            Some(Phase::Detached),
            "calico-node does not run"
        );
        agent.host.run("c", pod(Role::CalicoNode));
        let status = says(&mut agent, "Calico");
        assert_eq!(
            (status.phase, status.leftovers.len()),
            (Some(Phase::Calico), 0),
            "{status:?}"
        );
        agent.host.run("0b-2", ordinary(3));
        let facts = says(&mut agent, "Calico").facts.unwrap();
        assert_eq!((facts.legacy_pods.len(), facts.calico.pods.len()), (0, 1));
    }

    #[test]
    fn in_place_pods_of_both_networks_live_side_by_side() {
        let mut agent = agent();
        agent.host.run("0a-1", ordinary(2));
        assert_eq!(says(&mut agent, "Held").phase, Some(Phase::Held));
        let status = says(&mut agent, "Swapped");
        assert_eq!(status.phase, Some(Phase::Swapped));
        assert!(status.facts.unwrap().legacy_pods[0].routed);
        agent.host.run("c", pod(Role::CalicoNode));
        agent.host.run("0b-2", ordinary(3));
        let status = says(&mut agent, "Mixed");
        assert_eq!(status.phase, Some(Phase::Mixed));
        let facts = status.facts.unwrap();
        assert_eq!((facts.legacy_pods.len(), facts.calico.pods.len()), (1, 1));
    }

    #[test]
    fn the_way_back_leaves_the_host_as_it_was() {
        let mut agent = agent();
        agent.host.run("f", pod(Role::Flannel));
        agent.host.run("0a-1", ordinary(2));
        let before = says(&mut agent, "Hold").facts.unwrap();
        agent.host.end("f");
        says(&mut agent, "Swapped");
        agent.host.run("c", pod(Role::CalicoNode));
        assert_eq!(says(&mut agent, "Mixed").phase, Some(Phase::Mixed));
        agent.host.end("c");
        let status = says(&mut agent, "Flannel");
        assert_eq!(
            (status.phase, status.changes.len()),
            (Some(Phase::Flannel), 0),
            "{:?}",
            status.changes
        );
        agent.host.run("f", pod(Role::Flannel));
        assert_eq!(says(&mut agent, "Hold").facts.unwrap(), before);
    }

    #[test]
    fn every_flow_is_reported_and_every_probe_is_answered() {
        let spec: NodeMigrationSpec = serde_json::from_value(json!({
            "nodeName": "a", "migration": "m",
            "probes": [{"node": "b", "address": "10.128.0.2", "port": 9812, "podUid": "u"}],
            "flows": [
                {"class": "OldToOld", "source": "s", "to": "node b", "address": "10.128.0.2", "port": 9812, "podUid": "t"},
                {"class": "PodToApi", "source": "s", "to": "Service default/kubernetes", "address": "10.96.0.1", "port": 443},
            ],
        }))
        .unwrap();
        assert!(probes(&spec).iter().all(|probe| probe.reached) && probes(&spec).len() == 1);
        let report = traffic(&spec).unwrap();
        assert_eq!(
            (report.flows, report.reporting, report.classes.len()),
            (2, vec!["s".to_owned()], 2)
        );
    }
}
