//! serviceCidr: users of old addresses, in the kernel's connection tracking table and in processes of pods.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use agent::kinds::service_cidr::{connections, pods_with_old_addresses};
use engine::found::Found;
use rustix::thread::CapabilitySet;
use service_cidr::host::{AddressOrigin, PodsWithSourceAddresses, SourceAddresses};
use tempfile::TempDir;

use crate::host::{in_namespace, run};
use crate::rights::{container_capabilities, drop_all_capabilities_except, granted_for_service_cidr};

fn left() -> SourceAddresses {
    SourceAddresses {
        ranges: vec!["10.96.0.0/12".parse().unwrap()],
        excluded: Vec::new(),
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn connections_are_reported_while_they_are_open() {
    in_namespace(|| async {
        let left = left();
        let found = || connections::read(Path::new("/proc"), &left);
        run("ip link set lo up");
        run("ip address add 10.96.0.1/32 dev lo");
        run("ip address add 192.0.2.7/32 dev lo");
        // The kernel tracks connections only if a rule needs it.
        run("iptables-nft -A OUTPUT -m conntrack --ctstate INVALID -j DROP");
        assert_eq!(found(), Found::Absent);
        let listener = TcpListener::bind("10.96.0.1:8443").unwrap();
        let elsewhere = TcpListener::bind("192.0.2.7:8443").unwrap();
        let clients: Vec<TcpStream> = ["10.96.0.1:8443", "10.96.0.1:8443", "192.0.2.7:8443"]
            .iter()
            .map(|address| TcpStream::connect(address).unwrap())
            .collect();
        let texts = match found() {
            Found::Present(listed) => listed.words("connections"),
            other => panic!("{other:?}"),
        };
        assert_eq!(texts, ["10.96.0.1 to 10.96.0.1:8443/TCP"]);
        let servers = [listener.accept().unwrap(), listener.accept().unwrap()];
        drop((clients, servers, elsewhere));
        let deadline = Instant::now() + Duration::from_secs(10);
        while found() != Found::Absent {
            assert!(Instant::now() < deadline, "{:?}", found());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let listed = fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        assert!(
            listed.contains("TIME_WAIT"),
            "the kernel still lists the closed connections: {listed}"
        );
    });
}

const POD: &str = "8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11";

/// A process in a fake /proc, whose control group is that of a pod; all other files are the kernel's.
struct Pod {
    process: Child,
    proc: TempDir,
}

impl Pod {
    fn start(root: &Path) -> Self {
        let mut command = Command::new("sleep");
        command
            .arg("600")
            .env_clear()
            .env("KUBERNETES_SERVICE_HOST", "10.96.0.1")
            .env("WEB_PORT", "tcp://10.96.0.9:80")
            .uid(65534)
            .gid(65534);
        let process = command.spawn().unwrap();
        let proc = tempfile::tempdir().unwrap();
        let real = PathBuf::from(format!("/proc/{}", process.id()));
        let fake = proc.path().join(process.id().to_string());
        fs::create_dir(&fake).unwrap();
        for name in ["environ", "ns"] {
            symlink(real.join(name), fake.join(name)).unwrap();
        }
        symlink(root, fake.join("root")).unwrap();
        fs::write(
            fake.join("cgroup"),
            format!("0::/kubepods/besteffort/pod{POD}/x\n"),
        )
        .unwrap();
        symlink("/proc/thread-self", proc.path().join("thread-self")).unwrap();
        // Between fork and exec a process has its parent's environment.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(real.join("environ"))
            .unwrap_or_default()
            .starts_with("KUBERNETES_SERVICE_HOST=10.96.0.1")
        {
            assert!(Instant::now() < deadline, "sleep has not started");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { process, proc }
    }

    /// Reads the pod on a thread with these capabilities. This thread keeps its own, since it has to end the process.
    fn read(&self, capabilities: CapabilitySet) -> Found<PodsWithSourceAddresses> {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                drop_all_capabilities_except(capabilities);
                pods_with_old_addresses::ProcessReader::default().read(self.proc.path(), "", &left())
            });
            reader.join().unwrap()
        })
    }

    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_capabilities_of_the_manifest_are_sufficient_to_read_pods() {
    in_namespace(|| async {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/resolv.conf"), "nameserver 10.96.0.10\n").unwrap();
        let mut pod = Pod::start(root.path());
        let found = pod.read(granted_for_service_cidr());
        let with_old_addresses = found.present().unwrap_or_else(|| panic!("{found:?}"));
        let addresses: Vec<(AddressOrigin, String)> = with_old_addresses
            .pods
            .iter()
            .map(|with_old_address| (with_old_address.origin, with_old_address.address.to_string()))
            .collect();
        assert_eq!(
            addresses,
            [
                (AddressOrigin::Environment, "10.96.0.1".to_owned()),
                (AddressOrigin::Resolver, "10.96.0.10".to_owned())
            ]
        );
        assert!(
            with_old_addresses
                .pods
                .iter()
                .all(|with_old_address| with_old_address.pod_uid == POD)
        );
        assert_eq!(
            (
                with_old_addresses.unread.len(),
                with_old_addresses.unread_reason.as_str()
            ),
            (0, "")
        );

        pod.end();
        let found = pod.read(granted_for_service_cidr());
        let remaining: Vec<AddressOrigin> = found
            .present()
            .map(|with_old_addresses| {
                with_old_addresses
                    .pods
                    .iter()
                    .map(|with_old_address| with_old_address.origin)
                    .collect()
            })
            .unwrap_or_default();
        assert_eq!(
            remaining,
            [AddressOrigin::Resolver],
            "an ended process has no environment: {found:?}"
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn without_the_capability_a_pod_is_unread() {
    in_namespace(|| async {
        // The process's own root through the kernel's link, which the kernel protects like the environment.
        let mut pod = Pod::start(Path::new("/nowhere"));
        let fake = pod.proc.path().join(pod.process.id().to_string());
        fs::remove_file(fake.join("root")).unwrap();
        symlink(format!("/proc/{}/root", pod.process.id()), fake.join("root")).unwrap();
        let found = pod.read(container_capabilities());
        let with_old_addresses = found.present().unwrap_or_else(|| panic!("{found:?}"));
        assert_eq!(
            (
                with_old_addresses.pods.len(),
                with_old_addresses.unread.as_slice()
            ),
            (0, &[POD.to_owned()][..])
        );
        for words in ["environ", "Permission denied", "SYS_PTRACE"] {
            assert!(
                with_old_addresses.unread_reason.contains(words),
                "{}",
                with_old_addresses.unread_reason
            );
        }
        // An ended process does not count.
        pod.end();
        assert_eq!(pod.read(container_capabilities()), Found::Absent);
    });
}
