use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;
use crate::host::fixture::assert_takes_less;

const ONE: &str = "11111111-1111-1111-1111-111111111111";
const TWO: &str = "22222222-2222-2222-2222-222222222222";
const OWN: &str = "99999999-9999-9999-9999-999999999999";

/// A /proc made of files, in which the agent has its own control group namespace.
fn proc() -> TempDir {
    let proc = tempfile::tempdir().unwrap();
    fs::create_dir(proc.path().join("thread-self")).unwrap();
    fs::write(proc.path().join(OWN_GROUPS), "0::/\n").unwrap();
    fs::create_dir(proc.path().join("sys")).unwrap();
    proc
}

fn process(proc: &TempDir, number: u32, groups: &str, environment: &str, resolver: &str) -> PathBuf {
    let process = proc.path().join(number.to_string());
    fs::create_dir_all(process.join("root/etc")).unwrap();
    fs::write(process.join("cgroup"), format!("{groups}\n")).unwrap();
    fs::write(process.join("environ"), environment).unwrap();
    if !resolver.is_empty() {
        fs::write(process.join("root/etc/resolv.conf"), resolver).unwrap();
    }
    process
}

fn of_pod(uid: &str) -> String {
    format!("0::/../../pod{uid}/x")
}

fn read(proc: &TempDir) -> Found<PodsWithSourceAddresses> {
    let left = SourceAddresses {
        ranges: vec!["10.96.0.0/12".parse().unwrap()],
        excluded: Vec::new(),
    };
    ProcessReader::default().read(proc.path(), OWN, &left)
}

fn words(found: &Found<PodsWithSourceAddresses>) -> Vec<String> {
    let with_old_addresses = found.present().unwrap();
    let words = with_old_addresses.pods.iter().map(|with_old_address| {
        let PodWithSourceAddress {
            pod_uid,
            origin: told_by,
            address,
        } = with_old_address;
        format!("{pod_uid} {told_by:?} {address}")
    });
    words.collect()
}

#[test]
fn each_pod_is_reported_once_and_in_order() {
    let proc = proc();
    let name_server = "nameserver 10.96.0.10\n";
    process(&proc, 7, &of_pod(TWO), "A=10.96.0.9\0", name_server);
    process(&proc, 8, &of_pod(TWO), "A=10.96.0.2\0B=172.30.0.1\0", name_server);
    process(&proc, 9, &of_pod(ONE), "A=172.30.0.1\0", name_server);
    process(&proc, 10, "0::/", "KUBERNETES_SERVICE_HOST=10.96.0.1\0", "");
    // No pods: processes of the host and of the kernel.
    let host = "0::/../../../../../system.slice/kubelet.service";
    process(&proc, 2, "0::/../../../../..", "", "");
    process(&proc, 11, host, "A=10.96.0.1\0", name_server);
    assert_eq!(
        words(&read(&proc)),
        [
            format!("{ONE} Resolver 10.96.0.10"),
            format!("{TWO} Environment 10.96.0.2"),
            format!("{TWO} Resolver 10.96.0.10"),
            format!("{OWN} Environment 10.96.0.1"),
        ]
    );
    let found = read(&proc);
    let with_old_addresses = found.present().unwrap();
    assert_eq!(
        (
            with_old_addresses.unread.len(),
            with_old_addresses.unread_reason.as_str()
        ),
        (0, "")
    );
}

#[test]
fn pods_without_old_addresses_are_absent_and_a_failed_read_is_malformed() {
    let proc = proc();
    assert_eq!(read(&proc), Found::Absent);
    process(
        &proc,
        7,
        &of_pod(ONE),
        "A=172.30.0.1\0",
        "nameserver 172.30.0.10\n",
    );
    assert_eq!(read(&proc), Found::Absent);
    let nowhere = ProcessReader::default().read(Path::new("/nowhere"), OWN, &SourceAddresses::default());
    assert!(matches!(nowhere, Found::Malformed(what) if what.contains("/nowhere/thread-self/cgroup")));
}

#[test]
fn a_process_that_ends_meanwhile_is_not_an_error() {
    let proc = proc();
    fs::create_dir(proc.path().join("7")).unwrap();
    let half = process(&proc, 8, &of_pod(ONE), "", "");
    fs::remove_file(half.join("environ")).unwrap();
    fs::remove_dir_all(half.join("root")).unwrap();
    assert_eq!(read(&proc), Found::Absent);
}

#[test]
fn an_overwritten_environment_is_reported_and_the_resolver_counts() {
    let proc = proc();
    process(
        &proc,
        7,
        &of_pod(ONE),
        "worker process\0\0\0",
        "nameserver 10.96.0.10\n",
    );
    let found = read(&proc);
    assert_eq!(words(&found), [format!("{ONE} Resolver 10.96.0.10")]);
    let with_old_addresses = found.present().unwrap();
    assert_eq!(with_old_addresses.unread, [ONE]);
    assert_eq!(with_old_addresses.unread_reason, OVERWRITTEN);
}

/// A pod controls its own files, but can neither redirect the agent to other files nor block it.
#[test]
fn links_and_pipes_of_a_pod_do_not_redirect_or_block_the_agent() {
    let proc = proc();
    let outside = proc.path().join("outside");
    fs::write(&outside, "nameserver 10.96.0.66\n").unwrap();

    let absolute = process(&proc, 7, &of_pod(ONE), "A=1\0", "");
    symlink(&outside, absolute.join("root/etc/resolv.conf")).unwrap();
    let relative = process(&proc, 8, &of_pod(ONE), "A=1\0", "");
    symlink("../../../outside", relative.join("root/etc/resolv.conf")).unwrap();
    assert_eq!(read(&proc), Found::Absent, "dangling links within the pod");

    // The link of an image with systemd.
    let inside = process(&proc, 9, &of_pod(ONE), "A=1\0", "");
    fs::create_dir(inside.join("root/run")).unwrap();
    fs::write(inside.join("root/run/stub"), "nameserver 10.96.0.10\n").unwrap();
    symlink("/run/stub", inside.join("root/etc/resolv.conf")).unwrap();
    assert_eq!(words(&read(&proc)), [format!("{ONE} Resolver 10.96.0.10")]);

    let pipe = process(&proc, 10, &of_pod(TWO), "A=1\0", "");
    mkfifo(&pipe.join("root/etc/resolv.conf"), Mode::S_IRWXU).unwrap();
    let found = read(&proc);
    let with_old_addresses = found.present().unwrap();
    assert_eq!(with_old_addresses.unread, [TWO]);
    assert!(
        with_old_addresses
            .unread_reason
            .contains("/etc/resolv.conf of a process: not a regular file"),
        "{}",
        with_old_addresses.unread_reason
    );
}

#[test]
fn an_environment_beyond_the_limit_is_not_read() {
    let proc = proc();
    let late = format!("A={}\0B=10.96.0.1\0", "x".repeat(9 << 20));
    process(&proc, 7, &of_pod(ONE), &late, "");
    assert_eq!(read(&proc), Found::Absent);
}

/// A pod determines its number of processes and the size of their environments.
#[test]
fn a_pod_above_the_limits_is_unread_and_the_others_are_read() {
    let large = format!("A={}\0B=10.96.0.1\0", "x".repeat(7 << 20));
    let proc = proc();
    process(&proc, 7, &of_pod(ONE), "A=10.96.0.9\0", "");
    for number in 100..106 {
        process(&proc, number, &of_pod(TWO), &large, "");
    }
    let first = format!("{TWO} Environment 10.96.0.1");
    let found = read(&proc);
    assert_eq!(words(&found), [format!("{ONE} Environment 10.96.0.9"), first]);
    let with_old_addresses = found.present().unwrap();
    assert_eq!(with_old_addresses.unread, [TWO]);
    assert_eq!(with_old_addresses.unread_reason, TOO_MUCH);

    let proc = self::proc();
    process(&proc, 7, &of_pod(ONE), "A=10.96.0.9\0", "");
    for number in (1_000..).take(MOST_PROCESSES + 1) {
        let folder = proc.path().join(number.to_string());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("cgroup"), of_pod(TWO)).unwrap();
    }
    let found = read(&proc);
    assert_eq!(words(&found), [format!("{ONE} Environment 10.96.0.9")]);
    assert_eq!(found.present().unwrap().unread, [TWO]);
}

/// Reading a process in uninterruptible sleep does not end; neither does opening a pipe without a writer.
#[tokio::test]
async fn a_stuck_process_makes_only_its_own_pod_unread() {
    let proc = proc();
    process(&proc, 7, &of_pod(ONE), "A=10.96.0.9\0", "");
    let stuck = process(&proc, 8, &of_pod(TWO), "", "").join("environ");
    fs::remove_file(&stuck).unwrap();
    mkfifo(&stuck, Mode::S_IRWXU).unwrap();
    let left = SourceAddresses {
        ranges: vec!["10.96.0.0/12".parse().unwrap()],
        excluded: Vec::new(),
    };
    let check = |looker: &ProcessReader| {
        let found = looker.read(proc.path(), OWN, &left);
        assert_eq!(words(&found), [format!("{ONE} Environment 10.96.0.9")]);
        let with_old_addresses = found.present().unwrap();
        assert_eq!(with_old_addresses.unread, [TWO]);
        assert_eq!(
            with_old_addresses.unread_reason,
            "could not read process 8: no answer within 2 s"
        );
    };
    let mut looker = ProcessReader::default();
    assert_takes_less(Duration::from_secs(4), async || {
        looker = ProcessReader::default();
        check(&looker);
    })
    .await;
    // The second read does not wait.
    assert_takes_less(Duration::from_secs(1), async || check(&looker)).await;
    fs::write(&stuck, "A=10.96.0.2\0").unwrap();
}
