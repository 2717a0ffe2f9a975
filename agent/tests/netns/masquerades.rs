//! Rules that replace the source address of a pod's packets: kube-proxy's, and those of any other program.

use std::time::{Duration, Instant};

use agent::kinds::pod_cidr::observe::Observer;
use agent::traffic::hub::Hub;
use agent::traffic::pod;
use engine::found::Found;
use engine::traffic::{Flow, PathClass};

use crate::flood::{answers, attached};
use crate::host::{Host, in_namespace, run};
use crate::service_cidr::{feed, iptables};

/// Time limit for the report of a change, sufficient for a busy machine.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);

fn flow(class: PathClass) -> Flow {
    Flow {
        class,
        source: "u-a".to_owned(),
        to: "node b".to_owned(),
        address: "10.9.1.2".parse().unwrap(),
        port: 9812,
        pod_uid: None,
    }
}

/// Waits until the report names these sources, one for each flow that is masqueraded.
async fn reports(hub: &Hub, expected: &[&str]) {
    let began = Instant::now();
    loop {
        let report = hub.report().unwrap();
        let seen: Vec<String> = report
            .masquerades
            .iter()
            .map(|found| found.source_seen.to_string())
            .collect();
        if seen == expected {
            return;
        }
        assert!(
            began.elapsed() < REPORTED_WITHIN,
            "reported {seen:?}, needed {expected:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The report follows the rules in both directions. Streams of datagrams keep the address that they began with, and are not asked.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_masqueraded_path_is_reported_until_the_rule_is_gone() {
    in_namespace(|| async {
        run("ip link set lo up");
        let answering = attached(1);
        let _echo = answers(&answering).await;
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::listen("a", folder.path()).unwrap();
        let path = folder.path().to_owned();
        let sends = tokio::spawn(async move { pod::send(&path, "u-a").await });
        hub.set(
            &[flow(PathClass::OldToNew), flow(PathClass::PodToService)],
            None,
            None,
            1450,
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
        reports(&hub, &[]).await;
        feed(
            "nft -f -",
            "table ip strange {
                chain post {
                    type nat hook postrouting priority srcnat
                    ip daddr 10.9.1.2 snat to 10.9.9.9
                }
            }",
        );
        reports(&hub, &["10.9.9.9", "10.9.9.9"]).await;
        assert_eq!(hub.report().unwrap().breaches, [], "every probe is answered");
        run("nft delete table ip strange");
        reports(&hub, &[]).await;
        sends.abort();
    });
}

/// The rules as kube-proxy writes them, and what is reported when they change.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_ranges_in_kube_proxys_rules_are_reported() {
    in_namespace(|| async {
        let host = Host::empty();
        let settings = crate::pod_cidr::settings();
        let local_traffic = async || {
            let facts = Observer::new(&host.parts()).observe(&settings).await.unwrap();
            facts.local_traffic
        };
        assert_eq!(local_traffic().await, Found::Absent);
        let rules = iptables("10.96.0.1", "10.96.7.7", "10.96.7.8");
        feed("iptables-nft-restore", &rules);
        let ranges = async || {
            let found = local_traffic().await;
            let ranges = &found.present().unwrap().ranges;
            ranges.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(ranges().await, ["10.244.0.0/16"]);
        feed(
            "iptables-nft-restore",
            &rules.replace("10.244.0.0/16", "10.192.0.0/10"),
        );
        assert_eq!(ranges().await, ["10.192.0.0/10"]);
        // Of a former mode of kube-proxy: which of both is in use is not known.
        feed("iptables-legacy-restore", &rules);
        let found = local_traffic().await;
        assert!(
            matches!(&found, Found::Malformed(what) if what.contains("at once")),
            "{found:?}"
        );
    });
}
