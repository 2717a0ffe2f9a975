//! One hollow agent: runs a turn like the real agent, on the models of its host.

use std::time::{Duration, Instant};

use agent::report::Report;
use agent::status;
use anyhow::Result;
use api::NodeMigration;
use api::node_migration::{NodeMigrationSpec, NodeMigrationStatus, ProbeResult};
use api::traffic::{ClassCount, TrafficReport};
use engine::found::Found;
use engine::traffic::stream::Totals;
use ipnet::Ipv4Net;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::flannel_to_calico::Flannel;
use super::pod_cidr::{self, CalicoHost};
use super::pods::{PodOnHost, Pods};
use super::service_cidr;

/// The state that all hosts share.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Services.
    pub services: service_cidr::Known,
    /// Blocks and tunnel ends of Calico.
    pub calico: pod_cidr::Known,
}

/// One agent without a host.
#[derive(Debug)]
pub struct Agent {
    node: String,
    network: Ipv4Net,
    pods: Pods,
    flannel: Option<Flannel>,
    calico: CalicoHost,
    /// Whether the coordinator waits for a rule of kube-proxy that does not exist.
    waits: bool,
    wrote_at: Option<Instant>,
}

/// The write that a turn requests.
#[derive(Debug)]
pub enum Turn {
    /// The object is up to date.
    Nothing,
    /// Write this status.
    Write(Box<NodeMigrationStatus>),
    /// Write this status after this time.
    Later(Duration),
}

impl Agent {
    /// The agent of this Node, before its first turn. Pods have addresses of this network.
    pub fn new(node: &Node, network: Ipv4Net) -> Result<Self> {
        Ok(Self {
            node: node.name_any(),
            network,
            pods: Pods::new(),
            flannel: Flannel::of(node, network)?,
            calico: CalicoHost::default(),
            waits: false,
            wrote_at: None,
        })
    }

    /// Adds a pod on the host, or one with a new address.
    pub fn run(&mut self, uid: &str, pod: PodOnHost) {
        if let Some(flannel) = &mut self.flannel {
            flannel.host.run(uid, pod.clone());
        }
        self.pods.insert(uid.to_owned(), pod);
    }

    /// Removes a pod.
    pub fn end(&mut self, uid: &str) {
        if let Some(flannel) = &mut self.flannel {
            flannel.host.end(uid);
        }
        self.pods.remove(uid);
    }

    /// Whether the coordinator waits for a rule of kube-proxy that did not exist at the last turn.
    pub fn waits_for_rules(&self) -> bool {
        self.waits
    }

    /// Reads the host, takes the requested step, and returns the status to write.
    pub fn turn(&mut self, object: &NodeMigration, known: &Known) -> Turn {
        let report = self.work(&object.spec, known);
        let old = object.status.clone().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let wanted = status::status(&report, generation, &old, Timestamp::now());
        if object.status.as_ref() == Some(&wanted) {
            return Turn::Nothing;
        }
        if let Some(wrote_at) = self.wrote_at
            && object.status.is_some()
            && let may_wait = status::may_wait(&object.spec, &old, &wanted)
            && let left = may_wait.saturating_sub(wrote_at.elapsed())
            && !left.is_zero()
        {
            return Turn::Later(left);
        }
        self.wrote_at = Some(Instant::now());
        Turn::Write(Box::new(wanted))
    }

    fn work(&mut self, spec: &NodeMigrationSpec, known: &Known) -> Report {
        let report = if let Some(settings) = &spec.service_cidr {
            let services = &known.services;
            let question = services.question(settings);
            let facts = service_cidr::facts(settings, question, services, &self.pods, self.network);
            self.waits = !matches!(&facts.missing_ports, Found::Present(unknown) if unknown.is_empty());
            Report {
                message: "hollow: observing Services, no changes".to_owned(),
                kinds: NodeMigrationStatus {
                    service_cidr: Some(facts),
                    ..NodeMigrationStatus::default()
                },
                ..Report::default()
            }
        } else if let Some(settings) = &spec.pod_cidr {
            Report {
                message: format!("hollow: observes {} and {}", settings.from, settings.to),
                kinds: NodeMigrationStatus {
                    pod_cidr: Some(
                        self.calico
                            .observe(settings, &self.node, &known.calico, &self.pods),
                    ),
                    ..NodeMigrationStatus::default()
                },
                ..Report::default()
            }
        } else if let Some(flannel) = &mut self.flannel {
            flannel.work(spec)
        } else {
            Report {
                message: "hollow: a host without flannel has no step".to_owned(),
                ..Report::default()
            }
        };
        Report {
            probes: probes(spec),
            traffic: traffic(spec),
            ..report
        }
    }
}

/// Reports an answer of every target.
fn probes(spec: &NodeMigrationSpec) -> Vec<ProbeResult> {
    let now = Timestamp::now();
    let answered = |target: &api::node_migration::ProbeTarget| ProbeResult {
        target: target.clone(),
        reached: true,
        message: "hollow: UDP, TCP and a full-MTU datagram are reported as answered".to_owned(),
        at: now,
    };
    spec.probes.iter().map(answered).collect()
}

/// Every selected pod sends reports, and loses no probe.
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
        late: 0,
        longest_gap_milliseconds: 0,
    };
    Some(TrafficReport {
        flows: u32::try_from(spec.flows.len()).unwrap_or(u32::MAX),
        losses_counted_since: spec.losses_counted_since,
        reporting,
        classes: classes
            .into_iter()
            .map(|class| ClassCount { class, totals })
            .collect(),
        breaches: Vec::new(),
        floods: Vec::new(),
        masquerades: Vec::new(),
        at: Timestamp::now(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
