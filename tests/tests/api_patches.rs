//! How a real API server handles the coordinator's patches of single fields: which it applies, and which it refuses
//! because the object has changed since it was read.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_patches -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test says that it failed by a panic")]

mod editor;

use api::names;
use coordinator::failure::Failure as _;
use coordinator::write::{self, WriteError};
use editor::{Edits, edited_before_each_change};
use engine::field_patch::{Basis, FieldPatch, pointer};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lab::apilab::ApiLab;
use serde_json::{Value, json};

async fn coordinator() -> Client {
    let lab = ApiLab::shared().unwrap();
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    lab.with_token(&token).await.unwrap()
}

fn of<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

fn config_map(data: &Value) -> ConfigMap {
    of(json!({ "metadata": { "name": "subject" }, "data": data }))
}

/// The change of an object between the read and the write.
enum Meanwhile {
    Nothing,
    Edited(Value),
    MadeAgain,
}

/// The answer to a patch of a `ConfigMap` with this data. The patch depends on `/data/basis`, and writes `/data/written`.
async fn answer(
    api: &Api<ConfigMap>,
    data: &Value,
    meanwhile: Meanwhile,
) -> (Result<ConfigMap, WriteError>, bool) {
    api.delete("subject", &DeleteParams::default()).await.ok();
    let read = api
        .create(&PostParams::default(), &config_map(data))
        .await
        .unwrap();
    let basis = Basis {
        fields: vec![pointer(["data", "basis"])],
        members: &[],
    };
    let change = json!({ "data": { "written": "now" } });
    let patch = FieldPatch::new(&serde_json::to_value(&read).unwrap(), &basis, &change);
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Edited(edit) => {
            let edit = Patch::Merge(edit);
            api.patch("subject", &PatchParams::default(), &edit)
                .await
                .unwrap();
        }
        Meanwhile::MadeAgain => {
            api.delete("subject", &DeleteParams::default()).await.unwrap();
            api.create(&PostParams::default(), &config_map(data))
                .await
                .unwrap();
        }
    }
    let now = serde_json::to_value(api.get("subject").await.unwrap()).unwrap();
    let holds = patch.holds(&now);
    let answer = write::patch_fields(api, "subject", ("patching", "ConfigMap subject"), &patch).await;
    (answer, holds)
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_patch_is_applied_only_if_its_basis_is_unchanged() {
    let lab = ApiLab::shared().unwrap();
    lab.namespace("patches").await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(lab.admin().await.unwrap(), "patches");
    let edited = |edit: Value| Meanwhile::Edited(edit);
    let data = |field: &str, value: Value| json!({ "data": { field: value } });
    let both = json!({ "basis": "b", "written": "w" });
    let other = json!({ "other": "o" });
    let none = Value::Null;
    let cases = [
        // Data, the change meanwhile, and whether the patch is applied.
        (&both, Meanwhile::Nothing, true),
        (&other, Meanwhile::Nothing, true),
        (&none, Meanwhile::Nothing, true),
        (&both, edited(data("other", json!("x"))), true),
        (
            &both,
            edited(json!({ "metadata": { "labels": { "a": "b" } } })),
            true,
        ),
        (
            &none,
            edited(json!({ "metadata": { "annotations": { "a": "b" } } })),
            true,
        ),
        (&both, edited(data("basis", json!("x"))), false),
        (&both, edited(data("basis", Value::Null)), false),
        (&both, edited(data("written", json!("x"))), false),
        (&both, edited(data("written", Value::Null)), false),
        (&other, edited(data("basis", json!("x"))), false),
        (&other, edited(data("written", json!("x"))), false),
        // Without data before, all of it is compared; without data now, no field of it can be compared.
        (&none, edited(data("other", json!("x"))), false),
        (&other, edited(data("other", Value::Null)), false),
        (&both, edited(json!({ "data": null })), false),
        (&both, Meanwhile::MadeAgain, false),
    ];
    for (number, (data, meanwhile, applied)) in cases.into_iter().enumerate() {
        let (answer, holds) = answer(&api, data, meanwhile).await;
        assert_eq!(holds, applied, "case {number}");
        match answer {
            Ok(written) => assert!(
                applied && written.data.unwrap()["written"] == "now",
                "case {number}"
            ),
            Err(error) => assert!(!applied && error.is_conflict(), "case {number}: {error:?}"),
        }
    }
}

/// The API server compares serialized values, so some values are not equal to themselves.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_unchanged_value_is_never_a_conflict() {
    let lab = ApiLab::shared().unwrap();
    lab.namespace("patches-values").await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(lab.admin().await.unwrap(), "patches-values");
    let printed = (' '..='~').collect::<String>();
    let controls = (1..0x20).filter_map(char::from_u32);
    let others = "\u{7f}\u{80}\u{a0}é\u{2028}\u{2029}\u{feff}\u{fffd}😀".chars();
    let single = printed.chars().chain(controls).chain(others).map(String::from);
    let texts = [
        "",
        "a & b",
        "<none>",
        "\"quoted\" \\ back",
        "{\"a\":1}",
        "null",
        "1.0",
        "two\nlines\r\n\tand a tab",
    ];
    for text in single.chain(texts.map(str::to_owned)).chain([printed.clone()]) {
        for data in [json!({ "basis": text }), json!({ "written": text })] {
            let (answer, holds) = answer(&api, &data, Meanwhile::Nothing).await;
            assert!(holds, "{text:?}");
            assert_eq!(answer.unwrap().data.unwrap()["written"], "now", "{text:?}");
            let edit = Meanwhile::Edited(json!({ "data": { "basis": "x", "written": "x" } }));
            let (answer, holds) = self::answer(&api, &data, edit).await;
            assert!(!holds && answer.unwrap_err().is_conflict(), "{text:?}");
        }
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn items_of_a_list_get_a_field_and_keep_the_changes_of_others() {
    let lab = ApiLab::shared().unwrap();
    lab.namespace("patches-lists").await.unwrap();
    let api: Api<Service> = Api::namespaced(lab.admin().await.unwrap(), "patches-lists");
    let (a, b) = (
        json!({ "name": "a", "port": 80, "targetPort": 1 }),
        json!({ "name": "b", "port": 81 }),
    );
    let replaced = |path: &str, value: Value| {
        let patch = json!([{ "op": "replace", "path": path, "value": value }]);
        Patch::Json::<()>(serde_json::from_value(patch).unwrap())
    };
    for (edit, applied) in [
        (replaced("/spec/ports/0/targetPort", json!(2)), true),
        (replaced("/spec/ports", json!([b, a])), false),
        (replaced("/spec/ports", json!([a])), false),
    ] {
        api.delete("web", &DeleteParams::default()).await.ok();
        let web = json!({ "metadata": { "name": "web" }, "spec": { "ports": [a, b] } });
        let read = api.create(&PostParams::default(), &of(web)).await.unwrap();
        let read = serde_json::to_value(read).unwrap();
        let mut ports = read["spec"]["ports"].clone();
        ports[1]["appProtocol"] = json!("http");
        let basis = Basis {
            fields: Vec::new(),
            members: &["name", "port", "protocol"],
        };
        let patch = FieldPatch::new(&read, &basis, &json!({ "spec": { "ports": ports } }));
        api.patch("web", &PatchParams::default(), &edit).await.unwrap();
        let answer = write::patch_fields(&api, "web", ("patching", "Service web"), &patch).await;
        match answer {
            Ok(_) => assert!(applied),
            Err(error) => assert!(!applied && error.is_conflict(), "{error:?}"),
        }
        let now = serde_json::to_value(api.get("web").await.unwrap()).unwrap();
        assert_eq!(now["spec"]["ports"][1]["appProtocol"] == "http", applied);
        assert_eq!(
            now["spec"]["ports"][0]["targetPort"] == 2,
            applied,
            "the other change is kept"
        );
    }
}

/// The API server returns some fields of a Service in another form than it stores them: `internalTrafficPolicy` stays
/// in a Service that becomes an `ExternalName`, but is not returned.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_field_stored_in_another_form_than_returned_is_no_conflict() {
    let lab = ApiLab::shared().unwrap();
    lab.namespace("patches-stored").await.unwrap();
    let api: Api<Service> = Api::namespaced(lab.admin().await.unwrap(), "patches-stored");
    let web = json!({ "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] } });
    api.create(&PostParams::default(), &of(web)).await.unwrap();
    let away = json!({ "spec": { "type": "ExternalName", "externalName": "a.b", "clusterIP": null, "clusterIPs": null } });
    let read = api
        .patch("web", &PatchParams::default(), &Patch::Merge(away))
        .await
        .unwrap();
    let read = serde_json::to_value(read).unwrap();
    assert_eq!(read["spec"]["internalTrafficPolicy"], Value::Null);
    let basis = Basis {
        fields: vec![pointer(["spec", "internalTrafficPolicy"])],
        members: &[],
    };
    let change = |port: u16| json!({ "spec": { "ports": [{ "port": port }] } });
    let patch = FieldPatch::new(&read, &basis, &change(81));
    let sent = Patch::Json::<()>(serde_json::from_value(patch.operations()).unwrap());
    let answer = api.patch("web", &PatchParams::default(), &sent).await;
    assert!(
        matches!(&answer, Err(kube::Error::Api(status)) if status.code == 422),
        "the API server behaves differently than measured: {answer:?}"
    );
    let attempt = ("patching", "Service web");
    let written = write::patch_fields(&api, "web", attempt, &patch).await.unwrap();
    assert_eq!(written.spec.unwrap().ports.unwrap()[0].port, 81);
    // An invalid value is refused with the API server's message.
    let read = serde_json::to_value(api.get("web").await.unwrap()).unwrap();
    let patch = FieldPatch::new(&read, &basis, &change(0));
    let error = write::patch_fields(&api, "web", attempt, &patch)
        .await
        .unwrap_err();
    assert!(
        error.refusal().is_some_and(|words| words.contains("spec.ports")),
        "{error:?}"
    );
}

/// Another Service has the address. The API server reports it, however often the owner edits this Service: a conflict
/// would hide the message.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_taken_address_is_a_refusal_although_the_object_changes_all_the_time() {
    let lab = ApiLab::shared().unwrap();
    lab.namespace("patches-taken").await.unwrap();
    let admin = lab.admin().await.unwrap();
    let edits = Edits {
        path: "/api/v1/namespaces/patches-taken/services/web".to_owned(),
        patch: |number| json!({ "metadata": { "labels": { "edit": format!("e{number}") } } }),
    };
    let api: Api<Service> = Api::namespaced(
        edited_before_each_change(&admin, &admin, vec![edits]),
        "patches-taken",
    );
    let ports = json!([{ "port": 80 }]);
    let holder = json!({ "metadata": { "name": "holder" }, "spec": { "ports": ports } });
    let holder = api.create(&PostParams::default(), &of(holder)).await.unwrap();
    let address = holder.spec.unwrap().cluster_ip.unwrap();
    let away = json!({ "metadata": { "name": "web" }, "spec": { "type": "ExternalName", "externalName": "a.b", "ports": ports } });
    let read = api.create(&PostParams::default(), &of(away)).await.unwrap();
    let read = serde_json::to_value(read).unwrap();
    let basis = Basis {
        fields: vec![pointer(["spec", "type"])],
        members: &[],
    };
    let change = json!({ "spec": { "type": "ClusterIP", "externalName": null, "clusterIP": address, "clusterIPs": [address] } });
    let patch = FieldPatch::new(&read, &basis, &change);
    let error = write::patch_fields(&api, "web", ("patching", "Service web"), &patch)
        .await
        .unwrap_err();
    assert!(
        error
            .refusal()
            .is_some_and(|words| words.contains("already allocated")),
        "{error:?}"
    );
}

/// The result of the coordinator's write of this Node with its own token, after one read and this change meanwhile.
async fn labelled_after(name: &str, edit: Option<Value>, network: &str) -> Result<Node, WriteError> {
    let lab = ApiLab::shared().unwrap();
    lab.node(name).await.unwrap();
    let admin: Api<Node> = Api::all(lab.admin().await.unwrap());
    // Every real Node has labels and annotations.
    let own = json!({ "metadata": { "labels": { "own": "x" }, "annotations": { "own": "x" } } });
    admin
        .patch(name, &PatchParams::default(), &Patch::Merge(own))
        .await
        .unwrap();
    let api: Api<Node> = Api::all(coordinator().await);
    let read = api.get(name).await.unwrap();
    if let Some(edit) = edit {
        let edit = Patch::Merge(edit);
        admin.patch(name, &PatchParams::default(), &edit).await.unwrap();
    }
    let change = json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: network } } });
    write::patch(&api, &read, "labelling", &change).await
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_node_is_written_unless_the_basis_of_the_decision_has_changed() {
    let words = |field: &str, name: &str| json!({ "metadata": { field: { name: "x" } } });
    for (number, edit) in [
        words("labels", "stranger"),
        words("annotations", "stranger"),
        json!({ "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }] } }),
    ]
    .into_iter()
    .enumerate()
    {
        let node = labelled_after(&format!("written-{number}"), Some(edit), "calico")
            .await
            .unwrap();
        assert_eq!(node.metadata.labels.unwrap()[names::NODE_NETWORK_LABEL], "calico");
    }
    for (number, edit) in [
        json!({ "spec": { "unschedulable": true } }),
        json!({ "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] } }),
        words("annotations", names::CORDONED_BY_ANNOTATION),
        words("labels", names::NODE_NETWORK_LABEL),
    ]
    .into_iter()
    .enumerate()
    {
        let error = labelled_after(&format!("changed-{number}"), Some(edit), "calico")
            .await
            .unwrap_err();
        assert!(error.is_conflict(), "{number}: {error:?}");
    }
    // A refusal keeps its message: it is not a conflict.
    let error = labelled_after("refused", None, "not a label!").await.unwrap_err();
    assert!(!error.is_conflict(), "{error:?}");
    assert!(error.refusal().is_some_and(|words| words.len() > 20), "{error:?}");
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn objects_that_are_edited_before_each_write_are_written_after_one_read() {
    let lab = ApiLab::shared().unwrap();
    lab.namespace("patches-edited").await.unwrap();
    lab.node("edited").await.unwrap();
    let admin = lab.admin().await.unwrap();
    let labels = json!({ "app": "set" });
    let sets: Api<DaemonSet> = Api::namespaced(admin.clone(), "patches-edited");
    let set = json!({
        "metadata": { "name": "set" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "main", "image": "nothing" }] } },
        },
    });
    sets.create(&PostParams::default(), &of(set)).await.unwrap();
    let words = |number: usize| {
        let words = json!({ "stranger": number.to_string() });
        json!({ "metadata": { "labels": words, "annotations": words } })
    };
    for path in [
        "/api/v1/nodes/edited",
        "/apis/apps/v1/namespaces/patches-edited/daemonsets/set",
    ] {
        // Labels and annotations exist already: adding the first one is a conflict once.
        let first = Patch::Merge(words(0));
        let request = kube::core::Request::new(path.rsplit_once('/').unwrap().0)
            .patch(path.rsplit_once('/').unwrap().1, &PatchParams::default(), &first)
            .unwrap();
        admin.request_text(request).await.unwrap();
    }
    let edits = [
        "/api/v1/nodes/edited",
        "/apis/apps/v1/namespaces/patches-edited/daemonsets/set",
    ]
    .map(|path| Edits {
        path: path.to_owned(),
        patch: words,
    });
    let own = edited_before_each_change(&coordinator().await, &admin, edits.to_vec());
    let nodes: Api<Node> = Api::all(own);
    for network in ["flannel", "none", "calico"] {
        let read = nodes.get("edited").await.unwrap();
        let change = json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: network } } });
        let written = write::patch(&nodes, &read, "labelling", &change).await.unwrap();
        assert_eq!(
            written.metadata.labels.unwrap()[names::NODE_NETWORK_LABEL],
            network
        );
    }
    // The coordinator's own token may write only the DaemonSets of the migration.
    let own = edited_before_each_change(&admin, &admin, edits.to_vec());
    let sets: Api<DaemonSet> = Api::namespaced(own, "patches-edited");
    for network in ["flannel", "calico"] {
        let read = sets.get("set").await.unwrap();
        let selector = json!({ names::NODE_NETWORK_LABEL: network });
        let change = json!({ "spec": { "template": { "spec": { "nodeSelector": selector } } } });
        let written = write::patch(&sets, &read, "restricting", &change).await.unwrap();
        let template = written.spec.unwrap().template.spec.unwrap();
        assert_eq!(
            template.node_selector.unwrap()[names::NODE_NETWORK_LABEL],
            network
        );
    }
}
