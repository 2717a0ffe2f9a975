//! The host layer against a real kernel, in separate namespaces. Results are compared with the output of `ip`, `bridge`,
//! `iptables` and `nft`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod adopt;
mod adopt_connections;
mod adopt_crowd;
mod adopt_detour;
mod adopt_many;
mod adopt_not_taken;
mod adopt_weather;
mod back;
mod flood;
mod foreign_rules;
mod host;
mod in_place;
mod ipv6;
mod listeners;
mod masquerades;
mod path;
mod pod_cidr;
mod pods;
mod rights;
mod sampling;
mod service_cidr;
mod service_users;
mod switch;
mod turn;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use agent::host::{firewall, netlink};
use agent::kinds::flannel_to_calico::apply::{ApplyError, apply};
use agent::kinds::flannel_to_calico::journal::{Before, Journal};
use agent::kinds::flannel_to_calico::observe::Observation;
use api::FailureCategory;
use flannel_to_calico::facts::{FirewallBackend, FirewallObject};
use flannel_to_calico::host::{HostDecision, HostStep, JournalState, decide, leftovers, phase};
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use nix::mount::{MsFlags, mount};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::sync::Notify;

use crate::host::{Host, in_namespace, json, run};

const BACKENDS: [&str; 4] = [
    "iptables-nft",
    "ip6tables-nft",
    "iptables-legacy",
    "ip6tables-legacy",
];

/// Performs steps until the goal is reached, or a step has to wait: then returns the reason.
async fn drive(host: &Host, goal: Goal) -> Option<String> {
    let mut seen = host.observe().await;
    for _ in 0..32 {
        match host.decide(&seen, goal) {
            HostDecision::Run(step) => {
                seen = host.apply(&step, &seen).await.unwrap();
                assert!(step.is_done(&seen.facts));
            }
            HostDecision::Wait(what) => return Some(what),
            HostDecision::Settled => return None,
            HostDecision::Halt(why) => panic!("{why}"),
        }
    }
    panic!("too many steps: {:?}", seen.facts);
}

/// The link of this name in the output of `ip -j link`.
fn link_named(links: &Value, name: &str) -> Value {
    links
        .as_array()
        .unwrap()
        .iter()
        .find(|link| link["ifname"] == name)
        .unwrap()
        .clone()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn facts_match_the_output_of_ip() {
    in_namespace(|| async {
        let host = Host::new();
        let facts = host.observe().await.facts;

        let links = json("ip -j -d link");
        let link = |name: &str| link_named(&links, name);
        let tunnel = facts.vxlan("flannel.1").unwrap();
        let data = &link("flannel.1")["linkinfo"]["info_data"];
        assert_eq!(data["id"], tunnel.vni);
        assert_eq!(data["port"], tunnel.port);
        assert_eq!(data["local"], tunnel.local.unwrap().to_string());
        assert_eq!(data["link"], tunnel.parent.clone().unwrap());
        assert_eq!(data["learning"], tunnel.learning);
        assert_eq!(link("flannel.1")["mtu"], tunnel.mtu);
        assert_eq!(link("flannel.1")["address"], tunnel.mac);
        assert!(tunnel.up);
        let other = facts.vxlan("vxlan9").unwrap();
        assert_eq!(
            link("vxlan9")["linkinfo"]["info_data"]["learning"],
            other.learning
        );
        assert_eq!((other.vni, other.port, other.learning), (99, 4789, true));

        let count = |line: &str| u32::try_from(json(line).as_array().unwrap().len()).unwrap();
        assert_eq!(count("ip -j -4 route show dev flannel.1"), tunnel.routes);
        assert_eq!(
            count("ip -j neighbour show dev flannel.1 nud permanent"),
            tunnel.neighbours
        );
        assert_eq!(
            count("bridge -j fdb show dev flannel.1"),
            tunnel.forwarding_entries
        );
        assert_eq!(
            tunnel
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["10.244.1.0/32"]
        );

        let bridge = facts.bridge.present().unwrap();
        let ports = json("ip -j link show master cni0");
        let ports: Vec<&str> = ports
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|port| port["ifname"].as_str())
            .collect();
        assert_eq!(bridge.ports, ports);
        assert_eq!(link("cni0")["mtu"], bridge.mtu);

        let strict = fs::read_to_string("/proc/sys/net/ipv4/conf/eth0/rp_filter").unwrap();
        assert_eq!(
            facts.reverse_path_filter.interfaces["eth0"].to_string(),
            strict.trim()
        );
        assert_eq!(
            facts.uplink.as_deref(),
            json("ip -j route show default")[0]["dev"].as_str()
        );
        assert_eq!(facts.detected_address.unwrap().to_string(), "192.0.2.11");
        assert_eq!(
            (facts.leases, facts.delegates),
            (3, 1),
            "a lease, the lock, the last address"
        );
        assert_eq!(facts.direct_routes, []);
        assert!(!facts.flanneld_running);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_direct_route_is_observed() {
    in_namespace(|| async {
        let host = Host::new();
        run("ip route replace 10.244.3.0/24 via 192.0.2.13 dev eth0");
        let routes = host.observe().await.facts.direct_routes;
        assert_eq!(routes.len(), 1, "{routes:?}");
        assert_eq!(
            (routes[0].gateway.to_string().as_str(), routes[0].link.as_str()),
            ("192.0.2.13", "eth0")
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_observation_creates_no_tables() {
    in_namespace(|| async {
        let host = Host::new();
        assert_eq!(host.observe().await.facts.firewall, []);
        let names = |family: &str| {
            fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names")).unwrap_or_default()
        };
        assert_eq!(
            (names("ip"), names("ip6")),
            (String::new(), String::new()),
            "legacy tables"
        );
        assert_eq!(run("nft list tables"), "");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn every_firewall_backend_is_read() {
    in_namespace(|| async {
        let host = Host::new();
        for backend in BACKENDS {
            Host::firewall(backend);
        }
        Host::nftables();
        let mut expected = Vec::new();
        for backend in [
            FirewallBackend::IptablesNft,
            FirewallBackend::Ip6tablesNft,
            FirewallBackend::IptablesLegacy,
            FirewallBackend::Ip6tablesLegacy,
        ] {
            for (table, chain) in [
                ("filter", "FLANNEL-FWD"),
                ("filter", "FORWARD"),
                ("nat", "FLANNEL-POSTRTG"),
            ] {
                expected.push(FirewallObject {
                    backend,
                    table: table.to_owned(),
                    chain: chain.to_owned(),
                });
            }
        }
        for table in ["ip flannel-ipv4", "ip6 flannel-ipv6"] {
            expected.push(FirewallObject {
                backend: FirewallBackend::Nftables,
                table: table.to_owned(),
                chain: String::new(),
            });
        }
        assert_eq!(host.observe().await.facts.firewall, expected);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_table_that_iptables_cannot_read_is_reported_and_the_rest_is_read() {
    in_namespace(|| async {
        let host = Host::new();
        Host::firewall("iptables-nft");
        let in_filter = |object: &&FirewallObject| object.table == "filter";
        let before = host.observe().await.facts;
        // A rule that iptables cannot express.
        run("nft add rule ip nat POSTROUTING ct state new masquerade");
        let facts = host.observe().await.facts;
        let chain = FirewallObject {
            backend: FirewallBackend::IptablesNft,
            table: "nat".to_owned(),
            chain: "FLANNEL-POSTRTG".to_owned(),
        };
        assert!(facts.firewall.contains(&chain), "{:?}", facts.firewall);
        assert!(
            facts
                .firewall
                .iter()
                .filter(in_filter)
                .eq(before.firewall.iter().filter(in_filter))
        );
        let [reason] = facts.unread_tables.as_slice() else {
            panic!("{:?}", facts.unread_tables)
        };
        assert!(reason.contains("FLANNEL-POSTRTG is in table ip nat"), "{reason}");
        // The step fails with the same reason, and deletes nothing.
        let rules = run("nft list table ip nat");
        let error = firewall::delete(&chain).await.unwrap_err();
        assert_eq!(error.category(), FailureCategory::FirewallIncompatible, "{error}");
        assert_eq!(run("nft list table ip nat"), rules);
        // The fix in the error message.
        run("nft flush chain ip nat POSTROUTING");
        run("nft delete chain ip nat FLANNEL-POSTRTG");
        let facts = host.observe().await.facts;
        assert_eq!(facts.unread_tables, Vec::<String>::new());
        assert!(!facts.firewall.contains(&chain), "{:?}", facts.firewall);
    });
}

/// Content of the copy that the journal names for this file.
fn saved_file(journal: &str, path: &Path) -> Vec<u8> {
    let file = journal
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .flat_map(|record| {
            record["event"]["started"]["before"]["files"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        })
        .find(|file| file["path"] == path.to_str().unwrap())
        .unwrap_or_else(|| panic!("{} is not in the journal: {journal}", path.display()));
    fs::read(file["copy"].as_str().unwrap()).unwrap()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_host_moves_from_flannel_to_calico_and_nothing_else_changes() {
    in_namespace(|| async {
        let host = Host::new();
        for backend in BACKENDS {
            Host::firewall(backend);
        }
        Host::nftables();
        let before = host.objects_of_other_programs();
        let environment = fs::read(host.paths.subnet_environment()).unwrap();
        let conflist = fs::read(host.paths.cni_configuration.join("10-flannel.conflist")).unwrap();

        assert_eq!(drive(&host, Goal::Held).await, None);
        assert!(!host.paths.subnet_environment().exists());
        assert!(
            json("ip -j link").to_string().contains("flannel.1"),
            "running pods keep their network"
        );

        let waits = drive(&host, Goal::Detached).await.expect("a pod is on cni0");
        assert!(waits.contains("vethpod1"), "{waits}");
        assert!(
            run("iptables-nft-save").contains("FLANNEL-POSTRTG"),
            "a running pod keeps its masquerade rules"
        );
        Host::delete_last_pod();
        assert_eq!(drive(&host, Goal::Detached).await, None);
        let links = json("ip -j link").to_string();
        assert!(!links.contains("flannel.1") && !links.contains("cni0"), "{links}");
        let routes = json("ip -j route show dev vxlan.calico").to_string();
        assert!(
            routes.contains("10.244.2.0/24"),
            "the host reaches pods of other nodes: {routes}"
        );
        for save in BACKENDS {
            let rules = run(&format!("{save}-save"));
            assert!(
                !rules.contains("FLANNEL") && !rules.contains("\"flanneld"),
                "{rules}"
            );
        }
        let tables = run("nft list tables");
        assert!(
            !tables.contains("ip flannel-ipv4") && !tables.contains("ip6 flannel-ipv6"),
            "{tables}"
        );
        assert_eq!(
            host.objects_of_other_programs(),
            before,
            "rules, routes, links and files of other programs are unchanged"
        );

        let waits = drive(&host, Goal::Calico).await.expect("Calico is missing");
        assert!(waits.contains("10-flannel.conflist is in use"), "{waits}");
        host.install_calico();
        assert_eq!(drive(&host, Goal::Calico).await, None);
        let end = host.observe().await.facts;
        assert_eq!(phase(&end, &host.settings()), Phase::Calico);
        assert_eq!(leftovers(&end, &host.settings()), Vec::<String>::new());
        assert_eq!(names(&host.paths.cni_configuration), ["10-calico.conflist"]);
        assert!(!host.paths.cni_state.join("networks/cbr0").exists());

        // The original files are saved byte for byte.
        let journal = fs::read_to_string(host.state().join("journal.jsonl")).unwrap();
        let saved = |path: &Path| saved_file(&journal, path);
        assert_eq!(saved(&host.paths.subnet_environment()), environment);
        assert_eq!(
            saved(&host.paths.cni_configuration.join("10-flannel.conflist")),
            conflist
        );
        assert!(
            journal.contains("10.244.2.0/24"),
            "the routes of the link are in the journal"
        );
        assert!(
            journal.contains(r#"--comment \"flanneld masq\" -j FLANNEL-POSTRTG"#),
            "the rules too"
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_crash_before_or_after_a_change_is_recovered() {
    in_namespace(|| async {
        let host = Host::new();
        Host::firewall("iptables-nft");
        Host::delete_last_pod();
        let settings = host.settings();
        let mut crashes = 0;
        loop {
            let seen = host.observe().await;
            let HostDecision::Run(step) =
                decide(&seen.facts, &settings, Goal::Detached, &JournalState::default())
            else {
                break;
            };
            // kill -9 right after the record: the next process finds an open step and an unchanged host.
            Journal::open(&host.state())
                .unwrap()
                .begin(&step, Before::default(), Timestamp::now())
                .unwrap();
            let mut journal = Journal::open(&host.state()).unwrap();
            assert_eq!(journal.open_step(), Some(&step));
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
            // kill -9 right after the change, before its record: the step is open, and the facts show that it is done.
            let path = journal.path();
            drop(journal);
            let text = fs::read_to_string(&path).unwrap();
            let kept = text.trim_end().rfind('\n').unwrap() + 1;
            fs::write(&path, &text[..kept]).unwrap();
            assert_eq!(Journal::open(&host.state()).unwrap().open_step(), Some(&step));
            assert!(step.is_done(&host.observe().await.facts));
            crashes += 1;
            assert!(crashes < 32, "too many steps");
        }
        assert!(crashes >= 6, "{crashes}");
        assert_eq!(phase(&host.observe().await.facts, &settings), Phase::Detached);
    });
}

/// Performs one step on the host.
async fn attempt(
    host: &Host,
    step: &HostStep,
    seen: &Observation,
    journal: &mut Journal,
) -> Result<Observation, ApplyError> {
    apply(step, seen, &host.paths, &host.netlink, &host.processes, journal).await
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_full_disk_stops_a_step_before_its_start() {
    in_namespace(|| async {
        let host = Host::new();
        let state = host.state();
        fs::create_dir_all(&state).unwrap();
        mount(
            Some("tmpfs"),
            &state,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("size=256k"),
        )
        .unwrap();
        drop(Journal::open(&state).unwrap());
        assert_eq!(names(&state), ["backup", "lock"], "the trial file is removed");
        // Fills the disk completely.
        let filling = fs::write(state.join("filler"), vec![0_u8; 1 << 20]).unwrap_err();
        assert_eq!(filling.raw_os_error(), Some(nix::errno::Errno::ENOSPC as i32));
        let error = Journal::open(&state).unwrap_err();
        assert_eq!(
            error.category(),
            FailureCategory::JournalFile,
            "detected before the migration of the node starts"
        );
        // Full after the journal was opened.
        fs::remove_file(state.join("filler")).unwrap();
        let mut journal = Journal::open(&state).unwrap();
        fs::write(state.join("filler"), vec![0_u8; 1 << 20]).unwrap_err();
        let seen = host.observe().await;
        let step = HostStep::WithdrawSubnetEnvironment;
        let error = attempt(&host, &step, &seen, &mut journal).await.unwrap_err();
        assert_eq!(error.category(), FailureCategory::JournalFile);
        let text = runtime::error::chain(&error);
        assert!(
            text.contains("No space left") && text.contains("free disk space"),
            "{text}"
        );
        assert!(host.paths.subnet_environment().exists(), "nothing is changed");

        let step = HostStep::DeleteVxlanDevice("flannel.1".to_owned());
        attempt(&host, &step, &seen, &mut journal).await.unwrap_err();
        assert!(
            json("ip -j link").to_string().contains("flannel.1"),
            "nothing is changed"
        );

        fs::remove_file(state.join("filler")).unwrap();
        let step = HostStep::WithdrawSubnetEnvironment;
        attempt(&host, &step, &seen, &mut journal).await.unwrap();
        drop(journal);
        assert_eq!(
            Journal::open(&state).unwrap().done().len(),
            1,
            "the journal is complete"
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_step_waits_for_a_running_flanneld() {
    in_namespace(|| async {
        let host = Host::new();
        let program = host.folder.path().join("flanneld");
        // By another process: a child of another test would inherit the open file, which cannot be started then.
        run(&format!("cp /bin/sleep {}", program.display()));
        let mut daemon = Command::new(&program)
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        // Between fork and exec the process has its parent's name.
        while !host.observe().await.facts.flanneld_running {
            assert!(
                std::time::Instant::now() < deadline,
                "flanneld (pid {}) is not seen",
                daemon.id()
            );
        }
        let waits = drive(&host, Goal::Held).await.expect("flanneld runs");
        assert!(waits.contains("flanneld still runs"), "{waits}");
        assert!(host.paths.subnet_environment().exists());
        daemon.kill().unwrap();
        // Waits for the end of the process, and leaves it unreaped.
        let pid = Pid::from_raw(i32::try_from(daemon.id()).unwrap());
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        // Ended and not reaped: the process writes nothing any more.
        assert_eq!(drive(&host, Goal::Held).await, None);
        daemon.wait().unwrap();
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_change_of_the_kernel_notifies_the_loop() {
    in_namespace(|| async {
        run("ip link set lo up");
        run("ip link add eth0 type veth peer name wire0");
        let changed = Arc::new(Notify::new());
        let watch = netlink::watch(Arc::clone(&changed));
        let notified = |what: &'static str| {
            let changed = Arc::clone(&changed);
            async move {
                tokio::time::timeout(Duration::from_secs(10), changed.notified())
                    .await
                    .unwrap_or_else(|_| panic!("no notification after {what}"));
            }
        };
        notified("the start").await;
        for line in [
            "ip link add cni0 type bridge",
            "ip link set eth0 up",
            "ip link set wire0 up",
            "ip address add 192.0.2.11/24 dev eth0",
            "ip route add 10.244.2.0/24 via 192.0.2.12 dev eth0",
            "ip neighbour add 192.0.2.12 lladdr 02:00:00:00:00:02 dev eth0 nud permanent",
        ] {
            // Late notifications of the previous change do not count for this one.
            while tokio::time::timeout(Duration::from_millis(300), changed.notified())
                .await
                .is_ok()
            {}
            run(line);
            notified(line).await;
        }
        watch.abort();
    });
}

/// Names of the files of a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
