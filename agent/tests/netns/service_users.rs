//! Another range for Services: who uses an address that is left, by the kernel's list of connections and by what processes were told.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use agent::kinds::service_cidr::{carriers, connections};
use engine::found::Found;
use rustix::thread::CapabilitySet;
use service_cidr::host::{Carriers, Left, ToldBy};
use tempfile::TempDir;

use crate::host::{in_namespace, run};
use crate::rights::{give_up_all_but, granted, granted_for_service_cidr};

fn left() -> Left {
    Left {
        ranges: vec!["10.96.0.0/12".parse().unwrap()],
        kept: Vec::new(),
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn connections_are_read_while_they_last() {
    in_namespace(|| async {
        let left = left();
        let look = || connections::read(Path::new("/proc"), &left);
        run("ip link set lo up");
        run("ip address add 10.96.0.1/32 dev lo");
        run("ip address add 192.0.2.7/32 dev lo");
        // The kernel tracks connections where a rule asks for it.
        run("iptables-nft -A OUTPUT -m conntrack --ctstate INVALID -j DROP");
        assert_eq!(look(), Found::Absent);
        let listener = TcpListener::bind("10.96.0.1:8443").unwrap();
        let elsewhere = TcpListener::bind("192.0.2.7:8443").unwrap();
        let clients: Vec<TcpStream> = ["10.96.0.1:8443", "10.96.0.1:8443", "192.0.2.7:8443"]
            .iter()
            .map(|address| TcpStream::connect(address).unwrap())
            .collect();
        let texts = match look() {
            Found::Present(found) => found.words("connections"),
            other => panic!("{other:?}"),
        };
        assert_eq!(texts, ["10.96.0.1 to 10.96.0.1:8443/TCP"]);
        let servers = [listener.accept().unwrap(), listener.accept().unwrap()];
        drop((clients, servers, elsewhere));
        let deadline = Instant::now() + Duration::from_secs(10);
        while look() != Found::Absent {
            assert!(Instant::now() < deadline, "{:?}", look());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let listed = fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        assert!(
            listed.contains("TIME_WAIT"),
            "the kernel lists them still: {listed}"
        );
    });
}

const POD: &str = "8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11";

/// A process of somebody else's, in a /proc that says of it that it is a pod's; everything else there is the kernel's word.
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
        let there = PathBuf::from(format!("/proc/{}", process.id()));
        let here = proc.path().join(process.id().to_string());
        fs::create_dir(&here).unwrap();
        for name in ["environ", "ns"] {
            symlink(there.join(name), here.join(name)).unwrap();
        }
        symlink(root, here.join("root")).unwrap();
        fs::write(
            here.join("cgroup"),
            format!("0::/kubepods/besteffort/pod{POD}/x\n"),
        )
        .unwrap();
        symlink("/proc/thread-self", proc.path().join("thread-self")).unwrap();
        // Between fork and exec a process has its parent's environment.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(there.join("environ"))
            .unwrap_or_default()
            .starts_with("KUBERNETES_SERVICE_HOST=10.96.0.1")
        {
            assert!(Instant::now() < deadline, "sleep has not started");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { process, proc }
    }

    /// What a thread with these capabilities sees. It is not this one, which has to end the process.
    fn look(&self, capabilities: CapabilitySet) -> Found<Carriers> {
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                give_up_all_but(capabilities);
                carriers::Looker::default().read(self.proc.path(), "", &left())
            });
            looks.join().unwrap()
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
fn the_manifests_capabilities_are_enough_to_look_into_pods() {
    in_namespace(|| async {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/resolv.conf"), "nameserver 10.96.0.10\n").unwrap();
        let mut pod = Pod::start(root.path());
        let found = pod.look(granted_for_service_cidr());
        let carriers = found.present().unwrap_or_else(|| panic!("{found:?}"));
        let told: Vec<(ToldBy, String)> = carriers
            .pods
            .iter()
            .map(|carrier| (carrier.told_by, carrier.address.to_string()))
            .collect();
        assert_eq!(
            told,
            [
                (ToldBy::Environment, "10.96.0.1".to_owned()),
                (ToldBy::Resolver, "10.96.0.10".to_owned())
            ]
        );
        assert!(carriers.pods.iter().all(|carrier| carrier.pod_uid == POD));
        assert_eq!((carriers.unread.len(), carriers.why_unread.as_str()), (0, ""));

        pod.end();
        let found = pod.look(granted_for_service_cidr());
        let left: Vec<ToldBy> = found
            .present()
            .map(|carriers| carriers.pods.iter().map(|carrier| carrier.told_by).collect())
            .unwrap_or_default();
        assert_eq!(
            left,
            [ToldBy::Resolver],
            "its environment went with it: {found:?}"
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn without_the_capability_a_pod_is_not_taken_for_one_that_was_told_nothing() {
    in_namespace(|| async {
        // The process's own root, through the kernel's link, which the kernel keeps as well as the environment.
        let mut pod = Pod::start(Path::new("/nowhere"));
        let here = pod.proc.path().join(pod.process.id().to_string());
        fs::remove_file(here.join("root")).unwrap();
        symlink(format!("/proc/{}/root", pod.process.id()), here.join("root")).unwrap();
        let blind = granted();
        let found = pod.look(blind);
        let carriers = found.present().unwrap_or_else(|| panic!("{found:?}"));
        assert_eq!(
            (carriers.pods.len(), carriers.unread.as_slice()),
            (0, &[POD.to_owned()][..])
        );
        for words in ["environ", "Permission denied", "SYS_PTRACE"] {
            assert!(carriers.why_unread.contains(words), "{}", carriers.why_unread);
        }
        // Who has ended meanwhile is nobody's any more.
        pod.end();
        assert_eq!(pod.look(blind), Found::Absent);
    });
}
