//! Pods that were told an address that is left: by the environment of their processes, and by their `resolv.conf`. Reads /proc.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use plan::found::Found;
use plan::service_cidr::host::{Carrier, Carriers, MOST_CARRIERS, ToldBy};

/// In a pod's own files: what its kubelet wrote when it made it.
const RESOLVER: &str = "root/etc/resolv.conf";

/// Looks into every process of a pod. The agent sees those of its own host alone: its PID namespace is the host's (`hostPID`), and a
/// node inside a machine has one of its own.
pub fn read(proc: &Path, left: &[IpNet]) -> Found<Carriers> {
    let entries = match fs::read_dir(proc) {
        Ok(entries) => entries,
        Err(error) => return Found::Malformed(format!("list {}: {error}", proc.display())),
    };
    let mut told: BTreeMap<(String, ToldBy), IpAddr> = BTreeMap::new();
    let mut unread: BTreeMap<String, String> = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let process = entry.path();
        // One that has ended meanwhile has no groups either.
        let Some(pod) = fs::read_to_string(process.join("cgroup"))
            .ok()
            .and_then(|text| pod_of(&text))
        else {
            continue;
        };
        let sources = [
            (ToldBy::Environment, process.join("environ")),
            (ToldBy::Resolver, process.join(RESOLVER)),
        ];
        for (by, path) in sources {
            match fs::read(&path) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    let found = match by {
                        ToldBy::Environment => in_environment(&text, left),
                        ToldBy::Resolver => in_resolver(&text, left),
                    };
                    if let Some(address) = found {
                        let known = told.entry((pod.clone(), by)).or_insert(address);
                        *known = (*known).min(address);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    unread
                        .entry(pod.clone())
                        .or_insert_with(|| format!("read {}: {error}", path.display()));
                }
                // It ended, or has no such file: the pause program has none.
                Err(_) => {}
            }
        }
    }
    found(told, unread)
}

fn found(told: BTreeMap<(String, ToldBy), IpAddr>, unread: BTreeMap<String, String>) -> Found<Carriers> {
    let read: BTreeSet<String> = told.keys().map(|(pod, _)| pod.clone()).collect();
    let unread: BTreeMap<String, String> = unread
        .into_iter()
        .filter(|(pod, _)| !read.contains(pod))
        .collect();
    let why_unread = unread.values().next().map_or_else(String::new, |why| {
        format!("{why}; the agent's pod needs capability SYS_PTRACE, and a profile that lets it look")
    });
    if told.is_empty() && unread.is_empty() {
        return Found::Absent;
    }
    Found::Present(Carriers {
        pods: told
            .into_iter()
            .take(MOST_CARRIERS)
            .map(|((pod_uid, told_by), address)| Carrier {
                pod_uid,
                told_by,
                address,
            })
            .collect(),
        unread: unread.into_keys().take(MOST_CARRIERS).collect(),
        why_unread,
    })
}

/// The UID of the pod that a process belongs to, by its control groups: `…/kubepods/burstable/pod<UID>/…` of the driver cgroupfs, and
/// `…/kubepods-burstable-pod<UID with _ for ->.slice/…` of systemd.
fn pod_of(groups: &str) -> Option<String> {
    let parts = groups
        .lines()
        .filter(|line| line.contains("kubepods"))
        .flat_map(|line| line.split('/'));
    parts
        .filter_map(|part| {
            let part = part.strip_suffix(".slice").unwrap_or(part);
            let (_, uid) = part
                .rsplit_once("pod")
                .filter(|(before, _)| before.is_empty() || before.ends_with('-'))?;
            let uid = uid.replace('_', "-");
            is_uid(&uid).then_some(uid)
        })
        .next()
}

/// A static pod's is 32 digits without a dash.
fn is_uid(text: &str) -> bool {
    [32, 36].contains(&text.len())
        && text
            .chars()
            .all(|letter| letter.is_ascii_hexdigit() || letter == '-')
}

/// The smallest address that is left in the values of variables: as it stands, or as the kubelet's links have it, `tcp://10.96.0.1:443`.
fn in_environment(text: &str, left: &[IpNet]) -> Option<IpAddr> {
    text.split('\0')
        .filter_map(|variable| address_in(variable.split_once('=')?.1))
        .filter(|address| left.iter().any(|range| range.contains(address)))
        .min()
}

fn address_in(value: &str) -> Option<IpAddr> {
    let rest = value.split_once("://").map_or(value, |(_, rest)| rest);
    let bare = |text: &str| text.trim_matches(['[', ']']).parse().ok();
    bare(rest).or_else(|| bare(rest.rsplit_once(':')?.0))
}

fn in_resolver(text: &str, left: &[IpNet]) -> Option<IpAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
        .filter(|address| left.iter().any(|range| range.contains(address)))
        .min()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::cgroupfs(
        "5:cpu:/replumb/kubepods/burstable/pod8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11/0a1b2c",
        Some("8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11")
    )]
    #[case::systemd(
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod8d4c4e29_0d4f_4b53_b7ee_1c1c4f0c9b11.slice/cri-containerd-0a.scope",
        Some("8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11")
    )]
    #[case::guaranteed(
        "0::/kubepods.slice/kubepods-pod8d4c4e29_0d4f_4b53_b7ee_1c1c4f0c9b11.slice/x",
        Some("8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11")
    )]
    #[case::a_static_pod(
        "0::/kubepods/pod0123456789abcdef0123456789abcdef/x",
        Some("0123456789abcdef0123456789abcdef")
    )]
    #[case::a_service_of_the_host("0::/system.slice/kubelet.service", None)]
    #[case::kubepods_alone("0::/kubepods", None)]
    fn whose_a_process_is(#[case] groups: &str, #[case] expected: Option<&str>) {
        assert_eq!(pod_of(groups).as_deref(), expected);
    }

    #[test]
    fn addresses_are_read_off_variables_and_name_servers() {
        let left: [IpNet; 2] = ["10.96.0.0/12".parse().unwrap(), "fd00:96::/112".parse().unwrap()];
        let told = |text: &str| in_environment(text, &left).map(|address| address.to_string());
        assert_eq!(
            told("PATH=/bin\0KUBERNETES_SERVICE_HOST=10.96.0.1\0"),
            Some("10.96.0.1".to_owned())
        );
        assert_eq!(
            told("WEB_PORT=tcp://10.96.0.7:80\0"),
            Some("10.96.0.7".to_owned())
        );
        assert_eq!(
            told("KUBERNETES_PORT=tcp://[fd00:96::1]:443"),
            Some("fd00:96::1".to_owned())
        );
        assert_eq!(
            told("KUBERNETES_SERVICE_HOST=172.30.0.1\0NOTE=10.96.0.1 is old"),
            None
        );
        let resolver = "search default.svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n";
        assert_eq!(in_resolver(resolver, &left), "10.96.0.10".parse().ok());
    }

    /// This very process is in no pod; what is said of pods comes from their groups alone.
    #[test]
    fn nobody_in_no_pod_counts() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(read(empty.path(), &[]), Found::Absent);
        assert!(matches!(read(Path::new("/nowhere"), &[]), Found::Malformed(_)));
    }

    #[test]
    fn a_process_of_a_pod_is_looked_into() {
        let proc = tempfile::tempdir().unwrap();
        let process = proc.path().join("7");
        fs::create_dir_all(process.join("root/etc")).unwrap();
        let pod = "8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11";
        fs::write(process.join("cgroup"), format!("0::/kubepods/pod{pod}/x\n")).unwrap();
        fs::write(process.join("environ"), "KUBERNETES_SERVICE_HOST=10.96.0.1\0").unwrap();
        fs::write(process.join("root/etc/resolv.conf"), "nameserver 10.96.0.10\n").unwrap();
        let Found::Present(found) = read(proc.path(), &["10.96.0.0/12".parse().unwrap()]) else {
            panic!("nobody was told");
        };
        let told: Vec<(ToldBy, String)> = found
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
        assert!(found.pods.iter().all(|carrier| carrier.pod_uid == pod) && found.unread.is_empty());
    }
}
