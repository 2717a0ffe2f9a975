//! Pods of both families: routes to whole subnets are removed before flannel's `DaemonSet`, and stay while a rollback is
//! possible.

use flannel_to_calico::facts::SubnetRoutes;
use serde_json::{Value, json};

use super::back::{ask, drained, passes};
use super::{FLANNEL, MIGRATION, NODES, node_migration, run_to_the_end, run_until};
use crate::fake_api::FakeApi;

/// Path at which the test records that agents are slow to execute orders.
const SLOW: &str = "/test/slow";

/// Routes that an agent has added: as ordered, or as before if it is slow.
pub(super) fn subnet_routes(api: &FakeApi, node: &str) -> SubnetRoutes {
    let wanted = &api.get(&node_migration(node)).unwrap_or_default()["spec"]["flannelToCalico"]["host"]["ipv6"]
        ["flannelPods"];
    let is_laid = *wanted == json!(true) || (wanted.is_boolean() && api.get(SLOW).is_some());
    SubnetRoutes {
        found: u32::from(is_laid),
        missing: 0,
        looked_up: is_laid,
    }
}

fn dual_stack() -> FakeApi {
    let api = drained();
    for (number, name) in [(1, "a"), (2, "b")] {
        let annotation = |key: &str| format!("flannel.alpha.coreos.com/{key}");
        api.edit(
            &format!("{NODES}/{name}"),
            &json!({
                "metadata": { "annotations": {
                    annotation("backend-v6-data"): format!("{{\"VNI\":1,\"VtepMAC\":\"0a:00:00:00:06:0{number}\"}}"),
                    annotation("public-ipv6"): format!("fd00:192::{number}"),
                } },
                "spec": { "podCIDRs": [format!("10.244.{number}.0/24"), format!("fd00:10:244:{number}::/64")] },
            }),
        );
    }
    let default = |value: Value| json!({ "value": value, "source": "Default" });
    api.edit(
        MIGRATION,
        &json!({ "status": { "flannelToCalico": { "settings": { "ipv6": {
            "flannelNetwork": default(json!("fd00:10:244::/56")),
            "flannelSubnetLength": default(json!(64)),
            "ipPoolBlockSize": default(json!(122)),
        } } } } }),
    );
    api.take_changes();
    api
}

fn flannel_pods(api: &FakeApi) -> Vec<Value> {
    ["a", "b"]
        .map(|node| {
            api.get(&node_migration(node)).unwrap()["spec"]["flannelToCalico"]["host"]["ipv6"]["flannelPods"]
                .clone()
        })
        .to_vec()
}

#[tokio::test]
async fn flannel_is_deleted_after_the_routes_to_whole_subnets() {
    let api = dual_stack();
    api.put(SLOW, json!({}));
    run_until(&api, "Finishing").await.unwrap();
    assert_eq!(flannel_pods(&api), [json!(true), json!(true)]);
    passes(&api, 10).await;
    assert_eq!(flannel_pods(&api), [json!(false), json!(false)]);
    assert!(
        api.get(FLANNEL).is_some(),
        "flannel is deleted, and the routes still exist"
    );
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["reason"], "Leftovers", "{status}");
    assert!(
        status["message"].as_str().unwrap().contains("table 8282"),
        "{status}"
    );
    api.remove(SLOW);
    run_to_the_end(&api).await.unwrap();
    assert!(api.get(FLANNEL).is_none());
}

#[tokio::test]
async fn a_rollback_from_the_end_expects_pods_of_flannel_again() {
    let api = dual_stack();
    api.put(SLOW, json!({}));
    run_until(&api, "Finishing").await.unwrap();
    passes(&api, 5).await;
    assert_eq!(flannel_pods(&api), [json!(false), json!(false)]);
    ask(&api, &json!({ "desired": "Rollback" }));
    passes(&api, 3).await;
    assert_eq!(flannel_pods(&api), [json!(true), json!(true)]);
}
