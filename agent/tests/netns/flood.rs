//! Pods that flood an answering pod, or hold all its connections: the path to that pod does not count as broken.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent::echo;
use agent::echo::message::{self, Asker};
use agent::traffic::hub::Hub;
use agent::traffic::pod;
use engine::traffic::{Flow, PathClass};
use nix::sched::{CloneFlags, setns};
use tokio::net::TcpSocket;

use crate::host::{in_namespace, run};
use crate::path::Process;

/// How long the flood continues after it is reported: more than twice the time in which losses are judged.
const FLOOD: Duration = Duration::from_secs(6);
/// Time limit for the report of a flood, sufficient for a busy machine.
const NAMED_WITHIN: Duration = Duration::from_secs(10);

/// Address of the answering program.
const ANSWERING: &str = "10.9.1.2:9812";

/// The namespace of a pod, connected by a veth link and reachable by routes.
pub fn attached(number: u8) -> Process {
    let pod = Process::namespace();
    run(&format!(
        "ip link add pod{number} type veth peer name eth0 netns {}",
        pod.id()
    ));
    run(&format!("ip address add 10.9.{number}.1/24 dev pod{number}"));
    run(&format!("ip link set pod{number} up"));
    pod.ip(&format!("address add 10.9.{number}.2/24 dev eth0"));
    pod.ip("link set eth0 up");
    pod.ip("link set lo up");
    pod.ip(&format!("route add default via 10.9.{number}.1"));
    pod
}

/// Starts the answering program in this pod at 10.9.1.2, and waits until it listens.
pub async fn answers(pod: &Process) -> Process {
    let namespace = format!("--target={}", pod.id());
    let agent = env!("CARGO_BIN_EXE_replumb-agent");
    let echo = Process::start(&["nsenter", "--net", &namespace, agent, "echo", "--port", "9812"]);
    let deadline = Instant::now() + NAMED_WITHIN;
    while std::net::TcpStream::connect(ANSWERING).is_err() {
        assert!(Instant::now() < deadline, "the program does not listen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    echo
}

/// Holds this many silent connections from each of these addresses, and reopens each one that ends.
async fn hold(sources: Vec<SocketAddr>, connections: usize) {
    let one = async |source: SocketAddr| {
        loop {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(source).unwrap();
            if let Ok(connection) = socket.connect(ANSWERING.parse().unwrap()).await {
                connection.readable().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let all = sources
        .iter()
        .flat_map(|source| std::iter::repeat_n(*source, connections));
    futures::future::join_all(all.map(one)).await;
}

/// All available connections are held all the time, by pods that each stay below their own limit.
#[test]
#[ignore = "needs root and network namespaces"]
fn pods_that_hold_all_connections_block_no_question() {
    in_namespace(|| async {
        run("ip link set lo up");
        run("sysctl -qw net.ipv4.ip_forward=1");
        let answering = attached(1);
        let hostile = attached(2);
        let hosts = 2..=11;
        for host in hosts.clone().skip(1) {
            hostile.ip(&format!("address add 10.9.2.{host}/24 dev eth0"));
        }
        let sources: Vec<SocketAddr> = hosts
            .map(|host| format!("10.9.2.{host}:0").parse().unwrap())
            .collect();
        let _echo = answers(&answering).await;
        let file = format!("/proc/{}/ns/net", hostile.id());
        std::thread::spawn(move || {
            setns(std::fs::File::open(file).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(hold(sources, 64));
        });
        // All connections are in use by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asker = Asker::new().unwrap();
        for number in 0..100 {
            let question = message::question(asker.nonce(number), message::LEAST);
            let answer = tokio::time::timeout(
                Duration::from_secs(1),
                echo::ask(ANSWERING.parse().unwrap(), &question),
            );
            let answer = answer.await.unwrap().unwrap();
            assert_eq!(asker.read(&answer.bytes).unwrap().nonce.number, number);
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_flooding_pod_is_reported_and_causes_no_breach() {
    in_namespace(|| async {
        run("ip link set lo up");
        run("sysctl -qw net.ipv4.ip_forward=1");
        let answering = attached(1);
        let hostile = attached(2);
        let _echo = answers(&answering).await;
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::listen("a", folder.path()).unwrap();
        let flow = Flow {
            class: PathClass::OldToNew,
            source: "u-a".to_owned(),
            to: "node b".to_owned(),
            address: "10.9.1.2".parse().unwrap(),
            port: 9812,
            pod_uid: Some("u-7".to_owned()),
        };
        let path = folder.path().to_owned();
        let sends = tokio::spawn(async move { pod::send(&path, "u-a").await });
        hub.set(std::slice::from_ref(&flow), None, None, 1450);
        tokio::time::sleep(Duration::from_secs(2)).await;

        let ends = Arc::new(AtomicBool::new(false));
        let (over, file) = (Arc::clone(&ends), format!("/proc/{}/ns/net", hostile.id()));
        let flood = std::thread::spawn(move || {
            setns(std::fs::File::open(file).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            let socket = UdpSocket::bind("10.9.2.2:0").unwrap();
            socket.connect("10.9.1.2:9812").unwrap();
            let mut sent = 0_u64;
            while !over.load(Ordering::Relaxed) {
                // A full queue refuses some datagrams.
                if socket.send(&[b'x'; 200]).is_ok() {
                    sent += 1;
                }
            }
            sent
        });
        let began = Instant::now();
        let mut named = None;
        while named.is_none_or(|at: Instant| at.elapsed() < FLOOD) {
            let report = hub.report().unwrap();
            assert_eq!(report.breaches, [], "the path works");
            if named.is_none() && !report.floods.is_empty() {
                assert!(
                    report.floods[0]
                        .starts_with("10.9.2.2 sends more than 500 datagrams per second to node b"),
                    "{:?}",
                    report.floods
                );
                named = Some(Instant::now());
            }
            assert!(
                named.is_some() || began.elapsed() < NAMED_WITHIN,
                "the flood is not reported"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ends.store(true, Ordering::Relaxed);
        let sent = flood.join().unwrap();
        eprintln!("{sent} datagrams in {} s", began.elapsed().as_secs());
        sends.abort();
    });
}
