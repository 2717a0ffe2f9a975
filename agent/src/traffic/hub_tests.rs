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

/// An agent that listens in a folder, and a pod `u-a` that sends what it is told there.
fn begin() -> (TempDir, Hub, JoinHandle<()>) {
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

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..400 {
        if let Some(found) = look() {
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

/// A pod that sends, one that answers and then ceases to: the report says how much was sent, and names the path.
#[tokio::test]
async fn a_path_that_ends_is_a_breach_and_one_that_comes_back_is_none() {
    let (_folder, hub, sends) = begin();
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
    tokio::time::timeout(Duration::from_secs(1), hub.has_news())
        .await
        .expect("the loop is woken");

    let wrong = answers("somebody");
    until("another's answer", || {
        let report = hub.report()?;
        let lost = sent(&report, PathClass::OldToNew).lost;
        (lost > 10).then_some(())
    })
    .await;
    assert!(
        !hub.report().unwrap().breaches.is_empty(),
        "another pod's answer is none"
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
        "what was counted stays"
    );
    sends.abort();
    again.abort();
}

#[tokio::test]
async fn any_name_servers_and_api_servers_answer_counts() {
    let (_folder, hub, sends) = begin();
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

/// A name server that thinks for longer than the gates allow has lost every question, and the network none.
#[tokio::test]
async fn an_answer_that_comes_too_late_is_lost_and_counted_as_late() {
    let (_folder, hub, sends) = begin();
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
    let totals = until("answers that come late", || {
        let totals = sent(&hub.report()?, PathClass::PodToDns);
        (totals.late > 2).then_some(totals)
    })
    .await;
    // A stream has time to begin: its first answers are in time.
    assert!(totals.lost + 3 >= totals.sent, "{totals:?}");
    assert!(totals.late <= totals.lost, "{totals:?}");
    sends.abort();
    slow.abort();
}

/// After an operator's word nothing of before counts, neither what was lost nor that somebody watched; the sums stay.
#[tokio::test]
async fn an_operators_word_begins_anew() {
    let (_folder, hub, sends) = begin();
    let port = free_port();
    let flows = [flow(PathClass::PodToService, "u-a", port, None)];
    hub.set(&flows, STRICT, None, 1450);
    let report = until("a breach", || {
        hub.report().filter(|report| !report.breaches.is_empty())
    })
    .await;
    assert_eq!(report.reporting, ["u-a"]);

    let answers = tokio::spawn(Echo::bind(port, "u-b").unwrap().serve());
    let word = Some(Timestamp::from_second(1_800_000_000).unwrap());
    hub.set(&flows, STRICT, word, 1450);
    let anew = hub.report().unwrap();
    assert_eq!(anew.judged_since, word);
    assert_eq!((anew.reporting, anew.breaches), (Vec::new(), Vec::new()));
    let lost = sent(&report, PathClass::PodToService).lost;
    let watched = until("somebody who watches", || {
        hub.report().filter(|report| {
            assert_eq!(report.breaches, [], "it is mended");
            !report.reporting.is_empty()
        })
    })
    .await;
    assert!(sent(&watched, PathClass::PodToService).lost >= lost);
    assert!(sent(&watched, PathClass::PodToService).sent > sent(&report, PathClass::PodToService).sent);
    sends.abort();
    answers.abort();
}

/// When the API server is away, the host does not hear of it either: nothing is wrong with the pods' network.
#[tokio::test]
async fn an_api_server_that_is_away_is_nobodys_breach() {
    let (_folder, hub, sends) = begin();
    let away = free_port();
    let flows = [
        flow(PathClass::PodToApi, "u-a", away, None),
        flow(PathClass::PodToService, "u-a", away, None),
    ];
    hub.set(&flows, STRICT, None, 1450);
    let report = until("the time of a breach, twice", || {
        hub.report()
            .filter(|report| sent(report, PathClass::PodToApi).lost > 20)
    })
    .await;
    let classes: Vec<PathClass> = report.breaches.iter().map(|breach| breach.flow.class).collect();
    assert_eq!(classes, [PathClass::PodToService], "another Service is judged");

    // By the host's own word it is there, and the pods have no answer: now it is their path.
    let (not, lost) = (BTreeSet::new(), Timestamp::now());
    let orders = hub.orders.borrow().clone();
    let mut state = lock(&hub.state);
    state.judge("a", &orders, &not, lost);
    assert_eq!(state.breaches.len(), 2);
    drop(state);
    sends.abort();
}

#[tokio::test]
async fn a_pod_that_says_nothing_is_a_breach_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::listen("a", folder.path()).unwrap();
    hub.set(&[flow(PathClass::NewToNew, "u-a", 1, None)], None, None, 1450);
    assert_eq!(hub.report().unwrap().breaches, [], "it has time to begin");
    let breach = until("silence", || hub.report().unwrap().breaches.pop()).await;
    assert_eq!(breach.protocol, None);
    assert!(breach.message.contains("does not report"), "{}", breach.message);
}

/// Counts of a process that was started anew are added to what its predecessor counted, and what was not asked for is
/// not counted at all.
#[test]
fn a_new_process_begins_at_nothing_and_nothing_is_forgotten() {
    let asked = flow(PathClass::OldToOld, "u-a", 1, None);
    let orders = Orders {
        flows: vec![asked.clone()],
        ..Orders::default()
    };
    let mut state = State::default();
    let mut hear = |flow: &Flow, sent: u64, lost: u64| {
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
        };
        let counts = Counts {
            judged_since: None,
            streams: vec![count],
        };
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(async { state.hear("u-a", counts, &orders) });
        state.sums()
    };
    hear(&asked, 50, 2);
    hear(&asked, 10, 1);
    let sums = hear(&asked, 20, 1);
    assert_eq!((sums[0].totals.sent, sums[0].totals.lost), (70, 3));
    let foreign = flow(PathClass::NewToNew, "u-a", 2, None);
    assert_eq!(hear(&foreign, 9, 9), sums);
}

/// A pod that is flooded says so in what it answers: what is lost on the way to it does not stop the rollout, and is named. One that
/// answers nothing at all is a breach.
#[tokio::test]
async fn a_flood_from_one_source_is_named_and_no_breach() {
    let to_flooded = flow(PathClass::OldToNew, "u-a", 1, Some("u-b"));
    let to_another = flow(PathClass::OldToNew, "u-a", 2, Some("u-c"));
    let orders = Orders {
        flows: vec![to_flooded.clone(), to_another.clone()],
        ..Orders::default()
    };
    let source = "10.244.1.7".parse().unwrap();
    let told = |flooded_by: Option<std::net::IpAddr>| {
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
        state.hear("u-a", counts, &orders);
        state.judge("a", &orders, &BTreeSet::new(), Timestamp::now());
        let ports: Vec<u16> = state.breaches.keys().map(|(flow, _)| flow.port).collect();
        let floods: Vec<String> = state.floods.iter().cloned().collect();
        (ports, floods)
    };
    let (breaches, floods) = judge(&mut state, told(Some(source)));
    assert_eq!(breaches, [2], "of another path the flood is no excuse");
    assert_eq!(
        floods,
        [
            "10.244.1.7 sends more than 500 datagrams a second to node b (127.0.0.1): what is lost there does not count"
        ]
    );
    let (breaches, floods) = judge(&mut state, told(None));
    assert_eq!(breaches, [1, 1, 2]);
    assert_eq!(floods, Vec::<String>::new());
}

#[tokio::test]
async fn a_line_that_is_none_ends_its_connection_only() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::listen("a", folder.path()).unwrap();
    let mut stream = UnixStream::connect(folder.path().join(SOCKET)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    assert_eq!(hub.report(), None);
    // The next agent listens at the same place.
    let _next = Hub::listen("a", folder.path()).unwrap();
    UnixStream::connect(folder.path().join(SOCKET)).await.unwrap();
}
