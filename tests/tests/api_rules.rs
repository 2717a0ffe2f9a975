//! The API server's own checks of replumb's objects, and its storage of every field.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_rules -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says that it failed by a panic"
)]

use std::path::Path;
use std::time::Duration;

use api::{Migration, NodeMigration, names};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use serde_json::{Value, json};

/// Objects as plain JSON: the input of a user, not the output of replumb's types.
fn raw(client: Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("replumb.dev", "v1alpha1", kind);
    Api::all_with(client, &ApiResource::from_gvk_with_plural(&kind, plural))
}

fn migration(name: &str, spec: &Value) -> DynamicObject {
    object("Migration", name, spec)
}

fn node_migration(name: &str, spec: &Value) -> DynamicObject {
    object("NodeMigration", name, spec)
}

fn object(kind: &str, name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

/// The message of a refusal; panics if the object was not refused as invalid.
fn refusal<T: std::fmt::Debug>(answer: Result<T, kube::Error>, what: &str) -> String {
    match answer {
        Err(kube::Error::Api(status)) if status.is_invalid() => status.message.clone(),
        other => panic!("{what}: wanted a refusal as invalid, got {other:?}"),
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_migration_without_exactly_one_kind_is_refused() {
    let lab = ApiLab::shared().unwrap();
    let migrations = raw(lab.admin().await.unwrap(), "Migration", "migrations");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let rule = "exactly one of flannelToCalico, podCidr, serviceCidr, calicoDatastore must be set";
    let range = json!({"from": "10.244.0.0/16", "to": "10.200.0.0/16"});
    let services = json!({"to": ["172.30.0.0/16"]});
    for spec in [
        json!({}),
        json!({"flannelToCalico": {}, "podCidr": range}),
        json!({"flannelToCalico": {}, "serviceCidr": services}),
        json!({"flannelToCalico": {}, "podCidr": range, "serviceCidr": services, "calicoDatastore": {"manifest": "x"}}),
    ] {
        let answer = migrations.create(&dry, &migration("kinds", &spec)).await;
        let words = refusal(answer, &spec.to_string());
        assert!(words.contains(rule), "{spec}: {words}");
    }
    for spec in [
        json!({"flannelToCalico": {}}),
        json!({"podCidr": range}),
        json!({"serviceCidr": services}),
        json!({"calicoDatastore": {"manifest": "x"}}),
    ] {
        migrations.create(&dry, &migration("kinds", &spec)).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_invalid_or_changed_range_is_refused() {
    let lab = ApiLab::shared().unwrap();
    let migrations = raw(lab.admin().await.unwrap(), "Migration", "migrations");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let spec = |from: &str, to: &str| json!({"podCidr": {"from": from, "to": to}});
    let needed = |field: &str| format!("{field} must be a range without host bits");
    for (spec, words) in [
        (spec("10.244.0.1/16", "10.200.0.0/16"), needed("from")),
        (spec("10.244.0.0/16", "10.200.0.0"), needed("to")),
        (spec("many", "10.200.0.0/16"), needed("from")),
        (spec("fd00::/48", "fd00:1::1/48"), needed("to")),
        (
            json!({"podCidr": {"from": "10.244.0.0/16"}}),
            "podCidr.to: Required".to_owned(),
        ),
        (
            json!({"serviceCidr": {"to": ["172.30.0.1/16"]}}),
            "to must be ranges without host bits".to_owned(),
        ),
        (json!({"serviceCidr": {"to": []}}), "serviceCidr.to".to_owned()),
        (json!({"serviceCidr": {}}), "serviceCidr.to: Required".to_owned()),
    ] {
        let said = refusal(
            migrations.create(&dry, &migration("range", &spec)).await,
            &spec.to_string(),
        );
        assert!(said.contains(&words), "{spec}: {said}");
    }
    for spec in [
        spec("10.244.0.0/16", "10.200.0.0/16"),
        spec("fd00:10:244::/56", "fd00:10:200::/56"),
        json!({"serviceCidr": {"to": ["172.30.0.0/16", "fd00:30::/112"], "keepLoadBalancers": false}}),
    ] {
        migrations.create(&dry, &migration("range", &spec)).await.unwrap();
    }

    let made = migration("range", &spec("10.244.0.0/16", "10.200.0.0/16"));
    migrations.create(&PostParams::default(), &made).await.unwrap();
    let patch = async |change: Value| {
        let change = Patch::Merge(json!({"spec": change}));
        migrations.patch("range", &PatchParams::default(), &change).await
    };
    for change in [
        json!({"podCidr": {"to": "10.201.0.0/16"}}),
        json!({"podCidr": {"soakSeconds": 60}}),
        json!({"podCidr": null, "flannelToCalico": {}}),
    ] {
        let words = refusal(patch(change.clone()).await, &change.to_string());
        assert!(words.contains("podCidr is immutable"), "{change}: {words}");
    }
    patch(json!({"podCidr": {"to": "10.200.0.0/16"}, "desired": "Run"}))
        .await
        .unwrap();
    migrations
        .delete("range", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_kind_is_immutable_and_other_fields_are_not() {
    let lab = ApiLab::shared().unwrap();
    let migrations = raw(lab.admin().await.unwrap(), "Migration", "migrations");
    let spec = json!({"flannelToCalico": {"options": {"flannelVni": 1}}});
    migrations
        .create(&PostParams::default(), &migration("immutable", &spec))
        .await
        .unwrap();
    let patch = async |change: Value| {
        migrations
            .patch(
                "immutable",
                &PatchParams::default(),
                &Patch::Merge(&json!({"spec": change})),
            )
            .await
    };
    for change in [
        json!({"flannelToCalico": {"options": {"flannelVni": 2}}}),
        json!({"flannelToCalico": {"allowSingleNode": true}}),
        json!({"flannelToCalico": {"options": {"flannelMtu": 1400}}}),
        json!({"flannelToCalico": null, "podCidr": {"from": "10.244.0.0/16", "to": "10.200.0.0/16"}}),
    ] {
        let words = refusal(patch(change.clone()).await, &change.to_string());
        assert!(
            words.contains("flannelToCalico is immutable"),
            "{change}: {words}"
        );
    }
    for change in [
        json!({"desired": "Run"}),
        json!({"desired": "Pause"}),
        json!({"rollout": {"maxUnavailable": "25%"}}),
        json!({"rollout": {"maxUnavailable": 3}}),
        json!({"drain": {"timeoutSeconds": 60}}),
        json!({"planHash": "abc", "resumedAt": "2026-03-01T10:00:00Z"}),
        json!({"flannelToCalico": {"rollbackNodes": ["a"]}}),
        json!({"flannelToCalico": {"rollbackNodes": null}}),
        json!({"flannelToCalico": {"soakSeconds": 0}}),
        // The same value again is not a change.
        json!({"flannelToCalico": {"options": {"flannelVni": 1}}}),
    ] {
        patch(change.clone())
            .await
            .unwrap_or_else(|error| panic!("{change}: {error}"));
    }
    migrations
        .delete("immutable", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn numbers_outside_their_ranges_and_unknown_words_are_refused() {
    let lab = ApiLab::shared().unwrap();
    let migrations = raw(lab.admin().await.unwrap(), "Migration", "migrations");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let of_option = |name: &str, value: Value| json!({"flannelToCalico": {"options": {name: value}}});
    let beside = |name: &str, value: Value| json!({"flannelToCalico": {}, name: value});
    // Field, the smallest and the largest accepted value.
    for (name, least, most) in [
        ("flannelMtu", 576, 65_535),
        ("flannelSubnetLength", 8, 30),
        ("flannelVni", 1, 16_777_215),
        ("flannelPort", 1, 65_535),
        ("ipPoolBlockSize", 20, 32),
    ] {
        for good in [least, most] {
            migrations
                .create(&dry, &migration("ranges", &of_option(name, json!(good))))
                .await
                .unwrap();
        }
        for bad in [json!(least - 1), json!(most + 1), json!(least.to_string())] {
            let answer = migrations
                .create(&dry, &migration("ranges", &of_option(name, bad.clone())))
                .await;
            let words = refusal(answer, &format!("{name}: {bad}"));
            assert!(words.contains(name), "{name}: {bad}: {words}");
        }
    }
    for (name, bad) in [
        ("desired", json!("Start")),
        ("drain", json!({"onBlocked": "Ignore"})),
        ("drain", json!({"timeoutSeconds": 0})),
        ("drain", json!({"gracePeriodSeconds": -1})),
        ("rollout", json!({"canary": {"nodes": 0}})),
        ("rollout", json!({"canary": {}})),
        ("rollout", json!({"stepTimeoutSeconds": 9})),
        ("rollout", json!({"intervalSeconds": -1})),
        ("rollout", json!({"maxUnavailable": true})),
        ("resumedAt", json!(12)),
    ] {
        let answer = migrations
            .create(&dry, &migration("ranges", &beside(name, bad.clone())))
            .await;
        let words = refusal(answer, &format!("{name}: {bad}"));
        assert!(words.contains(name), "{name}: {bad}: {words}");
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_node_name_of_a_node_migration_is_immutable() {
    let lab = ApiLab::shared().unwrap();
    let nodes = raw(lab.admin().await.unwrap(), "NodeMigration", "nodemigrations");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for (spec, needed) in [
        (json!({"migration": "m"}), "nodeName"),
        (json!({"nodeName": "", "migration": "m"}), "nodeName"),
        (json!({"nodeName": "n"}), "migration"),
        (
            json!({"nodeName": "n", "migration": "m", "flannelToCalico": {"goal": "Gone"}}),
            "goal",
        ),
        (
            json!({"nodeName": "n", "migration": "m", "position": -1}),
            "position",
        ),
    ] {
        let answer = nodes.create(&dry, &node_migration("keeps", &spec)).await;
        let words = refusal(answer, &spec.to_string());
        assert!(words.contains(needed), "{spec}: {words}");
    }
    let spec = json!({"nodeName": "keeps", "migration": "m"});
    nodes
        .create(&PostParams::default(), &node_migration("keeps", &spec))
        .await
        .unwrap();
    let change = json!({"spec": {"nodeName": "another"}});
    let answer = nodes
        .patch("keeps", &PatchParams::default(), &Patch::Merge(&change))
        .await;
    let words = refusal(answer, "another nodeName");
    assert!(words.contains("nodeName is immutable"), "{words}");
    let change = json!({"spec": {"flannelToCalico": {"goal": "Held"}}});
    nodes
        .patch("keeps", &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap();
    nodes
        .delete("keeps", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

/// The record of the earlier state would be lost.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_running_migration_cannot_be_deleted() {
    let lab = ApiLab::shared().unwrap();
    let migrations = raw(lab.admin().await.unwrap(), "Migration", "migrations");
    let spec = json!({"flannelToCalico": {}});
    migrations
        .create(&PostParams::default(), &migration("under-way", &spec))
        .await
        .unwrap();
    let phase = async |phase: &str, started: Option<&str>| {
        let status = json!({"status": {"phase": phase, "startedAt": started}});
        migrations
            .patch_status("under-way", &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    };
    let dry = kube::api::DeleteParams {
        dry_run: true,
        ..kube::api::DeleteParams::default()
    };
    let started = Some("2026-03-01T10:00:00Z");
    for name in [
        "Preparing",
        "Rolling",
        "Mixed",
        "Halted",
        "RollingBack",
        "Finishing",
    ] {
        phase(name, started).await;
        let words = match migrations.delete("under-way", &dry).await {
            Err(kube::Error::Api(status)) => status.message.clone(),
            other => panic!("{name}: {other:?}"),
        };
        assert!(
            words.contains(name) && words.contains("kubectl replumb rollback --all"),
            "{words}"
        );
    }
    for (name, started) in [("Completed", started), ("RolledBack", started), ("Refused", None)] {
        phase(name, started).await;
        migrations.delete("under-way", &dry).await.unwrap();
    }
    migrations
        .delete("under-way", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

/// Other users cannot change its inputs, or the node label that selects a network.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
#[expect(clippy::too_many_lines, reason = "a table of requests, each with its answer")]
async fn admission_protects_running_migration_inputs() {
    const LABEL: &str = names::NODE_NETWORK_LABEL;
    let lab = ApiLab::shared().unwrap();
    let client = lab.admin().await.unwrap();
    let migrations = raw(client.clone(), "Migration", "migrations");
    let spec = json!({"flannelToCalico": {}});
    migrations
        .create(&PostParams::default(), &migration("guards", &spec))
        .await
        .unwrap();
    lab.node("guarded").await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let sets: Api<DaemonSet> = Api::namespaced(client, "default");
    let set = json!({
        "metadata": {"name": "guarded"},
        "spec": {
            "selector": {"matchLabels": {"app": "guarded"}},
            "template": {
                "metadata": {"labels": {"app": "guarded"}},
                "spec": {"nodeSelector": {LABEL: "flannel"}, "containers": [{"name": "kube-flannel", "image": "a"}]},
            },
        },
    });
    sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap())
        .await
        .unwrap();
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let label = Patch::Merge(json!({"metadata": {"labels": {LABEL: "calico"}}}));
    let another = Patch::Merge(json!({"metadata": {"labels": {"another": "label"}}}));
    let selector = Patch::Merge(json!({"spec": {"template": {"spec": {"nodeSelector": {LABEL: null}}}}}));
    let image = Patch::Merge(json!({"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}));
    let sourced = |value: &str| json!({"value": value, "source": "default"});
    let mut settings = full_migration_status()["flannelToCalico"]["settings"].clone();
    settings["flannelDaemonSetName"] = sourced("guarded");
    settings["flannelDaemonSetNamespace"] = sourced("default");
    let status = async |phase: &str| {
        let status = json!({"phase": phase, "startedAt": "2026-03-01T10:00:00Z", "flannelToCalico": {"settings": settings}});
        migrations
            .patch_status(
                "guards",
                &PatchParams::default(),
                &Patch::Merge(json!({"status": status})),
            )
            .await
            .unwrap();
    };
    status("Rolling").await;
    // An API server learns of a status a moment later.
    until(
        "the label to be guarded",
        Duration::from_mins(1),
        Path::new("/"),
        async || match nodes.patch("guarded", &dry, &label).await {
            Ok(_) => Ok(Observation::NotYet("the write was accepted".to_owned())),
            Err(refused) => {
                let words = refused.to_string();
                assert!(words.contains("kubectl replumb rollback guarded"), "{words}");
                Ok(Observation::Done(()))
            }
        },
    )
    .await
    .unwrap();
    let words = sets
        .patch("guarded", &dry, &selector)
        .await
        .unwrap_err()
        .to_string();
    assert!(words.contains("Migration guards is under way"), "{words}");
    let delete = kube::api::DeleteParams {
        dry_run: true,
        ..kube::api::DeleteParams::default()
    };
    let words = sets.delete("guarded", &delete).await.unwrap_err().to_string();
    assert!(words.contains("the DaemonSet of a network stays"), "{words}");
    nodes.patch("guarded", &dry, &another).await.unwrap();
    sets.patch("guarded", &dry, &image).await.unwrap();
    // The coordinator's own rights, and its name.
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    let coordinator = lab.with_token(&token).await.unwrap();
    let its: Api<Node> = Api::all(coordinator);
    its.patch("guarded", &dry, &label).await.unwrap();
    // Labels can be written through the status as well; other fields of the status belong to the kubelet.
    let words = nodes
        .patch_status("guarded", &dry, &label)
        .await
        .unwrap_err()
        .to_string();
    assert!(words.contains("kubectl replumb rollback guarded"), "{words}");
    let beat =
        Patch::Merge(json!({"status": {"phase": "Running"}, "metadata": {"labels": {"another": "label"}}}));
    nodes.patch_status("guarded", &dry, &beat).await.unwrap();
    let namesake = namesake(lab).await;
    let its: Api<Node> = Api::all(namesake.clone());
    let words = its.patch("guarded", &dry, &label).await.unwrap_err().to_string();
    assert!(words.contains("replumb-drift-nodes"), "{words}");
    let its: Api<DaemonSet> = Api::namespaced(namesake, "default");
    let words = its
        .patch("guarded", &dry, &selector)
        .await
        .unwrap_err()
        .to_string();
    assert!(words.contains("replumb-drift-daemonsets"), "{words}");
    status("Completed").await;
    until(
        "the Migration to be finished",
        Duration::from_mins(1),
        Path::new("/"),
        async || {
            nodes.patch("guarded", &dry, &label).await?;
            sets.patch("guarded", &dry, &selector).await?;
            Ok(Observation::Done(()))
        },
    )
    .await
    .unwrap();
    migrations
        .delete("guards", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

/// A `ServiceAccount` with the coordinator's name in another namespace, with rights from a user: the name alone
/// exempts from no rule.
async fn namesake(lab: &ApiLab) -> Client {
    lab.namespace("guards").await.unwrap();
    for arguments in [
        &["-n", "guards", "create", "serviceaccount", names::COORDINATOR][..],
        &[
            "create",
            "clusterrole",
            "writes-networks",
            "--verb=get,patch,delete",
            "--resource=nodes,daemonsets.apps",
        ],
        &[
            "create",
            "clusterrolebinding",
            "writes-networks",
            "--clusterrole=writes-networks",
            "--serviceaccount=guards:replumb-coordinator",
        ],
    ] {
        lab.kubectl(arguments).unwrap();
    }
    let token = lab.token("guards", names::COORDINATOR, None).await.unwrap();
    let client = lab.with_token(&token).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    until(
        "the role to be known",
        Duration::from_mins(1),
        Path::new("/"),
        async || {
            Ok(match nodes.get("guarded").await {
                Ok(_) => Observation::Done(()),
                Err(error) => Observation::NotYet(error.to_string()),
            })
        },
    )
    .await
    .unwrap();
    client
}

/// The objects of the next test have every field of their schema.
#[test]
#[ignore = "runs with the next test: cargo lab test"]
fn the_full_objects_have_every_field() {
    let schema = |definition: CustomResourceDefinition| {
        let definition = serde_json::to_value(definition).unwrap();
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone()
    };
    let of_migration = schema(Migration::crd());
    // A Migration has one kind.
    let others = [".podCidr", ".serviceCidr", ".calicoDatastore"];
    for (part, value) in [
        ("spec", full_migration_spec()),
        ("status", full_migration_status()),
    ] {
        assert_eq!(missing(&of_migration[part], &value, &others), [""; 0], "{part}");
    }
    let of_node = schema(NodeMigration::crd());
    assert_eq!(missing(&of_node["spec"], &full_node_spec(), &[]), [""; 0]);
}

/// Every field of a status is returned as written: a schema without a field prunes it silently.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn every_field_of_a_status_is_stored_and_returned() {
    let lab = ApiLab::shared().unwrap();
    let client = lab.admin().await.unwrap();
    let migrations: Api<Migration> = Api::all(client.clone());
    let raw_migrations = raw(client.clone(), "Migration", "migrations");
    raw_migrations
        .create(
            &PostParams::default(),
            &migration("status", &full_migration_spec()),
        )
        .await
        .unwrap();
    let there = migrations.get("status").await.unwrap();
    assert_eq!(
        contained(
            &full_migration_spec(),
            &serde_json::to_value(&there.spec).unwrap()
        ),
        Ok(())
    );
    let status = full_migration_status();
    let written = raw_migrations
        .patch_status(
            "status",
            &PatchParams::default(),
            &Patch::Merge(&json!({"status": status})),
        )
        .await
        .unwrap();
    assert_eq!(contained(&status, &written.data["status"]), Ok(()));
    let read = migrations.get("status").await.unwrap();
    assert_eq!(
        contained(&status, &serde_json::to_value(&read.status).unwrap()),
        Ok(())
    );
    assert_eq!(
        read.metadata.generation, there.metadata.generation,
        "a status is not a new generation"
    );
    let columns = lab.kubectl(&["get", "mig", "status"]).unwrap();
    for word in [
        "PHASE",
        "PROGRESS",
        "PAUSED",
        "MESSAGE",
        "AGE",
        "Rolling",
        "1/3",
        "eviction of pod",
    ] {
        assert!(columns.contains(word), "{word} is not in\n{columns}");
    }

    let nodes: Api<NodeMigration> = Api::all(client.clone());
    let raw_nodes = raw(client, "NodeMigration", "nodemigrations");
    let spec = full_node_spec();
    raw_nodes
        .create(&PostParams::default(), &node_migration("status", &spec))
        .await
        .unwrap();
    let status = full_node_status();
    raw_nodes
        .patch_status(
            "status",
            &PatchParams::default(),
            &Patch::Merge(&json!({"status": status})),
        )
        .await
        .unwrap();
    let read = nodes.get("status").await.unwrap();
    assert_eq!(
        contained(&spec, &serde_json::to_value(&read.spec).unwrap()),
        Ok(())
    );
    assert_eq!(
        contained(&status, &serde_json::to_value(&read.status).unwrap()),
        Ok(())
    );
    let columns = lab.kubectl(&["get", "nmig", "status"]).unwrap();
    for word in ["NODE", "PHASE", "STEP", "SINCE", "MESSAGE", "Held", "Drain"] {
        assert!(columns.contains(word), "{word} is not in\n{columns}");
    }
    raw_nodes
        .delete("status", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    // A running Migration would not be deleted.
    let over = Patch::Merge(json!({"status": {"phase": "Completed"}}));
    raw_migrations
        .patch_status("status", &PatchParams::default(), &over)
        .await
        .unwrap();
    raw_migrations
        .delete("status", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

/// An agent's report becomes names of objects and decisions about pods: each value has the form that Kubernetes and runtimes use.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_report_with_an_invalid_name_is_refused() {
    let lab = ApiLab::shared().unwrap();
    let nodes = raw(lab.admin().await.unwrap(), "NodeMigration", "nodemigrations");
    let spec = json!({"nodeName": "reports", "migration": "m"});
    nodes
        .create(&PostParams::default(), &node_migration("reports", &spec))
        .await
        .unwrap();
    let facts = serde_json::to_value(full_facts()).unwrap();
    let report = async |change: Value| {
        let mut pod = json!({
            "namespace": "shop", "name": "web-0", "sandbox": "0".repeat(64), "link": "veth1a2b3c4d",
            "addresses": ["10.244.1.9"], "attached": true, "routed": true,
        });
        let mut service_cidr = serde_json::to_value(service_cidr::host::HostFacts::default()).unwrap();
        for (field, value) in change.as_object().unwrap() {
            if pod.get(field).is_some() {
                pod[field] = value.clone();
            } else {
                service_cidr["podsWithSourceAddresses"] = json!({"present": {field: value}});
            }
        }
        let mut facts = facts.clone();
        facts["legacyPods"] = json!([pod]);
        let status = json!({"status": {"flannelToCalico": {"facts": facts}, "serviceCidr": service_cidr}});
        nodes
            .patch_status("reports", &PatchParams::default(), &Patch::Merge(&status))
            .await
    };
    for good in [
        json!({}),
        json!({"namespace": "", "name": "", "link": ""}),
        json!({"name": "web.example-0"}),
        json!({"unread": ["0a1b", "6f9619ff-8b86-d011-b42d-00cf4fc964ff"]}),
    ] {
        report(good.clone())
            .await
            .unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for (bad, field) in [
        (json!({"sandbox": ""}), "sandbox"),
        (json!({"sandbox": "../../namespaces/x"}), "sandbox"),
        (json!({"sandbox": "a b"}), "sandbox"),
        (json!({"sandbox": "a".repeat(129)}), "sandbox"),
        (json!({"namespace": "Shop"}), "namespace"),
        (json!({"namespace": "a".repeat(64)}), "namespace"),
        (json!({"name": "web/0"}), "name"),
        (json!({"name": "a".repeat(254)}), "name"),
        (json!({"link": "../x"}), "link"),
        (json!({"link": "a".repeat(16)}), "link"),
        (json!({"unread": ["a/b"]}), "unread"),
        (
            json!({"pods": [{"podUid": "a b", "origin": "Environment", "address": "10.96.0.1"}]}),
            "podUid",
        ),
    ] {
        let words = refusal(report(bad.clone()).await, &bad.to_string());
        assert!(words.contains(field), "{bad}: {words}");
    }
    nodes
        .delete("reports", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

/// A write of the spec does not change the status, and vice versa.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn spec_and_status_are_written_separately() {
    let lab = ApiLab::shared().unwrap();
    let migrations = raw(lab.admin().await.unwrap(), "Migration", "migrations");
    let spec = json!({"flannelToCalico": {}});
    let made = migrations
        .create(&PostParams::default(), &migration("apart", &spec))
        .await
        .unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    let both = json!({"spec": {"desired": "Run"}, "status": {"phase": "Completed"}});
    let spec_only = migrations
        .patch("apart", &PatchParams::default(), &Patch::Merge(&both))
        .await
        .unwrap();
    assert_eq!(spec_only.data["spec"]["desired"], "Run");
    assert_eq!(spec_only.data.pointer("/status/phase"), None);
    assert_eq!(spec_only.metadata.generation, Some(2));
    let both = json!({"spec": {"desired": "Pause"}, "status": {"phase": "Planned"}});
    let status_only = migrations
        .patch_status("apart", &PatchParams::default(), &Patch::Merge(&both))
        .await
        .unwrap();
    assert_eq!(status_only.data["spec"]["desired"], "Run");
    assert_eq!(status_only.data["status"]["phase"], "Planned");
    assert_eq!(status_only.metadata.generation, Some(2));
    migrations
        .delete("apart", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

/// Fields of the schema that the value does not have, with their paths; none below `without`.
fn missing(schema: &Value, value: &Value, without: &[&str]) -> Vec<String> {
    fn walk(schema: &Value, value: &Value, path: &str, without: &[&str], all: &mut Vec<String>) {
        if let Some(item) = value.as_array().and_then(|items| items.first()) {
            walk(&schema["items"], item, path, without, all);
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            match value.get(name) {
                _ if without.contains(&path.as_str()) => {}
                Some(value) => walk(schema, value, &path, without, all),
                None => all.push(path),
            }
        }
    }
    let mut all = Vec::new();
    walk(schema, value, "", without, &mut all);
    all
}

/// Whether every field of `wanted` is in `found` with its value; otherwise the first path that differs.
fn contained(wanted: &Value, found: &Value) -> Result<(), String> {
    fn walk(wanted: &Value, found: &Value, path: &str) -> Result<(), String> {
        match (wanted, found) {
            (Value::Object(fields), Value::Object(there)) => fields.iter().try_for_each(|(name, value)| {
                let path = format!("{path}.{name}");
                let there = there.get(name).ok_or_else(|| format!("{path} is missing"))?;
                walk(value, there, &path)
            }),
            (Value::Array(items), Value::Array(there)) if items.len() == there.len() => items
                .iter()
                .zip(there)
                .enumerate()
                .try_for_each(|(index, (item, there))| walk(item, there, &format!("{path}[{index}]"))),
            _ if wanted == found => Ok(()),
            _ => Err(format!("{path}: wrote {wanted}, read {found}")),
        }
    }
    walk(wanted, found, "")
}

fn full_migration_spec() -> Value {
    json!({
        "flannelToCalico": {
            "strategy": "InPlace", "legacyPods": "Restart", "firewallTwins": "Write", "allowSingleNode": true,
            "options": {
                "flannelNetwork": "10.244.0.0/16", "flannelDaemonSetName": "kube-flannel-ds",
                "flannelDaemonSetNamespace": "kube-flannel", "flannelMtu": 1450, "flannelIpMasquerade": true,
                "flannelSubnetLength": 24, "flannelAnnotationPrefix": "flannel.alpha.coreos.com", "flannelVni": 1,
                "flannelPort": 8472, "calicoDaemonSetName": "calico-node", "calicoDaemonSetNamespace": "kube-system",
                "ipPoolBlockSize": 26, "cniConfigurationDirectory": "/etc/cni/net.d",
            },
            "rollbackNodes": ["a"], "soakSeconds": 3600,
            "policyPreview": {"observeSeconds": 900, "acceptedDenials": ["shop/db", "deny-all"]},
        },
        "desired": "Run",
        "rollout": {
            "maxUnavailable": "25%", "canary": {"nodes": 1, "soakSeconds": 60}, "intervalSeconds": 5,
            "stepTimeoutSeconds": 600,
        },
        "drain": {
            "timeoutSeconds": 900, "gracePeriodSeconds": 30, "onBlocked": "Skip", "deleteEmptyDirData": true,
            "force": true,
        },
        "gates": {"traffic": "Ignore", "maxLossRatio": 0.25, "maxGapMilliseconds": 500, "sourceAddresses": "Ignore", "soak": "Elapsed"},
        "planHash": "abc", "resumedAt": "2026-03-01T10:00:00Z",
    })
}

fn action(verb: &str) -> Value {
    json!({"verb": verb, "object": "Node a", "detail": "unschedulable true", "asOfNow": true})
}

fn check() -> Value {
    json!({
        "name": "FlannelBackend", "verdict": "Fail", "object": "ConfigMap kube-flannel/kube-flannel-cfg",
        "found": "host-gw", "needed": "vxlan", "fix": "change Backend.Type",
    })
}

fn full_policy_preview() -> Value {
    json!({
        "policies": 2, "selectedPods": 3, "unread": ["networkpolicies: denied"],
        "dormantPolicies": [{"policy": "shop/db", "pods": 3, "ingress": true, "egress": false}],
        "connections": {"allowed": 9, "refused": 1, "unknown": 2, "unanswered": 1},
        "observedSeconds": 900, "since": "2026-03-01T10:00:00Z",
        "incompleteNodes": ["a"], "incompleteNodeCount": 1, "missingKinds": 4,
        "refused": [{
            "client": "crm/cli", "server": "shop/db", "port": 5432, "protocol": "TCP", "direction": "Ingress",
            "reason": "NoRuleAllows", "policies": ["shop/db"], "policyCount": 1, "count": 1,
            "last": "2026-03-01T10:10:00Z", "isAccepted": true,
        }],
        "refusedKinds": 1,
        "unknown": [{"reason": "the client is unknown", "count": 2, "example": "10.244.1.9 → shop/db"}],
    })
}

fn full_migration_status() -> Value {
    let sourced = |value: Value| json!({"value": value, "source": "detected from ConfigMap a/b"});
    json!({
        "phase": "Rolling", "observedGeneration": 1, "message": "eviction of pod default/web-1 refused",
        "paused": true, "reason": "DisruptionBudget", "phaseBeforeHalt": "Preparing",
        "wait": {"reason": "CalicoObjects", "message": "IPAMBlock", "since": "2026-03-01T10:00:00Z"},
        "progress": {"text": "1/3", "nodes": 3, "done": 1, "working": ["b"], "deferred": ["c"]},
        "checks": [check()],
        "flannelToCalico": {"settings": {
            "flannelNetwork": sourced(json!("10.244.0.0/16")), "flannelDaemonSetName": sourced(json!("ds")),
            "flannelDaemonSetNamespace": sourced(json!("ns")), "flannelMtu": sourced(json!(1450)),
            "flannelIpMasquerade": sourced(json!(true)), "flannelSubnetLength": sourced(json!(24)),
            "flannelAnnotationPrefix": sourced(json!("flannel.alpha.coreos.com")), "flannelVni": sourced(json!(1)),
            "flannelPort": sourced(json!(8472)), "calicoDaemonSetName": sourced(json!("calico-node")),
            "calicoDaemonSetNamespace": sourced(json!("kube-system")), "ipPoolBlockSize": sourced(json!(26)),
            "cniConfigurationDirectory": sourced(json!("/etc/cni/net.d")),
            "ipv6": {
                "flannelNetwork": sourced(json!("fd00:10:244::/48")), "flannelSubnetLength": sourced(json!(64)),
                "ipPoolBlockSize": sourced(json!(122)),
            },
        }, "nodes": {
            "labels": {"kubernetes.io/os": "linux"},
            "terms": [{
                "labels": [{"key": "node-role.kubernetes.io/edge", "operator": "NotIn", "values": ["yes"]}],
                "fields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}],
            }],
        }, "policyPreview": full_policy_preview()},
        "plan": {"hash": "abc", "prepare": [action("create")], "nodeCount": 2, "finish": [action("delete")],
            "prepareInRecords": 2, "finishInRecords": 3},
        "startedAt": "2026-03-01T10:00:00Z", "completedAt": "2026-03-01T11:00:00Z",
        "rollbackStartedAt": "2026-03-01T10:30:00Z", "preparedAt": "2026-03-01T10:01:00Z",
        "traffic": [{"class": "OldToNew", "sent": 100, "late": 2, "lost": 1, "longestGapMilliseconds": 100}],
        "warnings": {"count": 2, "items": ["a webhook"]},
        "breach": {
            "at": "2026-03-01T10:20:00Z", "message": "traffic is lost: UDP from node b to node a",
            "resumedAt": "2026-03-01T10:10:00Z", "cleanSince": "2026-03-01T10:25:00Z",
        },
        "drift": {
            "at": "2026-03-01T10:20:00Z", "differences": ["IPPool default-ipv4-ippool was deleted"],
            "resumedAt": "2026-03-01T10:10:00Z",
        },
        "savedState": {"IPAMConfig": "{\"strictAffinity\":false}"}, "savedStateInRecords": {"IPAMBlock": 12},
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "Rolling", "message": "in work: b",
            "lastTransitionTime": "2026-03-01T10:00:00Z", "observedGeneration": 1,
        }],
    })
}

fn target() -> Value {
    json!({"node": "b", "address": "10.244.1.7", "port": 9812, "podUid": "1234"})
}

fn full_node_spec() -> Value {
    json!({
        "nodeName": "status", "migration": "m",
        "flannelToCalico": {
            "goal": "Held",
            "host": {
                "vni": 1, "port": 8472, "mtu": 1450, "cniConfigurationDirectory": "/etc/cni/net.d", "blockSize": 25,
                "nodeRangeLength": 23, "adoptPods": true, "writeFirewallTwins": true,
                "adoption": {"takingSeconds": 30, "resumedAt": "2026-03-01T10:00:00Z"},
                "ipv6": {"blockSize": 122, "flannelPods": true, "mtu": 1430, "nodeRangeLength": 64},
            },
            "savedState": {
                "annotations": {"projectcalico.org/IPv4Address": "192.0.2.7/24"}, "blocks": ["10.244.1.0/26"],
            },
            "label": {"current": "none", "pending": "calico"},
            "importedAddresses": [{"address": "10.244.1.7", "handle": "k8s-pod-network.16cc"}],
            "automaticRollback": {
                "at": "2026-03-01T10:06:00Z", "reason": "calico-node never started", "resumedAt": "2026-03-01T10:00:00Z",
            },
        },
        "podCidr": {
            "from": "10.244.0.0/16", "to": "10.64.0.0/16", "mtu": 1450, "cniConfigurationDirectory": "/etc/cni/net.d",
            "tunnelAddresses": [{"name": "vxlan.calico", "old": "10.244.1.0", "new": "10.64.1.0"}],
        },
        "calicoDatastore": {},
        "flows": [{
            "source": "10.244.1.3", "to": "b", "address": "10.244.2.3", "port": 9812, "podUid": "1234", "class": "OldToOld",
        }],
        "gates": {"maxLossRatio": 0.25, "maxGapMilliseconds": 500},
        "lossesCountedSince": "2026-03-01T10:00:00Z",
        "serviceCidr": {
            "source": ["10.96.0.0/12"], "target": ["172.30.0.0/16", "fd00:30::/108"],
            "reportUsers": true, "excluded": ["10.96.0.1"],
            "expectedPorts": { "record": "m-1-expected-ports-0" },
        },
        "rollingBack": true, "returnedAt": "2026-03-01T10:06:00Z",
        "probes": [target()], "position": 2, "started": true, "skipped": true, "plan": [action("cordon")], "prepare": [action("create")],
        "step": {
            "name": "Drain", "since": "2026-03-01T10:00:00Z", "reason": "DisruptionBudget", "message": "pod a/b",
            "halted": true, "timeLimit": {"seconds": 600, "from": "2026-03-01T10:00:00Z"},
        },
        "history": [
            {"name": "Cordon", "startedAt": "2026-03-01T10:00:00Z", "finishedAt": "2026-03-01T10:00:01Z"},
        ],
        "startedAt": "2026-03-01T10:00:00Z", "finishedAt": "2026-03-01T10:05:00Z",
        "finishedBeforeRollback": "2026-03-01T10:04:00Z",
    })
}

fn full_node_status() -> Value {
    json!({
        "observedGeneration": 3, "agentVersion": "0.1.0",
        "message": "looking on",
        "failure": {"category": "Netlink", "message": "deleting link cni0: busy", "retriable": true},
        "flannelToCalico": {
            "phase": "Held", "phaseSince": "2026-03-01T10:00:00Z",
            "leftovers": ["link cni0"], "changes": ["RestoreConflist (conflist 10-flannel.conflist)"], "goal": "Flannel",
            "automaticRollback": "no progress for 600 s",
            "checks": [check()],
            "facts": serde_json::to_value(full_facts()).unwrap(),
        },
        "steps": [
            {"name": "DeleteBridge", "startedAt": "2026-03-01T10:00:00Z", "finishedAt": "2026-03-01T10:00:01Z"},
        ],
        "probes": [
            {"target": target(), "reached": true, "message": "UDP, TCP, 1450 B", "at": "2026-03-01T10:00:00Z"},
        ],
        "serviceCidr": serde_json::to_value(full_service_facts()).unwrap(),
    })
}

/// The same for Services.
fn full_service_facts() -> service_cidr::host::HostFacts {
    use engine::found::Found;
    use engine::kernel::{Address, Hop, Listed, Route, RouteKind, Rule};
    use service_cidr::host::{
        AddressOrigin, Connection, HostFacts, PodWithSourceAddress, PodsWithSourceAddresses, ProxyMode,
        ServicePort, TargetFacts,
    };
    let port = ServicePort {
        address: "172.30.0.1".parse().unwrap(),
        protocol: "TCP".to_owned(),
        port: 443,
    };
    HostFacts {
        expected_digest: Some("0123456789abcdef0123456789abcdef".to_owned()),
        local_traffic: Found::Absent,
        proxy_mode: Found::Present(ProxyMode::Nftables),
        missing_ports: Found::Present(vec![port.clone()]),
        cluster_dns: Found::Present(vec!["10.96.0.10".parse().unwrap()]),
        api_server: "10.96.0.1".to_owned(),
        target: TargetFacts {
            routes: Listed {
                items: vec![Route {
                    kind: RouteKind::Unicast,
                    destination: "172.30.4.0/26".parse().unwrap(),
                    hops: vec![Hop {
                        gateway: Some("192.0.2.9".parse().unwrap()),
                        link: Some("eth0".to_owned()),
                    }],
                    table: 254,
                    protocol: 80,
                    metric: 7,
                }],
                remaining: 3,
            },
            addresses: Listed {
                items: vec![Address {
                    address: "172.30.128.1/24".parse().unwrap(),
                    link: "docker0".to_owned(),
                }],
                remaining: 2,
            },
            rules: Listed {
                items: vec![Rule {
                    priority: 901,
                    from: Some("10.244.0.0/16".parse().unwrap()),
                    to: Some("172.30.0.0/16".parse().unwrap()),
                    table: Some(77),
                }],
                remaining: 1,
            },
        },
        pods_with_source_addresses: Found::Present(PodsWithSourceAddresses {
            pods: vec![PodWithSourceAddress {
                pod_uid: "8d4c4e29-0d4f-4b53-b7ee-1c1c4f0c9b11".to_owned(),
                origin: AddressOrigin::Environment,
                address: "10.96.0.1".parse().unwrap(),
            }],
            unread: vec!["11111111-1111-1111-1111-111111111111".to_owned()],
            unread_reason: "could not read environ of a process".to_owned(),
        }),
        connections: Found::Present(Listed {
            items: vec![Connection {
                source: "10.244.1.5".parse().unwrap(),
                service: port,
            }],
            remaining: 4,
        }),
    }
}

/// Facts with every field set, as a value of the type: a new field does not compile until it is added here.
fn full_facts() -> flannel_to_calico::facts::HostFacts {
    use std::collections::BTreeMap;

    use flannel_to_calico::facts::{
        Bridge, CalicoObjects, DirectRoute, FirewallBackend, FirewallObject, Found, HostFacts,
        ReversePathFilter, SubnetRoutes, VxlanDevice,
    };
    use flannel_to_calico::plugin::FlannelPlugin;
    HostFacts {
        plugin: Some(FlannelPlugin {
            options: vec!["vlan 5".to_owned()],
            ..FlannelPlugin::usual("10-flannel.conflist")
        }),
        foreign_rules: Some(full_rules()),
        lacks_nf_tables: true,
        runtime: Some(flannel_to_calico::runtime::Runtime {
            problem: Some("not mounted".to_owned()),
            ..flannel_to_calico::runtime::Runtime::cri_dockerd(&["--cni-cache-dir=/data/cni".to_owned()])
        }),
        cni: full_cni(),
        vxlan_devices: vec![VxlanDevice {
            name: "flannel.1".to_owned(),
            vni: 1,
            port: 8472,
            mtu: 1450,
            local: Some("192.0.2.1".parse().unwrap()),
            parent: Some("eth0".to_owned()),
            learning: true,
            mac: "02:00:00:00:00:01".to_owned(),
            up: true,
            addresses: vec!["10.244.0.0/32".parse().unwrap()],
            routes: 2,
            block_routes: 8,
            neighbours: 2,
            forwarding_entries: 2,
        }],
        bridge: Found::Present(Bridge {
            name: "cni0".to_owned(),
            mtu: 1450,
            addresses: vec!["10.244.0.1/24".parse().unwrap()],
            ports: vec!["veth1".to_owned()],
            answers_for_pods: false,
            answered: vec!["fd00:10:244:1::/122".parse().unwrap()],
            open: true,
        }),
        legacy_pods: vec![full_pod()],
        legacy_problems: vec!["malformed".to_owned()],
        calico: CalicoObjects {
            node_running: true,
            pods: vec!["cali0123456789a".to_owned()],
            firewall: vec![FirewallObject {
                backend: FirewallBackend::IptablesNft,
                table: "raw".to_owned(),
                chain: String::new(),
            }],
            sets: 3,
            blackholes: 4,
            pod_routes: 2,
            subnet_routes: SubnetRoutes {
                found: 2,
                missing: 1,
                looked_up: true,
            },
            records: 1,
            kept_addresses: vec!["10.244.1.1".parse().unwrap()],
            frame_rules: vec!["cni0".to_owned()],
        },
        direct_routes: vec![DirectRoute {
            destination: "10.244.1.0/24".parse().unwrap(),
            gateway: "192.0.2.2".parse().unwrap(),
            link: "eth0".to_owned(),
        }],
        reverse_path_filter: ReversePathFilter {
            all: 1,
            interfaces: BTreeMap::from([("eth0".to_owned(), 2)]),
        },
        subnet_environment: Found::Malformed("no FLANNEL_SUBNET".to_owned()),
        flanneld_running: true,
        unread_processes: Vec::new(),
        unread_tables: Vec::new(),
        firewall: vec![FirewallObject {
            backend: FirewallBackend::IptablesNft,
            table: "nat".to_owned(),
            chain: "FLANNEL-POSTRTG".to_owned(),
        }],
        leases: 3,
        delegates: 3,
        detected_address: Some("192.0.2.1".parse().unwrap()),
        detected_ipv6_address: Some("fd00:192::2".parse().unwrap()),
        uplink: Some("eth0".to_owned()),
        bridge_nf_call_iptables: Some(true),
    }
}

fn full_rules() -> flannel_to_calico::foreign_rules::ForeignRules {
    use flannel_to_calico::foreign_rules::{ForeignRule, ForeignRules};

    let rule = ForeignRule {
        chain: "nft inet firewalld filter_FORWARD".to_owned(),
        rule: r#"iifname "cni0" accept"#.to_owned(),
        twin: r#"iifname "cali*" accept"#.to_owned(),
        refused: Some("nft: syntax error".to_owned()),
    };
    ForeignRules {
        rules: vec![rule.clone()],
        more: 1,
        refused: 1,
        passage: vec![rule],
        twins: 2,
        written: 1,
        problem: Some("nft: no such file".to_owned()),
    }
}

fn full_pod() -> flannel_to_calico::facts::LegacyPod {
    flannel_to_calico::facts::LegacyPod {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        sandbox: "0123".to_owned(),
        link: "veth1".to_owned(),
        addresses: vec!["10.244.1.9".parse().unwrap()],
        attached: false,
        routed: false,
        mac: "02:00:00:00:00:09".to_owned(),
        pod_link: None,
        other_link: Some("link veth1 on br0".to_owned()),
        obstacle: Some("CNI plugin tuning took part".to_owned()),
        not_taken_within: Some(60),
    }
}

fn full_cni() -> engine::cni::CniDirectory {
    engine::cni::CniDirectory {
        path: "/etc/cni/net.d".to_owned(),
        files: vec![engine::cni::CniFile {
            name: "10-flannel.conflist".to_owned(),
            network: Some("cbr0".to_owned()),
            plugins: vec!["flannel".to_owned(), "portmap".to_owned()],
            error: Some("cut off".to_owned()),
        }],
    }
}
