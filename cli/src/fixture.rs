//! Objects for the tests of this crate, as the API server returns them.

use api::migration::Action;
use api::{Migration, MigrationRecord, NodeMigration};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The time of the tests.
pub fn now() -> Timestamp {
    "2026-03-01T10:05:00Z".parse().unwrap()
}

fn node(name: &str, position: u32) -> Value {
    json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration",
        "metadata": {"name": name, "generation": 1},
        "spec": {
            "nodeName": name, "migration": "flannel-to-calico", "position": position,
            "plan": [
                {"verb": "cordon", "object": format!("Node {name}"), "detail": "cordon (uncordoned afterwards)"},
                {"verb": "evict", "object": format!("pods of node {name}"), "detail": "default/web-1", "asOfNow": true},
                {"verb": "uncordon", "object": format!("Node {name}"), "detail": "unschedulable removed"},
            ],
        },
        "status": {"observedGeneration": 1, "agentVersion": "0.1.0", "flannelToCalico": {"phase": "Flannel"}, "message": "observing"},
    })
}

/// A planned migration of two nodes.
pub fn planned() -> (Migration, Vec<NodeMigration>) {
    let nodes: Vec<NodeMigration> = [node("worker-1", 0), node("worker-2", 1)]
        .into_iter()
        .map(|value| serde_json::from_value(value).unwrap())
        .collect();
    let sourced = |value: Value, source: &str| json!({"value": value, "source": source});
    let mut migration: Migration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration",
        "metadata": {"name": "flannel-to-calico", "generation": 1},
        "spec": {"flannelToCalico": {}},
        "status": {
            "phase": "Planned", "observedGeneration": 1, "message": "every check allows the migration",
            "checks": [{"name": "FlannelBackend", "verdict": "Pass", "object": "ConfigMap kube-flannel/kube-flannel-cfg", "found": "vxlan"}],
            "flannelToCalico": { "settings": {
                "flannelNetwork": sourced(json!("10.244.0.0/16"), "detected from ConfigMap kube-flannel/kube-flannel-cfg"),
                "flannelDaemonSetName": sourced(json!("kube-flannel-ds"), "spec"),
                "flannelDaemonSetNamespace": sourced(json!("kube-flannel"), "spec"),
                "flannelMtu": sourced(json!(1450), "detected from Node worker-1: subnet.env"),
                "flannelIpMasquerade": sourced(json!(true), "detected from Node worker-1: subnet.env"),
                "flannelSubnetLength": sourced(json!(24), "default"),
                "flannelAnnotationPrefix": sourced(json!("flannel.alpha.coreos.com"), "default"),
                "flannelVni": sourced(json!(1), "default"),
                "flannelPort": sourced(json!(8472), "default"),
                "calicoDaemonSetName": sourced(json!("calico-node"), "default"),
                "calicoDaemonSetNamespace": sourced(json!("kube-system"), "default"),
                "ipPoolBlockSize": sourced(json!(26), "default"),
                "cniConfigurationDirectory": sourced(json!("/etc/cni/net.d"), "default"),
            } },
            "plan": {
                "hash": "", "nodeCount": 2,
                "prepare": [{"verb": "create", "object": "IPPool default-ipv4-ippool", "detail": "cidr 10.244.0.0/16"}],
                "finish": [{"verb": "delete", "object": "DaemonSet kube-flannel/kube-flannel-ds", "detail": "the point of no return"}],
            },
        },
    }))
    .unwrap();
    let plan = migration.status.as_mut().unwrap().plan.as_mut().unwrap();
    plan.hash = crate::planned::document(plan, &nodes, &[]).hash();
    (migration, nodes)
}

/// The same with parts of the plan in each kind of object that can have one.
pub fn long_plan() -> (Migration, Vec<NodeMigration>, Vec<MigrationRecord>) {
    let (mut migration, mut nodes) = planned();
    for object in &mut nodes {
        let blocks = format!("IPAM blocks of node {}", object.spec.node_name);
        object.spec.prepare = vec![Action::new("create", blocks, "")];
    }
    let record = |content: &str, part: u32, objects: &[&str]| -> MigrationRecord {
        let actions: Vec<Action> = objects
            .iter()
            .map(|object| Action::new("exchange", *object, ""))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": format!("uid-{content}-{part}")},
            "spec": {"migration": "flannel-to-calico", "content": content, "part": part, "actions": actions},
        }))
        .unwrap()
    };
    // The order does not matter: each record has its part number.
    let records = vec![
        record("Prepare", 1, &["Service shop/3"]),
        record("Finish", 0, &["ServiceCIDR kubernetes"]),
        record("Prepare", 0, &["Service shop/1", "Service shop/2"]),
    ];
    let plan = migration.status.as_mut().unwrap().plan.as_mut().unwrap();
    (plan.prepare_in_records, plan.finish_in_records) = (3, 1);
    plan.hash = crate::planned::document(plan, &nodes, &records).hash();
    (migration, nodes, records)
}

/// A migration of three nodes: one is done, one is blocked by a PodDisruptionBudget, one waits.
pub fn rolling() -> (Migration, Vec<NodeMigration>) {
    let (mut migration, _) = planned();
    let status = migration.status.as_mut().unwrap();
    status.phase = api::migration::MigrationPhase::Rolling;
    status.started_at = Some("2026-03-01T10:00:00Z".parse().unwrap());
    status.reason = "DisruptionBudget".to_owned();
    let refused = "eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web \
                   allows 0 disruptions (2 healthy, 2 needed, 2 expected)";
    status.message = refused.to_owned();
    status.progress = api::migration::Progress {
        text: "1/3".to_owned(),
        nodes: 3,
        done: 1,
        working: vec!["worker-2".to_owned()],
        deferred: Vec::new(),
    };
    let mut done = node("worker-1", 0);
    done["spec"]["started"] = json!(true);
    done["spec"]["startedAt"] = json!("2026-03-01T10:01:00Z");
    done["spec"]["finishedAt"] = json!("2026-03-01T10:01:42Z");
    done["status"]["flannelToCalico"]["phase"] = json!("Calico");
    let mut blocked = node("worker-2", 1);
    blocked["spec"]["started"] = json!(true);
    blocked["spec"]["step"] = json!({
        "name": "Drain", "since": "2026-03-01T10:04:00Z", "reason": "DisruptionBudget", "message": refused,
    });
    let nodes = [done, blocked, node("worker-3", 2)]
        .into_iter()
        .map(|value| serde_json::from_value(value).unwrap())
        .collect();
    (migration, nodes)
}

/// A planned podCidr migration with two nodes.
pub fn range_planned() -> (Migration, Vec<NodeMigration>) {
    let sourced = |value: Value, source: &str| json!({"value": value, "source": source});
    let mut migration: Migration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration",
        "metadata": {"name": "pod-cidr", "generation": 1},
        "spec": {"podCidr": {"from": "10.244.0.0/16", "to": "10.200.0.0/16"}},
        "status": {
            "phase": "Planned", "observedGeneration": 1, "message": "every check allows the migration",
            "progress": {"text": "0/0", "nodes": 0},
            "checks": [{"name": "OldPool", "verdict": "Pass", "object": "IPPool default-ipv4-ippool", "found": "10.244.0.0/16"}],
            "podCidr": { "settings": {
                "from": sourced(json!("10.244.0.0/16"), "spec"),
                "to": sourced(json!("10.200.0.0/16"), "spec"),
                "oldPool": sourced(json!("default-ipv4-ippool"), "detected from IPPool default-ipv4-ippool"),
                "newPool": sourced(json!("ipv4-10-200-0-0-16"), "default"),
                "blockSize": sourced(json!(26), "detected from IPPool default-ipv4-ippool"),
                "calicoDaemonSetNamespace": sourced(json!("kube-system"), "detected from DaemonSet kube-system/calico-node"),
                "calicoDaemonSetName": sourced(json!("calico-node"), "detected from DaemonSet kube-system/calico-node"),
            } },
            "plan": {
                "hash": "",
                "prepare": [
                    {"verb": "create", "object": "IPPool ipv4-10-200-0-0-16", "detail": "cidr 10.200.0.0/16; disabled"},
                    {"verb": "close", "object": "IPPool default-ipv4-ippool", "detail": "disabled true"},
                    {"verb": "evict", "object": "name servers: 2 pods", "detail": "one at a time: kube-system/coredns-1", "asOfNow": true},
                ],
                "finish": [{"verb": "delete", "object": "IPPool default-ipv4-ippool", "detail": "the point of no return"}],
            },
        },
    }))
    .unwrap();
    let nodes: Vec<NodeMigration> = [node("worker-1", 0), node("worker-2", 1)]
        .into_iter()
        .map(|mut value| {
            value["spec"] = json!({"nodeName": value["metadata"]["name"], "migration": "pod-cidr"});
            value["status"]["flannelToCalico"] = Value::Null;
            serde_json::from_value(value).unwrap()
        })
        .collect();
    let plan = migration.status.as_mut().unwrap().plan.as_mut().unwrap();
    plan.hash = crate::planned::document(plan, &nodes, &[]).hash();
    (migration, nodes)
}

/// The same while its pods move, blocked by a PodDisruptionBudget.
pub fn range_rolling() -> (Migration, Vec<NodeMigration>) {
    let (mut migration, nodes) = range_planned();
    migration.spec.desired = api::migration::Desired::Run;
    let status = migration.status.as_mut().unwrap();
    status.phase = api::migration::MigrationPhase::Rolling;
    status.started_at = Some("2026-03-01T10:00:00Z".parse().unwrap());
    status.reason = "DisruptionBudget".to_owned();
    status.message = "eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web allows 0 \
                      disruptions (2 healthy, 2 needed, 2 expected)"
        .to_owned();
    status.progress.text = "12/40 pods".to_owned();
    let known = status.pod_cidr.as_mut().unwrap();
    (known.pods_in_old_range, known.pods_in_new_range) = (28, 12);
    known.stage = Some(
        serde_json::from_value(
            json!({"name": "Move", "direction": "Forward", "since": "2026-03-01T10:02:00Z"}),
        )
        .unwrap(),
    );
    (migration, nodes)
}
