//! serviceCidr: the agent's observations of kube-proxy's rules and of objects in the new range, without any change.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::host::kube_proxy;
use agent::kinds::service_cidr::expected::WatchedRecord;
use agent::kinds::service_cidr::observe::Observer;
use api::FailureCategory;
use axum::http::StatusCode;
use engine::found::Found;
use jiff::Timestamp;
use serde_json::{Value, json};
use service_cidr::host::{
    ExpectedPorts, ExpectedPortsReference, HostSettings, ProxyMode, Question, ServicePort, SourceAddresses,
};
use tokio::sync::watch;

use crate::host::{Host, in_namespace, run};
use crate::turn::{beside, object, start};

/// Chains that a kubelet creates, independent of kube-proxy.
const KUBELETS: &str = "\
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
";

/// Input of `iptables-restore` from kube-proxy 1.36 in iptables mode.
pub fn iptables(one: &str, other: &str, local: &str) -> String {
    let pods = if one.contains(':') {
        "fd00:244::/56"
    } else {
        "10.244.0.0/16"
    };
    format!(
        "\
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A KUBE-SERVICES -m comment --comment \"shop/empty:http has no endpoints\" -m tcp -p tcp -d {other} --dport 80 -j REJECT
-A KUBE-SERVICES -m comment --comment \"shop/local:http has no local endpoints\" -m tcp -p tcp -d {local} --dport 80 -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
:KUBE-SVL-TCOU7JCQXEZGVUNU - [0:0]
:KUBE-EXT-NPX46M4PTMTKRN6Y - [0:0]
-A KUBE-SERVICES -m comment --comment \"default/kubernetes:https cluster IP\" -m tcp -p tcp -d {one} --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y
-A KUBE-SERVICES -m comment --comment \"kube-system/kube-dns:dns cluster IP\" -m udp -p udp -d {one} --dport 53 -j KUBE-SVL-TCOU7JCQXEZGVUNU
-A KUBE-SERVICES -m comment --comment \"shop/web-replumb-bridge:http loadbalancer IP\" -m tcp -p tcp -d {one} --dport 8080 -j KUBE-EXT-NPX46M4PTMTKRN6Y
-A KUBE-SVC-NPX46M4PTMTKRN6Y -m comment --comment \"default/kubernetes:https cluster IP\" -m tcp -p tcp -d {one} --dport 444 ! -s {pods} -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
"
    )
}

/// Input of `nft` from kube-proxy 1.36 for one family.
fn nftables(family: &str, kind: &str, one: &str, other: &str) -> String {
    let (protocol, pods) = if one.contains(':') {
        ("ip6", "fd00:244::/56")
    } else {
        ("ip", "10.244.0.0/16")
    };
    format!(
        "\
add table {family} kube-proxy {{ comment \"rules for kube-proxy\" ; }}
add map {family} kube-proxy service-ips {{ type {kind} . inet_proto . inet_service : verdict ; comment \"ClusterIP, ExternalIP and LoadBalancer IP traffic\" ; }}
add map {family} kube-proxy no-endpoint-services {{ type {kind} . inet_proto . inet_service : verdict ; comment \"vmap to drop or reject packets to services with no endpoints\" ; }}
add chain {family} kube-proxy reject-chain
add rule {family} kube-proxy reject-chain reject
add chain {family} kube-proxy service-2QRHZV4L-default/kubernetes/tcp/https
add chain {family} kube-proxy external-2QRHZV4L-shop/web-replumb-bridge/tcp/http
add chain {family} kube-proxy services
add set {family} kube-proxy cluster-ips {{ type {kind} ; }}
add rule {family} kube-proxy services {protocol} daddr @cluster-ips {protocol} saddr != {pods} mark set mark or 0x4000
add rule {family} kube-proxy services {protocol} daddr . meta l4proto . th dport vmap @service-ips
add element {family} kube-proxy service-ips {{ {one} . tcp . 8080 : goto external-2QRHZV4L-shop/web-replumb-bridge/tcp/http }}
add element {family} kube-proxy service-ips {{ {one} . tcp . 443 : goto service-2QRHZV4L-default/kubernetes/tcp/https }}
add element {family} kube-proxy service-ips {{ {one} . udp . 53 : goto service-2QRHZV4L-default/kubernetes/tcp/https }}
add element {family} kube-proxy no-endpoint-services {{ {other} . tcp . 80 comment \"shop/empty:http\" : goto reject-chain }}
add element {family} kube-proxy no-endpoint-services {{ {other} . sctp . 7 comment \"shop/local:x\" : drop }}
"
    )
}

/// Runs a program with this standard input.
#[track_caller]
pub fn feed(line: &str, input: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{line}: {input}");
}

fn port(address: &str, protocol: &str, port: u16) -> ServicePort {
    ServicePort {
        address: address.parse().unwrap(),
        protocol: protocol.to_owned(),
        port,
    }
}

async fn rules() -> kube_proxy::Rules {
    kube_proxy::read(Path::new("/proc"), &BTreeSet::new())
        .await
        .unwrap()
}

fn words(unknown: &Found<Vec<ServicePort>>) -> Vec<String> {
    unknown
        .present()
        .unwrap_or_else(|| panic!("{unknown:?}"))
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Checks the load balancer addresses and the ranges of local pods.
fn assert_external_and_local_traffic(rules: &kube_proxy::Rules) {
    let balanced = [port("10.96.0.1", "TCP", 8080), port("fd00:96::1", "TCP", 8080)];
    assert_eq!(rules.unknown(&balanced, &balanced), Found::Present(Vec::new()));
    let own = [port("10.96.0.1", "TCP", 443), port("fd00:96::1", "TCP", 443)];
    assert_eq!(rules.unknown(&own, &own), Found::Present(own.to_vec()));
    let pods = rules.local_traffic().present().unwrap();
    let ranges: Vec<String> = pods.ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.244.0.0/16", "fd00:244::/56"]);
}

fn of_backend(backend: &'static str) {
    in_namespace(move || async move {
        let restore = |family: &str, input: &str| {
            feed(&format!("{family}-{backend}-restore --noflush"), input);
        };
        for family in ["iptables", "ip6tables"] {
            restore(family, KUBELETS);
        }
        assert_eq!(rules().await.mode(), Found::Absent, "only chains of a kubelet");
        // ipvs mode has the same chain, only in table nat.
        restore("iptables", "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
        assert_eq!(rules().await.mode(), Found::Absent, "no chain of iptables mode");
        assert_eq!(
            rules().await.local_traffic(),
            &Found::Absent,
            "a chain without rules"
        );

        restore("iptables", &iptables("10.96.0.1", "10.96.7.7", "10.96.7.8"));
        restore("ip6tables", &iptables("fd00:96::1", "fd00:96::7", "fd00:96::8"));
        let rules = rules().await;
        assert_eq!(rules.mode(), Found::Present(ProxyMode::Iptables));
        let known = [
            port("10.96.0.1", "TCP", 443),
            port("10.96.0.1", "UDP", 53),
            port("10.96.7.7", "TCP", 80),
            port("10.96.7.8", "TCP", 80),
            port("fd00:96::1", "TCP", 443),
            port("fd00:96::1", "UDP", 53),
            port("fd00:96::7", "TCP", 80),
            port("fd00:96::8", "TCP", 80),
        ];
        assert_eq!(rules.unknown(&known, &[]), Found::Present(Vec::new()));
        let unknown = [
            port("10.96.0.1", "TCP", 444),
            port("10.96.0.1", "UDP", 443),
            port("172.30.0.1", "TCP", 443),
            port("fd00:96::1", "TCP", 80),
        ];
        assert_eq!(rules.unknown(&unknown, &[]), Found::Present(unknown.to_vec()));
        assert_external_and_local_traffic(&rules);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn rules_of_iptables_nft_are_read() {
    of_backend("nft");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn rules_of_iptables_legacy_are_read() {
    of_backend("legacy");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn maps_of_nftables_are_read() {
    in_namespace(|| async {
        assert_eq!(rules().await.mode(), Found::Absent);
        feed("nft -f -", &nftables("ip", "ipv4_addr", "10.96.0.1", "10.96.7.7"));
        feed(
            "nft -f -",
            &nftables("ip6", "ipv6_addr", "fd00:96::1", "fd00:96::7"),
        );
        // A table of another program with the same names.
        feed(
            "nft -f -",
            &nftables("inet", "ipv4_addr", "10.96.0.99", "10.96.7.99"),
        );
        let rules = rules().await;
        assert_eq!(rules.mode(), Found::Present(ProxyMode::Nftables));
        let asked = [
            port("10.96.0.1", "TCP", 443),
            port("10.96.0.1", "UDP", 53),
            port("10.96.7.7", "TCP", 80),
            port("10.96.7.7", "SCTP", 7),
            port("fd00:96::1", "TCP", 443),
            port("fd00:96::7", "SCTP", 7),
            port("10.96.7.7", "UDP", 80),
            port("10.96.0.99", "TCP", 443),
        ];
        assert_eq!(
            words(&rules.unknown(&asked, &[])),
            ["10.96.7.7:80/UDP", "10.96.0.99:443/TCP"]
        );
        assert_external_and_local_traffic(&rules);
    });
}

/// Tables of other programs. The types of the crate `nftables` read none of the rules, sets and counters, and no verdict map.
const ODD: &str = "\
add table ip odd { comment \"a
\tchain KUBE-SERVICES {
\" ; }
add chain ip odd c { type filter hook forward priority 0 ; comment \"b
\tchain KUBE-SERVICES {
table ip kube-proxy {
\" ; }
add rule ip odd c reset tcp option sack-perm
add rule ip odd c ip option lsrr exists drop
add rule ip odd c meta hour \"10:00\"-\"12:00\" accept
add rule ip odd c meta time > \"2024-01-01 00:00\" accept comment \"KUBE-SERVICES\"
add rule ip odd c ct bytes > 9999999999 accept
add rule ip odd c meta sdif 3 accept
add rule ip odd c @th,16,16 0x35 accept
add counter ip odd large { packets 9999999999 bytes 99999999999999 }
add set ip odd intervals { type ipv4_addr ; flags interval,timeout ; elements = { 10.0.0.0/8 timeout 1h } }
add map ip odd verdicts { typeof ip saddr . meta mark : verdict ; elements = { 10.0.0.1 . 4294967295 : drop } }
add table bridge odd
add chain bridge odd services { type filter hook forward priority 0 ; }
add rule bridge odd services ether saddr != 00:11:22:33:44:55 vlan id 4 drop
add table netdev odd
add chain netdev odd services { type filter hook ingress device lo priority 0 ; }
add table arp kube-proxy { flags dormant ; }
";

#[test]
#[ignore = "needs root and network namespaces"]
fn odd_rules_of_other_programs_change_no_observation() {
    in_namespace(|| async {
        feed("nft -f -", ODD);
        assert_eq!(rules().await.mode(), Found::Absent);
        feed("nft -f -", &nftables("ip", "ipv4_addr", "10.96.0.1", "10.96.7.7"));
        let own = rules().await;
        assert_eq!(own.mode(), Found::Present(ProxyMode::Nftables));
        // Statements of a later kube-proxy in its own chain.
        let later = "\
add set ip kube-proxy odd { type ipv4_addr ; }
add rule ip kube-proxy services reset tcp option sack-perm
add rule ip kube-proxy services ip saddr @odd drop
add rule ip kube-proxy services ip saddr . meta mark vmap { 10.0.0.1 . 4294967295 : drop }
add rule ip kube-proxy services meta day \"Monday\" counter log prefix \"x\" limit rate 5/minute accept
";
        feed("nft -f -", later);
        assert_eq!(rules().await, own);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn rules_of_two_modes_and_unreadable_rules_are_malformed() {
    in_namespace(|| async {
        let asked = [port("10.96.0.1", "TCP", 443)];
        feed("nft -f -", &nftables("ip", "ipv4_addr", "10.96.0.1", "10.96.7.7"));
        feed(
            "iptables-nft-restore --noflush",
            &iptables("10.96.0.1", "10.96.7.7", "10.96.7.8"),
        );
        let both = rules().await;
        let is_both = |what: &str| what.contains("in iptables (nf_tables) and nftables at once");
        assert!(matches!(both.mode(), Found::Malformed(what) if is_both(&what)));
        assert!(matches!(both.unknown(&asked, &[]), Found::Malformed(what) if is_both(&what)));

        // The incomplete table of a starting kube-proxy.
        run("nft delete map ip kube-proxy no-endpoint-services");
        let error = kube_proxy::read(Path::new("/proc"), &BTreeSet::new())
            .await
            .unwrap_err();
        assert_eq!(error.category(), FailureCategory::ProgramRefused);
        assert!(error.to_string().contains("no-endpoint-services"), "{error}");

        // A rule of another program, added with nft, that iptables cannot express: kube-proxy's rules are still read.
        run("nft delete table ip kube-proxy");
        run("nft add rule ip nat KUBE-SERVICES ip daddr vmap { 10.96.0.9 : accept }");
        let rules = rules().await;
        assert_eq!(rules.mode(), Found::Present(ProxyMode::Iptables));
        assert_eq!(rules.unknown(&asked, &[]), Found::Present(Vec::new()));
    });
}

/// Time limit for a report that the coordinator waits for.
const SOON: Duration = Duration::from_secs(2);

fn settings() -> HostSettings {
    HostSettings {
        source: SourceAddresses {
            ranges: vec!["10.96.0.0/12".parse().unwrap()],
            excluded: Vec::new(),
        },
        target: vec!["172.30.0.0/16".parse().unwrap(), "fd00:30::/108".parse().unwrap()],
        report_users: true,
        expected_ports: Some(ExpectedPortsReference {
            record: "m-1-expected-ports-0".to_owned(),
        }),
    }
}

fn question(number: u16) -> Question {
    Question {
        asked_at: Timestamp::UNIX_EPOCH,
        ports: ExpectedPorts {
            service_ports: vec![port("172.30.0.1", "TCP", number)],
            load_balancer_ports: Vec::new(),
        },
    }
}

/// The content of the record in these settings: a question about one port.
pub fn watched_record(number: u16) -> WatchedRecord {
    WatchedRecord::Question("m-1-expected-ports-0".to_owned(), Arc::new(question(number)))
}

fn observer() -> Observer {
    let mut parts = Host::empty().parts();
    parts.paths.proc = "/proc".into();
    parts.config = kube::Config::new("https://[fd00:96::1]:443".parse().unwrap());
    Observer::new(&parts, watch::channel(watched_record(443)).1)
}

#[test]
#[ignore = "needs root and network namespaces"]
fn objects_in_the_new_ranges_are_reported() {
    in_namespace(|| async {
        for line in [
            "ip link set lo up",
            "ip link add eth0 type veth peer name wire0",
            "ip link set wire0 up",
            "ip link set eth0 up",
            "ip address add 192.0.2.11/24 dev eth0",
            "ip route add default via 192.0.2.1 dev eth0",
            "ip route add 172.16.0.0/12 via 192.0.2.9 dev eth0",
            "ip route add blackhole 172.30.4.0/26 proto 80",
            "ip route add 10.96.0.0/12 via 192.0.2.9 dev eth0",
            "ip link add docker0 type bridge",
            "ip address add 172.30.128.1/24 dev docker0",
            "ip address add fd00:30::5/64 dev docker0 nodad",
            "ip link set docker0 up",
            "ip rule add to 172.30.0.0/16 lookup 77 priority 901",
            // The link of kube-proxy in ipvs mode.
            "ip link add kube-ipvs0 type bridge",
            "ip address add 172.30.0.1/32 dev kube-ipvs0",
            "ip address add 172.30.0.10/32 dev kube-ipvs0",
        ] {
            run(line);
        }
        let facts = observer().observe(&settings()).await.unwrap();
        assert_eq!(
            facts.target.routes.words("routes"),
            ["172.16.0.0/12 via 192.0.2.9 dev eth0", "blackhole 172.30.4.0/26"]
        );
        assert_eq!(
            facts.target.addresses.words("addresses"),
            ["172.30.128.1/24 dev docker0", "fd00:30::5/64 dev docker0"]
        );
        assert_eq!(
            facts.target.rules.words("rules"),
            ["rule 901: from all to 172.30.0.0/16 lookup 77"]
        );
        assert_eq!(facts.api_server, "fd00:96::1");
        assert!(
            matches!(&facts.cluster_dns, Found::Malformed(what) if what.starts_with("GET https://127.0.0.1:10250/configz: ")),
            "{:?}",
            facts.cluster_dns
        );
    });
}

fn node_migration(settings: &HostSettings) -> Value {
    json!({
        "apiVersion": "replumb.dev/v1alpha1",
        "kind": "NodeMigration",
        "metadata": { "name": "a", "uid": "u-1", "generation": 1, "resourceVersion": "10" },
        "spec": { "nodeName": "a", "migration": "m", "serviceCidr": settings },
    })
}

/// Rules, addresses and routes of the host.
fn shown() -> [String; 3] {
    [
        "nft list ruleset",
        "ip -o -4 address",
        "ip -4 route show table all",
    ]
    // A bridge gets its carrier a moment after its first port.
    .map(|command| run(command).replace(" linkdown", ""))
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_rule_that_the_coordinator_waits_for_is_reported_immediately() {
    in_namespace(|| async {
        // A host on flannel, where the test would detect a change by a flannelToCalico worker.
        let host = Host::new();
        feed("nft -f -", &nftables("ip", "ipv4_addr", "10.96.0.1", "10.96.7.7"));
        let before = shown();
        let (mut server, agent) = start(&host, node_migration(&settings()));
        beside(agent, async {
            let status = server.patch(StatusCode::OK).await;
            let facts = &status["serviceCidr"];
            assert_eq!(facts["proxyMode"]["present"], "nftables", "{status}");
            let unknown = json!([{ "address": "172.30.0.1", "protocol": "TCP", "port": 443 }]);
            assert_eq!(facts["missingPorts"]["present"], unknown, "{status}");
            assert_eq!(facts["expectedDigest"], json!(question(443).digest()), "{status}");
            assert_eq!(facts["apiServer"], "192.0.2.1");
            let others = [
                "flannelToCalico",
                "podCidr",
                "calicoDatastore",
                "failure",
                "steps",
            ];
            assert_eq!(others.map(|field| &status[field]), [&Value::Null; 5], "{status}");
            assert_eq!(shown(), before, "nothing has changed");
            assert!(host.paths.subnet_environment().exists() && !host.state().exists());

            // A new rule causes no event, and a new question does not change the NodeMigration. A wait until the next regular
            // observation would be long each time, since the last one has just ended; on a busy machine a wait is long only
            // sometimes.
            let (mut rules, mut questions) = (Vec::new(), Vec::new());
            let is_soon = |took: &[Duration]| took.iter().any(|took| *took < SOON);
            for (number, next) in [(443, 53), (53, 54), (54, 55)] {
                let rule = format!(
                    "{{ 172.30.0.1 . tcp . {number} : goto service-2QRHZV4L-default/kubernetes/tcp/https }}"
                );
                let began = Instant::now();
                run(&format!("nft add element ip kube-proxy service-ips \"{rule}\""));
                let status = server.patch(StatusCode::OK).await;
                assert_eq!(
                    status["serviceCidr"]["missingPorts"]["present"],
                    json!([]),
                    "{status}"
                );
                rules.push(began.elapsed());

                let asked = Instant::now();
                server.questions.send_replace(watched_record(next));
                let status = server.patch(StatusCode::OK).await;
                let facts = &status["serviceCidr"];
                assert_eq!(
                    facts["expectedDigest"],
                    json!(question(next).digest()),
                    "{status}"
                );
                assert_eq!(facts["missingPorts"]["present"][0]["port"], next, "{status}");
                questions.push(asked.elapsed());
                if is_soon(&rules) && is_soon(&questions) {
                    break;
                }
            }
            assert!(is_soon(&rules), "rules: {rules:?}");
            assert!(is_soon(&questions), "questions: {questions:?}");
            let missing = "MigrationRecord m-1-expected-ports-0 not found".to_owned();
            server.questions.send_replace(WatchedRecord::Unknown(
                "m-1-expected-ports-0".to_owned(),
                missing.clone(),
            ));
            let status = server.patch(StatusCode::OK).await;
            let facts = &status["serviceCidr"];
            assert_eq!(facts["missingPorts"]["malformed"], json!(missing), "{status}");
            assert_eq!(facts["expectedDigest"], Value::Null, "{status}");
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_spec_with_service_cidr_and_another_kind_is_refused() {
    for other in ["flannelToCalico", "podCidr"] {
        in_namespace(move || async move {
            let host = Host::new();
            let mut both = node_migration(&settings());
            both["spec"][other] = match other {
                "podCidr" => json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16" }),
                _ => object(&host)["spec"][other].clone(),
            };
            let (mut server, agent) = start(&host, both);
            beside(agent, async {
                let status = server.patch(StatusCode::OK).await;
                assert_eq!(status["failure"]["category"], "Contradiction", "{status}");
                assert_eq!(status["serviceCidr"], Value::Null, "{status}");
                server.silence().await;
                assert!(host.paths.subnet_environment().exists());
            })
            .await;
        });
    }
}
