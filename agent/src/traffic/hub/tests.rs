use std::net::Ipv4Addr;

use engine::traffic::Protocol;
use engine::traffic::gates::LOSS_RATIO;
use engine::traffic::stream::{Recent, Totals};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;

use super::super::line::StreamCount;
use super::super::pod;
use super::*;
use crate::echo::{Echo, free_port};

/// A path that is silent for half a second is a breach.
const STRICT: Option<Gates> = Some(Gates {
    max_loss_ratio: LOSS_RATIO,
    max_gap_milliseconds: 500,
});

/// An agent that listens in a folder, and a pod `u-a` that receives its task there.
fn start() -> (TempDir, Hub, JoinHandle<()>) {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::listen("a", folder.path()).unwrap();
    let path = folder.path().to_owned();
    let sends = tokio::spawn(async move { pod::send(&path, "u-a").await });
    (folder, hub, sends)
}

fn flow(class: PathClass, source: &str, port: u16, pod_uid: Option<&str>) -> Flow {
    Flow {
        class,
        source: source.to_owned(),
        to: "node b".to_owned(),
        address: Ipv4Addr::LOCALHOST.into(),
        port,
        pod_uid: pod_uid.map(str::to_owned),
    }
}

async fn until<T>(what: &str, mut observe: impl FnMut() -> Option<T>) -> T {
    for _ in 0..400 {
        if let Some(found) = observe() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited 20 s for {what}");
}

fn sent(report: &TrafficReport, class: PathClass) -> Totals {
    let count = report.classes.iter().find(|count| count.class == class);
    count.map(|count| count.totals).unwrap_or_default()
}

/// A pod that sends, and one that answers and then stops: the report has the number of probes, and names the path.
#[tokio::test]
async fn a_breach_starts_and_ends_with_the_answers_of_a_pod() {
    let (_folder, hub, sends) = start();
    let port = free_port();
    let answers = |uid: &'static str| tokio::spawn(Echo::bind(port, uid).unwrap().serve());
    let answering = answers("u-b");
    let flows = [flow(PathClass::OldToNew, "u-a", port, Some("u-b"))];
    hub.set(&flows, STRICT, None, 1450);
    let report = until("probes", || {
        hub.report()
            .filter(|report| sent(report, PathClass::OldToNew).sent > 20)
    })
    .await;
    assert_eq!(sent(&report, PathClass::OldToNew).lost, 0);
    assert_eq!(report.reporting, ["u-a"]);
    assert_eq!(report.breaches, []);

    answering.abort();
    let _ = answering.await;
    let breaches = until("a breach", || {
        hub.report()
            .map(|report| report.breaches)
            .filter(|breaches| breaches.len() == 3)
    })
    .await;
    let udp = breaches
        .iter()
        .find(|breach| breach.protocol == Some(Protocol::Udp))
        .unwrap();
    assert!(
        udp.message
            .starts_with("old→new, UDP from node a to node b (127.0.0.1): no answer for more than"),
        "{}",
        udp.message
    );
    assert!(udp.message.contains("Connection refused"), "{}", udp.message);
    tokio::time::timeout(Duration::from_secs(1), hub.changed())
        .await
        .expect("the loop is woken");

    let wrong = answers("u-x");
    until("another pod's answer", || {
        let report = hub.report()?;
        let lost = sent(&report, PathClass::OldToNew).lost;
        (lost > 10).then_some(())
    })
    .await;
    assert!(
        !hub.report().unwrap().breaches.is_empty(),
        "another pod's answer does not count"
    );
    wrong.abort();
    let _ = wrong.await;
    let again = answers("u-b");
    until("the end of the breach", || {
        hub.report().filter(|report| report.breaches.is_empty())
    })
    .await;

    let lost = sent(&hub.report().unwrap(), PathClass::OldToNew).lost;
    hub.set(&[], None, None, 1450);
    let report = hub.report().unwrap();
    assert_eq!((report.flows, report.reporting.len()), (0, 0));
    assert_eq!(
        sent(&report, PathClass::OldToNew).lost,
        lost,
        "the counts are kept"
    );
    sends.abort();
    again.abort();
}

#[tokio::test]
async fn any_answer_of_dns_and_api_server_counts() {
    let (_folder, hub, sends) = start();
    let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = listener.local_addr().unwrap().port();
    let refusing = tokio::spawn(async move {
        let mut question = [0; 512];
        loop {
            let (length, peer) = server.recv_from(&mut question).await.unwrap();
            assert_eq!(length, 17, "header, an empty name, type and class");
            question[2] |= 0x80;
            server.send_to(&question[..length], peer).await.unwrap();
        }
    });
    hub.set(
        &[
            flow(PathClass::PodToDns, "u-a", port, None),
            flow(PathClass::PodToApi, "u-a", api, None),
        ],
        None,
        None,
        1450,
    );
    let report = until("answers", || {
        hub.report().filter(|report| {
            sent(report, PathClass::PodToDns).sent > 2 && sent(report, PathClass::PodToApi).sent > 2
        })
    })
    .await;
    assert_eq!(sent(&report, PathClass::PodToDns).lost, 0);
    assert_eq!(sent(&report, PathClass::PodToApi).lost, 0);
    sends.abort();
    refusing.abort();
}

/// A name server that needs longer than the gates allow loses every question, although the network loses none.
#[tokio::test]
async fn a_late_answer_counts_as_lost_and_as_late() {
    let (_folder, hub, sends) = start();
    let server = Arc::new(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let port = server.local_addr().unwrap().port();
    let slow = tokio::spawn(async move {
        let mut question = [0; 512];
        loop {
            let (length, peer) = server.recv_from(&mut question).await.unwrap();
            let (server, mut answer) = (Arc::clone(&server), question[..length].to_vec());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                answer[2] |= 0x80;
                server.send_to(&answer, peer).await.unwrap();
            });
        }
    });
    hub.set(
        &[flow(PathClass::PodToDns, "u-a", port, None)],
        STRICT,
        None,
        1450,
    );
    let totals = until("late answers", || {
        let totals = sent(&hub.report()?, PathClass::PodToDns);
        (totals.late > 2).then_some(totals)
    })
    .await;
    // A stream has time to start: its first answers are in time.
    assert!(totals.lost + 3 >= totals.sent, "{totals:?}");
    assert!(totals.late <= totals.lost, "{totals:?}");
    sends.abort();
    slow.abort();
}

/// After `resume` neither earlier losses nor earlier reports count; the totals stay.
#[tokio::test]
async fn resume_restarts_judging_and_keeps_the_totals() {
    let (_folder, hub, sends) = start();
    let port = free_port();
    let flows = [flow(PathClass::PodToService, "u-a", port, None)];
    hub.set(&flows, STRICT, None, 1450);
    let report = until("a breach", || {
        hub.report().filter(|report| !report.breaches.is_empty())
    })
    .await;
    assert_eq!(report.reporting, ["u-a"]);

    let answers = tokio::spawn(Echo::bind(port, "u-b").unwrap().serve());
    let resumed_at = Some(Timestamp::from_second(1_800_000_000).unwrap());
    hub.set(&flows, STRICT, resumed_at, 1450);
    let restarted = hub.report().unwrap();
    assert_eq!(restarted.losses_counted_since, resumed_at);
    assert_eq!(
        (restarted.reporting, restarted.breaches),
        (Vec::new(), Vec::new())
    );
    let lost = sent(&report, PathClass::PodToService).lost;
    let watched = until("a reporting pod", || {
        hub.report().filter(|report| {
            assert_eq!(report.breaches, [], "the path works again");
            !report.reporting.is_empty()
        })
    })
    .await;
    assert!(sent(&watched, PathClass::PodToService).lost >= lost);
    assert!(sent(&watched, PathClass::PodToService).sent > sent(&report, PathClass::PodToService).sent);
    sends.abort();
    answers.abort();
}

/// When the API server is unreachable from the host, too, the pods' network is not the cause.
#[tokio::test]
async fn an_unreachable_api_server_is_not_a_breach() {
    let (_folder, hub, sends) = start();
    let unreachable = free_port();
    let flows = [
        flow(PathClass::PodToApi, "u-a", unreachable, None),
        flow(PathClass::PodToService, "u-a", unreachable, None),
    ];
    hub.set(&flows, STRICT, None, 1450);
    let report = until("the time of a breach, twice", || {
        hub.report()
            .filter(|report| sent(report, PathClass::PodToApi).lost > 20)
    })
    .await;
    let classes: Vec<PathClass> = report.breaches.iter().map(|breach| breach.flow.class).collect();
    assert_eq!(classes, [PathClass::PodToService], "another Service is judged");

    // The host reaches the API server, and the pods have no answer: now their path is the cause.
    let (none, now) = (BTreeSet::new(), Timestamp::now());
    let orders = hub.orders.borrow().clone();
    let mut state = lock(&hub.state);
    state.judge("a", &orders, &none, now);
    assert_eq!(state.breaches.len(), 2);
    drop(state);
    sends.abort();
}

#[tokio::test]
async fn a_pod_that_does_not_report_is_a_breach() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::listen("a", folder.path()).unwrap();
    hub.set(&[flow(PathClass::NewToNew, "u-a", 1, None)], None, None, 1450);
    assert_eq!(hub.report().unwrap().breaches, [], "the pod has time to start");
    let breach = until("silence", || hub.report().unwrap().breaches.pop()).await;
    assert_eq!(breach.protocol, None);
    assert!(breach.message.contains("does not report"), "{}", breach.message);
}

/// Counts of a restarted process are added to those of its predecessor, and flows that were not requested are not counted.
#[test]
fn counts_of_a_restarted_process_are_added() {
    let requested = flow(PathClass::OldToOld, "u-a", 1, None);
    let orders = Orders {
        flows: vec![requested.clone()],
        ..Orders::default()
    };
    let mut state = State::default();
    let mut add = |flow: &Flow, sent: u64, lost: u64| {
        let totals = Totals {
            sent,
            lost,
            late: 0,
            longest_gap_milliseconds: 100,
        };
        let count = StreamCount {
            flow: flow.clone(),
            protocol: Protocol::Udp,
            totals,
            recent: Recent::default(),
            problem: String::new(),
            flooded_by: None,
            masqueraded_as: None,
        };
        let counts = Counts {
            judged_since: None,
            streams: vec![count],
        };
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(async { state.add_counts("u-a", counts, &orders) });
        state.sums()
    };
    add(&requested, 50, 2);
    add(&requested, 10, 1);
    let sums = add(&requested, 20, 1);
    assert_eq!((sums[0].totals.sent, sums[0].totals.lost), (70, 3));
    let foreign = flow(PathClass::NewToNew, "u-a", 2, None);
    assert_eq!(add(&foreign, 9, 9), sums);
}

/// A flooded pod says so in its answers: loss on the path to it does not stop the rollout, and the flood is reported. A pod
/// without any answer is a breach.
#[tokio::test]
async fn a_flood_from_one_source_is_reported_and_not_a_breach() {
    let to_flooded = flow(PathClass::OldToNew, "u-a", 1, Some("u-b"));
    let to_another = flow(PathClass::OldToNew, "u-a", 2, Some("u-c"));
    let orders = Orders {
        flows: vec![to_flooded.clone(), to_another.clone()],
        ..Orders::default()
    };
    let source = "10.244.1.7".parse().unwrap();
    let counts_with = |flooded_by: Option<std::net::IpAddr>| {
        let count = |flow: &Flow, protocol, flooded_by| StreamCount {
            flow: flow.clone(),
            protocol,
            totals: Totals {
                sent: 100,
                lost: 60,
                late: 0,
                longest_gap_milliseconds: 900,
            },
            recent: Recent {
                sent: 100,
                lost: 60,
                gap_milliseconds: 900,
            },
            problem: String::new(),
            flooded_by,
            masqueraded_as: None,
        };
        Counts {
            judged_since: None,
            streams: vec![
                count(&to_flooded, Protocol::Udp, None),
                count(&to_flooded, Protocol::Tcp, flooded_by),
                count(&to_another, Protocol::Udp, None),
            ],
        }
    };
    let mut state = State::default();
    let judge = |state: &mut State, counts: Counts| {
        state.add_counts("u-a", counts, &orders);
        state.judge("a", &orders, &BTreeSet::new(), Timestamp::now());
        let ports: Vec<u16> = state.breaches.keys().map(|(flow, _)| flow.port).collect();
        let floods: Vec<String> = state.floods.iter().cloned().collect();
        (ports, floods)
    };
    let (breaches, floods) = judge(&mut state, counts_with(Some(source)));
    assert_eq!(breaches, [2], "the flood does not excuse another path");
    assert_eq!(
        floods,
        [
            "10.244.1.7 sends more than 500 datagrams per second to node b (127.0.0.1): losses to this address are no breach"
        ]
    );
    let (breaches, floods) = judge(&mut state, counts_with(None));
    assert_eq!(breaches, [1, 1, 2]);
    assert_eq!(floods, Vec::<String>::new());
}

#[tokio::test]
async fn an_invalid_line_ends_only_its_own_connection() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::listen("a", folder.path()).unwrap();
    let mut stream = UnixStream::connect(folder.path().join(SOCKET)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    assert_eq!(hub.report(), None);
    // The next agent listens on the same path.
    let _next = Hub::listen("a", folder.path()).unwrap();
    UnixStream::connect(folder.path().join(SOCKET)).await.unwrap();
}

/// Only what a reporting pod saw in its last answers counts.
#[tokio::test]
async fn a_masqueraded_flow_is_reported_while_its_pod_reports() {
    let to_service = flow(PathClass::PodToService, "u-a", 1, None);
    let to_pod = flow(PathClass::OldToNew, "u-a", 2, Some("u-b"));
    let orders = Orders {
        flows: vec![to_pod.clone(), to_service.clone()],
        ..Orders::default()
    };
    let seen: std::net::IpAddr = "192.0.2.7".parse().unwrap();
    let counts = |masqueraded_as| Counts {
        judged_since: None,
        streams: [(&to_service, masqueraded_as), (&to_pod, None)]
            .map(|(flow, masqueraded_as)| StreamCount {
                flow: flow.clone(),
                protocol: Protocol::Tcp,
                totals: Totals::default(),
                recent: Recent::default(),
                problem: String::new(),
                flooded_by: None,
                masqueraded_as,
            })
            .to_vec(),
    };
    let mut state = State::default();
    assert_eq!(state.masquerades(&orders), []);
    state.add_counts("u-a", counts(Some(seen)), &orders);
    let expected = api::traffic::Masquerade {
        flow: to_service.clone(),
        source_seen: seen,
    };
    assert_eq!(state.masquerades(&orders), [expected]);
    state.add_counts("u-a", counts(None), &orders);
    assert_eq!(state.masquerades(&orders), []);
}
