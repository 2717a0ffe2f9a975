//! Pods of both families, against a real kernel: the additional IPv6 parts.

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

/// A host with one pod of both families.
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

/// Simulates Felix on its device: adds routes to blocks, and deletes all other routes.
fn felix_takes_over() {
    for number in [2, 3] {
        run(&format!(
            "ip -6 route delete fd00:10:244:{number}::/64 dev vxlan-v6.calico table main"
        ));
    }
    // Also the kernel's own route; and routes to the nodes' tunnel ends do not always exist.
    run("ip -6 route delete fd00:10:244:1::/128 dev vxlan-v6.calico table main");
    for number in [2, 3] {
        run(&format!(
            "ip -6 route delete fd00:10:244:{number}::/128 dev vxlan-v6.calico table main"
        ));
        run(&format!("ip route delete 10.244.{number}.0/32 dev vxlan.calico"));
    }
    // Felix uses its own route protocol, or the default one.
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

/// The outgoing link for packets to this address.
fn outgoing_link(address: &str) -> String {
    ip(&format!("ip -6 -j route get {address}"))[0]["dev"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn flannel_pods_are_reached_at_any_address_of_their_subnet() {
    in_namespace(|| async {
        let host = flannel_host();
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        assert_eq!(
            phase(&host.observe().await.facts, &host.settings()),
            Phase::Swapped
        );
        // The tunnel end and four blocks of each node, for Felix; and the whole subnet of each node.
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
            assert_eq!(outgoing_link(address), "vxlan-v6.calico", "{address}");
        }
        assert_eq!(
            outgoing_link("fd00:10:244:1::2"),
            "cni0",
            "a running pod has its own route"
        );

        // A node joins: Felix adds a route to its tunnel end.
        run("ip -6 route add fd00:10:244:4:: dev vxlan-v6.calico proto 80");
        run("ip -6 route add fd00:10:244:4::/122 via fd00:10:244:4:: dev vxlan-v6.calico onlink proto 80");
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        assert_eq!(outgoing_link("fd00:10:244:4::1f07"), "vxlan-v6.calico");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn in_place_and_rolled_back_the_host_is_unchanged() {
    in_namespace(|| async {
        let host = flannel_host();
        // Another program uses a table with the same number.
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
            "the claimed blocks without the addresses of the bridge and the pod"
        );
        assert_eq!(drive(&host, Goal::Flannel).await, None);
        is_back(&host).await;
        assert_same(&before, &state(&host), "back from Mixed");
    });
}

/// A pod on flannel resolves an address that Calico may assign.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_flannel_pod_resolves_an_address_of_a_calico_pod() {
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
            // Nothing listens there; the neighbour has to be resolved before the packet is sent.
            pod.run("bash -c \"echo > /dev/udp/fd00:10:244:1::c5/9\"");
            let known = pod.run("ip -j neighbour show fd00:10:244:1::c5 dev podside1");
            if known.contains(&bridge) {
                break;
            }
            assert!(Instant::now() < deadline, "no neighbour entry: {known}");
        }
    });
}
