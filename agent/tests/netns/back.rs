//! Migration and rollback against a real kernel: afterwards the host is unchanged, according to other programs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use agent::kinds::flannel_to_calico::apply::apply;
use agent::kinds::flannel_to_calico::journal::{Before, Journal};
use api::FailureCategory;
use flannel_to_calico::host::{HostDecision, HostStep, changes, decide, phase};
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use serde_json::Value;

use crate::host::{Host, in_namespace, json, run};
use crate::in_place::record;
use crate::rights::limit_to_container;
use crate::{BACKENDS, drive};

/// The state of the host that replumb or either network could change, one line per object.
pub fn state(host: &Host) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut rows = |what: &str, line: &str, left_out: &[&str]| {
        for mut row in json(line).as_array().unwrap().clone() {
            for key in left_out {
                row.as_object_mut().unwrap().remove(*key);
            }
            // Timers of a bridge change all the time.
            if let Some(data) = row["linkinfo"]["info_data"].as_object_mut() {
                data.retain(|key, _| !key.ends_with("_timer"));
            }
            // The kernel's link-local addresses appear after duplicate address detection.
            let text = row.to_string();
            if !text.contains("fe80::") && !text.contains("ff00::") {
                lines.insert(format!("{what} {text}"));
            }
        }
    };
    // A recreated link has another index; the other values follow from the state of the links.
    rows(
        "link",
        "ip -j -d link",
        &[
            "ifindex",
            "link_index",
            "operstate",
            "stats64",
            "qdisc",
            "flags",
            "promiscuity",
        ],
    );
    for family in ["-4", "-6"] {
        rows(
            "route",
            &format!("ip -j {family} route show table all"),
            &["flags"],
        );
    }
    rows("neighbour", "ip -j neighbour show nud permanent", &[]);
    for family in ["-4", "-6"] {
        rows("rule", &format!("ip -j {family} rule"), &[]);
        rows("proxy", &format!("ip -j {family} neighbour show proxy"), &[]);
    }
    rows("forwarding", "bridge -j fdb show", &["ifindex"]);
    addresses(&mut lines);
    firewall(&mut lines);
    parameters(&mut lines);
    for folder in [
        &host.paths.cni_configuration,
        &host.paths.flannel,
        &host.paths.cni_state,
    ] {
        files(folder, &mut lines);
    }
    lines
}

fn addresses(lines: &mut BTreeSet<String>) {
    for address in json("ip -j address").as_array().unwrap() {
        for own in address["addr_info"].as_array().unwrap() {
            // The kernel's link-local addresses appear after duplicate address detection.
            if own["family"] == "inet6" && own["scope"] == "link" {
                continue;
            }
            lines.insert(format!(
                "address {} {}/{} {}",
                address["ifname"], own["local"], own["prefixlen"], own["scope"]
            ));
        }
    }
}

fn firewall(lines: &mut BTreeSet<String>) {
    for save in BACKENDS {
        for rule in run(&format!("{save}-save")).lines() {
            if rule.starts_with("-A") || (rule.starts_with(':') && rule.contains(" - ")) {
                let rule = rule.split(" [").next().unwrap();
                lines.insert(format!("{save} {rule}"));
            }
        }
    }
    for table in run("nft list tables").lines() {
        let name = table.strip_prefix("table ").unwrap();
        if !["raw", "mangle", "nat", "filter"]
            .iter()
            .any(|own| name.ends_with(own))
        {
            lines.insert(run(&format!("nft -s list table {name}")));
        }
    }
    for set in run("ipset list -n").lines() {
        lines.insert(format!("set {set}"));
    }
}

fn parameters(lines: &mut BTreeSet<String>) {
    for parameter in [
        "ipv4.conf.cni0.proxy_arp",
        "ipv4.neigh.cni0.proxy_delay",
        "ipv6.conf.cni0.proxy_ndp",
        "ipv6.neigh.cni0.proxy_delay",
    ] {
        if Path::new("/proc/sys/net/ipv4/conf/cni0").exists() {
            lines.insert(format!(
                "{parameter} {}",
                run(&format!("sysctl -n net.{parameter}"))
            ));
        }
    }
}

fn files(folder: &Path, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, lines);
            continue;
        }
        let (metadata, bytes) = (fs::metadata(&path).unwrap(), fs::read(&path).unwrap());
        lines.insert(format!(
            "file {} {:o} {}:{} {}",
            path.display(),
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            String::from_utf8_lossy(&bytes)
        ));
    }
}

pub fn assert_same(before: &BTreeSet<String>, after: &BTreeSet<String>, when: &str) {
    let missing: Vec<&String> = before.difference(after).collect();
    let new: Vec<&String> = after.difference(before).collect();
    assert!(
        missing.is_empty() && new.is_empty(),
        "{when}\nmissing: {missing:#?}\nnew: {new:#?}"
    );
}

/// Creates the objects that a running Calico leaves on a host: routes, chains, sets, files, records of ended pods.
fn create_calico_objects(host: &Host) {
    for block in ["10.244.1.0/26", "10.244.1.64/26"] {
        run(&format!("ip route replace blackhole {block} proto 80"));
    }
    let tunnel = run("ip -o link").contains("vxlan.calico");
    if tunnel {
        // Felix deletes flannel's routes.
        for number in [2, 3] {
            run(&format!(
                "ip route replace 10.244.{number}.0/26 via 10.244.{number}.0 dev vxlan.calico onlink proto 80"
            ));
            run(&format!(
                "ip route replace 10.244.{number}.0 dev vxlan.calico proto 80"
            ));
            run(&format!("ip route delete 10.244.{number}.0/24 dev vxlan.calico"));
        }
    }
    run("ipset create cali40all-vxlan-net hash:net");
    run("ipset create cali40masq-ipam-pools hash:net");
    run("ipset create other-program hash:net");
    for iptables in BACKENDS {
        for rule in [
            "-t raw -N cali-PREROUTING",
            "-t raw -I PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING",
            "-t filter -N cali-FORWARD",
            "-t filter -N cali-from-wl-dispatch",
            "-t filter -A cali-FORWARD -m comment --comment \"cali:8ZoYfO5HKXWbB3pk\" -j cali-from-wl-dispatch",
            "-t filter -I FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD",
            "-t filter -A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT",
        ] {
            run(&format!("{iptables} {rule}"));
        }
    }
    run(
        "iptables-nft -t filter -A cali-FORWARD -m comment --comment \"cali:x\" -m set --match-set cali40all-vxlan-net src -j DROP",
    );
    run("nft add table ip calico");
    fs::write(
        host.paths.cni_configuration.join("10-calico.conflist"),
        crate::host::CALICO_CONFLIST,
    )
    .unwrap();
    fs::write(
        host.paths.cni_state.join("results/k8s-pod-network-16cc-eth0"),
        "{}",
    )
    .unwrap();
}

fn flannel_host() -> Host {
    let host = Host::new();
    record(&host, &serde_json::json!([{ "type": "bridge" }]));
    for backend in BACKENDS {
        Host::firewall(backend);
    }
    Host::nftables();
    let conflist = host.paths.cni_configuration.join("10-flannel.conflist");
    fs::set_permissions(conflist, fs::Permissions::from_mode(0o640)).unwrap();
    host
}

pub async fn is_back(host: &Host) {
    let facts = host.observe().await.facts;
    let journal = Journal::open(&host.state()).unwrap();
    assert_eq!(
        changes(&facts, &host.settings(), &journal.remembered().unreverted),
        Vec::<String>::new()
    );
    assert_eq!(phase(&facts, &host.settings()), Phase::Flannel);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn in_place_and_rolled_back_the_host_is_unchanged() {
    in_namespace(|| async {
        for goal in [Goal::Held, Goal::Swapped, Goal::Mixed] {
            in_namespace(move || async move {
                let host = flannel_host();
                let before = state(&host);
                assert_eq!(
                    drive(&host, if goal == Goal::Mixed { Goal::Swapped } else { goal }).await,
                    None
                );
                if goal == Goal::Mixed {
                    create_calico_objects(&host);
                    assert_eq!(drive(&host, Goal::Mixed).await, None);
                }
                assert_ne!(state(&host), before);
                assert_eq!(drive(&host, Goal::Flannel).await, None);
                is_back(&host).await;
                if goal == Goal::Mixed {
                    run("ipset destroy other-program");
                }
                assert_same(&before, &state(&host), &format!("rolled back from {goal:?}"));
            });
        }
    });
}

/// With the capabilities of deploy/base/agent.yaml, on a node where the conflist has another owner than root.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_capabilities_of_the_manifest_are_sufficient_for_a_rollback() {
    in_namespace(|| async {
        let mut host = flannel_host();
        let conflist = host.paths.cni_configuration.join("10-flannel.conflist");
        std::os::unix::fs::chown(conflist, Some(1000), Some(1001)).unwrap();
        let before = state(&host);
        limit_to_container(&mut host);
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        create_calico_objects(&host);
        assert_eq!(drive(&host, Goal::Mixed).await, None);
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        is_back(&host).await;
        run("ipset destroy other-program");
        assert_same(
            &before,
            &state(&host),
            "rolled back with the container's capabilities",
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn after_a_drain_the_link_and_the_chains_are_restored_from_the_journal() {
    in_namespace(|| async {
        let host = flannel_host();
        Host::delete_last_pod();
        // The pod's lease and record, the bridge and its route are removed with the pods; flannel's plugins create them again.
        let with_the_pods = |line: &String| {
            line.contains("cni0")
                || line.contains("10.244.1.") && !line.contains("10.244.1.0/32")
                || line.contains("/var/lib/cni/")
        };
        let kept = |lines: BTreeSet<String>| -> BTreeSet<String> {
            let environment = |line: &String| line.contains("subnet.env");
            lines
                .into_iter()
                .filter(|line| environment(line) || !with_the_pods(line))
                .collect()
        };
        let before = kept(state(&host));
        assert_eq!(drive(&host, Goal::Detached).await, None);
        assert!(!run("ip link").contains("flannel.1"));
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        is_back(&host).await;
        assert_same(&before, &kept(state(&host)), "rolled back from Detached");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_calico_pod_keeps_its_network_and_is_named() {
    in_namespace(|| async {
        let host = flannel_host();
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        create_calico_objects(&host);
        assert_eq!(drive(&host, Goal::Mixed).await, None);
        run("ip link add cali0123456789a type veth peer name inside");
        let waits = drive(&host, Goal::Flannel)
            .await
            .expect("a pod on Calico is running");
        assert!(waits.contains("cali0123456789a"), "{waits}");
        // New pods wait now; objects that carry packets are unchanged.
        assert!(!host.paths.cni_configuration.join("10-calico.conflist").exists());
        assert!(host.paths.cni_configuration.join("10-flannel.conflist").exists());
        assert!(!host.paths.subnet_environment().exists());
        assert!(run("iptables-nft-save").contains("cali-FORWARD"));
        run("ip link delete cali0123456789a");
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        is_back(&host).await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_crash_after_each_change_of_a_rollback_is_recovered() {
    in_namespace(|| async {
        let host = flannel_host();
        let before = state(&host);
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        create_calico_objects(&host);
        assert_eq!(drive(&host, Goal::Mixed).await, None);
        run("ipset destroy other-program");
        let mut crashes = 0;
        loop {
            let seen = host.observe().await;
            let mut journal = Journal::open(&host.state()).unwrap();
            let HostDecision::Run(step) = decide(
                &seen.facts,
                &host.settings(),
                Goal::Flannel,
                &journal.remembered(),
            ) else {
                break;
            };
            // kill -9 right after the change, before its record.
            apply(
                &step,
                &seen,
                &host.paths,
                &host.netlink,
                &host.processes,
                &mut journal,
            )
            .await
            .unwrap();
            let path = journal.path();
            drop(journal);
            let text = fs::read_to_string(&path).unwrap();
            let kept = text.trim_end().rfind('\n').unwrap() + 1;
            fs::write(&path, &text[..kept]).unwrap();
            let mut journal = Journal::open(&host.state()).unwrap();
            assert_eq!(journal.open_step(), Some(&step));
            let facts = host.observe().await.facts;
            assert!(step.is_done(&facts));
            journal.finish(&step, Timestamp::now()).unwrap();
            crashes += 1;
            assert!(crashes < 40, "too many steps");
        }
        assert!(crashes >= 15, "{crashes}");
        is_back(&host).await;
        assert_same(
            &before,
            &state(&host),
            "rolled back with a crash after each change",
        );
    });
}

/// The kernel refuses the rename, and the agent is killed between the deletion and the recreation of the link.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_rollback_that_crashed_without_the_link_recreates_it() {
    in_namespace(|| async {
        let host = flannel_host();
        let before = state(&host);
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        let step = HostStep::ReturnVxlanDevice {
            from: "vxlan.calico".to_owned(),
            to: "flannel.1".to_owned(),
        };
        // The state before this step: flannel's routes exist, Felix' routes are deleted.
        loop {
            let seen = host.observe().await;
            let mut journal = Journal::open(&host.state()).unwrap();
            match decide(
                &seen.facts,
                &host.settings(),
                Goal::Flannel,
                &journal.remembered(),
            ) {
                HostDecision::Run(next) if next == step => {
                    let link = seen.snapshot.link("vxlan.calico").unwrap();
                    let begun = Before {
                        network: Some(seen.snapshot.of_link(link.index)),
                        ..Before::default()
                    };
                    journal.begin(&step, begun, Timestamp::now()).unwrap();
                    host.netlink
                        .delete_link(link.index, "vxlan.calico")
                        .await
                        .unwrap();
                    break;
                }
                HostDecision::Run(next) => {
                    apply(
                        &next,
                        &seen,
                        &host.paths,
                        &host.netlink,
                        &host.processes,
                        &mut journal,
                    )
                    .await
                    .unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        is_back(&host).await;
        assert_same(&before, &state(&host), "recreated");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_changed_backup_is_not_restored_and_is_named() {
    in_namespace(|| async {
        let host = flannel_host();
        assert_eq!(drive(&host, Goal::Held).await, None);
        let text = fs::read_to_string(host.state().join("journal.jsonl")).unwrap();
        let record: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let copy = record["event"]["started"]["before"]["files"][0]["copy"]
            .as_str()
            .unwrap();
        fs::write(copy, "FLANNEL_NETWORK=1.2.3.4/5").unwrap();
        let seen = host.observe().await;
        let error = host
            .apply(&HostStep::RestoreSubnetEnvironment, &seen)
            .await
            .unwrap_err();
        assert_eq!(error.category(), FailureCategory::BackupLost);
        assert!(error.to_string().contains("restart flannel's pod"), "{error}");
        assert!(!host.paths.subnet_environment().exists());
    });
}
