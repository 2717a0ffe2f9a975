use std::time::Duration;

use super::super::scenarios;
use super::*;
use crate::obstacles::Obstacles;

fn text(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn calicos_annotations_are_restored_and_others_stay() {
    let had = text(&[("projectcalico.org/IPv4Address", "192.0.2.1/24")]);
    let found = text(&[
        ("projectcalico.org/IPv4Address", "192.0.2.1/32"),
        ("projectcalico.org/IPv4VXLANTunnelAddr", "10.244.1.0"),
        ("flannel.alpha.coreos.com/backend-type", "vxlan"),
    ]);
    let change = annotations_change(&found, &had).unwrap();
    assert_eq!(
        Value::Object(change),
        json!({
            "projectcalico.org/IPv4Address": "192.0.2.1/24",
            "projectcalico.org/IPv4VXLANTunnelAddr": null,
        })
    );
    assert_eq!(annotations_change(&had, &had), None);
    // Another node had no annotations.
    let change = annotations_change(&had, &BTreeMap::new()).unwrap();
    assert_eq!(
        Value::Object(change),
        json!({ "projectcalico.org/IPv4Address": null })
    );
    // Another machine's address was saved.
    let other = text(&[("projectcalico.org/IPv4Address", "192.0.2.9/24")]);
    let change = annotations_change(&had, &other).unwrap();
    assert_eq!(
        Value::Object(change),
        json!({ "projectcalico.org/IPv4Address": null })
    );
    assert_eq!(annotations_change(&BTreeMap::new(), &other), None);
}

#[tokio::test]
async fn state_of_a_node_is_saved_in_its_object_and_the_rest_is_returned() {
    let api = scenarios::cluster();
    let migration = || serde_json::from_value(api.get(scenarios::MIGRATION).unwrap()).unwrap();
    super::super::adopt::adopt(&api.context(), &api.cache(), &migration())
        .await
        .unwrap();
    let annotations = json!({ "projectcalico.org/x": "1", "example.org/y": "2" });
    let node = format!("{}/a", scenarios::NODES);
    api.edit(&node, &json!({ "metadata": { "annotations": annotations } }));
    for (name, affinity) in [("10-9-0-0-26", "host:a"), ("10-9-1-0-26", "")] {
        let path = format!("{}/ipamblocks/{name}", scenarios::CALICO_GROUP);
        let kind = "IPAMBlock";
        let version = "crd.projectcalico.org/v1";
        let spec = json!({ "cidr": "10.9.0.0/26", "affinity": affinity });
        api.put(
            &path,
            json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec }),
        );
    }
    let (context, cache) = (api.context(), api.cache());
    // The spec changes between read and write: the result must not claim that everything is saved.
    api.edit(
        &scenarios::node_migration("b"),
        &json!({ "spec": { "position": 1 } }),
    );
    let early = read(&context, &cache, &migration()).await;
    assert!(early.is_ok() && !context.obstacles.is_clear(), "{early:?}");
    context.obstacles.begin_pass();
    let before = read(&context, &api.cache(), &migration()).await.unwrap();
    assert!(context.obstacles.is_clear());
    assert_eq!(known_names(&before, IPAM_BLOCKS).unwrap().len(), 1);
    let object = |node: &str| -> NodeMigration {
        serde_json::from_value(api.get(&scenarios::node_migration(node)).unwrap()).unwrap()
    };
    let saved = of_node(&before, "a", Some(&object("a"))).unwrap();
    assert_eq!(saved.annotations, text(&[("projectcalico.org/x", "1")]));
    assert_eq!(saved.blocks, ["10-9-0-0-26"]);
    assert_eq!(
        object("b").spec.flannel_to_calico.or_empty().saved_state,
        Some(SavedNodeState::default())
    );
}

#[tokio::test]
async fn nodes_that_a_pass_has_no_time_for_are_saved_by_the_next_one() {
    let api = scenarios::cluster();
    let migration: Migration = serde_json::from_value(api.get(scenarios::MIGRATION).unwrap()).unwrap();
    super::super::adopt::adopt(&api.context(), &api.cache(), &migration)
        .await
        .unwrap();
    // So little time that a pass writes one object at most.
    let context = Context {
        obstacles: Obstacles::within(Duration::from_micros(1)),
        ..api.context()
    };
    for passes in 1..500 {
        context.obstacles.begin_pass();
        read(&context, &api.cache(), &migration).await.unwrap();
        let objects = api.below("/apis/replumb.dev/v1alpha1/nodemigrations");
        let is_saved = |object: &&Value| object["spec"]["flannelToCalico"]["savedState"].is_object();
        let saved = objects.iter().filter(is_saved).count();
        if context.obstacles.is_clear() {
            assert_eq!(saved, objects.len());
            assert!(passes > 1, "one pass has saved all {saved} nodes");
            return;
        }
        assert_eq!(context.obstacles.postponed(), objects.len() - saved);
    }
    panic!("500 passes have not saved all nodes");
}

#[test]
fn state_of_a_node_is_read_from_where_it_was_saved() {
    let object = |before: Value| -> NodeMigration {
        serde_json::from_value(json!({
            "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m", "flannelToCalico": { "savedState": before } },
        }))
        .unwrap()
    };
    let mine =
        object(json!({ "annotations": { "projectcalico.org/x": "new" }, "blocks": ["10-244-1-0-24"] }));
    let joined = object(Value::Null);
    let now = text(&[(NODES, IN_NODE_MIGRATIONS), (IPAM_BLOCKS, r#"["10-9-0-0-26"]"#)]);
    let saved = of_node(&now, "a", Some(&mine)).unwrap();
    assert_eq!(saved.annotations["projectcalico.org/x"], "new");
    assert_eq!(
        blocks_of(&now, Some(&saved)).into_iter().collect::<Vec<_>>(),
        ["10-244-1-0-24", "10-9-0-0-26"]
    );
    assert_eq!(of_node(&now, "a", Some(&joined)), Some(SavedNodeState::default()));
    assert_eq!(of_node(&now, "windows", None), None);

    // An earlier version started the migration.
    let earlier = text(&[
        (NODE_ANNOTATIONS, r#"{"a":{"projectcalico.org/x":"old"}}"#),
        (IPAM_BLOCKS, r#"["10-244-1-0-24"]"#),
    ]);
    let saved = of_node(&earlier, "a", Some(&joined)).unwrap();
    assert_eq!(saved.annotations["projectcalico.org/x"], "old");
    assert_eq!(blocks_of(&earlier, Some(&saved)).len(), 1);
    assert_eq!(of_node(&earlier, "b", None), Some(SavedNodeState::default()));

    // An even older version saved nothing: nothing is changed.
    assert_eq!(of_node(&BTreeMap::new(), "a", Some(&joined)), None);
}
