//! The moment in which the links of pods leave the bridge or join it.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use agent::host::firewall::detour;
use agent::host::snapshot::Link;
use agent::kinds::flannel_to_calico::work::end_detour;
use flannel_to_calico::host::{HostDecision, HostStep, PodAction, leftovers};
use flannel_to_calico::phase::Goal;
use nix::sys::socket::{setsockopt, sockopt};
use rstest::rstest;

use crate::adopt::{adopt, mixed, new_host};
use crate::drive;
use crate::host::{Host, in_namespace, run};
use crate::pods::{Pod, Traffic};

/// The filter of the loopback interface.
const FILTER: &str = "net.ipv4.conf.lo.rp_filter";
/// How often links leave the bridge and join it in the test with a stream.
const TURNS: usize = 10;

/// Drives the host to the step that takes the links of pods from the bridge.
async fn until_links_leave(host: &Host) {
    for _ in 0..32 {
        let seen = host.observe().await;
        let decision = host.decide(&seen, Goal::Calico);
        let HostDecision::Run(step) = decision else {
            panic!("{decision:?}");
        };
        if matches!(&step, HostStep::ChangePods(change) if change.action == PodAction::Detach) {
            return;
        }
        host.apply(&step, &seen).await.unwrap();
    }
    panic!("no step takes the links from the bridge");
}

/// A host whose pods are ready to leave the bridge, with this filter of the loopback interface.
async fn ready(dual_stack: bool, filter: u8) -> (Host, Vec<Pod>) {
    let (host, pods) = mixed(new_host(dual_stack)).await;
    run(&format!("sysctl -qw {FILTER}={filter}"));
    // The pods know their neighbours.
    Traffic::start(&pods).assert_no_gap("before");
    until_links_leave(&host).await;
    (host, pods)
}

fn names(pods: &[Pod]) -> Vec<String> {
    pods[..3].iter().map(Pod::link).collect()
}

/// Runs a change with a detour for the links of the three pods of flannel.
async fn around(host: &Host, pods: &[Pod], change: impl AsyncFnOnce()) {
    let links = names(pods);
    let links: Vec<&str> = links.iter().map(String::as_str).collect();
    let made = detour::around(&links, &host.paths.sysctl, async || {
        change().await;
        Ok::<_, ()>(())
    });
    made.await.unwrap().unwrap();
}

/// What remains of a detour.
fn traces() -> (String, bool) {
    let filter = run(&format!("sysctl -n {FILTER}")).trim().to_owned();
    (filter, run("nft list tables").contains("replumb_detour"))
}

/// Ports that drop every frame: the moment lasts.
#[rstest]
#[case::ipv4(false, 1)]
#[case::dual_stack(true, 0)]
#[case::loose(false, 2)]
#[ignore = "needs root and network namespaces"]
fn ports_that_drop_frames_lose_no_packet(#[case] dual_stack: bool, #[case] filter: u8) {
    in_namespace(move || async move {
        let (host, pods) = ready(dual_stack, filter).await;
        let traffic = Traffic::start(&pods);
        around(&host, &pods, async || {
            let set = |state| {
                let links = names(&pods);
                let all = links
                    .iter()
                    .map(|link| format!("link set dev {link} state {state}\n"));
                fs::write("/run/ports", all.collect::<String>()).unwrap();
                run("bridge -batch /run/ports");
            };
            set("disabled");
            tokio::time::sleep(Duration::from_millis(500)).await;
            set("forwarding");
        })
        .await;
        traffic.assert_no_gap("ports that drop frames");
        assert_eq!(traces(), (filter.to_string(), false));
    });
}

/// An agent that is killed in this moment leaves a detour that works; the next one removes it.
#[rstest]
#[case::forward(Goal::Calico)]
#[case::back(Goal::Flannel)]
#[ignore = "needs root and network namespaces"]
fn the_detour_of_a_killed_agent_is_removed(#[case] goal: Goal) {
    in_namespace(move || async move {
        let (host, pods) = ready(false, 1).await;
        let traffic = Traffic::start(&pods[..3]);
        let (begun, killed) = tokio::sync::oneshot::channel();
        tokio::select! {
            () = around(&host, &pods, async || {
                begun.send(()).unwrap();
                std::future::pending::<()>().await;
            }) => panic!("the change does not end"),
            begun = killed => begun.unwrap(),
        }
        assert_eq!(traces(), ("2".to_owned(), true));
        // The next agent, whatever its goal.
        let seen = host.observe().await;
        end_detour(&seen, &host.paths).await.unwrap();
        assert_eq!(traces(), ("1".to_owned(), false));
        assert_eq!(host.observe().await.detour, None);
        if goal == Goal::Flannel {
            run("ip link delete calinew");
            assert_eq!(drive(&host, goal).await, None);
            assert!(host.is_rolled_back());
        } else {
            adopt(&host, &pods[..3]).await;
            let facts = host.observe().await.facts;
            assert_eq!(leftovers(&facts, &host.settings()), Vec::<String>::new());
        }
        traffic.assert_no_gap("the detour of a killed agent");
        assert_eq!(traces(), ("1".to_owned(), false));
    });
}

/// The kernel deletes a chain with a hook when its last link ends, and another program may empty the tables.
#[rstest]
#[case::links_end("ip link delete vetha; ip link delete vethb; ip link delete vethc")]
#[case::tables_are_emptied("nft flush ruleset")]
#[ignore = "needs root and network namespaces"]
fn the_filter_is_restored_whatever_happens_to_the_rules(#[case] event: &'static str) {
    in_namespace(move || async move {
        let (host, pods) = ready(false, 1).await;
        around(&host, &pods, async || event.split("; ").map(run).for_each(drop)).await;
        assert_eq!(traces(), ("1".to_owned(), false));
    });
}

/// The kernel accepts fewer links than a node may have pods.
#[test]
#[ignore = "needs root and network namespaces"]
fn many_links_have_detours_one_after_the_other() {
    in_namespace(|| async {
        let names: Vec<String> = (0..detour::MOST_LINKS)
            .map(|number| format!("veth{number}"))
            .collect();
        for name in &names {
            run(&format!("ip link add {name} type veth peer name peer-{name}"));
        }
        let links: Vec<&str> = names.iter().map(String::as_str).collect();
        let made = detour::around(&links, Path::new("/proc/sys/net"), async || {
            assert!(traces().1);
            Ok::<_, ()>(())
        });
        made.await.unwrap().unwrap();
        assert!(!traces().1);
    });
}

/// Datagrams as fast as a pod sends them: some arrive in the moment itself.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_stream_without_pauses_is_complete() {
    in_namespace(|| async {
        let (host, pods) = ready(false, 1).await;
        let receiver = UdpSocket::bind("10.244.1.1:9").unwrap();
        setsockopt(&receiver, sockopt::RcvBufForce, &(256 << 20)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let end = stop.clone();
        let sender: JoinHandle<u64> = pods[0].thread(move || stream(&end));
        let received = std::thread::spawn(move || count(&receiver));
        let snapshot = host.netlink.snapshot().await.unwrap();
        let bridge = snapshot.link("cni0").unwrap();
        let links: Vec<&Link> = names(&pods)
            .iter()
            .map(|name| snapshot.link(name).unwrap())
            .collect();
        for _ in 0..TURNS {
            around(&host, &pods, async || {
                for link in &links {
                    host.netlink.detach_port(link).await.unwrap();
                }
            })
            .await;
            around(&host, &pods, async || {
                for link in &links {
                    host.netlink.attach_port(link, bridge, true).await.unwrap();
                }
            })
            .await;
        }
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        let received = received.join().unwrap();
        eprintln!("{sent} datagrams in {TURNS} turns");
        assert!(sent > 10_000, "{sent} datagrams");
        assert_eq!(received, sent);
    });
}

/// Sends datagrams; returns how many the kernel took.
fn stream(stop: &AtomicBool) -> u64 {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("10.244.1.1:9").unwrap();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        sent += u64::from(socket.send(&[0; 16]).is_ok());
    }
    sent
}

/// Counts datagrams until none arrives for a second.
fn count(socket: &UdpSocket) -> u64 {
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut buffer = [0; 16];
    let mut received = 0;
    while socket.recv(&mut buffer).is_ok() {
        received += 1;
    }
    received
}
