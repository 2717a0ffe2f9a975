//! What sampling costs with 100 000 connections on the host: resident memory of the process, processor time, and the time of one
//! reading. Needs root: connection tracking is that of a network namespace of this process.
//!
//! `cargo bench -p agent --bench sampling -- --minutes 30`; without an argument three minutes. Ends with an error beyond 20 MiB.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark says that it failed by a panic"
)]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use agent::host::netlink::conntrack::{Listed, Listing};
use agent::metrics::Metrics;
use agent::sampling::sample::Sample;
use agent::sampling::{self, Parts};
use api::connection_sample::{ConnectionSampleSpec, PortRange};
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use tower_test::mock;

/// Address of the pod whose connections are sampled.
const POD: &str = "10.244.1.7";
/// Kinds of connections: as many as a `ConnectionSample` holds.
const SERVERS: u8 = 250;
const PORTS: u16 = 8;
/// Connections of each kind.
const CLIENTS: u16 = 50;
const CONNECTIONS: usize = SERVERS as usize * PORTS as usize * CLIENTS as usize;
/// The most resident memory that sampling may take.
const LIMIT_KIB: u64 = 20 << 10;

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{program} {arguments:?}"
    );
}

/// A namespace that tracks connections.
fn namespace() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap_or_else(|error| panic!("a network namespace, as root: {error}"));
    run("ip", &["link", "set", "lo", "up"]);
    run("ip", &["route", "add", "local", "10.0.0.0/8", "dev", "lo"]);
    run("nft", &["add table ip bench"]);
    run(
        "nft",
        &["add chain ip bench tracks { type filter hook output priority 0 ; }"],
    );
    run("nft", &["add rule ip bench tracks ct state new counter"]);
    for timeout in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
        run("sysctl", &["-qw", &format!("net.netfilter.{timeout}=86400")]);
    }
}

/// Makes the connections: each datagram to another port or address is one.
fn connect() {
    for client in 0..CLIENTS {
        let socket = UdpSocket::bind((POD, 40_000 + client)).unwrap();
        for server in 1..=SERVERS {
            for port in 1..=PORTS {
                let server = Ipv4Addr::new(10, 96, 0, server);
                while socket.send_to(b"x", (server, 8_000 + port)).is_err() {
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// A value in KiB of this process.
fn kibibytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Processor time of this process, with that of the kernel for it.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn spec() -> ConnectionSampleSpec {
    ConnectionSampleSpec {
        node_name: "a".to_owned(),
        migration: "m".to_owned(),
        capacity: 2000,
        ingress: Vec::new(),
        egress: vec![POD.parse::<IpAddr>().unwrap()],
    }
}

/// An API server with the object, which takes every status.
fn api_server(writes: Arc<AtomicU32>) -> Client {
    let (service, mut calls) = mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        let mut object = json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "ConnectionSample",
            "metadata": { "name": "a", "uid": "u1", "resourceVersion": "1" }, "spec": spec(),
        });
        let mut unanswered = Vec::new();
        let mut is_listed = false;
        while let Some((request, respond)) = calls.next_request().await {
            let (head, body) = request.into_parts();
            let answer = if head.method == Method::PATCH {
                let body = body.collect().await.unwrap().to_bytes();
                api::merge::apply(&mut object, &serde_json::from_slice::<Value>(&body).unwrap());
                let version = writes.fetch_add(1, Ordering::Relaxed) + 2;
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                object.clone()
            } else if is_listed {
                unanswered.push(respond);
                continue;
            } else {
                is_listed = true;
                json!({
                    "apiVersion": "replumb.dev/v1alpha1", "kind": "ConnectionSampleList",
                    "metadata": { "resourceVersion": "1" }, "items": [object],
                })
            };
            respond.send_response(Response::new(Body::from(answer.to_string().into_bytes())));
        }
    });
    Client::new(service, "default")
}

/// Times of readings on this thread: all entries, decoded and counted.
async fn readings(number: usize) -> Vec<Duration> {
    let mut sample = Sample::new(&spec());
    let mut took = Vec::new();
    for _ in 0..number {
        let began = Instant::now();
        let ports = PortRange {
            first: 32_768,
            last: 60_999,
        };
        sample.begin(ports);
        let mut listing = Listing::start().unwrap();
        let mut entries = 0;
        let at = Timestamp::now();
        while listing
            .next(|connection| {
                entries += 1;
                sample.see(&connection, at);
            })
            .await
            .unwrap()
            == Listed::Partly
        {}
        sample.end(Ok(at));
        took.push(began.elapsed());
        assert!(entries >= CONNECTIONS, "{entries} of {CONNECTIONS}");
    }
    assert_eq!(sample.kinds(), 2000);
    took.sort_unstable();
    took
}

fn minutes() -> u64 {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != "--minutes")
        .skip(1);
    arguments.next().map_or(3, |minutes| minutes.parse().unwrap())
}

fn main() {
    let minutes = minutes();
    namespace();
    connect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let metrics = Metrics::new().unwrap();
        let writes = Arc::new(AtomicU32::new(0));
        let client = api_server(Arc::clone(&writes));
        let (before, anonymous_before) = (kibibytes("VmRSS:"), kibibytes("RssAnon:"));
        let began = processor_time();
        let task = sampling::start(Parts {
            node: "a".to_owned(),
            watching: client.clone(),
            client,
            proc: "/proc".into(),
            metrics: Arc::clone(&metrics.sampling),
        });
        let mut most = 0;
        for minute in 1..=minutes {
            tokio::time::sleep(Duration::from_mins(1)).await;
            let (now, anonymous) = (kibibytes("VmRSS:"), kibibytes("RssAnon:"));
            most = now.max(most);
            println!(
                "minute {minute}: {now} KiB resident ({:+}), {anonymous} KiB anonymous ({:+}), {} writes",
                i128::from(now) - i128::from(before),
                i128::from(anonymous) - i128::from(anonymous_before),
                writes.load(Ordering::Relaxed)
            );
        }
        let took = processor_time().saturating_sub(began);
        let text = metrics.text().unwrap();
        let of_readings = text
            .lines()
            .filter(|line| line.starts_with("replumb_agent_connection"));
        of_readings.for_each(|line| println!("{line}"));
        println!(
            "{:.2} % of a core, the API server of the benchmark included; peak {} KiB",
            took.as_secs_f64() / Duration::from_mins(minutes).as_secs_f64() * 100.0,
            kibibytes("VmHWM:")
        );
        task.abort();
        let _ = task.await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!("after its end: {} KiB resident", kibibytes("VmRSS:"));
        let times = readings(21).await;
        println!(
            "a reading of {CONNECTIONS} connections: median {:?}, longest {:?}",
            times[times.len() / 2],
            times[times.len() - 1]
        );
        assert!(
            most.saturating_sub(before) <= LIMIT_KIB,
            "{most} KiB resident, {before} before"
        );
    });
}
