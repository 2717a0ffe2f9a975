use ::flannel_to_calico::api::{NodeSpec, NodeStatus, OrEmpty as _};
use api::FailureCategory;
use api::node_migration::{Failure, ProbeResult, ProbeTarget};
use api::traffic::{Breach, ClassCount, Flow, PathClass, Totals};
use engine::check::{Check, Verdict};
use flannel_to_calico::phase::{Goal, Phase};
use runtime::error::chain;

use super::*;

/// How long a change may be delayed if the agent works towards the goal of the spec.
fn waits(old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> Duration {
    may_wait(
        &with_goal(new.flannel_to_calico.or_empty().goal.unwrap_or_default()),
        old,
        new,
    )
}

/// Whether a change is written immediately.
fn at_once(old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> bool {
    waits(old, new).is_zero()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn object(status: Option<NodeMigrationStatus>) -> NodeMigration {
    let spec = NodeMigrationSpec {
        node_name: "a".to_owned(),
        migration: "m".to_owned(),
        ..NodeMigrationSpec::default()
    };
    let mut object = NodeMigration::new("a", spec);
    object.metadata.uid = Some("u-1".to_owned());
    object.status = status;
    object
}

/// The spec of a node with this goal.
fn with_goal(goal: Goal) -> NodeMigrationSpec {
    NodeMigrationSpec {
        flannel_to_calico: Some(NodeSpec {
            goal,
            ..NodeSpec::default()
        }),
        ..NodeMigrationSpec::default()
    }
}

/// What flannelToCalico reports.
fn on_host(of_host: NodeStatus) -> NodeMigrationStatus {
    NodeMigrationStatus {
        flannel_to_calico: Some(of_host),
        ..NodeMigrationStatus::default()
    }
}

/// A report with this phase.
fn in_phase(phase: Phase) -> Report {
    Report {
        kinds: on_host(NodeStatus {
            phase: Some(phase),
            ..NodeStatus::default()
        }),
        ..report()
    }
}

fn report() -> Report {
    Report {
        kinds: on_host(NodeStatus {
            phase: Some(Phase::Flannel),
            ..NodeStatus::default()
        }),
        message: "observing, no changes".to_owned(),
        ..Report::default()
    }
}

fn probe(reached: bool, second: i64) -> ProbeResult {
    ProbeResult {
        target: ProbeTarget {
            node: "b".to_owned(),
            address: "10.244.2.3".parse().unwrap(),
            port: 9812,
            pod_uid: "u-9".to_owned(),
        },
        reached,
        message: if reached { "UDP answered" } else { "UDP: no answer" }.to_owned(),
        at: at(second),
    }
}

/// A host on flannel with this number of pods; the first `unknown` ones have no record.
fn with_pods(number: u32, goal: Option<Goal>, phase: Phase, unknown: u32) -> Report {
    let link = |pod: u32| format!("veth{pod}");
    let pods: Vec<Value> = (unknown..number)
        .map(|pod| {
            json!({
                "namespace": "default", "name": format!("web-{pod}"), "sandbox": format!("s{pod}"), "link": link(pod),
                "addresses": [format!("10.244.1.{}", 10 + pod)], "attached": true, "routed": false,
            })
        })
        .collect();
    let ports: Vec<String> = (0..number).map(link).collect();
    let facts = json!({
        "cni": { "path": "/etc/cni/net.d", "files": [] },
        "vxlanDevices": [],
        "bridge": { "present": { "name": "cni0", "mtu": 1450, "addresses": ["10.244.1.1/24"], "ports": ports } },
        "legacyPods": pods,
        "calico": { "pods": [], "records": number },
        "directRoutes": [],
        "reversePathFilter": { "all": 1, "interfaces": {} },
        "subnetEnvironment": { "absent": true },
        "flanneldRunning": true,
        "firewall": [],
        "leases": number,
        "delegates": number,
        "detectedAddress": null,
        "uplink": null,
        "bridgeNfCallIptables": true,
    });
    Report {
        kinds: on_host(NodeStatus {
            phase: Some(phase),
            goal,
            facts: Some(serde_json::from_value(facts).unwrap()),
            checks: vec![Check::pass(
                "FlannelBridge",
                "Node a: link cni0",
                format!("a bridge with {number} pods"),
            )],
            leftovers: vec![format!("{number} files of host-local")],
            ..NodeStatus::default()
        }),
        ..report()
    }
}

#[test]
fn changed_pods_are_written_immediately_only_if_a_decision_needs_them() {
    use Goal::{Calico, Flannel, Hold, Mixed, Swapped};
    let status_of = |report: &Report| status(report, 3, &NodeMigrationStatus::default(), at(100));
    let changes = |goal, phase, from: u32, to: u32| {
        waits(
            &status_of(&with_pods(from, goal, phase, 0)),
            &status_of(&with_pods(to, goal, phase, 0)),
        )
    };
    // The node has no goal.
    for goal in [None, Some(Hold)] {
        assert_eq!(changes(goal, Phase::Flannel, 30, 31), PODS_WAIT);
    }
    // The node is on its way to a goal, or rolled back.
    for (goal, phase) in [
        (Swapped, Phase::Held),
        (Mixed, Phase::Swapped),
        (Calico, Phase::Mixed),
        (Flannel, Phase::Flannel),
    ] {
        assert_eq!(changes(Some(goal), phase, 30, 29), Duration::ZERO, "{goal:?}");
    }
    // The goal is reached, and pods of the old network end one by one; the coordinator waits for the last few. Calico's pods
    // change.
    assert_eq!(changes(Some(Mixed), Phase::Mixed, 30, 29), FACTS_WAIT);
    let late = changes(Some(Swapped), Phase::Swapped, 30, 31);
    assert_eq!(late, Duration::ZERO, "a pod that was added late");
    let of_calico = |goal, pods: &[&str]| {
        let mut status = status_of(&with_pods(30, Some(goal), Phase::Mixed, 0));
        status
            .flannel_to_calico
            .as_mut()
            .unwrap()
            .facts
            .as_mut()
            .unwrap()
            .calico
            .pods = pods.iter().map(ToString::to_string).collect();
        status
    };
    let (one, two) = (&["cali1"][..], &["cali1", "cali2"][..]);
    for (goal, wait) in [(Mixed, PODS_WAIT), (Flannel, FACTS_WAIT)] {
        assert_eq!(waits(&of_calico(goal, one), &of_calico(goal, two)), wait);
        assert_eq!(waits(&of_calico(goal, &[]), &of_calico(goal, one)), FACTS_WAIT);
    }
    for remaining in [2, 1, 0] {
        assert_eq!(
            changes(Some(Mixed), Phase::Mixed, remaining + 1, remaining),
            Duration::ZERO
        );
    }
    // Preflight reports a pod without a record; that no such pod remains lets a migration start.
    let known = status_of(&with_pods(30, None, Phase::Flannel, 0));
    let unknown = status_of(&with_pods(30, None, Phase::Flannel, 1));
    assert_eq!(waits(&known, &unknown), FACTS_WAIT);
    assert_eq!(waits(&unknown, &known), Duration::ZERO);
    // Other facts of the host.
    let mut other = known.clone();
    other
        .flannel_to_calico
        .as_mut()
        .unwrap()
        .facts
        .as_mut()
        .unwrap()
        .uplink = Some("eth0".to_owned());
    assert_eq!(waits(&known, &other), FACTS_WAIT);
    let mut failing = known.clone();
    failing.flannel_to_calico.as_mut().unwrap().checks[0].verdict = Verdict::Fail;
    assert_eq!(waits(&known, &failing), Duration::ZERO);
}

/// An agent whose journal cannot be written reports the goal Hold, wherever its host is.
#[test]
fn an_agent_that_cannot_save_its_goal_reports_pods_as_soon_as_one_that_can() {
    use Goal::{Calico, Flannel, Hold, Mixed, Swapped};
    let status_of = |pods: u32, phase, goal| {
        let failing = Report {
            failure: Some(Failure {
                category: FailureCategory::JournalFile.into(),
                message: "the goal cannot be saved: No space left on device".to_owned(),
                retriable: true,
            }),
            ..with_pods(pods, Some(goal), phase, 0)
        };
        status(&failing, 3, &NodeMigrationStatus::default(), at(100))
    };
    for (spec_goal, phase, from, to) in [
        // A pod that was added late, one that ended on the way forward and back, and the last one.
        (Swapped, Phase::Swapped, 30, 31),
        (Mixed, Phase::Mixed, 30, 31),
        (Mixed, Phase::Swapped, 30, 29),
        (Calico, Phase::Mixed, 30, 29),
        (Mixed, Phase::Mixed, 1, 0),
        (Flannel, Phase::Swapped, 30, 29),
        // One of many pods ends on a node that has reached its goal.
        (Mixed, Phase::Mixed, 30, 29),
    ] {
        let wait = |goal| {
            may_wait(
                &with_goal(spec_goal),
                &status_of(from, phase, goal),
                &status_of(to, phase, goal),
            )
        };
        assert_eq!(
            wait(Hold),
            wait(spec_goal),
            "{spec_goal:?}, {phase:?}: {from} to {to} pods"
        );
        assert!(wait(Hold) < PODS_WAIT);
    }
    // The agent has rolled back without the coordinator, which has not changed the goal yet.
    let wait = may_wait(
        &with_goal(Mixed),
        &status_of(30, Phase::Held, Flannel),
        &status_of(29, Phase::Held, Flannel),
    );
    assert_eq!(wait, Duration::ZERO);
    // The host has no goal.
    let wait = may_wait(
        &with_goal(Hold),
        &status_of(30, Phase::Flannel, Hold),
        &status_of(31, Phase::Flannel, Hold),
    );
    assert_eq!(wait, PODS_WAIT);
}

/// The coordinator lets Calico's conflist replace flannel's then.
#[test]
fn the_first_objects_of_calico_node_are_reported_at_once() {
    let with = |goal, blackholes| {
        let report = with_pods(5, Some(goal), Phase::Swapped, 0);
        let mut status = status(&report, 3, &NodeMigrationStatus::default(), at(100));
        let of_host = status.flannel_to_calico.as_mut().unwrap();
        of_host.facts.as_mut().unwrap().calico.blackholes = blackholes;
        status
    };
    assert!(at_once(&with(Goal::Swapped, 0), &with(Goal::Swapped, 1)));
    assert!(!at_once(&with(Goal::Swapped, 1), &with(Goal::Swapped, 2)));
    assert!(!at_once(&with(Goal::Hold, 0), &with(Goal::Hold, 1)));
}

#[test]
fn an_unchanged_status_is_not_written_again() {
    let first = status(&report(), 3, &NodeMigrationStatus::default(), at(100));
    let again = status(&report(), 3, &first, at(200));
    assert_eq!(again, first, "the status does not depend on the time");
    assert_eq!(patch(&object(Some(first)), &again).unwrap(), None);
}

#[test]
fn the_patch_has_the_changed_fields_and_the_uid() {
    let first = status(&report(), 3, &NodeMigrationStatus::default(), at(100));
    let held = in_phase(Phase::Held);
    let second = status(&held, 4, &first, at(200));
    assert_eq!(
        patch(&object(Some(first)), &second).unwrap().unwrap(),
        json!({
            "metadata": { "uid": "u-1" },
            "status": {
                "flannelToCalico": { "phase": "Held", "phaseSince": "1970-01-01T00:03:20Z" },
                "observedGeneration": 4,
            },
        })
    );
}

#[test]
fn a_failure_that_ended_is_removed_from_the_status() {
    let broken = Report {
        failure: Some(Failure {
            category: FailureCategory::HostFile.into(),
            message: "x".to_owned(),
            retriable: true,
        }),
        ..report()
    };
    let first = status(&broken, 3, &NodeMigrationStatus::default(), at(100));
    let second = status(&report(), 3, &first, at(200));
    assert_eq!(
        patch(&object(Some(first)), &second).unwrap().unwrap(),
        json!({ "metadata": { "uid": "u-1" }, "status": { "failure": null } })
    );
}

#[test]
fn a_host_that_cannot_be_read_has_no_phase_and_no_facts() {
    let first = status(&report(), 3, &NodeMigrationStatus::default(), at(100));
    let blind = Report {
        kinds: on_host(NodeStatus::default()),
        ..report()
    };
    let second = status(&blind, 3, &first, at(200));
    assert_eq!(second.flannel_to_calico, Some(NodeStatus::default()));
    // When the host is read again, the phase dates from then.
    let third = status(&report(), 3, &second, at(300));
    assert_eq!(third.flannel_to_calico.or_empty().phase_since, Some(at(300)));
}

#[test]
fn a_probe_with_the_same_result_is_not_written_again() {
    let with = |result| Report {
        probes: vec![result],
        ..report()
    };
    let first = status(
        &with(probe(true, 100)),
        3,
        &NodeMigrationStatus::default(),
        at(100),
    );
    assert_eq!(status(&with(probe(true, 200)), 3, &first, at(200)), first);
    assert_eq!(
        status(&with(probe(false, 300)), 3, &first, at(300)).probes,
        [probe(false, 300)]
    );
}

#[test]
fn only_facts_are_written_with_a_delay() {
    let first = status(&report(), 3, &NodeMigrationStatus::default(), at(100));
    let mut more = report();
    more.kinds.flannel_to_calico.as_mut().unwrap().leftovers = vec!["2 host-local leases".to_owned()];
    assert!(!waits(&first, &status(&more, 3, &first, at(200))).is_zero());
    let held = in_phase(Phase::Held);
    assert!(at_once(&first, &status(&held, 3, &first, at(200))));
    assert!(
        at_once(&first, &status(&report(), 4, &first, at(200))),
        "the coordinator waits for the generation"
    );
}

/// The coordinator waits for the last pod that leaves the old range; not for one of many.
#[test]
fn an_empty_old_range_is_written_immediately() {
    use engine::found::Found;
    use engine::kernel::{Device, Tables};
    use pod_cidr::host::{HostFacts, HostSettings, facts};

    let settings = HostSettings {
        from: "10.244.0.0/16".parse().unwrap(),
        to: "10.200.0.0/16".parse().unwrap(),
        mtu: None,
        cni_configuration_directory: None,
        tunnel_addresses: Vec::new(),
    };
    let observed = |addresses: &[&str]| -> Option<HostFacts> {
        let device = Device {
            name: "eth1".to_owned(),
            mtu: 1500,
            up: true,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let tables = Tables {
            devices: vec![device],
            ..Tables::default()
        };
        Some(facts(&settings, Found::Absent, Found::Absent, &tables))
    };
    let status_of = |facts: Option<HostFacts>, old: &NodeMigrationStatus| {
        let report = Report {
            kinds: NodeMigrationStatus {
                pod_cidr: facts,
                ..NodeMigrationStatus::default()
            },
            ..report()
        };
        status(&report, 3, old, at(200))
    };
    let both = NodeMigrationStatus {
        pod_cidr: observed(&["10.244.1.1/32", "10.244.1.2/32"]),
        ..on_host(NodeStatus {
            leftovers: vec!["link cni0".to_owned()],
            ..NodeStatus::default()
        })
    };
    assert_eq!(kinds::count_leftovers(&both), 3);
    let before = status_of(None, &NodeMigrationStatus::default());
    let two = status_of(observed(&["10.244.1.1/32", "10.244.1.2/32"]), &before);
    assert!(at_once(&before, &two), "the first report");
    let one = status_of(observed(&["10.244.1.1/32"]), &two);
    assert_ne!(one, two);
    assert!(!waits(&two, &one).is_zero());
    let none = status_of(observed(&[]), &one);
    assert!(at_once(&one, &none));
    assert!(
        at_once(&none, &status_of(None, &none)),
        "facts that are missing now"
    );
    assert_eq!(none.flannel_to_calico, None);
}

/// Connections to Services change all the time and can be written with a delay; no other fact about Services can.
#[test]
fn only_connections_to_services_are_written_with_a_delay() {
    use engine::found::Found;
    use service_cidr::host::{Connection, HostFacts, ProxyMode, ServicePort, TargetFacts};
    let port = ServicePort {
        address: "172.30.0.1".parse().unwrap(),
        protocol: "TCP".to_owned(),
        port: 443,
    };
    let connections = |sources: &[&str]| {
        let connection = |source: &&str| Connection {
            source: source.parse().unwrap(),
            service: port.clone(),
        };
        Found::Present(sources.iter().map(connection).collect())
    };
    let one = HostFacts {
        local_traffic: Found::Absent,
        proxy_mode: Found::Present(ProxyMode::Iptables),
        expected_digest: None,
        missing_ports: Found::Present(vec![port.clone()]),
        cluster_dns: Found::Absent,
        api_server: "10.96.0.1".to_owned(),
        target: TargetFacts::default(),
        pods_with_source_addresses: Found::Absent,
        connections: connections(&["10.244.1.5"]),
    };
    let status_of = |facts: Option<HostFacts>, old: &NodeMigrationStatus| {
        let report = Report {
            kinds: NodeMigrationStatus {
                service_cidr: facts,
                ..NodeMigrationStatus::default()
            },
            ..report()
        };
        status(&report, 3, old, at(200))
    };
    let none = status_of(None, &NodeMigrationStatus::default());
    let before = status_of(Some(one.clone()), &none);
    assert_eq!(before.service_cidr, Some(one.clone()));
    assert!(at_once(&none, &before), "the first report");
    let two = HostFacts {
        connections: connections(&["10.244.1.5", "10.244.1.6"]),
        ..one.clone()
    };
    let two = status_of(Some(two), &before);
    assert_ne!(two, before);
    assert!(!waits(&before, &two).is_zero());
    let known = HostFacts {
        missing_ports: Found::Present(Vec::new()),
        ..one
    };
    assert!(at_once(&before, &status_of(Some(known), &before)));
    assert!(
        at_once(&before, &status_of(None, &before)),
        "facts that are missing now"
    );
}

#[test]
fn an_error_names_its_causes() {
    let error = StatusError {
        name: "a".to_owned(),
        source: kube::Error::Service("connection refused".into()),
    };
    let text = chain(&error);
    assert!(
        text.starts_with("writing the status of NodeMigration a: "),
        "{text}"
    );
    assert!(text.contains("connection refused"), "{text}");
}

fn traffic(sent: u64, lost: u64, breach: bool) -> TrafficReport {
    let flow = Flow {
        class: PathClass::OldToNew,
        source: "u-a".to_owned(),
        to: "node b".to_owned(),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        port: 9812,
        pod_uid: None,
    };
    let found = Breach {
        flow,
        protocol: None,
        since: at(1),
        message: "old→new".to_owned(),
    };
    TrafficReport {
        floods: Vec::new(),
        masquerades: Vec::new(),
        flows: 1,
        losses_counted_since: None,
        reporting: vec!["u-a".to_owned()],
        classes: vec![ClassCount {
            class: PathClass::OldToNew,
            totals: Totals {
                sent,
                lost,
                late: 0,
                longest_gap_milliseconds: 0,
            },
        }],
        breaches: breach.then_some(found).into_iter().collect(),
        at: at(i64::try_from(sent).unwrap()),
    }
}

/// Answered probes are not written, a lost one is written with a delay, a breach immediately.
#[test]
fn only_a_breach_of_traffic_is_written_immediately() {
    let status_of = |traffic: TrafficReport, old: &NodeMigrationStatus| {
        let report = Report {
            traffic: Some(traffic),
            ..report()
        };
        status(&report, 1, old, at(5))
    };
    let first = status_of(traffic(10, 0, false), &NodeMigrationStatus::default());
    assert!(first.traffic.is_some());
    assert_eq!(status_of(traffic(20, 0, false), &first), first);
    let lost = status_of(traffic(30, 1, false), &first);
    assert_eq!(lost.traffic, Some(traffic(30, 1, false)));
    assert!(!waits(&first, &lost).is_zero());
    let breach = status_of(traffic(40, 9, true), &lost);
    assert!(at_once(&lost, &breach));
    assert!(at_once(&breach, &status_of(traffic(50, 9, false), &breach)));
}
