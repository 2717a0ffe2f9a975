//! Configuration of name servers: the `ConfigMap`s that their pods mount, and the Corefile in one of them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use super::pods::PodDetails;

/// Key of a `ConfigMap` with a Corefile, as in every distribution.
const COREFILE: &str = "Corefile";

/// Namespace and name of each `ConfigMap` that these pods mount.
pub fn mounted_config_maps<'pods>(
    pods: impl Iterator<Item = (&'pods (String, String), &'pods PodDetails)>,
) -> BTreeSet<(String, String)> {
    pods.flat_map(|((namespace, _), more)| {
        more.config_maps
            .iter()
            .map(|name| (namespace.clone(), name.clone()))
    })
    .collect()
}

/// The Corefile of a `ConfigMap`, with the object's name; `None` without one.
pub fn corefile(map: &ConfigMap) -> Option<(String, String)> {
    let text = map.data.as_ref()?.get(COREFILE)?.clone();
    let object = format!(
        "ConfigMap {}/{}",
        map.namespace().unwrap_or_default(),
        map.name_any()
    );
    Some((object, text))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::super::pods::details;
    use super::*;

    #[test]
    fn the_corefile_of_a_mounted_config_map_is_found() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "namespace": "kube-system", "name": "coredns-1" },
            "spec": { "containers": [], "volumes": [
                { "name": "config", "configMap": { "name": "coredns", "items": [{ "key": "Corefile", "path": "Corefile" }] } },
                { "name": "tmp", "emptyDir": {} },
            ] },
        }))
        .unwrap();
        let name = ("kube-system".to_owned(), "coredns-1".to_owned());
        let more = details(&pod).unwrap();
        let maps = mounted_config_maps([(&name, &more)].into_iter());
        assert_eq!(
            maps,
            BTreeSet::from([("kube-system".to_owned(), "coredns".to_owned())])
        );
        let map = |data| {
            serde_json::from_value::<ConfigMap>(json!({
                "metadata": { "namespace": "kube-system", "name": "coredns" }, "data": data,
            }))
            .unwrap()
        };
        let found = corefile(&map(json!({ "Corefile": ".:53 {}" })));
        assert_eq!(
            found,
            Some(("ConfigMap kube-system/coredns".to_owned(), ".:53 {}".to_owned()))
        );
        assert_eq!(corefile(&map(json!({ "other": "" }))), None);
    }
}
