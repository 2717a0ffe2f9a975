use flannel_to_calico::facts::PodLink;

use super::*;

const LIMIT: Duration = Duration::from_mins(1);

fn facts(pods: &[(&str, bool)]) -> HostFacts {
    let pod = |(name, taken): &(&str, bool)| {
        serde_json::json!({
            "namespace": "shop", "name": name, "sandbox": name, "link": "veth1", "addresses": ["10.244.1.2"],
            "attached": false, "routed": false,
            "podLink": PodLink { name: "cali1".to_owned(), calico_name: "cali1".to_owned(), taken: *taken, ..PodLink::default() },
        })
    };
    let facts = serde_json::json!({
        "cni": { "path": "/etc/cni/net.d", "files": [] },
        "vxlanDevices": [],
        "bridge": { "absent": true },
        "legacyPods": pods.iter().map(pod).collect::<Vec<_>>(),
        "directRoutes": [],
        "reversePathFilter": { "all": 1, "interfaces": {} },
        "subnetEnvironment": { "absent": true },
        "flanneldRunning": false,
        "firewall": [],
        "leases": 0,
        "delegates": 0,
        "detectedAddress": null,
        "uplink": null,
        "bridgeNfCallIptables": null,
    });
    serde_json::from_value(facts).unwrap()
}

#[test]
fn a_pod_is_overdue_after_the_limit_and_only_while_it_waits() {
    let mut clock = TakingClock::default();
    let start = Instant::now();
    let mut at = |seconds: u64, pods: &[(&str, bool)]| -> Vec<String> {
        let now = start + Duration::from_secs(seconds);
        clock.overdue(&facts(pods), LIMIT, now).into_iter().collect()
    };
    assert_eq!(at(0, &[("a", false)]), Vec::<String>::new());
    assert_eq!(at(59, &[("a", false), ("b", false)]), Vec::<String>::new());
    assert_eq!(at(60, &[("a", false), ("b", false)]), ["a"]);
    // calico-node takes a; the time of b is its own.
    assert_eq!(at(118, &[("a", true), ("b", false)]), Vec::<String>::new());
    assert_eq!(at(119, &[("a", true), ("b", false)]), ["b"]);
    // A route of calico-node that is gone again starts the time again.
    assert_eq!(at(120, &[("a", false)]), Vec::<String>::new());
    assert_eq!(at(180, &[("a", false)]), ["a"]);
}
