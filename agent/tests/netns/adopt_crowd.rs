//! A node with as many pods as a kubelet runs by default: each step of their adoption, and what each pod notices.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flannel_to_calico::facts::LegacyPod;
use flannel_to_calico::host::{HostDecision, leftovers};
use flannel_to_calico::phase::Goal;
use rstest::rstest;

use crate::adopt::{crowded, felix_takes, new_host};
use crate::host::{Host, in_namespace};
use crate::pods::{PORT, Pod, dropped_by_full_queues, echo, keep_bursts};

/// Pods on the bridge: the kubelet's default is 110.
const PODS: u8 = 110;
/// Pause between two probes of a pod.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause between two readings of answers.
const READING: Duration = Duration::from_micros(500);
/// A probe without an answer after this time is lost.
const LATE: Duration = Duration::from_secs(2);

/// What a pod noticed.
#[derive(Clone, Debug, Default)]
struct Path {
    /// Whether each probe had an answer.
    answered: Vec<bool>,
    /// The slowest answer.
    slowest: Duration,
}

impl Path {
    fn lost(&self) -> usize {
        self.answered.iter().filter(|answered| !**answered).count()
    }

    /// The longest time without an answer.
    fn longest_gap(&self) -> Duration {
        let runs = self.answered.split(|answered| *answered).map(<[bool]>::len);
        let longest = runs.max().unwrap_or_default();
        if longest == 0 {
            return Duration::ZERO;
        }
        PAUSE * u32::try_from(longest + 1).unwrap()
    }
}

/// Probes from the host to every pod, each of which answers.
struct Probes {
    stop: Arc<AtomicBool>,
    answering: Vec<JoinHandle<()>>,
    asking: JoinHandle<Vec<Path>>,
    stop_answers: Arc<AtomicBool>,
}

impl Probes {
    fn start(pods: &[Pod]) -> Self {
        let (stop, stop_answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let answer = |pod: &Pod| {
            let end = stop_answers.clone();
            pod.thread(move || echo(&end))
        };
        let answering = pods.iter().map(answer).collect();
        std::thread::sleep(Duration::from_millis(300));
        let targets: Vec<IpAddr> = pods.iter().flat_map(|pod| pod.addresses.clone()).collect();
        let end = stop.clone();
        let asking = std::thread::spawn(move || ask(&targets, &end));
        std::thread::sleep(Duration::from_millis(500));
        Self {
            stop,
            answering,
            asking,
            stop_answers,
        }
    }

    fn end(self) -> Vec<Path> {
        std::thread::sleep(Duration::from_millis(300));
        self.stop.store(true, Ordering::Relaxed);
        let paths = self.asking.join().unwrap();
        self.stop_answers.store(true, Ordering::Relaxed);
        for thread in self.answering {
            thread.join().unwrap();
        }
        paths
    }
}

/// A probe: the number of the path and its own, and when it was sent, in microseconds.
fn encode(path: usize, number: usize, at: Duration) -> [u8; 16] {
    let words = [u32::try_from(path).unwrap(), u32::try_from(number).unwrap()];
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&words[0].to_be_bytes());
    bytes[4..8].copy_from_slice(&words[1].to_be_bytes());
    bytes[8..].copy_from_slice(&u64::try_from(at.as_micros()).unwrap().to_be_bytes());
    bytes
}

/// One thread for all paths: the machine has few processors.
fn ask(targets: &[IpAddr], stop: &AtomicBool) -> Vec<Path> {
    let sockets = ["0.0.0.0:0", "[::]:0"].map(|own| {
        let socket = UdpSocket::bind(own).unwrap();
        keep_bursts(&socket);
        socket.set_nonblocking(true).unwrap();
        socket
    });
    let mut paths = vec![Path::default(); targets.len()];
    let begin = Instant::now();
    let receive = |paths: &mut Vec<Path>, until: Instant| {
        let mut bytes = [0; 16];
        while let Some(rest) = until.checked_duration_since(Instant::now()) {
            std::thread::sleep(rest.min(READING));
            for socket in &sockets {
                while socket.recv(&mut bytes).is_ok() {
                    let word = |from: usize| u32::from_be_bytes(bytes[from..from + 4].try_into().unwrap());
                    let sent = Duration::from_micros(u64::from_be_bytes(bytes[8..].try_into().unwrap()));
                    let path = &mut paths[usize::try_from(word(0)).unwrap()];
                    path.answered[usize::try_from(word(4)).unwrap()] = true;
                    path.slowest = path.slowest.max(begin.elapsed().saturating_sub(sent));
                }
            }
        }
    };
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let next = Instant::now() + PAUSE;
        for (index, target) in targets.iter().enumerate() {
            let socket = &sockets[usize::from(target.is_ipv6())];
            let probe = encode(index, number, begin.elapsed());
            paths[index].answered.push(false);
            socket.send_to(&probe, SocketAddr::from((*target, PORT))).unwrap();
        }
        number += 1;
        receive(&mut paths, next);
    }
    receive(&mut paths, Instant::now() + LATE);
    paths
}

/// Drives the host to this goal while Felix takes every link, and prints the time of each step.
async fn drive(host: &Host, pods: &[Pod], goal: Goal) {
    let begin = Instant::now();
    let mut seen = host.observe().await;
    eprintln!("  observation {:?}", begin.elapsed());
    for _ in 0..40 {
        match host.decide(&seen, goal) {
            HostDecision::Run(step) => {
                let begin = Instant::now();
                seen = host.apply(&step, &seen).await.unwrap();
                eprintln!("  {:<24} {:?}", step.name(), begin.elapsed());
            }
            HostDecision::Wait(message) => {
                assert!(message.contains("calico-node has not taken"), "{message}");
                pods.iter().for_each(felix_takes);
                seen = host.observe().await;
            }
            HostDecision::Settled => return,
            HostDecision::Halt(why) => panic!("{why}"),
        }
    }
    panic!("too many steps");
}

/// Prints what the pods noticed; checks that no probe was lost, except by a processor that other tests keep busy.
fn judge(when: &str, took: Duration, paths: &[Path], dropped: usize) {
    let sent: usize = paths.iter().map(|path| path.answered.len()).sum();
    let lost: usize = paths.iter().map(Path::lost).sum();
    let gap = paths.iter().map(Path::longest_gap).max().unwrap();
    let slowest = paths.iter().map(|path| path.slowest).max().unwrap();
    eprintln!(
        "{when}: {took:?}, {sent} probes of {} paths, {lost} lost, longest gap {gap:?}, slowest answer {slowest:?}; \
         dropped by full queues: {dropped}",
        paths.len()
    );
    assert!(
        lost <= dropped,
        "{when}: {lost} lost, {dropped} dropped by full queues"
    );
    assert!(sent > paths.len() * 100, "{when}: {sent} probes");
}

#[rstest]
#[case::ipv4(false)]
#[case::dual_stack(true)]
#[ignore = "needs root and network namespaces"]
fn every_pod_of_a_full_node_is_adopted_and_returns_without_a_lost_probe(#[case] dual_stack: bool) {
    in_namespace(move || async move {
        let (host, pods) = crowded(new_host(dual_stack), PODS - 3).await;
        for (when, goal) in [("adoption", Goal::Calico), ("return", Goal::Flannel)] {
            let before = dropped_by_full_queues();
            let probes = Probes::start(&pods);
            let begin = Instant::now();
            drive(&host, &pods, goal).await;
            let took = begin.elapsed();
            let paths = probes.end();
            judge(when, took, &paths, dropped_by_full_queues() - before);
            let facts = host.observe().await.facts;
            if goal == Goal::Calico {
                assert_eq!(leftovers(&facts, &host.settings()), Vec::<String>::new());
                assert!(facts.legacy_pods.iter().all(LegacyPod::is_adopted));
            } else {
                assert!(host.is_rolled_back());
                assert!(facts.legacy_pods.iter().all(|pod| pod.attached));
            }
            assert_eq!(facts.legacy_pods.len(), usize::from(PODS));
        }
    });
}
