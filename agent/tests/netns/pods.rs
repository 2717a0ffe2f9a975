//! Pods with network namespaces of their own, and probes between them.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use crate::host::{Host, json as ip, run};

/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(5);
/// A probe without an answer after this time is lost.
const LATE: Duration = Duration::from_millis(500);
pub const PORT: u16 = 7;

/// A pod with a network namespace of its own.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    /// One of each family that the host has.
    pub addresses: Vec<IpAddr>,
}

impl Pod {
    fn new(host: &Host, name: &str, last: u8) -> Self {
        let mut addresses = vec![IpAddr::from([10, 244, 1, last])];
        if host.ipv6.is_some() {
            addresses.push(IpAddr::from([0xfd00, 0x10, 0x244, 1, 0, 0, 0, u16::from(last)]));
        }
        run(&format!("ip netns add {name}"));
        Self {
            name: name.to_owned(),
            addresses,
        }
    }

    /// A pod as flannel's CNI plugins make it.
    pub fn on_bridge(host: &Host, name: &str, last: u8) -> Self {
        let pod = Self::new(host, name, last);
        let link = pod.link();
        run(&format!(
            "ip link add {link} type veth peer name eth0 netns {name}"
        ));
        run(&format!("ip link set {link} master cni0 up"));
        run(&format!("bridge link set dev {link} hairpin on"));
        pod.run("ip link set lo up");
        pod.run("ip link set eth0 up");
        for address in &pod.addresses {
            let (length, gateway) = network_of(*address);
            let flags = if address.is_ipv6() { "nodad" } else { "" };
            pod.run(&format!("ip address add {address}/{length} dev eth0 {flags}"));
            pod.run(&format!(
                "ip {} route add default via {gateway}",
                family(*address)
            ));
        }
        pod.record(host);
        pod
    }

    /// A pod as Calico's CNI plugin makes it.
    pub fn of_calico(host: &Host, name: &str, last: u8) -> Self {
        let pod = Self::new(host, name, last);
        let link = format!("cali{name}");
        run(&format!(
            "ip link add {link} type veth peer name eth0 netns {name}"
        ));
        run(&format!("sysctl -qw net.ipv6.conf.{link}.accept_dad=0"));
        run(&format!("ip link set {link} address ee:ee:ee:ee:ee:ee up"));
        run(&format!(
            "sysctl -qw net.ipv4.conf.{link}.proxy_arp=1 net.ipv4.neigh.{link}.proxy_delay=0 net.ipv6.conf.{link}.proxy_ndp=1"
        ));
        pod.run("ip link set lo up");
        pod.run("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
        pod.run("ip link set eth0 up");
        for address in &pod.addresses {
            let (length, gateway, flags) = match address {
                IpAddr::V4(_) => (32, "169.254.1.1", ""),
                IpAddr::V6(_) => (128, "fe80::ecee:eeff:feee:eeee", "nodad"),
            };
            let family = family(*address);
            pod.run(&format!("ip address add {address}/{length} dev eth0 {flags}"));
            pod.run(&format!("ip {family} route add {gateway} dev eth0"));
            pod.run(&format!("ip {family} route add default via {gateway} dev eth0"));
            run(&format!("ip {family} route add {address} dev {link} proto boot"));
        }
        pod
    }

    pub fn link(&self) -> String {
        format!("veth{}", self.name)
    }

    pub fn calico_link(&self) -> String {
        calico::pod_link("shop", &self.name)
    }

    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        run(&format!("ip netns exec {} {line}", self.name))
    }

    fn mac(&self, pod: bool) -> String {
        let links: Value = if pod {
            serde_json::from_str(&self.run("ip -j link show dev eth0")).unwrap()
        } else {
            ip(&format!("ip -j link show dev {}", self.link()))
        };
        links[0]["address"].as_str().unwrap().to_owned()
    }

    /// libcni's record.
    fn record(&self, host: &Host) {
        let list = json!({ "name": "cbr0", "cniVersion": "0.4.0", "plugins": [{ "type": "flannel" }, { "type": "portmap" }] });
        let record = json!({
            "kind": "cniCacheV1",
            "containerId": self.name,
            "config": base64::prelude::BASE64_STANDARD.encode(list.to_string()),
            "ifName": "eth0",
            "networkName": "cbr0",
            "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", self.name]],
            "result": {
                "cniVersion": "0.4.0",
                "interfaces": [
                    { "name": "cni0", "mac": "02:00:00:00:00:10" },
                    { "name": self.link(), "mac": self.mac(false) },
                    { "name": "eth0", "mac": self.mac(true), "sandbox": format!("/run/netns/{}", self.name) },
                ],
                "ips": self.addresses.iter().map(ip_of).collect::<Vec<_>>(),
            },
        });
        let folder = host.paths.cni_state.join("results");
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join(format!("cbr0-{}-eth0", self.name)),
            record.to_string(),
        )
        .unwrap();
    }

    /// Runs `work` in a thread in the namespace of the pod.
    pub fn thread<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let path = format!("/run/netns/{}", self.name);
        std::thread::spawn(move || {
            setns(fs::File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            work()
        })
    }
}

/// Length of the subnet of an address, and its gateway: an address of `cni0`.
fn network_of(address: IpAddr) -> (u8, &'static str) {
    match address {
        IpAddr::V4(_) => (24, "10.244.1.1"),
        IpAddr::V6(_) => (64, "fd00:10:244:1::1"),
    }
}

/// The address in libcni's record.
fn ip_of(address: &IpAddr) -> Value {
    let (length, gateway) = network_of(*address);
    let version = if address.is_ipv6() { "6" } else { "4" };
    json!({ "address": format!("{address}/{length}"), "gateway": gateway, "interface": 2, "version": version })
}

/// The option of `ip` for the family of an address.
pub fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "-6" } else { "-4" }
}

/// Probes that were sent, probes that were lost, and the longest time between two answers.
type Outcome = (u32, u32, Duration);

/// Traffic between pods and the host, in all directions.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    /// Later: a probe may be on its way.
    stop_echoes: Arc<AtomicBool>,
    echoes: Vec<JoinHandle<()>>,
    paths: Vec<(String, JoinHandle<Outcome>)>,
    /// Packets that full queues had dropped before.
    dropped: usize,
}

impl Traffic {
    pub fn start(pods: &[Pod]) -> Self {
        let dropped = dropped_by_full_queues();
        let stop = Arc::new(AtomicBool::new(false));
        let mut paths = Vec::new();
        let stop_echoes = Arc::new(AtomicBool::new(false));
        let answer = |pod: &Pod| {
            let end = stop_echoes.clone();
            pod.thread(move || echo(&end))
        };
        let echoes = pods.iter().map(answer).collect();
        std::thread::sleep(Duration::from_millis(100));
        for to in pods {
            for address in &to.addresses {
                let (end, address) = (stop.clone(), *address);
                let host = std::thread::spawn(move || probe(&end, address));
                paths.push((format!("host → {} {address}", to.name), host));
                for from in pods.iter().filter(|from| from.name != to.name) {
                    let end = stop.clone();
                    let thread = from.thread(move || probe(&end, address));
                    paths.push((format!("{} → {} {address}", from.name, to.name), thread));
                }
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        Self {
            stop,
            stop_echoes,
            echoes,
            paths,
            dropped,
        }
    }

    /// Stops the probes; checks that no path lost a probe. Beside a test that fills the queues of the processors, each path may lose one.
    pub fn assert_no_gap(self, when: &str) {
        let is_disturbed = dropped_by_full_queues() > self.dropped;
        self.assert_gap(when, u32::from(is_disturbed));
    }

    /// Stops the probes; checks that no path lost more than this number of probes.
    pub fn assert_gap(self, when: &str, most_lost: u32) {
        std::thread::sleep(Duration::from_millis(300));
        self.stop.store(true, Ordering::Relaxed);
        let (mut sum, mut all, mut worst) = (0, 0, 0);
        let mut bad = Vec::new();
        for (path, thread) in self.paths {
            let (sent, lost, longest) = thread.join().unwrap();
            sum += sent;
            all += lost;
            worst = worst.max(lost);
            if lost > most_lost || sent == 0 {
                bad.push(format!("{path}: {lost} of {sent} lost, longest gap {longest:?}"));
            }
        }
        self.stop_echoes.store(true, Ordering::Relaxed);
        for echo in self.echoes {
            echo.join().unwrap();
        }
        eprintln!("{when}: {sum} probes, {all} lost, at most {worst} of one path");
        assert_eq!(bad, Vec::<String>::new(), "{when}");
    }
}

/// Packets that the kernel has dropped because a processor had too many of them in its queue, on the whole machine: a bridge with a
/// hundred ports, as another test may have, fills it with copies of one broadcast.
pub fn dropped_by_full_queues() -> usize {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let second = |line: &str| usize::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    text.lines().map(second).sum()
}

/// A process that does not run for a second loses no datagram: the kernel would drop those that do not fit.
pub fn keep_bursts(socket: &UdpSocket) {
    setsockopt(socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
}

pub fn echo(stop: &AtomicBool) {
    // Both families.
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    keep_bursts(&socket);
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = [0; 16];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

/// Sends probes to this address.
fn probe(stop: &AtomicBool, to: IpAddr) -> Outcome {
    let socket = match to {
        IpAddr::V4(_) => UdpSocket::bind("0.0.0.0:0"),
        IpAddr::V6(_) => UdpSocket::bind("[::]:0"),
    };
    let socket = socket.unwrap();
    keep_bursts(&socket);
    socket.connect(SocketAddr::from((to, PORT))).unwrap();
    socket.set_read_timeout(Some(PAUSE)).unwrap();
    let (mut sent, mut answered) = (0_u32, 0_u32);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    let mut buffer = [0; 16];
    let receive = |answered: &mut u32, last: &mut Instant, longest: &mut Duration, buffer: &mut [u8]| {
        if socket.recv(buffer).is_ok() {
            *answered += 1;
            *longest = (*longest).max(last.elapsed());
            *last = Instant::now();
        }
    };
    while !stop.load(Ordering::Relaxed) {
        if socket.send(&sent.to_be_bytes()).is_ok() {
            sent += 1;
        }
        let next = Instant::now() + PAUSE;
        while Instant::now() < next {
            receive(&mut answered, &mut last, &mut longest, &mut buffer);
        }
    }
    let end = Instant::now() + LATE;
    while answered < sent && Instant::now() < end {
        receive(&mut answered, &mut last, &mut longest, &mut buffer);
    }
    (sent, sent - answered, longest)
}
