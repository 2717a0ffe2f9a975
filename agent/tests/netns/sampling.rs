//! Connection tracking of a namespace with pods and a Service, read by the agent and by `conntrack`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::host::netlink::conntrack::{EndedConnections, Listed, Listing, TrackedConnection};
use agent::metrics::Metrics;
use agent::sampling::sampler::Sampler;
use api::connection_sample::{ConnectionSampleSpec, ConnectionSampleStatus, PortRange, SeenConnection};
use nix::sched::{CloneFlags, setns};

use crate::host::{in_namespace, run};
use crate::path::Process;
use crate::rights::{container_capabilities, drop_all_capabilities_except};

const CLIENT: &str = "10.244.1.7";
const SERVER: &str = "10.244.1.8";
const CLIENT_6: &str = "fd00:10:244:1::7";
const SERVER_6: &str = "fd00:10:244:1::8";
/// Time limit of what takes one or two readings.
const LIMIT: Duration = Duration::from_mins(1);

/// A pod with these addresses, behind a veth link and routes.
fn pod(name: &str, ipv4: &str, ipv6: &str) -> Process {
    let pod = Process::namespace();
    run(&format!(
        "ip link add {name} type veth peer name eth0 netns {}",
        pod.id()
    ));
    run(&format!("ip link set {name} up addrgenmode none"));
    run(&format!("ip address add 169.254.1.1/32 dev {name}"));
    run(&format!("ip address add fe80::1/64 dev {name} nodad"));
    run(&format!("ip route add {ipv4}/32 dev {name}"));
    run(&format!("ip -6 route add {ipv6}/128 dev {name}"));
    pod.ip("link set lo up");
    pod.ip("link set eth0 up");
    pod.ip(&format!("address add {ipv4}/32 dev eth0"));
    pod.ip(&format!("address add {ipv6}/128 dev eth0 nodad"));
    pod.ip("route add 169.254.1.1 dev eth0");
    pod.ip("route add default via 169.254.1.1");
    pod.ip("-6 route add default via fe80::1 dev eth0");
    pod
}

/// Runs code in the network namespace of a pod. Its sockets stay there.
fn inside<T: Send + 'static>(pod: &Process, code: impl FnOnce() -> T + Send + 'static) -> T {
    let file = File::open(format!("/proc/{}/ns/net", pod.id())).unwrap();
    let thread = std::thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
        code()
    });
    thread.join().unwrap()
}

/// Turns connection tracking on, with a Service 10.96.0.60:80 in front of port 8080 of the server.
fn track_connections() {
    run("ip link set lo up");
    for line in [
        "add table inet test",
        "add chain inet test services \"{ type nat hook prerouting priority -100 ; }\"",
        "add rule inet test services ip daddr 10.96.0.60 tcp dport 80 dnat ip to 10.244.1.8:8080",
        "add chain inet test after \"{ type nat hook postrouting priority 100 ; }\"",
        // The rule for the Service tracks IPv4 only.
        "add rule inet test after ct state new counter",
    ] {
        run(&format!("nft {line}"));
    }
}

/// An open connection: both sides.
struct Open {
    client: TcpStream,
    server: TcpStream,
}

/// A host with two pods.
struct Cluster {
    client: Process,
    server: Process,
    listeners: Vec<TcpListener>,
}

impl Cluster {
    fn new() -> Self {
        track_connections();
        run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        let client = pod("client", CLIENT, CLIENT_6);
        let server = pod("server", SERVER, SERVER_6);
        let listeners = inside(&server, || {
            ["0.0.0.0:80", "0.0.0.0:8080", "[::]:443", "0.0.0.0:50051"]
                .map(|address| TcpListener::bind(address).unwrap())
                .into()
        });
        Self {
            client,
            server,
            listeners,
        }
    }

    /// Opens a connection from the client to an address that leads to this port of the server. A byte goes and returns.
    fn connect(&self, to: &str, port: u16) -> Open {
        let to: SocketAddr = to.parse().unwrap();
        let mut client = inside(&self.client, move || {
            TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap()
        });
        let of_port = |listener: &&TcpListener| listener.local_addr().unwrap().port() == port;
        let (mut server, _) = self.listeners.iter().find(of_port).unwrap().accept().unwrap();
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"y").unwrap();
        client.read_exact(&mut [0]).unwrap();
        Open { client, server }
    }

    /// Sends a datagram from the client; the server answers it.
    fn ask(&self, port: u16) -> UdpSocket {
        let server = inside(&self.server, move || {
            UdpSocket::bind((SERVER.parse::<IpAddr>().unwrap(), port)).unwrap()
        });
        let client = inside(&self.client, || {
            UdpSocket::bind((CLIENT.parse::<IpAddr>().unwrap(), 0)).unwrap()
        });
        client.send_to(b"x", (SERVER, port)).unwrap();
        let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
        server.send_to(b"y", from).unwrap();
        client.recv_from(&mut [0; 9]).unwrap();
        client
    }
}

/// All entries, as the agent lists them.
async fn list() -> Vec<TrackedConnection> {
    let mut entries = Vec::new();
    let mut listing = Listing::start().unwrap();
    while listing.next(|entry| entries.push(entry)).await.unwrap() == Listed::Partly {}
    entries
}

/// An entry in the words of `conntrack -L -o id`: protocol, both directions, whether a reply was seen, number.
type Line = (u8, Vec<(String, String)>, bool, u32);

/// All entries, as `conntrack` prints them. Only these fields are compared.
fn printed() -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    for family in ["ipv4", "ipv6"] {
        for line in run(&format!("conntrack -L -f {family} -o id")).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let fields = |names: &[&str]| -> Vec<(String, String)> {
                let pairs = words.iter().filter_map(|word| word.split_once('='));
                pairs
                    .filter(|(name, _)| names.contains(name))
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect()
            };
            // The last one: the identifier of an ICMP question has the same name.
            let id = fields(&["id"]).pop().unwrap().1;
            lines.insert((
                words[1].parse().unwrap(),
                fields(&["src", "dst", "sport", "dport"]),
                !words.contains(&"[UNREPLIED]"),
                id.parse().unwrap(),
            ));
        }
    }
    lines
}

fn as_printed(entry: &TrackedConnection) -> Line {
    let has_ports = [6, 17, 132].contains(&entry.protocol);
    let directions = [entry.original, entry.reply].map(|tuple| {
        let pair = |name: &str, value: String| (name.to_owned(), value);
        let addresses = [
            pair("src", tuple.source.to_string()),
            pair("dst", tuple.destination.to_string()),
        ];
        let ports = [
            pair("sport", tuple.source_port.to_string()),
            pair("dport", tuple.destination_port.to_string()),
        ];
        addresses
            .into_iter()
            .chain(ports.into_iter().filter(move |_| has_ports))
            .collect::<Vec<_>>()
    });
    (entry.protocol, directions.concat(), entry.is_replied, entry.id)
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_listing_has_the_entries_that_conntrack_prints() {
    in_namespace(|| async {
        let cluster = Cluster::new();
        let _open = [
            cluster.connect("10.244.1.8:80", 80),
            cluster.connect("10.96.0.60:80", 8080),
            cluster.connect("[fd00:10:244:1::8]:443", 443),
        ];
        cluster.ask(5353);
        run(
            "conntrack -I -p icmp -s 10.244.1.7 -d 10.244.1.8 --icmp-type 8 --icmp-code 0 --icmp-id 77 -t 600",
        );
        run(
            "conntrack -I -p sctp --orig-vtag 1 --reply-vtag 2 -s 10.244.1.7 -d 10.244.1.8 --sport 45001 --dport 36412 \
             --state ESTABLISHED -t 600",
        );
        run(
            "conntrack -I -p tcp -w 5 -s 10.244.1.7 -d 10.244.1.8 --sport 45003 --dport 80 --state ESTABLISHED -t 600",
        );
        let (listed, printed) = (list().await, printed());
        let lines: BTreeSet<Line> = listed.iter().map(as_printed).collect();
        assert_eq!(lines, printed);
        let protocols: BTreeSet<u8> = listed.iter().map(|entry| entry.protocol).collect();
        assert_eq!(protocols, BTreeSet::from([1, 6, 17, 132]), "{listed:#?}");
        assert!(listed.len() >= 7);
        assert_eq!(listed.iter().filter(|entry| entry.zone == 5).count(), 1);
        let is_translated = |entry: &&TrackedConnection| entry.original.destination != entry.reply.source;
        let to_service = listed.iter().find(is_translated).unwrap();
        assert_eq!(to_service.reply.source, SERVER.parse::<IpAddr>().unwrap());
        assert_eq!(to_service.reply.source_port, 8080);
    });
}

fn spec(ingress: &[&str], egress: &[&str]) -> Arc<ConnectionSampleSpec> {
    let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Arc::new(ConnectionSampleSpec {
        node_name: "a".to_owned(),
        migration: "m".to_owned(),
        capacity: 100,
        ingress: addresses(ingress),
        egress: addresses(egress),
    })
}

fn start(spec: &Arc<ConnectionSampleSpec>) -> (Sampler, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new().unwrap());
    let sampler = Sampler::start(Arc::clone(spec), "/proc".into(), Arc::clone(&metrics.sampling)).unwrap();
    (sampler, metrics)
}

/// The next status.
async fn next(sampler: &mut Sampler) -> ConnectionSampleStatus {
    let is_alive = tokio::time::timeout(LIMIT, sampler.changed())
        .await
        .expect("no status");
    assert!(is_alive, "the thread has ended");
    sampler.status().unwrap().as_ref().clone()
}

/// Protocol, source, destination, port, whether it is translated, count, replied.
type Facts = (u8, String, String, Option<u16>, bool, u64, u64);

fn facts(seen: &SeenConnection) -> Facts {
    let SeenConnection {
        protocol,
        source,
        source_port: _,
        destination,
        port,
        is_translated,
        count,
        replied,
        first: _,
        last: _,
    } = seen;
    let (source, destination) = (source.to_string(), destination.to_string());
    (
        *protocol,
        source,
        destination,
        *port,
        *is_translated,
        *count,
        *replied,
    )
}

fn all(status: &ConnectionSampleStatus) -> BTreeSet<Facts> {
    status.connections.iter().map(facts).collect()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn connections_are_counted_once_and_short_ones_are_not_missed() {
    in_namespace(|| async {
        let cluster = Cluster::new();
        let mut open: Vec<Open> = (0..3).map(|_| cluster.connect("10.244.1.8:80", 80)).collect();
        open.push(cluster.connect("10.96.0.60:80", 8080));
        open.push(cluster.connect("[fd00:10:244:1::8]:443", 443));
        open.push(cluster.connect("10.244.1.8:50051", 50051));
        let _asked = cluster.ask(5353);
        let (mut sampler, metrics) = start(&spec(&[SERVER], &[CLIENT_6]));
        let status = next(&mut sampler).await;
        assert_eq!((&status.problem, &status.limitation), (&None, &None));
        assert_eq!(status.since, status.last);
        let text = run("sysctl -n net.ipv4.ip_local_port_range");
        let mut ports = text.split_whitespace().map(|port| port.parse().unwrap());
        let (first, last) = (ports.next().unwrap(), ports.next().unwrap());
        assert_eq!(status.client_ports, Some(PortRange { first, last }));
        let one = |protocol, source: &str, destination: &str, port, is_translated, count| {
            let (source, destination) = (source.to_owned(), destination.to_owned());
            (
                protocol,
                source,
                destination,
                Some(port),
                is_translated,
                count,
                count,
            )
        };
        let mut expected = BTreeSet::from([
            one(6, CLIENT, SERVER, 80, false, 3),
            one(6, CLIENT, SERVER, 8080, true, 1),
            one(6, CLIENT, SERVER, 50051, false, 1),
            one(6, CLIENT_6, SERVER_6, 443, false, 1),
            one(17, CLIENT, SERVER, 5353, false, 1),
        ]);
        assert_eq!(all(&status), expected);
        assert_eq!(status.connections[0].count, 3, "the most frequent first");

        // Between two readings: one more connection to port 80, and one to another port that is gone before the next reading.
        open.push(cluster.connect("10.244.1.8:80", 80));
        let short = cluster.ask(7000);
        drop(short);
        run("conntrack -D -p udp --dport 7000");
        assert!(!run("conntrack -L -p udp").contains("dport=7000"));
        let status = next(&mut sampler).await;
        assert_eq!((&status.problem, &status.limitation), (&None, &None));
        assert!(status.last > status.since);
        expected.replace(one(6, CLIENT, SERVER, 80, false, 4));
        expected.remove(&one(6, CLIENT, SERVER, 80, false, 3));
        expected.insert(one(17, CLIENT, SERVER, 7000, false, 1));
        assert_eq!(all(&status), expected);

        let text = metrics.text().unwrap();
        assert!(
            text.contains("replumb_agent_connection_readings_total{outcome=\"complete\"} 2"),
            "{text}"
        );
        assert!(text.contains("replumb_agent_connection_kinds 6"), "{text}");
        drop(sampler);
        let deadline = Instant::now() + LIMIT;
        while Arc::strong_count(&metrics.sampling) > 1 {
            assert!(Instant::now() < deadline, "the thread has not ended");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_entry_whose_first_packet_was_an_answer_names_the_port_of_the_server() {
    in_namespace(|| async {
        let cluster = Cluster::new();
        let Open {
            mut client,
            mut server,
        } = cluster.connect("10.244.1.8:80", 80);
        run("conntrack -F");
        server.write_all(b"z").unwrap();
        client.read_exact(&mut [0]).unwrap();
        for addresses in [spec(&[SERVER], &[]), spec(&[], &[CLIENT])] {
            let (mut sampler, _metrics) = start(&addresses);
            let status = next(&mut sampler).await;
            let [seen] = &status.connections[..] else {
                panic!("{status:#?}");
            };
            assert_eq!(
                (seen.source.to_string(), seen.source_port),
                (SERVER.to_owned(), Some(80))
            );
            assert_eq!(
                (seen.destination.to_string(), seen.port),
                (CLIENT.to_owned(), None)
            );
            assert!(!seen.is_translated);
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_kernel_that_tracks_nothing_is_a_problem_and_no_empty_sample() {
    in_namespace(|| async {
        run("ip link set lo up");
        let (mut sampler, metrics) = start(&spec(&[SERVER], &[]));
        let status = next(&mut sampler).await;
        assert_eq!((status.since, status.last), (None, None));
        let problem = status.problem.unwrap();
        assert!(problem.contains("tracks no connection"), "{problem}");
        let text = metrics.text().unwrap();
        assert!(
            text.contains("replumb_agent_connection_readings_total{outcome=\"empty\"} 1"),
            "{text}"
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_family_that_the_kernel_does_not_track_limits_the_sample() {
    in_namespace(|| async {
        let cluster = Cluster::new();
        run("nft flush chain inet test after");
        let _open = [
            cluster.connect("10.244.1.8:80", 80),
            cluster.connect("[fd00:10:244:1::8]:443", 443),
        ];
        let (mut sampler, _metrics) = start(&spec(&[SERVER, SERVER_6], &[]));
        let status = next(&mut sampler).await;
        assert_eq!(status.problem, None);
        assert_eq!(status.connections.len(), 1, "{status:#?}");
        let limitation = status.limitation.unwrap();
        assert!(
            limitation.contains("no IPv6 connection was seen on the host"),
            "{limitation}"
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_kernel_without_events_limits_the_sample() {
    in_namespace(|| async {
        let cluster = Cluster::new();
        let _open = cluster.connect("10.244.1.8:80", 80);
        run("sysctl -qw net.netfilter.nf_conntrack_events=0");
        let (mut sampler, _metrics) = start(&spec(&[SERVER], &[]));
        let status = next(&mut sampler).await;
        assert_eq!(status.problem, None);
        assert_eq!(status.connections.len(), 1);
        let limitation = status.limitation.unwrap();
        assert!(
            limitation.contains("net.netfilter.nf_conntrack_events is 0, needed 1 or 2"),
            "{limitation}"
        );
    });
}

/// Entries of datagrams from one address of the host to this many ports of another one.
fn fill(ports: u16) {
    let socket = UdpSocket::bind("10.244.1.7:45000").unwrap();
    for port in 1..=ports {
        socket.send_to(b"x", ("10.244.1.8", port)).unwrap();
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn dropped_events_are_counted_and_the_next_ones_arrive() {
    in_namespace(|| async {
        track_connections();
        run("ip route add local 10.0.0.0/8 dev lo");
        let mut events = EndedConnections::subscribe().unwrap();
        fill(30_000);
        run("conntrack -F");
        let (mut ended, mut overflows) = (0, 0);
        loop {
            let received = events.receive(1000, |_| ended += 1).unwrap();
            overflows += received.overflows;
            assert!(received.malformed.is_none());
            if !received.has_more {
                break;
            }
        }
        assert!(overflows > 0, "{ended} events and no overflow");
        assert!((1000..30_000).contains(&ended), "{ended}");
        fill(10);
        run("conntrack -F");
        tokio::time::timeout(LIMIT, events.arrived())
            .await
            .unwrap()
            .unwrap();
        let mut ports = BTreeSet::new();
        let received = events
            .receive(1000, |entry| {
                ports.insert(entry.original.destination_port);
            })
            .unwrap();
        assert_eq!(received.overflows, 0);
        assert_eq!(ports, (1..=10).collect());
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_capabilities_of_the_manifest_are_sufficient_to_sample() {
    in_namespace(|| async {
        let cluster = Cluster::new();
        let _open = cluster.connect("10.244.1.8:80", 80);
        drop_all_capabilities_except(container_capabilities());
        let (mut sampler, _metrics) = start(&spec(&[SERVER], &[]));
        let status = next(&mut sampler).await;
        assert_eq!((&status.problem, &status.limitation), (&None, &None));
        assert_eq!(status.connections.len(), 1);
    });
}
