use api::node_migration::{LabelRecord, NodeMigrationSpec, ProbeTarget};
use api::traffic::{Breach, ClassCount, Flow, PathClass, Totals};
use flannel_to_calico::phase::Goal;
use runtime::error::chain;

use super::*;

/// How long a change may wait where the spec asks for what the agent works towards.
fn waits(old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> Duration {
    may_wait(new.goal.unwrap_or_default(), old, new)
}

/// Whether a change is written at once.
fn at_once(old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> bool {
    waits(old, new).is_zero()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn object(status: Option<NodeMigrationStatus>) -> NodeMigration {
    let mut object = NodeMigration::new(
        "a",
        NodeMigrationSpec {
            node_name: "a".to_owned(),
            migration: "m".to_owned(),
            goal: Goal::Hold,
            flannel_to_calico: None,
            pod_cidr: None,
            service_cidr: None,
            calico_datastore: None,
            probes: Vec::new(),
            flows: Vec::new(),
            gates: None,
            judged_since: None,
            label: LabelRecord::default(),
            imported: Vec::new(),
            position: 0,
            admitted: false,
            skipped: false,
            prepare: Vec::new(),
            plan: Vec::new(),
            before: None,
            step: None,
            history: Vec::new(),
            started_at: None,
            finished_at: None,
            done_before: None,
            returning: false,
            returned_at: None,
            fell_back: None,
        },
    );
    object.metadata.uid = Some("u-1".to_owned());
    object.status = status;
    object
}

fn report() -> Report {
    Report {
        phase: Some(Phase::Flannel),
        message: "looks and changes nothing".to_owned(),
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

/// A host on flannel with so many pods, of which the record of the last one may be unknown.
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
        phase: Some(phase),
        goal,
        facts: Some(serde_json::from_value(facts).unwrap()),
        checks: vec![Check::pass(
            "FlannelBridge",
            "Node a: link cni0",
            format!("a bridge with {number} pods"),
        )],
        leftovers: vec![format!("{number} files of host-local")],
        ..report()
    }
}

#[test]
fn pods_that_come_and_go_are_written_when_a_decision_needs_them_and_seldom_otherwise() {
    use Goal::{Calico, Flannel, Hold, Mixed, Swapped};
    let told = |report: &Report| status(report, 3, &NodeMigrationStatus::default(), at(100));
    let changes = |goal, phase, from: u32, to: u32| {
        waits(
            &told(&with_pods(from, goal, phase, 0)),
            &told(&with_pods(to, goal, phase, 0)),
        )
    };
    // Nothing is asked of the node.
    for goal in [None, Some(Hold)] {
        assert_eq!(changes(goal, Phase::Flannel, 30, 31), PODS_WAIT);
    }
    // It is brought somewhere, or back.
    for (goal, phase) in [
        (Swapped, Phase::Held),
        (Mixed, Phase::Swapped),
        (Calico, Phase::Mixed),
        (Flannel, Phase::Flannel),
    ] {
        assert_eq!(changes(Some(goal), phase, 30, 29), Duration::ZERO, "{goal:?}");
    }
    // It is there, and pods of the old network go one by one; the last few are waited for. Calico's come and go.
    assert_eq!(changes(Some(Mixed), Phase::Mixed, 30, 29), FACTS_WAIT);
    let late = changes(Some(Swapped), Phase::Swapped, 30, 31);
    assert_eq!(late, Duration::ZERO, "a pod that came late");
    let of_calico = |goal, pods: &[&str]| {
        let mut told = told(&with_pods(30, Some(goal), Phase::Mixed, 0));
        told.facts.as_mut().unwrap().calico.pods = pods.iter().map(ToString::to_string).collect();
        told
    };
    let (one, two) = (&["cali1"][..], &["cali1", "cali2"][..]);
    for (goal, wait) in [(Mixed, PODS_WAIT), (Flannel, FACTS_WAIT)] {
        assert_eq!(waits(&of_calico(goal, one), &of_calico(goal, two)), wait);
        assert_eq!(waits(&of_calico(goal, &[]), &of_calico(goal, one)), FACTS_WAIT);
    }
    for left in [2, 1, 0] {
        assert_eq!(changes(Some(Mixed), Phase::Mixed, left + 1, left), Duration::ZERO);
    }
    // A pod that no record names is a finding of preflight, and so is that there is none any more.
    let known = told(&with_pods(30, None, Phase::Flannel, 0));
    let unknown = told(&with_pods(30, None, Phase::Flannel, 1));
    assert_eq!(waits(&known, &unknown), FACTS_WAIT);
    assert_eq!(waits(&unknown, &known), FACTS_WAIT);
    // Anything else of the host.
    let mut other = known.clone();
    other.facts.as_mut().unwrap().uplink = Some("eth0".to_owned());
    assert_eq!(waits(&known, &other), FACTS_WAIT);
    let mut failing = known.clone();
    failing.checks[0].verdict = Verdict::Fail;
    assert_eq!(waits(&known, &failing), Duration::ZERO);
}

/// An agent whose journal cannot be written reports the goal Hold, wherever its host is.
#[test]
fn an_agent_that_cannot_remember_its_goal_tells_pods_as_soon_as_one_that_can() {
    use Goal::{Calico, Flannel, Hold, Mixed, Swapped};
    let told = |pods: u32, phase, goal| {
        let failing = Report {
            failure: Some(Failure {
                category: "JournalFile".to_owned(),
                message: "the goal cannot be remembered: No space left on device".to_owned(),
                retriable: true,
            }),
            ..with_pods(pods, Some(goal), phase, 0)
        };
        status(&failing, 3, &NodeMigrationStatus::default(), at(100))
    };
    for (asked, phase, from, to) in [
        // A pod that came late, one that went on the way there and back, and the last one.
        (Swapped, Phase::Swapped, 30, 31),
        (Mixed, Phase::Mixed, 30, 31),
        (Mixed, Phase::Swapped, 30, 29),
        (Calico, Phase::Mixed, 30, 29),
        (Mixed, Phase::Mixed, 1, 0),
        (Flannel, Phase::Swapped, 30, 29),
        // One of many pods goes on a node that is there.
        (Mixed, Phase::Mixed, 30, 29),
    ] {
        let wait = |goal| may_wait(asked, &told(from, phase, goal), &told(to, phase, goal));
        assert_eq!(
            wait(Hold),
            wait(asked),
            "{asked:?}, {phase:?}: {from} to {to} pods"
        );
        assert!(wait(Hold) < PODS_WAIT);
    }
    // The agent has gone back by itself, and the coordinator has not asked for that yet.
    let wait = may_wait(
        Mixed,
        &told(30, Phase::Held, Flannel),
        &told(29, Phase::Held, Flannel),
    );
    assert_eq!(wait, Duration::ZERO);
    // Nothing is asked of the host.
    let wait = may_wait(
        Hold,
        &told(30, Phase::Flannel, Hold),
        &told(31, Phase::Flannel, Hold),
    );
    assert_eq!(wait, PODS_WAIT);
}

#[test]
fn what_is_said_already_is_not_written_again() {
    let first = status(&report(), 3, &NodeMigrationStatus::default(), at(100));
    let again = status(&report(), 3, &first, at(200));
    assert_eq!(again, first, "no clock in it");
    assert_eq!(patch(&object(Some(first)), &again).unwrap(), None);
}

#[test]
fn the_patch_names_what_changed_and_the_object_that_is_meant() {
    let first = status(&report(), 3, &NodeMigrationStatus::default(), at(100));
    let held = Report {
        phase: Some(Phase::Held),
        failure: None,
        ..report()
    };
    let second = status(&held, 4, &first, at(200));
    assert_eq!(
        patch(&object(Some(first)), &second).unwrap().unwrap(),
        json!({
            "metadata": { "uid": "u-1" },
            "status": { "phase": "Held", "phaseSince": "1970-01-01T00:03:20Z", "observedGeneration": 4 },
        })
    );
}

#[test]
fn what_is_no_longer_true_is_taken_away() {
    let broken = Report {
        failure: Some(Failure {
            category: "HostFile".to_owned(),
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
        phase: None,
        ..report()
    };
    let second = status(&blind, 3, &first, at(200));
    assert_eq!((second.phase, second.phase_since), (None, None));
    // And when it is read again, the phase counts from then.
    assert_eq!(status(&report(), 3, &second, at(300)).phase_since, Some(at(300)));
}

#[test]
fn a_probe_that_says_the_same_is_not_news() {
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
fn mere_facts_can_wait_and_everything_else_cannot() {
    let first = status(&report(), 3, &NodeMigrationStatus::default(), at(100));
    let more = Report {
        leftovers: vec!["2 host-local leases".to_owned()],
        ..report()
    };
    assert!(!waits(&first, &status(&more, 3, &first, at(200))).is_zero());
    let held = Report {
        phase: Some(Phase::Held),
        ..report()
    };
    assert!(at_once(&first, &status(&held, 3, &first, at(200))));
    assert!(
        at_once(&first, &status(&report(), 4, &first, at(200))),
        "the generation is waited for"
    );
}

/// The last pod that leaves the old range is waited for; one of many is not.
#[test]
fn an_old_range_that_is_empty_is_told_at_once() {
    use engine::found::Found;
    use engine::kernel::{Device, Tables};
    use pod_cidr::host::{HostFacts, HostSettings, facts};

    let settings = HostSettings {
        from: "10.244.0.0/16".parse().unwrap(),
        to: "10.200.0.0/16".parse().unwrap(),
        mtu: None,
        cni_configuration_directory: None,
        tunnel_ends: Vec::new(),
    };
    let look = |addresses: &[&str]| -> Option<HostFacts> {
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
        Some(facts(&settings, Found::Absent, &tables))
    };
    let told = |facts: Option<HostFacts>, old: &NodeMigrationStatus| {
        let report = Report {
            phase: None,
            pod_cidr: facts,
            ..report()
        };
        status(&report, 3, old, at(200))
    };
    let both = Report {
        pod_cidr: look(&["10.244.1.1/32", "10.244.1.2/32"]),
        leftovers: vec!["link cni0".to_owned()],
        ..report()
    };
    assert_eq!(both.left(), 3);
    let before = told(None, &NodeMigrationStatus::default());
    let two = told(look(&["10.244.1.1/32", "10.244.1.2/32"]), &before);
    assert!(at_once(&before, &two), "the first report");
    let one = told(look(&["10.244.1.1/32"]), &two);
    assert_ne!(one, two);
    assert!(!waits(&two, &one).is_zero());
    let none = told(look(&[]), &one);
    assert!(at_once(&one, &none));
    assert!(at_once(&none, &told(None, &none)), "nobody can look any more");
    assert_eq!((none.phase, none.phase_since, none.goal), (None, None, None));
}

/// What is found of Services: connections come and go and can wait, everything else cannot.
#[test]
fn of_services_only_connections_can_wait() {
    use engine::found::Found;
    use service_cidr::host::{Connection, HostFacts, InTarget, ProxyMode, ServicePort};
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
        unknown: Found::Present(vec![port.clone()]),
        cluster_dns: Found::Absent,
        api_server: "10.96.0.1".to_owned(),
        in_target: InTarget::default(),
        carriers: Found::Absent,
        connections: connections(&["10.244.1.5"]),
    };
    let told = |facts: Option<HostFacts>, old: &NodeMigrationStatus| {
        let report = Report {
            phase: None,
            service_cidr: facts,
            ..report()
        };
        status(&report, 3, old, at(200))
    };
    let nobody = told(None, &NodeMigrationStatus::default());
    let before = told(Some(one.clone()), &nobody);
    assert_eq!(before.service_cidr, Some(one.clone()));
    assert!(at_once(&nobody, &before), "the first report");
    let two = HostFacts {
        connections: connections(&["10.244.1.5", "10.244.1.6"]),
        ..one.clone()
    };
    let two = told(Some(two), &before);
    assert_ne!(two, before);
    assert!(!waits(&before, &two).is_zero());
    let known = HostFacts {
        unknown: Found::Present(Vec::new()),
        ..one
    };
    assert!(at_once(&before, &told(Some(known), &before)));
    assert!(at_once(&before, &told(None, &before)), "nobody can look any more");
}

#[test]
fn an_error_is_told_with_its_causes() {
    let error = ReportError {
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
        flows: 1,
        judged_since: None,
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

/// Probes that are answered are no news, a lost one can wait a little, a breach cannot.
#[test]
fn traffic_is_told_when_it_says_something_new() {
    let told = |traffic: TrafficReport, old: &NodeMigrationStatus| {
        let report = Report {
            traffic: Some(traffic),
            ..report()
        };
        status(&report, 1, old, at(5))
    };
    let first = told(traffic(10, 0, false), &NodeMigrationStatus::default());
    assert!(first.traffic.is_some());
    assert_eq!(told(traffic(20, 0, false), &first), first);
    let lost = told(traffic(30, 1, false), &first);
    assert_eq!(lost.traffic, Some(traffic(30, 1, false)));
    assert!(!waits(&first, &lost).is_zero());
    let breach = told(traffic(40, 9, true), &lost);
    assert!(at_once(&lost, &breach));
    assert!(at_once(&breach, &told(traffic(50, 9, false), &breach)));
}
