//! Adoption against a real kernel: pods with network namespaces of their own, which talk all the time.

use std::fs;

use base64::Engine as _;
use flannel_to_calico::host::{leftovers, phase};
use flannel_to_calico::phase::{Goal, Phase};
use serde_json::{Value, json};

use crate::drive;
use crate::host::{Host, in_namespace, json as ip, run};
use crate::pods::{Pod, Traffic};

/// Drives the host to phase Calico. Felix takes the links of the pods when they have Calico's names, and changes them.
pub async fn adopt(host: &Host, pods: &[Pod]) {
    let waits = drive(host, Goal::Calico)
        .await
        .expect("Felix has not taken the links");
    assert!(waits.contains("calico-node has not taken links"), "{waits}");
    assert!(
        run("ip link").contains("cni0"),
        "the bridge stays until Felix has taken the links"
    );
    for pod in pods {
        felix_takes(pod);
    }
    assert_eq!(drive(host, Goal::Calico).await, None);
}

/// Felix finds the link of a pod that it knows.
pub fn felix_takes(pod: &Pod) {
    let link = pod.calico_link();
    run(&format!(
        "sysctl -qw net.ipv4.conf.{link}.rp_filter=1 net.ipv4.conf.{link}.route_localnet=1"
    ));
    run(&format!(
        "ip route replace {} dev {link} scope link proto boot",
        pod.address
    ));
}

/// A host in phase Mixed with three pods of flannel and one of Calico.
pub async fn mixed() -> (Host, Vec<Pod>) {
    let mut host = Host::new();
    Host::delete_last_pod();
    fs::remove_dir_all(host.paths.cni_state.join("networks/cbr0")).unwrap();
    fs::remove_dir_all(host.paths.cni_state.join("flannel")).unwrap();
    // As flannel's CNI plugin does it.
    run("ip link set cni0 address 02:00:00:00:00:10");
    run("ip address delete 10.244.1.1/24 dev cni0");
    run("ip address add 10.244.1.1/24 brd + dev cni0");
    for parameter in ["net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=1"] {
        run(&format!("sysctl -qw {parameter}"));
    }
    let mut pods = vec![
        Pod::on_bridge(&host, "a", 2),
        Pod::on_bridge(&host, "b", 3),
        Pod::on_bridge(&host, "c", 4),
    ];
    assert_eq!(drive(&host, Goal::Swapped).await, None);
    fs::write(
        host.paths.cni_configuration.join("10-calico.conflist"),
        crate::host::CALICO_CONFLIST,
    )
    .unwrap();
    // Felix adds a blackhole route for the block of the node.
    run("ip route add blackhole 10.244.1.0/26 proto 80");
    assert_eq!(drive(&host, Goal::Mixed).await, None);
    pods.push(Pod::of_calico("new", 9));
    host.adopt_pods = true;
    (host, pods)
}

#[test]
#[ignore = "needs root and network namespaces"]
fn running_pods_are_adopted_without_a_lost_packet() {
    in_namespace(|| async {
        let (host, pods) = mixed().await;
        let traffic = Traffic::start(&pods);
        adopt(&host, &pods[..3]).await;
        traffic.assert_nothing_lost("adoption");
        let seen = host.observe().await;
        assert_eq!(phase(&seen.facts, &host.settings()), Phase::Calico);
        assert_eq!(leftovers(&seen.facts, &host.settings()), Vec::<String>::new());
        let links = run("ip link");
        assert!(!links.contains("cni0") && !links.contains("vetha"), "{links}");
        for pod in &pods[..3] {
            let link = pod.calico_link();
            let route = ip(&format!("ip -j route show {}", pod.address));
            assert_eq!(route[0]["dev"], link.as_str(), "{route}");
            assert!(links.contains(&link), "{links}");
        }
        assert_eq!(
            seen.facts.calico.kept_addresses,
            ["10.244.1.1".parse::<std::net::IpAddr>().unwrap()]
        );
    });
}

/// What the pods and their bridge have in the kernel, without indexes, times and counters.
pub fn of_pods(pods: &[Pod]) -> Vec<String> {
    let mut lines = Vec::new();
    for name in pods.iter().map(Pod::link).chain(["cni0".to_owned()]) {
        let link = &ip(&format!("ip -j -d link show dev {name}"))[0];
        let port = &link["linkinfo"]["info_slave_data"];
        lines.push(format!(
            "{name} {} {} {} {} hairpin {} learning {} flood {}",
            link["address"],
            link["mtu"],
            link["operstate"],
            link["master"],
            port["hairpin"],
            port["learning"],
            port["flood"]
        ));
        for parameter in ["rp_filter", "proxy_arp", "forwarding", "route_localnet"] {
            let value = run(&format!("sysctl -n net.ipv4.conf.{name}.{parameter}"));
            lines.push(format!("{name} {parameter} {value}"));
        }
        lines.push(
            run(&format!("ip -4 address show dev {name}"))
                .lines()
                .skip(1)
                .collect(),
        );
        lines.push(run(&format!("ip neighbour show dev {name} nud permanent")));
        let routes = run(&format!("ip -4 route show dev {name}"));
        lines.extend(routes.lines().map(|route| format!("{name} {route}")));
    }
    lines.push(run("nft list tables"));
    let mut local: Vec<String> = run("bridge fdb show br cni0")
        .lines()
        // Multicast groups depend on the link-local address.
        .filter(|line| line.contains("dev cni0 master") && line.contains("permanent"))
        .map(str::to_owned)
        .collect();
    local.sort();
    lines.extend(local);
    lines.push(run("ip -4 address show dev lo"));
    lines
}

#[test]
#[ignore = "needs root and network namespaces"]
fn adopted_pods_return_to_the_bridge_without_a_lost_packet() {
    in_namespace(|| async {
        let (host, pods) = mixed().await;
        let flannels = &pods[..3];
        let mixed = of_pods(flannels);
        adopt(&host, flannels).await;
        run("ip link delete calinew");
        let traffic = Traffic::start(flannels);
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        traffic.assert_nothing_lost("rollback");
        assert!(host.is_rolled_back());
        // In phase Mixed the pods have routes of their own, and the bridge answers for them.
        let without = |lines: Vec<String>| -> Vec<String> {
            let is_same = |line: &String| !line.contains("proto 82") && !line.contains("cni0 proxy_arp");
            lines.into_iter().filter(is_same).collect()
        };
        assert_eq!(without(of_pods(flannels)), without(mixed));
        assert_eq!(run("sysctl -n net.ipv4.conf.cni0.proxy_arp").trim(), "0");
        let seen = host.observe().await;
        assert!(
            seen.facts.legacy_pods.iter().all(|pod| pod.attached),
            "{:?}",
            seen.facts.legacy_pods
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_end_of_an_adopted_pod_leaves_nothing_of_it() {
    in_namespace(|| async {
        let (host, pods) = mixed().await;
        adopt(&host, &pods[..3]).await;
        // A later pod of the same name has the name of the link, and is not the adopted one.
        let first = pods[0].calico_link();
        run(&format!("ip link delete {first}"));
        run(&format!("ip link add {first} type veth peer name later0"));
        run(&format!("ip link set {first} address ee:ee:ee:ee:ee:ee up"));
        replace_plugins(&host);
        assert_eq!(drive(&host, Goal::Calico).await, None);
        let rules = run("nft list table netdev replumb");
        assert!(
            !rules.contains(&first) && rules.contains(&pods[1].calico_link()),
            "{rules}"
        );
        assert!(run("ip link").contains(&first), "the link of the later pod");
        assert!(!host.paths.cni_state.join("results/cbr0-a-eth0").exists());
        assert!(
            run("ip -4 address show dev lo").contains("10.244.1.1"),
            "the gateway of the others"
        );
        for pod in &pods[1..3] {
            run(&format!("ip link delete {}", pod.calico_link()));
        }
        assert_eq!(drive(&host, Goal::Calico).await, None);
        assert_eq!(run("nft list tables").trim(), "");
        assert!(!run("ip -4 address show dev lo").contains("10.244.1.1"));
        assert_eq!(
            phase(&host.observe().await.facts, &host.settings()),
            Phase::Calico
        );
    });
}

/// Replaces the plugins in the records by one that does nothing without a namespace: flannel's needs its delegate files.
fn replace_plugins(host: &Host) {
    let list = json!({ "name": "cbr0", "cniVersion": "0.4.0", "plugins": [{ "type": "portmap", "capabilities": { "portMappings": true } }] });
    for entry in fs::read_dir(host.paths.cni_state.join("results")).unwrap() {
        let path = entry.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["config"] = base64::prelude::BASE64_STANDARD.encode(list.to_string()).into();
        fs::write(path, record.to_string()).unwrap();
    }
}
