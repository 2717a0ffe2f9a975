//! Probes over a path of three namespaces, with the real probe pod's program at its end.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent::probe::probe;
use api::node_migration::ProbeTarget;

use crate::host::{in_namespace, run};

/// A process that is ended with the test.
pub struct Process(Child);

impl Process {
    pub fn start(line: &[&str]) -> Self {
        let child = Command::new(line[0])
            .args(&line[1..])
            .env("POD_UID", "u-7")
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{line:?}: {error}"));
        Self(child)
    }

    /// A new network namespace that exists as long as the process.
    pub fn namespace() -> Self {
        let process = Self::start(&["unshare", "--net", "sleep", "600"]);
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", process.0.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(&theirs)
            .ok()
            .is_none_or(|theirs| theirs == own)
        {
            assert!(Instant::now() < deadline, "unshare has created no namespace");
            std::thread::yield_now();
        }
        process
    }

    /// ID of the process, which identifies its namespace.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Runs `ip` in the process's namespace.
    pub fn ip(&self, line: &str) {
        self.run(&format!("ip {line}"));
    }

    /// Runs a program in the process's namespace, checks its success, and returns its output.
    pub fn run(&self, line: &str) -> String {
        run(&format!("nsenter --net --target {} {line}", self.0.id()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_path_with_a_smaller_mtu_than_the_tunnel_is_detected() {
    in_namespace(|| async {
        let router = Process::namespace();
        let pod = Process::namespace();
        run("ip link set lo up");
        run(&format!(
            "ip link add near type veth peer name far netns {}",
            router.0.id()
        ));
        run("ip address add 10.9.0.1/24 dev near");
        run("ip link set near up");
        run("ip route add 10.9.1.0/24 via 10.9.0.2");
        router.ip("address add 10.9.0.2/24 dev far");
        router.ip("link set far up");
        router.ip(&format!(
            "link add back type veth peer name eth0 netns {}",
            pod.0.id()
        ));
        router.ip("address add 10.9.1.1/24 dev back");
        router.ip("link set back up");
        run(&format!(
            "nsenter --net --target {} sysctl -qw net.ipv4.ip_forward=1",
            router.0.id()
        ));
        pod.ip("address add 10.9.1.2/24 dev eth0");
        pod.ip("link set eth0 up");
        pod.ip("link set lo up");
        pod.ip("route add default via 10.9.1.1");
        let namespace = format!("--target={}", pod.0.id());
        let _echo = Process::start(&[
            "nsenter",
            "--net",
            &namespace,
            env!("CARGO_BIN_EXE_replumb-agent"),
            "echo",
            "--port",
            "9812",
        ]);
        let target = ProbeTarget {
            node: "b".to_owned(),
            address: "10.9.1.2".parse().unwrap(),
            port: 9812,
            pod_uid: "u-7".to_owned(),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut outcome = probe(&target, 1450).await;
        while !outcome.is_reached() {
            assert!(Instant::now() < deadline, "{}", outcome.message());
            outcome = probe(&target, 1450).await;
        }

        // A smaller MTU on the path to the pod; then on the path back.
        router.ip("link set back mtu 1400");
        let outcome = probe(&target, 1450).await;
        assert!(
            outcome.udp.is_ok() && outcome.tcp.is_ok() && outcome.large.is_err(),
            "{}",
            outcome.message()
        );
        router.ip("link set back mtu 1500");
        assert!(probe(&target, 1450).await.is_reached());
        pod.ip("link set eth0 mtu 1400");
        let outcome = probe(&target, 1450).await;
        assert!(
            outcome.udp.is_ok() && outcome.large.is_err(),
            "{}",
            outcome.message()
        );
    });
}
