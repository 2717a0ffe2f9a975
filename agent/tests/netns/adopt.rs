//! Adoption against a real kernel: pods with network namespaces of their own, which talk all the time.

use std::fs;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use flannel_to_calico::host::{leftovers, phase};
use flannel_to_calico::phase::{Goal, Phase};
use rstest::rstest;
use serde_json::{Value, json};

use crate::drive;
use crate::host::{Host, in_namespace, json as ip, run};
use crate::pods::{Pod, Traffic, family};

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
    adopt_the_rest(host, pods).await;
}

/// Felix finds the link of a pod that it knows.
pub fn felix_takes(pod: &Pod) {
    let link = pod.calico_link();
    run(&format!(
        "sysctl -qw net.ipv4.conf.{link}.rp_filter=1 net.ipv4.conf.{link}.route_localnet=1 net.ipv6.conf.{link}.accept_ra=0 \
         net.ipv6.conf.{link}.forwarding=1 net.ipv6.conf.{link}.proxy_ndp=1"
    ));
    for address in &pod.addresses {
        let scope = if address.is_ipv4() { "scope link" } else { "" };
        run(&format!(
            "ip {} route replace {address} dev {link} {scope} proto boot",
            family(*address)
        ));
    }
}

/// A host in phase Mixed with three pods of flannel and one of Calico.
pub async fn mixed(host: Host) -> (Host, Vec<Pod>) {
    let (host, mut pods) = crowded(host, 0).await;
    pods.push(Pod::of_calico(&host, "new", 9));
    if host.ipv6.is_some() {
        until_addresses_are_usable();
    }
    (host, pods)
}

/// A host in phase Mixed with three pods of flannel, and with more of them.
pub async fn crowded(mut host: Host, more: u8) -> (Host, Vec<Pod>) {
    Host::delete_last_pod();
    fs::remove_dir_all(host.paths.cni_state.join("networks/cbr0")).unwrap();
    fs::remove_dir_all(host.paths.cni_state.join("flannel")).unwrap();
    // As flannel's CNI plugin does it.
    run("ip link set cni0 address 02:00:00:00:00:10");
    run("ip address delete 10.244.1.1/24 dev cni0");
    run("ip address add 10.244.1.1/24 brd + dev cni0");
    for parameter in [
        "net.ipv4.ip_forward=1",
        "net.ipv4.conf.all.rp_filter=1",
        "net.ipv6.conf.all.forwarding=1",
    ] {
        run(&format!("sysctl -qw {parameter}"));
    }
    let first = [("a".to_owned(), 2), ("b".to_owned(), 3), ("c".to_owned(), 4)];
    let others = (0..more).map(|number| (format!("p{number}"), 10 + number));
    let all = first.into_iter().chain(others);
    let pods = all
        .map(|(name, last)| Pod::on_bridge(&host, &name, last))
        .collect();
    assert_eq!(drive(&host, Goal::Swapped).await, None);
    fs::write(
        host.paths.cni_configuration.join("10-calico.conflist"),
        crate::host::CALICO_CONFLIST,
    )
    .unwrap();
    // Felix adds a blackhole route for each block of the node.
    for first in (0..=more).step_by(64) {
        run(&format!("ip route add blackhole 10.244.1.{first}/26 proto 80"));
    }
    assert_eq!(drive(&host, Goal::Mixed).await, None);
    if host.ipv6.is_some() {
        until_addresses_are_usable();
    }
    host.adopt_pods = true;
    (host, pods)
}

/// Waits for the detection of duplicate addresses: until then the kernel solicits no neighbours.
fn until_addresses_are_usable() {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !run("ip -6 address show tentative").is_empty() {
        assert!(Instant::now() < deadline, "{}", run("ip -6 address"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A host of one family or of both.
pub fn new_host(dual_stack: bool) -> Host {
    if dual_stack {
        Host::dual_stack()
    } else {
        Host::new()
    }
}

#[rstest]
#[case::ipv4(false)]
#[case::dual_stack(true)]
#[ignore = "needs root and network namespaces"]
fn running_pods_are_adopted_without_a_lost_packet(#[case] dual_stack: bool) {
    in_namespace(move || async move {
        let (host, pods) = mixed(new_host(dual_stack)).await;
        let traffic = Traffic::start(&pods);
        adopt(&host, &pods[..3]).await;
        traffic.assert_no_gap("adoption");
        let seen = host.observe().await;
        assert_eq!(phase(&seen.facts, &host.settings()), Phase::Calico);
        assert_eq!(leftovers(&seen.facts, &host.settings()), Vec::<String>::new());
        let links = run("ip link");
        assert!(!links.contains("cni0") && !links.contains("vetha"), "{links}");
        for pod in &pods[..3] {
            let link = pod.calico_link();
            for address in &pod.addresses {
                let route = ip(&format!("ip {} -j route show {address}", family(*address)));
                assert_eq!(route[0]["dev"], link.as_str(), "{route}");
            }
            assert!(links.contains(&link), "{links}");
        }
        let kept = seen.facts.calico.kept_addresses.iter().map(IpAddr::to_string);
        let gateways = ["10.244.1.1", "fd00:10:244:1::1"];
        assert!(kept.eq(gateways.into_iter().take(pods[0].addresses.len())));
        // The pods forget what they remember, and ask again.
        let traffic = Traffic::start(&pods);
        for pod in &pods[..3] {
            pod.run("ip neighbour flush all");
            pod.run("ip -6 neighbour flush all");
        }
        // A packet that waits for the address of a neighbour is dropped with the entry of that neighbour.
        traffic.assert_gap("after the caches of the pods were emptied", 1);
    });
}

/// Probes that a path may lose while a kernel before Linux 6.2 has the link of a pod down; one is sent every 5 ms. A pod that sees this
/// asks for its neighbours again, and repeats a lost request after a second.
const LOST_BY_AN_OLD_KERNEL: u32 = 300;

#[rstest]
#[case::ipv4(false)]
#[case::dual_stack(true)]
#[ignore = "needs root and network namespaces"]
fn an_old_kernel_has_the_link_of_a_pod_down_for_a_moment(#[case] dual_stack: bool) {
    in_namespace(move || async move {
        let (mut host, pods) = mixed(new_host(dual_stack)).await;
        host.netlink = host.netlink.like_an_old_kernel();
        let flannels = &pods[..3];
        let mixed = of_pods(flannels);
        let traffic = Traffic::start(flannels);
        adopt(&host, flannels).await;
        traffic.assert_gap("adoption by an old kernel", LOST_BY_AN_OLD_KERNEL);
        run("ip link delete calinew");
        let traffic = Traffic::start(flannels);
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        traffic.assert_gap("return by an old kernel", LOST_BY_AN_OLD_KERNEL);
        assert!(host.is_rolled_back());
        assert_eq!(of_flannel(of_pods(flannels)), of_flannel(mixed));
    });
}

#[rstest]
#[case::ipv4(false)]
#[case::dual_stack(true)]
#[ignore = "needs root and network namespaces"]
fn routes_that_an_old_kernel_deleted_are_added_by_the_next_agent(#[case] dual_stack: bool) {
    in_namespace(move || async move {
        let (host, pods) = mixed(new_host(dual_stack)).await;
        let flannels = &pods[..3];
        let waits = drive(&host, Goal::Calico).await;
        assert!(waits.is_some(), "Felix has not taken the links");
        // The agent is killed after the rename of one link, and before its routes.
        let link = flannels[0].calico_link();
        run(&format!("ip link set {link} down"));
        run(&format!("ip link set {link} up"));
        let lost = run(&format!("ip route show dev {link}"));
        assert!(!lost.contains("10.244.1.2"), "{lost}");
        assert_eq!(drive(&host, Goal::Calico).await, waits);
        for address in &flannels[0].addresses {
            let route = ip(&format!("ip {} -j route show {address}", family(*address)));
            assert_eq!(route[0]["dev"], link.as_str(), "{route}");
        }
        if dual_stack {
            let answered = run(&format!("ip -6 neighbour show proxy dev {link}"));
            assert!(answered.contains("fd00:10:244:1::1 "), "{answered}");
        }
        Traffic::start(flannels).assert_no_gap("after the routes were added again");
        adopt_the_rest(&host, flannels).await;
    });
}

/// Felix takes the links of adopted pods.
async fn adopt_the_rest(host: &Host, pods: &[Pod]) {
    for pod in pods {
        felix_takes(pod);
    }
    assert_eq!(drive(host, Goal::Calico).await, None);
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
        for parameter in [
            "proxy_ndp",
            "forwarding",
            "accept_ra",
            "accept_dad",
            "disable_ipv6",
        ] {
            let value = run(&format!("sysctl -n net.ipv6.conf.{name}.{parameter}"));
            lines.push(format!("{name} IPv6 {parameter} {value}"));
        }
        let addresses = run(&format!("ip -o address show dev {name}"));
        lines.extend(
            addresses
                .lines()
                .filter(|line| !line.contains("scope link"))
                .map(|line| {
                    // The tests do not wait for the detection of duplicate addresses.
                    let words = line.split_whitespace().skip(1);
                    words
                        .filter(|word| *word != "nodad")
                        .collect::<Vec<_>>()
                        .join(" ")
                }),
        );
        let proxies = run(&format!("ip -6 neighbour show proxy dev {name}"));
        lines.extend(proxies.lines().map(str::to_owned));
        let routes = run(&format!("ip -6 route show dev {name}"));
        let configured = routes.lines().filter(|route| !route.starts_with("fe80"));
        lines.extend(configured.map(|route| format!("{name} {route}")));
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
    lines.push(run("ip address show dev lo"));
    lines
}

/// What a host has before phase Mixed, where the pods have routes of their own, and the bridge answers for them.
fn of_flannel(lines: Vec<String>) -> Vec<String> {
    let other = ["proto 82", "cni0 proxy_arp", "cni0 IPv6 proxy_ndp", " proxy"];
    let is_same = |line: &String| !other.iter().any(|word| line.contains(word));
    lines.into_iter().filter(is_same).collect()
}

#[rstest]
#[case::ipv4(false)]
#[case::dual_stack(true)]
#[ignore = "needs root and network namespaces"]
fn adopted_pods_return_to_the_bridge_without_a_lost_packet(#[case] dual_stack: bool) {
    in_namespace(move || async move {
        let (host, pods) = mixed(new_host(dual_stack)).await;
        let flannels = &pods[..3];
        // As portmap does it for the first host port.
        run("sysctl -qw net.ipv4.conf.cni0.route_localnet=1");
        let mixed = of_pods(flannels);
        adopt(&host, flannels).await;
        run("ip link delete calinew");
        let traffic = Traffic::start(flannels);
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        traffic.assert_no_gap("rollback");
        assert!(host.is_rolled_back());
        assert_eq!(of_flannel(of_pods(flannels)), of_flannel(mixed));
        for (parameter, before) in [
            ("ipv4.conf.cni0.proxy_arp", "0"),
            ("ipv4.conf.cni0.route_localnet", "1"),
            ("ipv4.neigh.cni0.proxy_delay", "80"),
            ("ipv6.conf.cni0.proxy_ndp", "0"),
            ("ipv6.neigh.cni0.proxy_delay", "80"),
        ] {
            let after = run(&format!("sysctl -n net.{parameter}"));
            assert_eq!(after.trim(), before, "{parameter}");
        }
        let seen = host.observe().await;
        assert!(
            seen.facts.legacy_pods.iter().all(|pod| pod.attached),
            "{:?}",
            seen.facts.legacy_pods
        );
    });
}

#[rstest]
#[case::ipv4(false)]
#[case::dual_stack(true)]
#[ignore = "needs root and network namespaces"]
fn the_end_of_an_adopted_pod_leaves_nothing_of_it(#[case] dual_stack: bool) {
    in_namespace(move || async move {
        let (host, pods) = mixed(new_host(dual_stack)).await;
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
        let loopback = run("ip address show dev lo");
        assert!(
            !loopback.contains("10.244.1.1") && !loopback.contains("fd00:"),
            "{loopback}"
        );
        assert_eq!(
            phase(&host.observe().await.facts, &host.settings()),
            Phase::Calico
        );
    });
}

/// Replaces the plugins in the records by one that does nothing without a namespace: flannel's needs its delegate files.
pub fn replace_plugins(host: &Host) {
    let list = json!({ "name": "cbr0", "cniVersion": "0.4.0", "plugins": [{ "type": "portmap", "capabilities": { "portMappings": true } }] });
    for entry in fs::read_dir(host.paths.cni_state.join("results")).unwrap() {
        let path = entry.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["config"] = base64::prelude::BASE64_STANDARD.encode(list.to_string()).into();
        fs::write(path, record.to_string()).unwrap();
    }
}
