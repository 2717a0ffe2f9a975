//! The ranges of a cluster in the output of `kops get cluster NAME -o yaml --full`, or in a file for `kops replace -f`. The script of kops 1.7 took the old pool
//! from one field and the new pool from another; this module uses the same fields.

use ipnet::IpNet;
use serde_json::Value;

use engine::ranges::{self, Relation};
use engine::words::number;

/// The field with the range of the old pool.
pub const FROM: &str = "spec.nonMasqueradeCIDR";
/// The field with the range of the new pool.
pub const TO: &str = "spec.kubeControllerManager.clusterCIDR";
/// The field with the range of Services.
const SERVICES: &str = "spec.serviceClusterIPRange";
/// The field with further networks of the nodes.
const NETWORKS: &str = "additionalNetworkCIDRs";

/// The ranges of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// The range of the old pool.
    pub from: IpNet,
    /// The range of the new pool.
    pub to: IpNet,
    /// Every other range that the document says, each with the name of its field. A temporary pod range must not overlap them
    /// either.
    pub others: Vec<(String, IpNet)>,
}

/// The command that writes such a document.
const COMMAND: &str = "kops get cluster NAME -o yaml --full";

/// Reads the documents of a file, of which one is a cluster. The error lists every invalid field with the value found and the value
/// needed.
///
/// # Errors
///
/// The file has not exactly one cluster, or its ranges are missing, malformed or do not fit together.
pub fn read(documents: &[Value]) -> Result<Cluster, Vec<String>> {
    // Some versions print a list with one element. The file for kops itself has instance groups and keys, too.
    let all = documents.iter().flat_map(|document| match document {
        Value::Array(items) => items.as_slice(),
        other => std::slice::from_ref(other),
    });
    let is_cluster = |document: &&Value| document["kind"] == "Cluster" || document["kind"].is_null();
    let clusters: Vec<&Value> = all.filter(is_cluster).collect();
    let [document] = clusters.as_slice() else {
        return Err(vec![format!(
            "found {}, needed one: name it, as in `{COMMAND}`",
            number(clusters.len(), "cluster", "clusters")
        )]);
    };
    let document = *document;
    let mut errors = Vec::new();
    let mut range = |field: &str| match range_of(document, field) {
        Ok(range) => range,
        Err(error) => {
            errors.push(error);
            None
        }
    };
    let (from, to, services) = (range(FROM), range(TO), range(SERVICES));
    for (field, range) in [(FROM, from), (TO, to)] {
        if range.is_none() && !errors.iter().any(|error| error.starts_with(field)) {
            errors.push(format!(
                "{field}: missing, needed a range: `{COMMAND}` prints the defaults of kops, too. Still missing there, the pods of this \
                 cluster have addresses of the cloud's network, or of another IPAM than Calico's"
            ));
        }
    }
    let (Some(from), Some(to)) = (from, to) else {
        return Err(errors);
    };
    match ranges::relation(&from, &to) {
        Relation::Apart | Relation::NewWithinOld => {}
        Relation::Same => errors.push(format!(
            "{TO}: found {to}, the same as {FROM}: the pool has this range already, or the kops spec does not have the new \
             range yet"
        )),
        Relation::OldWithinNew => errors.push(format!(
            "{TO}: found {to}, which contains {FROM} ({from}), so every pod is in it already; needed a range within {from} or \
             apart from it"
        )),
        Relation::OtherFamily => errors.push(format!(
            "{TO}: found {to}, of another family than {FROM} ({from}), needed a range of the same family"
        )),
    }
    let mut others = Vec::new();
    every_range(&document["spec"], "spec", &mut others);
    others.retain(|(field, _)| ![FROM, TO].contains(&field.as_str()));
    // The other networks of the nodes, which kops does not compare with the range of pods.
    let mut networks = others.iter().filter(|(field, _)| field.contains(NETWORKS));
    if let Some((field, network)) =
        networks.find(|(_, network)| errors.is_empty() && ranges::overlap(network, &to))
    {
        errors.push(format!(
            "{TO}: found {to}, which overlaps {field} ({network}): a pod could get the address of a node; needed a range that does not \
             overlap it"
        ));
    }
    let in_the_way = services.filter(|services| errors.is_empty() && ranges::overlap(services, &to));
    if let Some(services) = in_the_way {
        errors.push(format!(
            "{TO}: found {to}, which overlaps {SERVICES} ({services}): a pod could get the address of a Service; needed a range \
             that does not overlap it"
        ));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    Ok(Cluster {
        name: name.to_owned(),
        from,
        to,
        others,
    })
}

/// Every text in the value that is a range, with the path of its field. A range of every address is a permission, not a network.
fn every_range(value: &Value, path: &str, found: &mut Vec<(String, IpNet)>) {
    match value {
        Value::String(text) => {
            let range = text.parse::<IpNet>().ok().filter(|range| range.prefix_len() > 0);
            found.extend(range.map(|range| (path.to_owned(), range.trunc())));
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                every_range(item, &format!("{path}[{index}]"), found);
            }
        }
        Value::Object(fields) => {
            for (field, value) in fields {
                every_range(value, &format!("{path}.{field}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The range in this field; `None` if the field is unset.
fn range_of(document: &Value, field: &str) -> Result<Option<IpNet>, String> {
    let found = field.split('.').fold(document, |value, part| &value[part]);
    match found {
        Value::Null => Ok(None),
        Value::String(text) => ranges::read(text)
            .map(Some)
            .map_err(|problem| format!("{field}: {problem}")),
        other => Err(format!("{field}: found {other}, needed a range in quotes")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn cluster() -> Value {
        json!({
            "metadata": { "name": "k.example.com" },
            "spec": {
                "nonMasqueradeCIDR": "100.64.0.0/10",
                "serviceClusterIPRange": "100.64.0.0/13",
                "networkCIDR": "172.20.0.0/16",
                "kubeControllerManager": { "clusterCIDR": "100.96.0.0/11" },
            },
        })
    }

    #[test]
    fn a_cluster_is_read_alone_or_from_a_list() {
        let expected = Cluster {
            name: "k.example.com".to_owned(),
            from: "100.64.0.0/10".parse().unwrap(),
            to: "100.96.0.0/11".parse().unwrap(),
            others: vec![
                ("spec.networkCIDR".to_owned(), "172.20.0.0/16".parse().unwrap()),
                (SERVICES.to_owned(), "100.64.0.0/13".parse().unwrap()),
            ],
        };
        let group = json!({ "kind": "InstanceGroup", "metadata": { "name": "nodes" }, "spec": {} });
        for documents in [
            vec![cluster()],
            vec![json!([cluster()])],
            vec![group.clone(), cluster(), group],
        ] {
            assert_eq!(read(&documents), Ok(expected.clone()));
        }
    }

    #[test]
    fn an_empty_network_cidr_is_ignored() {
        let mut document = cluster();
        document["spec"]["networkCIDR"] = json!("");
        assert_eq!(
            read(&[document.clone()]).unwrap().others,
            [(SERVICES.to_owned(), "100.64.0.0/13".parse().unwrap())]
        );
    }

    /// kops#8470, kops PR#14997.
    #[test]
    fn every_range_of_the_document_is_kept() {
        let mut document = cluster();
        document["spec"]["additionalNetworkCIDRs"] = json!(["172.28.0.0/16"]);
        document["spec"]["subnets"] = json!([{ "name": "a", "cidr": "172.20.32.0/19" }]);
        document["spec"]["sshAccess"] = json!(["0.0.0.0/0", "203.0.113.0/24"]);
        let others = read(&[document.clone()]).unwrap().others;
        let fields: Vec<&str> = others.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.additionalNetworkCIDRs[0]",
                "spec.networkCIDR",
                "spec.serviceClusterIPRange",
                "spec.sshAccess[1]",
                "spec.subnets[0].cidr"
            ]
        );
        document["spec"]["additionalNetworkCIDRs"] = json!(["100.97.0.0/16"]);
        let errors = read(&[document.clone()]).unwrap_err();
        assert!(
            errors[0].contains("spec.additionalNetworkCIDRs[0] (100.97.0.0/16)"),
            "{errors:?}"
        );
    }

    #[test]
    fn all_invalid_fields_are_reported_together() {
        let mut document = cluster();
        document["spec"]["nonMasqueradeCIDR"] = json!("100.64.0.0");
        document["spec"]["serviceClusterIPRange"] = json!(13);
        document["spec"]["kubeControllerManager"] = json!({});
        let errors = read(&[document.clone()]).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        for (error, field) in errors.iter().zip([FROM, SERVICES, TO]) {
            assert!(error.starts_with(field), "{errors:?}");
        }
    }

    #[rstest]
    #[case::none(json!({ "kind": "InstanceGroup" }), &["0 clusters", "kops get cluster"])]
    #[case::two(json!([cluster(), cluster()]), &["2 clusters"])]
    #[case::not_full(json!({ "spec": {} }), &[FROM, TO, "--full"])]
    fn a_document_that_is_no_cluster_is_refused(#[case] document: Value, #[case] words: &[&str]) {
        let errors = read(&[document]).unwrap_err().join("\n");
        for word in words {
            assert!(errors.contains(word), "{errors}");
        }
    }

    #[rstest]
    #[case::missing("/spec/kubeControllerManager", json!({}), &[TO, "missing"])]
    #[case::malformed("/spec/nonMasqueradeCIDR", json!("100.64.0.0"), &[FROM, "\"100.64.0.0\"", "needed a range"])]
    #[case::bits("/spec/kubeControllerManager/clusterCIDR", json!("100.97.0.0/11"), &[TO, "100.96.0.0/11"])]
    #[case::a_number("/spec/nonMasqueradeCIDR", json!(100), &[FROM, "found 100"])]
    #[case::equal("/spec/kubeControllerManager/clusterCIDR", json!("100.64.0.0/10"), &[TO, "the same as", FROM])]
    #[case::around("/spec/kubeControllerManager/clusterCIDR", json!("100.0.0.0/8"), &[TO, "contains"])]
    #[case::family("/spec/kubeControllerManager/clusterCIDR", json!("fd00::/64"), &[TO, "another family"])]
    #[case::services("/spec/kubeControllerManager/clusterCIDR", json!("100.64.0.0/12"), &[TO, SERVICES])]
    fn an_invalid_range_is_reported_with_its_field(
        #[case] pointer: &str,
        #[case] value: Value,
        #[case] words: &[&str],
    ) {
        let mut document = cluster();
        *document.pointer_mut(pointer).unwrap() = value;
        let errors = read(&[document.clone()]).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        for word in words {
            assert!(errors[0].contains(word), "{errors:?}");
        }
    }
}
