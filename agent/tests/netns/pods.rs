//! Pods with network namespaces of their own, and probes between them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use crate::host::{Host, json as ip, run};

/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(5);
/// A probe without an answer after this time is lost.
const LATE: Duration = Duration::from_millis(500);
const PORT: u16 = 7;

/// A pod with a network namespace of its own.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: &'static str,
    pub address: Ipv4Addr,
}

impl Pod {
    /// A pod as flannel's CNI plugins make it.
    pub fn on_bridge(host: &Host, name: &'static str, last: u8) -> Self {
        let pod = Self {
            name,
            address: Ipv4Addr::new(10, 244, 1, last),
        };
        let link = pod.link();
        run(&format!("ip netns add {name}"));
        run(&format!(
            "ip link add {link} type veth peer name eth0 netns {name}"
        ));
        run(&format!("ip link set {link} master cni0 up"));
        run(&format!("bridge link set dev {link} hairpin on"));
        pod.run(&format!("ip address add {}/24 dev eth0", pod.address));
        for line in [
            "ip link set lo up",
            "ip link set eth0 up",
            "ip route add default via 10.244.1.1",
        ] {
            pod.run(line);
        }
        pod.record(host);
        pod
    }

    /// A pod as Calico's CNI plugin makes it.
    pub fn of_calico(name: &'static str, last: u8) -> Self {
        let pod = Self {
            name,
            address: Ipv4Addr::new(10, 244, 1, last),
        };
        let link = format!("cali{name}");
        run(&format!("ip netns add {name}"));
        run(&format!(
            "ip link add {link} type veth peer name eth0 netns {name}"
        ));
        run(&format!("ip link set {link} address ee:ee:ee:ee:ee:ee up"));
        run(&format!(
            "sysctl -qw net.ipv4.conf.{link}.proxy_arp=1 net.ipv4.neigh.{link}.proxy_delay=0"
        ));
        pod.run(&format!("ip address add {}/32 dev eth0", pod.address));
        for line in [
            "ip link set lo up",
            "ip link set eth0 up",
            "ip route add 169.254.1.1 dev eth0 scope link",
            "ip route add default via 169.254.1.1",
        ] {
            pod.run(line);
        }
        run(&format!(
            "ip route add {} dev {link} scope link proto boot",
            pod.address
        ));
        pod
    }

    pub fn link(&self) -> String {
        format!("veth{}", self.name)
    }

    pub fn calico_link(&self) -> String {
        calico::pod_link("shop", self.name)
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
                "ips": [{ "address": format!("{}/24", self.address), "gateway": "10.244.1.1", "interface": 2, "version": "4" }],
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

/// Probes that were sent, probes that were lost, and the longest time between two answers.
type Outcome = (u32, u32, Duration);

/// Traffic between pods and the host, in all directions.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    /// Later: a probe may be on its way.
    stop_echoes: Arc<AtomicBool>,
    echoes: Vec<JoinHandle<()>>,
    paths: Vec<(String, JoinHandle<Outcome>)>,
}

impl Traffic {
    pub fn start(pods: &[Pod]) -> Self {
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
            let (end, address) = (stop.clone(), to.address);
            let host = std::thread::spawn(move || probe(&end, address));
            paths.push((format!("host → {}", to.name), host));
            for from in pods.iter().filter(|from| from.name != to.name) {
                let (end, address) = (stop.clone(), to.address);
                let thread = from.thread(move || probe(&end, address));
                paths.push((format!("{} → {}", from.name, to.name), thread));
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        Self {
            stop,
            stop_echoes,
            echoes,
            paths,
        }
    }

    /// Stops the probes; checks that none was lost.
    pub fn assert_nothing_lost(self, when: &str) {
        std::thread::sleep(Duration::from_millis(300));
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = 0;
        let mut bad = Vec::new();
        for (path, thread) in self.paths {
            let (sent, lost, longest) = thread.join().unwrap();
            sum += sent;
            if lost > 0 || sent == 0 {
                bad.push(format!("{path}: {lost} of {sent} lost, longest gap {longest:?}"));
            }
        }
        self.stop_echoes.store(true, Ordering::Relaxed);
        for echo in self.echoes {
            echo.join().unwrap();
        }
        eprintln!("{when}: {sum} probes");
        assert_eq!(bad, Vec::<String>::new(), "{when}");
    }
}

fn echo(stop: &AtomicBool) {
    let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = [0; 16];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

/// Sends probes to this address.
fn probe(stop: &AtomicBool, to: Ipv4Addr) -> Outcome {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
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
