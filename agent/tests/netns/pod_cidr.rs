//! podCidr: the agent's observations of a host on Calico, which the agent does not change.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use agent::kinds::pod_cidr::observe::Observer;
use agent::report::Pending;
use axum::http::StatusCode;
use engine::kernel::Listed;
use ipnet::IpNet;
use pod_cidr::host::{ChangedTunnelAddress, HostFacts, HostSettings, announced, foreign, remaining};
use pod_cidr::tunnel_change::{Keeping, keeping};
use serde_json::{Value, json};

use crate::host::{Host, in_namespace, run};
use crate::turn::{beside, object, start};

const CONFLIST: &str = r#"{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [
    {"type": "calico", "ipam": {"type": "calico-ipam", "ipv4_pools": ["10.244.0.0/16"]}}, {"type": "portmap"}]}"#;

/// Longer than the pause between two observations, and much shorter than the delay of a write that can wait.
const AT_ONCE: Duration = Duration::from_secs(4);

pub fn settings() -> HostSettings {
    HostSettings {
        from: "10.244.0.0/16".parse().unwrap(),
        to: "10.200.0.0/16".parse().unwrap(),
        mtu: None,
        cni_configuration_directory: None,
        tunnel_addresses: Vec::new(),
    }
}

/// Writes Calico's conflist, which sorts before flannel's.
fn write_calico_conflist(host: &Host) {
    fs::write(host.paths.cni_configuration.join("05-calico.conflist"), CONFLIST).unwrap();
}

/// Creates links, routes and rules of Calico in both families, and of other programs.
fn create_calico_network() {
    for line in [
        "ip link set lo up",
        "ip link add eth0 type veth peer name wire0",
        "ip link set wire0 up",
        "ip link set eth0 mtu 1400 up",
        "ip address add 192.0.2.11/24 dev eth0",
        "ip route add default via 192.0.2.1 dev eth0",
        "ip link add vxlan.calico type vxlan id 4096 dev eth0 local 192.0.2.11 dstport 4789 nolearning",
        "ip link set vxlan.calico mtu 1350 up",
        "ip address add 10.244.1.0/32 dev vxlan.calico",
        "ip link add cali1 type veth peer name pod1",
        "ip link set cali1 up",
        "ip link set pod1 up",
        // Calico's routes of the old range.
        "ip route add 10.244.1.5/32 dev cali1 scope link",
        "ip route add blackhole 10.244.1.0/26 proto 80",
        "ip route add 10.244.2.0/26 via 10.244.2.0 dev vxlan.calico onlink proto 80",
        "ip route add 10.244.3.0/26 via 192.0.2.13 dev eth0 proto 80",
        // Other programs' routes of the old range.
        "ip route add unreachable 10.244.9.0/24",
        "ip route add prohibit 10.244.10.0/24 table 77",
        "ip route add throw 10.244.11.0/24 table 77",
        "ip route add local 10.244.12.0/24 dev lo",
        "ip route add 10.244.13.0/24 table 77 nexthop via 192.0.2.14 dev eth0 nexthop via 192.0.2.15 dev eth0",
        "ip rule add from 10.244.13.0/24 lookup 77 priority 900",
        // Calico's routes of the new range.
        "ip route add 10.200.1.5/32 dev cali1 scope link",
        "ip route add blackhole 10.200.1.0/26 proto 80",
        "ip route add 10.200.2.0/26 via 10.200.2.0 dev vxlan.calico onlink",
        "ip route add 10.200.3.0/26 via 192.0.2.13 dev eth0 proto 80",
        // Other programs' routes and addresses of the new range.
        "ip route add 10.200.64.0/18 via 192.0.2.9 dev eth0",
        "ip route add 10.192.0.0/10 via 192.0.2.9 dev eth0 table 77",
        "ip route add 10.200.4.0/26 via 192.0.2.14 dev eth0 proto bird",
        "ip link add docker0 type bridge",
        "ip address add 10.200.128.1/24 dev docker0",
        "ip address add 172.30.0.1 peer 10.200.250.2 dev docker0",
        "ip link set docker0 up",
        "ip rule add to 10.200.0.0/16 lookup 77 priority 901",
        // Other ranges.
        "ip route add 10.245.0.0/16 via 192.0.2.9 dev eth0",
        "ip route add blackhole 198.51.100.0/24",
        "ip rule add from 10.243.0.0/16 lookup 77 priority 902",
        // IPv6 ranges.
        "ip address add fd00:244:1::1/128 dev vxlan.calico nodad",
        "ip route add fd00:244:1::5/128 dev cali1",
        "ip route add blackhole fd00:244:1::/122 proto 80",
        "ip route add fd00:200::/64 dev docker0",
    ] {
        run(line);
    }
}

/// Destinations of the routes that `ip` shows in this range, of all tables, without the kernel's routes for addresses.
fn by_ip(family: &str, range: &str) -> BTreeSet<String> {
    let range: IpNet = range.parse().unwrap();
    let network = |text: &str| -> Option<IpNet> {
        text.parse()
            .ok()
            .or_else(|| Some(text.parse::<std::net::IpAddr>().ok()?.into()))
    };
    crate::host::json(&format!("ip {family} -j -N route show table all"))
        .as_array()
        .unwrap()
        .iter()
        .filter(|route| route["protocol"] != "2" && route["protocol"] != "kernel")
        .filter_map(|route| network(route["dst"].as_str()?))
        .filter(|destination| range.contains(destination))
        .map(|destination| destination.to_string())
        .collect()
}

fn destinations(facts: &HostFacts) -> BTreeSet<String> {
    let old = &facts.source;
    [&old.pods, &old.blocks, &old.discards]
        .into_iter()
        .flat_map(|list| &list.items)
        .map(|route| route.destination.to_string())
        .collect()
}

fn words<T: ToString>(list: &Listed<T>) -> Vec<String> {
    list.items.iter().map(ToString::to_string).collect()
}

fn observer(host: &Host) -> Observer {
    Observer::new(&host.parts())
}

#[test]
#[ignore = "needs root and network namespaces"]
fn facts_of_both_ranges_match_the_output_of_ip() {
    in_namespace(|| async {
        let host = Host::empty();
        create_calico_network();
        write_calico_conflist(&host);
        let facts = observer(&host).observe(&settings()).await.unwrap();

        assert_eq!(destinations(&facts), by_ip("-4", "10.244.0.0/16"));
        assert_eq!(words(&facts.source.pods), ["10.244.1.5/32 dev cali1"]);
        assert_eq!(
            words(&facts.source.blocks),
            [
                "10.244.13.0/24 nexthop via 192.0.2.14 dev eth0 nexthop via 192.0.2.15 dev eth0 table 77",
                "local 10.244.12.0/24 dev lo table local",
                "10.244.2.0/26 via 10.244.2.0 dev vxlan.calico",
                "10.244.3.0/26 via 192.0.2.13 dev eth0",
            ]
        );
        assert_eq!(
            words(&facts.source.discards),
            [
                "prohibit 10.244.10.0/24 table 77",
                "throw 10.244.11.0/24 table 77",
                "unreachable 10.244.9.0/24",
                "blackhole 10.244.1.0/26",
            ]
        );
        assert_eq!(words(&facts.source.addresses), ["10.244.1.0/32 dev vxlan.calico"]);
        assert_eq!(
            words(&facts.source.rules),
            ["rule 900: from 10.244.13.0/24 lookup 77"]
        );
        assert_eq!(remaining(&facts).len(), facts.source.count());

        assert_eq!(
            foreign(&facts),
            [
                "10.200.128.1/24 dev docker0",
                "10.192.0.0/10 via 192.0.2.9 dev eth0 table 77",
                "10.200.64.0/18 via 192.0.2.9 dev eth0",
                "10.200.250.2/32 dev docker0",
                "rule 901: from all to 10.200.0.0/16 lookup 77",
            ]
        );
        assert_eq!(announced(&facts), ["10.200.4.0/26 via 192.0.2.14 dev eth0"]);
        assert_eq!(facts.tunnels.len(), 1);
        assert_eq!((facts.tunnels[0].mtu, facts.tunnels[0].up), (1350, true));
        let uplink = facts.uplink.as_ref().unwrap();
        assert_eq!((uplink.name.as_str(), uplink.mtu), ("eth0", 1400));
        assert_eq!(facts.ipam(), Ok("calico-ipam"));
        assert_eq!(facts.pins(&settings().to).unwrap(), ["10.244.0.0/16"]);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn facts_of_ipv6_ranges_match_the_output_of_ip() {
    in_namespace(|| async {
        let host = Host::empty();
        create_calico_network();
        write_calico_conflist(&host);
        let settings = HostSettings {
            from: "fd00:244::/32".parse().unwrap(),
            to: "fd00:200::/32".parse().unwrap(),
            ..settings()
        };
        let facts = observer(&host).observe(&settings).await.unwrap();
        assert_eq!(destinations(&facts), by_ip("-6", "fd00:244::/32"));
        assert_eq!(
            remaining(&facts),
            [
                "fd00:244:1::1/128 dev vxlan.calico",
                "fd00:244:1::5/128 dev cali1",
                "blackhole fd00:244:1::/122",
            ]
        );
        assert_eq!(foreign(&facts), ["fd00:200::/64 dev docker0"]);
    });
}

/// Felix replaces the tunnel address: Felix removes unknown addresses, then adds missing ones.
#[test]
#[ignore = "needs root and network namespaces"]
fn replacing_the_tunnel_address_deletes_no_route() {
    in_namespace(|| async {
        let host = Host::empty();
        create_calico_network();
        write_calico_conflist(&host);
        let through_tunnel = || run("ip -4 route show dev vxlan.calico");
        let (with, without) = (through_tunnel(), String::new());
        assert!(with.contains("10.244.2.0/26 via 10.244.2.0"), "{with}");
        let to_pod = run("ip route get 10.244.1.5");
        let kept = || run("ip -o -4 address show label lo:replumb");
        let mut observer = observer(&host);
        let mut report_with = async |address: Option<&str>| {
            let end = |address: &str| ChangedTunnelAddress {
                name: "IPv4VXLANTunnelAddr".to_owned(),
                old: "10.244.1.0".parse().unwrap(),
                new: Some(address.parse().unwrap()),
            };
            let settings = HostSettings {
                tunnel_addresses: address.map(end).into_iter().collect(),
                ..settings()
            };
            let report = observer.report(&settings).await;
            assert_eq!(report.failure, None);
            let keeping = keeping(
                &settings.tunnel_addresses,
                &settings.from,
                report.kinds.pod_cidr.as_ref(),
            );
            (report, keeping)
        };

        assert_eq!(report_with(Some("10.244.1.0")).await.1, Keeping::Done);
        assert!(
            kept().contains("10.244.1.0/32 scope host lo:replumb"),
            "{}",
            kept()
        );
        assert_eq!(
            run("ip route get 10.244.1.5"),
            to_pod,
            "the same source as before"
        );
        assert_eq!(through_tunnel(), with);

        // Calico has assigned the new address; the old Felix process removes it once before it ends.
        for _ in 0..2 {
            let (report, keeping) = report_with(Some("10.200.1.0")).await;
            assert!(matches!(keeping, Keeping::Changing(_)), "{keeping:?}");
            assert_eq!(report.pending, Pending::Change);
            let both = run("ip -o -4 address show dev vxlan.calico");
            assert!(
                both.contains("10.244.1.0/32") && both.contains("10.200.1.0/32"),
                "{both}"
            );
            run("ip address delete 10.200.1.0/32 dev vxlan.calico");
        }
        report_with(Some("10.200.1.0")).await;
        run("ip address delete 10.244.1.0/32 dev vxlan.calico");
        assert_eq!(through_tunnel(), with, "all routes are kept");
        assert_eq!(report_with(Some("10.200.1.0")).await.1, Keeping::Done);
        let local = run("ip route get 10.244.1.0");
        assert!(local.contains("local 10.244.1.0 dev lo"), "{local}");

        let (report, _) = report_with(None).await;
        assert_eq!((kept(), report.pending), (String::new(), Pending::NoGoal));

        // Without an agent, the kernel deletes the routes.
        run("ip address delete 10.200.1.0/32 dev vxlan.calico");
        assert_eq!(through_tunnel(), without);

        // The Migration is deleted meanwhile.
        run("ip address add 10.244.1.0/32 dev vxlan.calico");
        report_with(Some("10.244.1.0")).await;
        assert_ne!(kept(), "");
        observer.release().await.unwrap();
        assert_eq!(kept(), "");
        assert!(run("ip -o -4 address show dev vxlan.calico").contains("10.244.1.0/32"));
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_agent_observes_and_changes_nothing() {
    in_namespace(|| async {
        // A host on flannel, where the test would detect a change by a flannelToCalico worker.
        let host = Host::new();
        write_calico_conflist(&host);
        run("ip route add 10.244.200.0/26 via 192.0.2.9 dev eth0 proto 80");
        // The kernel updates link states and link-local addresses late.
        let shown = || {
            let lines = [
                "ip -o -4 address",
                "ip -4 route show table all",
                "ip rule",
                "ip -6 rule",
            ];
            lines.map(|line| run(line).replace(" linkdown", ""))
        };
        let before = (shown(), files(&host));
        let ranges = json!({ "from": "10.244.200.0/24", "to": "10.200.0.0/16" });
        let object = json!({
            "apiVersion": "replumb.dev/v1alpha1",
            "kind": "NodeMigration",
            "metadata": { "name": "a", "uid": "u-1", "generation": 1, "resourceVersion": "10" },
            "spec": { "nodeName": "a", "migration": "m", "podCidr": ranges },
        });
        let (mut server, agent) = start(&host, object);
        beside(agent, async {
            let status = server.patch(StatusCode::OK).await;
            let routes = &status["podCidr"]["source"]["blocks"]["items"];
            assert_eq!(routes[0]["destination"], "10.244.200.0/26", "{status}");
            assert_eq!(
                status["podCidr"]["conflist"]["present"]["ipam"]["present"],
                "calico-ipam"
            );
            let others = [
                "flannelToCalico",
                "serviceCidr",
                "calicoDatastore",
                "failure",
                "steps",
            ];
            assert_eq!(others.map(|field| &status[field]), [&Value::Null; 5], "{status}");

            // A new route to a block is written with a delay; an empty old range immediately.
            run("ip route add 10.244.200.64/26 via 192.0.2.9 dev eth0 proto 80");
            let call = tokio::time::timeout(AT_ONCE, server.patch(StatusCode::OK)).await;
            assert!(call.is_err(), "a call without delay: {call:?}");
            run("ip route delete 10.244.200.64/26");
            assert_eq!((shown(), files(&host)), before);
            assert!(!host.state().exists(), "no journal");
            // A delayed call would be late each time; on a busy machine an immediate one is late only sometimes.
            let mut took = Vec::new();
            for _ in 0..3 {
                let began = Instant::now();
                run("ip route delete 10.244.200.0/26");
                let status = server.patch(StatusCode::OK).await;
                took.push(began.elapsed());
                assert_eq!(status["podCidr"]["source"]["blocks"], Value::Null, "{status}");
                assert!(server.object["status"]["podCidr"]["source"]["blocks"].is_null());
                if took.iter().any(|took| *took < AT_ONCE) {
                    break;
                }
                run("ip route add 10.244.200.0/26 via 192.0.2.9 dev eth0 proto 80");
                server.patch(StatusCode::OK).await;
            }
            assert!(
                took.iter().any(|took| *took < AT_ONCE),
                "no immediate call: {took:?}"
            );

            // The host cannot be read any more.
            let moved = host.folder.path().join("moved");
            fs::rename(&host.paths.cni_configuration, &moved).unwrap();
            // The next observation detects the missing folder.
            run("ip link add docker1 type bridge");
            let status = server.patch(StatusCode::OK).await;
            assert_eq!(status["failure"]["category"], "HostFile", "{status}");
            assert!(server.object["status"]["podCidr"].is_null());
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_spec_with_two_kinds_is_refused() {
    in_namespace(|| async {
        let host = Host::new();
        let mut object = object(&host);
        object["spec"]["flannelToCalico"]["goal"] = json!("Held");
        object["spec"]["podCidr"] = json!(settings());
        let (mut server, agent) = start(&host, object);
        beside(agent, async {
            let status = server.patch(StatusCode::OK).await;
            assert_eq!(status["failure"]["category"], "Contradiction", "{status}");
            assert_eq!(
                (&status["flannelToCalico"]["facts"], &status["podCidr"]),
                (&Value::Null, &Value::Null)
            );
            server.silence().await;
            assert!(host.paths.subnet_environment().exists());
        })
        .await;
    });
}

/// Path, size and time of every file of the host's folders.
fn files(host: &Host) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![host.folder.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            }
            if metadata.is_file() {
                let time = metadata.modified().unwrap();
                found.insert(format!("{} {} {time:?}", entry.path().display(), metadata.len()));
            }
        }
    }
    found
}
