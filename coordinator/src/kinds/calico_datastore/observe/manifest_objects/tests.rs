use super::super::super::manifest::manifest;
use super::*;
use crate::fake_api::FakeApi;
use crate::lenient_requests::PAGE;

#[test]
fn a_refusal_omits_the_long_object() {
    let long = format!(
        "patch: Invalid value: \"{{{}}}\": json: cannot unmarshal",
        "x".repeat(300)
    );
    assert_eq!(
        without_object(&long),
        "patch: Invalid value: \"{…}\": json: cannot unmarshal"
    );
    assert_eq!(without_object("denied by {a}"), "denied by {a}");
}

#[test]
fn invalid_yaml_and_an_empty_manifest_are_refused() {
    assert!(manifest("a: [").unwrap_err()[0].contains("not valid YAML"));
    assert!(manifest("").unwrap_err()[0].contains("DaemonSet with a container calico-node: 0"));
}

/// Of each Node only the missing images are kept: its kubelet may report a hundred images.
#[tokio::test]
async fn missing_images_are_read_page_by_page() {
    let api = FakeApi::default();
    let count = 2 * usize::try_from(PAGE).unwrap() + 1;
    for number in 0..count {
        let name = format!("node-{number:04}");
        let image = if number == 7 {
            "calico/node:v2"
        } else {
            "quay.io/calico/node:v3"
        };
        api.put(
                &format!("/api/v1/nodes/{name}"),
                json!({
                    "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
                    "status": { "images": [{ "names": [image], "sizeBytes": 1 }] },
                }),
            );
    }
    let images = ["calico/node:v3", "ode:v3"].map(str::to_owned).into();
    let found = without_images(&api.context(), &api.cache(), &images)
        .await
        .unwrap();
    assert_eq!(found["calico/node:v3"], ["node-0007"]);
    assert_eq!(found["ode:v3"].len(), count, "a part of a name is another image");
    assert_eq!(api.take_reads().len(), 3);
}
