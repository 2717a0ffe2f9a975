use serde_json::Value;

use super::*;

const BEFORE: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-02-01T00:00:00Z";

fn migration(spec: &Value) -> Migration {
    serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": "m" }, "spec": spec,
    }))
    .unwrap()
}

/// A node whose agent was told of the first resume, and has returned a pod or not.
fn node(not_taken_within: Option<u32>) -> NodeMigration {
    let facts = json!({
        "cni": { "path": "/etc/cni/net.d", "files": [] },
        "vxlanDevices": [],
        "bridge": { "absent": true },
        "legacyPods": [{
            "namespace": "shop", "name": "db-0", "sandbox": "s1", "link": "veth1", "addresses": ["10.244.1.2"],
            "attached": true, "routed": true, "notTakenWithin": not_taken_within,
        }],
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
    serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": { "name": "a" },
        "spec": { "nodeName": "a", "migration": "m", "flannelToCalico": { "host": {
            "vni": 1, "port": 8472, "mtu": 1450, "cniConfigurationDirectory": "/etc/cni/net.d", "adoptPods": true,
            "adoption": { "resumedAt": BEFORE },
        } } },
        "status": { "flannelToCalico": { "facts": facts } },
    }))
    .unwrap()
}

#[test]
fn a_resume_is_told_to_an_agent_that_has_returned_pods_and_not_during_a_rollback() {
    let run = json!({ "desired": "Run", "resumedAt": LATER, "flannelToCalico": {} });
    let back = json!({ "desired": "Rollback", "resumedAt": LATER, "flannelToCalico": {} });
    let one_back = json!({
        "desired": "Run", "resumedAt": LATER, "flannelToCalico": { "rollbackNodes": ["a"] },
    });
    let cases = [
        (&run, Some(60), LATER),
        (&run, None, BEFORE),
        (&back, Some(60), BEFORE),
        (&one_back, Some(60), BEFORE),
    ];
    for (spec, returned, expected) in cases {
        let told = attempt(&node(returned), &migration(spec));
        assert_eq!(told, Some(expected.parse().unwrap()), "{spec} {returned:?}");
    }
}
