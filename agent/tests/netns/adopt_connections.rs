//! Connections that live through an adoption: their source or destination is translated, as kube-proxy does it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flannel_to_calico::phase::Goal;
use rstest::rstest;

use crate::adopt::{adopt, mixed, new_host};
use crate::drive;
use crate::host::{in_namespace, run};
use crate::pods::Pod;

const PORT: u16 = 8080;
const SERVICE_PORT: u16 = 80;
const NODE_PORT: u16 = 30080;
/// Connections from each client to each address.
const CONNECTIONS: usize = 2;
/// How long a short connection lives.
const SHORT: Duration = Duration::from_millis(20);
/// A connection without an answer for this time has failed.
const LATE: Duration = Duration::from_secs(5);

/// The addresses of one family: a Service of all pods, a Service of the first pod, the node for clients outside, such a client.
struct Family {
    iptables: &'static str,
    pods: &'static str,
    service: &'static str,
    of_first: &'static str,
    node: &'static str,
    outside: &'static str,
    length: u8,
}

const IPV4: Family = Family {
    iptables: "iptables",
    pods: "10.244.0.0/16",
    service: "10.96.0.10",
    of_first: "10.96.0.11",
    node: "203.0.113.1",
    outside: "203.0.113.2",
    length: 24,
};
const IPV6: Family = Family {
    iptables: "ip6tables",
    pods: "fd00:10:244::/48",
    service: "fd00:96::10",
    of_first: "fd00:96::11",
    node: "fd00:51::1",
    outside: "fd00:51::2",
    length: 64,
};

impl Family {
    /// Rules as kube-proxy writes them.
    fn add_services(&self, pods: &[Pod]) {
        let is_own = |address: &&IpAddr| address.is_ipv4() == (self.iptables == "iptables");
        let servers: Vec<IpAddr> = pods
            .iter()
            .flat_map(|pod| pod.addresses.iter().filter(is_own))
            .copied()
            .collect();
        let nat = |rule: &str| run(&format!("{} -w 10 -t nat {rule}", self.iptables));
        nat("-N KUBE-MARK-MASQ");
        nat("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000");
        nat("-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully");
        for (number, server) in servers.iter().enumerate() {
            nat(&format!("-N SEP{number}"));
            nat(&format!("-A SEP{number} -s {server} -j KUBE-MARK-MASQ"));
            let to = SocketAddr::new(*server, PORT);
            nat(&format!("-A SEP{number} -p tcp -j DNAT --to-destination {to}"));
        }
        for (chain, endpoints) in [("ALL", servers.len()), ("FIRST", 1)] {
            nat(&format!("-N {chain}"));
            nat(&format!("-A {chain} ! -s {} -j KUBE-MARK-MASQ", self.pods));
            for number in 0..endpoints {
                let every = endpoints - number;
                nat(&format!(
                    "-A {chain} -m statistic --mode nth --every {every} --packet 0 -j SEP{number}"
                ));
            }
        }
        for hook in ["PREROUTING", "OUTPUT"] {
            for (address, port, chain) in [
                (self.service, SERVICE_PORT, "ALL"),
                (self.of_first, SERVICE_PORT, "FIRST"),
                (self.node, NODE_PORT, "ALL"),
            ] {
                nat(&format!(
                    "-A {hook} -d {address} -p tcp --dport {port} -j {chain}"
                ));
            }
        }
    }
}

/// A client outside the cluster, in a namespace of its own.
fn outside(families: &[&Family]) -> Pod {
    let client = Pod {
        name: "outside".to_owned(),
        addresses: families
            .iter()
            .map(|family| family.outside.parse().unwrap())
            .collect(),
    };
    run("ip netns add outside");
    run("ip link add out0 type veth peer name eth0 netns outside");
    run("ip link set out0 up");
    client.run("ip link set lo up");
    client.run("ip link set eth0 up");
    for family in families {
        let flags = if family.length == 64 { "nodad" } else { "" };
        run(&format!(
            "ip address add {}/{} dev out0 {flags}",
            family.node, family.length
        ));
        client.run(&format!(
            "ip address add {}/{} dev eth0 {flags}",
            family.outside, family.length
        ));
        // The host chooses its own address by the route, before the translation.
        for service in [family.service, family.of_first] {
            run(&format!("ip route replace {service} via {}", family.outside));
        }
    }
    client
}

/// What a connection has seen: the number of answers and the longest time for one, or why it failed.
type Outcome = Result<(u32, Duration), String>;

struct Connections {
    stop: Arc<AtomicBool>,
    stop_servers: Arc<AtomicBool>,
    servers: Vec<JoinHandle<()>>,
    clients: Vec<(String, JoinHandle<Outcome>)>,
}

impl Connections {
    fn start(pods: &[Pod], outside: &Pod, families: &[&Family]) -> Self {
        let (stop, stop_servers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let serve = |pod: &Pod| {
            let stop = stop_servers.clone();
            pod.thread(move || serve(&stop))
        };
        let servers = pods.iter().map(serve).collect();
        std::thread::sleep(Duration::from_millis(100));
        let mut clients = Vec::new();
        for family in families {
            let to = |address: &str, port| SocketAddr::new(address.parse().unwrap(), port);
            let service = to(family.service, SERVICE_PORT);
            let node = to(family.node, NODE_PORT);
            let of_first = to(family.of_first, SERVICE_PORT);
            let paths = [
                ("host → Service", None, service),
                ("host → node port", None, node),
                ("outside → node port", Some(outside), node),
                ("pod → Service", Some(&pods[1]), service),
                ("pod → itself by a Service", Some(&pods[0]), of_first),
            ];
            for (path, from, to) in paths {
                for number in 0..CONNECTIONS {
                    let end = stop.clone();
                    // Without a pause, the connections would take the processors from the other tests.
                    let pause = Duration::from_millis(if number == 0 { 1 } else { 10 });
                    let work = move || client(to, pause, || end.load(Ordering::Relaxed));
                    clients.push((format!("{path} {to} {number}"), spawn(from, work)));
                    let end = stop.clone();
                    let work = move || churn(&end, to);
                    clients.push((format!("{path} {to} {number}, short"), spawn(from, work)));
                }
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        Self {
            stop,
            stop_servers,
            servers,
            clients,
        }
    }

    /// Ends the connections; checks that each has lived until now. Of the short ones, `most_failed` paths may have had a failure.
    fn assert_alive(self, when: &str, most_failed: usize) {
        std::thread::sleep(Duration::from_secs(1));
        self.stop.store(true, Ordering::Relaxed);
        let mut failed = BTreeMap::new();
        let (mut count, mut longest) = (0, Duration::ZERO);
        for (path, thread) in self.clients {
            match thread.join().unwrap() {
                Ok((answers, gap)) => {
                    assert!(answers > 50, "{path}: {answers} answers");
                    count += answers;
                    longest = longest.max(gap);
                }
                Err(error) => {
                    failed.insert(path, error);
                }
            }
        }
        self.stop_servers.store(true, Ordering::Relaxed);
        for server in self.servers {
            server.join().unwrap();
        }
        eprintln!("{when}: {count} answers, longest time for one {longest:?}");
        let short = failed.keys().filter(|path| path.ends_with("short")).count();
        assert!(
            failed.len() == short && short <= most_failed,
            "{when}: {failed:?}"
        );
    }
}

/// Runs `work` in the namespace of a pod, or of the host.
fn spawn(from: Option<&Pod>, work: impl FnOnce() -> Outcome + Send + 'static) -> JoinHandle<Outcome> {
    match from {
        Some(pod) => pod.thread(work),
        None => std::thread::spawn(work),
    }
}

/// Opens one short connection after the other. Returns the number of answers, and the longest time for one.
fn churn(stop: &AtomicBool, to: SocketAddr) -> Outcome {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let deadline = Instant::now() + SHORT;
        let (answers, gap) = client(to, Duration::from_millis(4), || Instant::now() > deadline)?;
        count += answers;
        longest = longest.max(gap);
    }
    Ok((count, longest))
}

/// Answers with what it receives.
fn serve(stop: &AtomicBool) {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                // The stack of a thread that has ended is kept until its handle is gone.
                all.retain(|one: &JoinHandle<()>| !one.is_finished());
                all.push(std::thread::spawn(move || {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_nodelay(true).unwrap();
                    stream.set_read_timeout(Some(LATE)).unwrap();
                    let mut bytes = [0; 8];
                    while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
                }));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    for one in all {
        one.join().unwrap();
    }
}

fn client(to: SocketAddr, pause: Duration, is_over: impl Fn() -> bool) -> Outcome {
    let failed = |what: &str, error: &std::io::Error| format!("{what}: {error}");
    let mut stream = TcpStream::connect_timeout(&to, LATE).map_err(|error| failed("connect", &error))?;
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LATE)).unwrap();
    let (mut sent, mut longest) = (0_u32, Duration::ZERO);
    while !is_over() {
        let begun = Instant::now();
        let number = u64::from(sent).to_be_bytes();
        stream
            .write_all(&number)
            .map_err(|error| failed("send", &error))?;
        let mut answer = [0; 8];
        stream
            .read_exact(&mut answer)
            .map_err(|error| failed("receive", &error))?;
        assert_eq!(answer, number);
        longest = longest.max(begun.elapsed());
        sent += 1;
        std::thread::sleep(pause);
    }
    Ok((sent, longest))
}

#[rstest]
#[case::ipv4(false, false)]
#[case::dual_stack(true, false)]
#[case::an_old_kernel(false, true)]
#[ignore = "needs root and network namespaces"]
fn connections_live_through_an_adoption_and_its_return(#[case] dual_stack: bool, #[case] old_kernel: bool) {
    in_namespace(move || async move {
        let (mut host, pods) = mixed(new_host(dual_stack)).await;
        if old_kernel {
            host.netlink = host.netlink.like_an_old_kernel();
        }
        // A connection that begins while an old kernel has the link of a pod down goes through the bridge.
        let most_failed = if old_kernel { 3 } else { 0 };
        let families: &[&Family] = if dual_stack { &[&IPV4, &IPV6] } else { &[&IPV4] };
        let outside = outside(families);
        for family in families {
            family.add_services(&pods[..3]);
        }
        let begun_before = Connections::start(&pods[..3], &outside, families);
        adopt(&host, &pods[..3]).await;
        begun_before.assert_alive("adoption", most_failed);
        run("ip link delete calinew");
        let begun_on_calico = Connections::start(&pods[..3], &outside, families);
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        begun_on_calico.assert_alive("return", most_failed);
        let tables = run("nft list tables");
        assert!(!tables.contains("replumb"), "{tables}");
    });
}
