//! The agent's executable with clients that connect and send nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent::kinds::flannel_to_calico::journal::Journal;
use agent::traffic::hub::Hub;
use agent::traffic::line::SOCKET;
use engine::time_limit::TimeLimit;
use flannel_to_calico::host::Orders;
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};
use rustix::thread::{Uid, set_thread_res_uid};
use serde_json::json;

use crate::drive;
use crate::host::{Host, in_namespace, run};
use crate::in_place::record;
use crate::path::Process;

/// Connections of a hostile client; fewer if the machine's limit of open files is lower.
const IDLE: u64 = 20_000;
/// Last bytes of the clients' addresses.
const SOURCES: RangeInclusive<u8> = 2..=21;
/// Time limit of the fake coordinator.
const SECONDS: u32 = 8;
/// Longest time until the rollback after the time limit has passed, sufficient for a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(15);
/// Memory limit: more than an idle agent needs, and much less than its limit of 192 MiB.
const MOST_KIB: u64 = 64 << 10;

fn connections() -> u64 {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    IDLE.min(hard.saturating_sub(500))
}

/// Anonymous memory of the program in KiB.
fn memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn health(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Opens this many connections from the other namespace to the agent, from many addresses in turn. Reset connections are held,
/// too.
fn hold(stranger: &Process, count: u64) -> JoinHandle<Vec<OwnedFd>> {
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", stranger.id())).unwrap();
    let connects = move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let connect = |source: u8| {
            let kind = SockType::Stream;
            let socket = socket::socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
            socket::bind(socket.as_raw_fd(), &SockaddrIn::new(10, 77, 0, source, 0)).unwrap();
            match socket::connect(socket.as_raw_fd(), &SockaddrIn::new(192, 0, 2, 11, 9810)) {
                Ok(()) | Err(Errno::ECONNRESET) => socket,
                Err(error) => panic!("{error}"),
            }
        };
        let sources = SOURCES.collect::<Vec<u8>>().into_iter().cycle().zip(0..count);
        sources.map(|(source, _)| connect(source)).collect()
    };
    std::thread::spawn(connects)
}

/// A host between the two networks, which its agent has to roll back after [`SECONDS`].
async fn swapped_host() -> Host {
    let host = Host::new();
    record(&host, &json!([{ "type": "bridge" }]));
    assert_eq!(drive(&host, Goal::Swapped).await, None);
    let now = Timestamp::now();
    Journal::open(&host.state())
        .unwrap()
        .record_goal(
            Orders {
                goal: Goal::Swapped,
                settings: host.settings(),
                time_limit: Some(TimeLimit {
                    seconds: SECONDS,
                    from: now,
                }),
            },
            now,
        )
        .unwrap();
    host
}

/// The agent's executable, with an unreachable API server.
fn agent_alone(host: &Host) -> Process {
    let config = host.folder.path().join("kubeconfig");
    let unreachable = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": { "server": "http://192.0.2.99:6443" } }],
        "users": [{ "name": "a", "user": {} }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    std::fs::write(&config, unreachable.to_string()).unwrap();
    let folder = |name: &str| host.folder.path().join(name).display().to_string();
    Process::start(&[
        "env",
        &format!("KUBECONFIG={}", config.display()),
        env!("CARGO_BIN_EXE_replumb-agent"),
        "--node-name=a",
        "--host-address=192.0.2.11",
        &format!("--run-dir={}", folder("run")),
        &format!("--state-dir={}", host.state().display()),
        &format!("--flannel-dir={}", host.paths.flannel.display()),
        &format!("--cni-state-dir={}", host.paths.cni_state.display()),
        "--sysctl-dir=/proc/sys/net",
    ])
}

fn wait_until_back(host: &Host, began: Instant) {
    while !host.is_rolled_back() {
        assert!(
            began.elapsed() < Duration::from_secs(u64::from(SECONDS)) + BACK_WITHIN,
            "the old network is not restored: {}",
            run("ip link")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Another program uses the port for metrics and health, and a folder has the name of the socket for traffic pods.
#[test]
#[ignore = "needs root and network namespaces"]
fn an_agent_that_cannot_listen_rolls_back_on_time() {
    in_namespace(|| async {
        let host = swapped_host().await;
        let taken = TcpListener::bind(SocketAddr::from((Ipv4Addr::new(192, 0, 2, 11), 9810))).unwrap();
        std::fs::create_dir_all(host.folder.path().join("run").join(SOCKET)).unwrap();
        let began = Instant::now();
        let agent = agent_alone(&host);
        wait_until_back(&host, began);
        drop((agent, taken));
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn with_20000_idle_connections_the_agent_is_alive_and_rolls_back_on_time() {
    in_namespace(|| async {
        let count = connections();
        eprintln!("{count} idle connections");
        let host = swapped_host().await;
        let node = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 11), 9810));
        let began = Instant::now();
        let agent = agent_alone(&host);
        while health(node).is_none() {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "the agent does not listen"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let stranger = Process::namespace();
        run(&format!(
            "ip link add pod0 type veth peer name eth0 netns {}",
            stranger.id()
        ));
        run("ip address add 10.77.0.1/24 dev pod0");
        run("ip link set pod0 up");
        for source in SOURCES {
            stranger.ip(&format!("address add 10.77.0.{source}/24 dev eth0"));
        }
        stranger.ip("link set eth0 up");
        stranger.ip("route add default via 10.77.0.1");
        let held = hold(&stranger, count);
        assert!(
            TcpStream::connect((Ipv4Addr::LOCALHOST, 9810)).is_err(),
            "the agent listens only on the node's own address"
        );
        wait_until_back(&host, began);
        let held = held.join().unwrap();
        assert_eq!(held.len() as u64, count);
        // The kubelet's health probe is answered in spite of them.
        assert!(health(node).unwrap().ends_with("ok\n"), "the agent is alive");
        let most = memory(&agent);
        eprintln!("{most} KiB of memory with {count} idle connections");
        assert!(most < MOST_KIB, "{most} KiB with {count} idle connections");
        drop((held, agent));
        let facts = host.observe().await.facts;
        assert_eq!(
            flannel_to_calico::host::phase(&facts, &host.settings()),
            Phase::Flannel
        );
    });
}

/// With wrong permissions of the socket, a user other than root connects, and receives nothing.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_connection_of_another_user_than_root_is_refused() {
    in_namespace(|| async {
        let folder = tempfile::tempdir().unwrap();
        let _hub = Hub::listen("a", folder.path()).unwrap();
        let socket = folder.path().join(SOCKET);
        for (path, mode) in [(folder.path(), 0o755), (socket.as_path(), 0o666)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let received = |user: u32| {
            let socket = socket.clone();
            let connect = move || {
                let user = Uid::from_raw(user);
                set_thread_res_uid(user, user, user).unwrap();
                let mut stream = UnixStream::connect(socket).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                // The connection may be closed already: then nothing is received either.
                let _ = stream.write_all(b"{\"podUid\":\"u-a\"}\n");
                let mut line = String::new();
                let _ = BufReader::new(stream).read_line(&mut line);
                line
            };
            tokio::task::spawn_blocking(|| std::thread::spawn(connect).join().unwrap())
        };
        assert!(
            received(0).await.unwrap().contains("flows"),
            "root receives its task"
        );
        assert_eq!(received(65534).await.unwrap(), "");
    });
}
