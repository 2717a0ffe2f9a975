//! Pods of both families, against a real kernel: what IPv6 asks for besides.

use std::fs;
use std::time::{Duration, Instant};

use flannel_to_calico::host::phase;
use flannel_to_calico::phase::{Goal, Phase};
use serde_json::json;

use crate::back::{assert_same, is_back, state};
use crate::drive;
use crate::host::{CALICO_CONFLIST, Host, in_namespace, json as ip, run};
use crate::in_place::record_of;
use crate::path::Process;

/// A host with one pod, which came after many others: host-local counts upwards through the /64.
fn flannel_host() -> Host {
    let host = Host::dual_stack();
    record_of(
        &host,
        &json!([{ "type": "bridge" }]),
        &[
            json!({ "address": "10.244.1.2/24", "gateway": "10.244.1.1", "interface": 2 }),
            json!({ "address": "fd00:10:244:1::2/64", "gateway": "fd00:10:244:1::1", "interface": 2 }),
        ],
    );
    host
}

/// What Felix does with its device: it lays routes to the blocks, and deletes every other one.
fn felix_takes_over() {
    for number in [2, 3] {
        run(&format!(
            "ip -6 route delete fd00:10:244:{number}::/64 dev vxlan-v6.calico table main"
        ));
    }
    // The kernel's own as well; and routes to the nodes' ends are not always there.
    run("ip -6 route delete fd00:10:244:1::/128 dev vxlan-v6.calico table main");
    for number in [2, 3] {
        run(&format!(
            "ip -6 route delete fd00:10:244:{number}::/128 dev vxlan-v6.calico table main"
        ));
        run(&format!("ip route delete 10.244.{number}.0/32 dev vxlan.calico"));
    }
    // It writes them under its own number, or under that of nobody in particular.
    for (family, device) in [("-4", "vxlan.calico"), ("-6", "vxlan-v6.calico")] {
        for route in ip(&format!("ip {family} -j route show dev {device} proto 80"))
            .as_array()
            .unwrap()
        {
            let (block, end) = (route["dst"].as_str().unwrap(), route["gateway"].as_str().unwrap());
            run(&format!("ip {family} route delete {block} dev {device}"));
            run(&format!(
                "ip {family} route add {block} via {end} dev {device} onlink proto boot"
            ));
        }
    }
    for block in ["10.244.1.0/26", "10.244.1.64/26"] {
        run(&format!("ip route replace blackhole {block} proto 80"));
    }
    run("ip -6 route replace blackhole fd00:10:244:1::/122 proto 80");
    for number in [2, 3] {
        run(&format!("ip route delete 10.244.{number}.0/24 dev vxlan.calico"));
    }
}

fn destinations(line: &str) -> Vec<String> {
    let rows = ip(line);
    let rows = rows.as_array().unwrap();
    rows.iter()
        .map(|row| row["dst"].as_str().unwrap().to_owned())
        .collect()
}

/// The link by which a packet to this address leaves.
fn way(address: &str) -> String {
    ip(&format!("ip -6 -j route get {address}"))[0]["dev"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn pods_of_flannels_are_reached_wherever_in_their_subnet_they_are() {
    in_namespace(|| async {
        let host = flannel_host();
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        assert_eq!(phase(&host.look().await.facts, &host.settings()), Phase::Swapped);
        // The end and four blocks of each node, for Felix; the whole subnet of each, beside it.
        assert_eq!(
            destinations("ip -6 -j route show dev vxlan-v6.calico proto 80").len(),
            10
        );
        assert_eq!(
            destinations("ip -6 -j route show table 8282"),
            ["fd00:10:244:2::/64", "fd00:10:244:3::/64"]
        );
        felix_takes_over();
        for address in ["fd00:10:244:2::2", "fd00:10:244:2::1f07", "fd00:10:244:3::ffff:1"] {
            assert_eq!(way(address), "vxlan-v6.calico", "{address}");
        }
        assert_eq!(
            way("fd00:10:244:1::2"),
            "cni0",
            "a living pod has a route of its own"
        );

        // A node joins: Felix knows its end.
        run("ip -6 route add fd00:10:244:4:: dev vxlan-v6.calico proto 80");
        run("ip -6 route add fd00:10:244:4::/122 via fd00:10:244:4:: dev vxlan-v6.calico onlink proto 80");
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        assert_eq!(way("fd00:10:244:4::1f07"), "vxlan-v6.calico");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn in_place_and_back_the_host_is_as_it_was() {
    in_namespace(|| async {
        let host = flannel_host();
        // Somebody else's use of a table of the same number.
        run("ip route add 198.51.100.0/25 dev lo table 8282");
        run("ip -6 route add 2001:db8:5::/64 dev lo table 8282");
        run("ip -6 rule add from 2001:db8:5::/64 lookup 8282 priority 4321");
        let before = state(&host);
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        felix_takes_over();
        fs::write(
            host.paths.cni_configuration.join("10-calico.conflist"),
            CALICO_CONFLIST,
        )
        .unwrap();
        assert_eq!(drive(&host, Goal::Mixed).await, None);
        let mixed = state(&host);
        let answered = mixed.iter().filter(|line| line.starts_with("proxy ")).count();
        assert_eq!(
            answered, 254,
            "the claimed blocks without the bridge's address and the pod's"
        );
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        is_back(&host).await;
        assert_same(&before, &state(&host), "back from Mixed");
    });
}

/// A pod of flannel's asks its own link for an address that Calico may give out.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_pod_of_flannels_is_told_the_way_to_a_pod_of_calicos() {
    in_namespace(|| async {
        let host = flannel_host();
        run("sysctl -qw net.ipv6.conf.all.forwarding=1");
        let pod = Process::namespace();
        run(&format!("ip link set podside1 netns {}", pod.id()));
        pod.ip("address add fd00:10:244:1::2/64 dev podside1 nodad");
        pod.ip("link set podside1 up");
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        let bridge = ip("ip -j link show cni0")[0]["address"]
            .as_str()
            .unwrap()
            .to_owned();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            // Nobody listens there; the neighbour has to be known before the packet is sent.
            pod.run("bash -c \"echo > /dev/udp/fd00:10:244:1::c5/9\"");
            let known = pod.run("ip -j neighbour show fd00:10:244:1::c5 dev podside1");
            if known.contains(&bridge) {
                break;
            }
            assert!(Instant::now() < deadline, "nobody answers: {known}");
        }
    });
}
