//! The ranges of a cluster in the output of `kops get cluster NAME -o json --full`. The script of kops 1.7 took the old pool
//! from one field and the new pool from another; this module uses the same fields.

use ipnet::IpNet;
use serde_json::Value;

use engine::ranges::{self, Relation};

/// The field with the range of the old pool.
pub const FROM: &str = "spec.nonMasqueradeCIDR";
/// The field with the range of the new pool.
pub const TO: &str = "spec.kubeControllerManager.clusterCIDR";
/// The field with the range of Services.
const SERVICES: &str = "spec.serviceClusterIPRange";
/// The field with the range of the nodes' network.
const NODES: &str = "spec.networkCIDR";

/// The ranges of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// The range of the old pool.
    pub from: IpNet,
    /// The range of the new pool.
    pub to: IpNet,
    /// Other ranges: of Services and of the nodes' network, each with the name of its field. A temporary pod range must not
    /// overlap them either.
    pub others: Vec<(&'static str, IpNet)>,
}

/// Reads the document. The error lists every invalid field with the value found and the value needed.
///
/// # Errors
///
/// The document is not JSON, has not exactly one cluster, or its ranges are missing, malformed or do not fit together.
pub fn read(text: &str) -> Result<Cluster, Vec<String>> {
    let document: Value = serde_json::from_str(text).map_err(|error| {
        vec![format!(
            "the document is not JSON ({error}): create it with `kops get cluster NAME -o json --full`"
        )]
    })?;
    // Some versions print a list with one element.
    let document = match &document {
        Value::Array(clusters) => match clusters.as_slice() {
            [cluster] => cluster,
            others => {
                return Err(vec![format!(
                    "the document has {} clusters, needed one: name it, as in `kops get cluster NAME -o json --full`",
                    others.len()
                )]);
            }
        },
        document => document,
    };
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
                "{field}: missing, needed a range: create the document with --full"
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
    // kops has validated this field. Without a cloud it is empty.
    let nodes = range_of(document, NODES).ok().flatten();
    Ok(Cluster {
        name: name.to_owned(),
        from,
        to,
        others: [(SERVICES, services), (NODES, nodes)]
            .into_iter()
            .filter_map(|(field, range)| Some((field, range?)))
            .collect(),
    })
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
                (SERVICES, "100.64.0.0/13".parse().unwrap()),
                (NODES, "172.20.0.0/16".parse().unwrap()),
            ],
        };
        assert_eq!(read(&cluster().to_string()), Ok(expected.clone()));
        assert_eq!(read(&json!([cluster()]).to_string()), Ok(expected));
    }

    #[test]
    fn an_empty_network_cidr_is_ignored() {
        let mut document = cluster();
        document["spec"]["networkCIDR"] = json!("");
        assert_eq!(
            read(&document.to_string()).unwrap().others,
            [(SERVICES, "100.64.0.0/13".parse().unwrap())]
        );
    }

    #[test]
    fn all_invalid_fields_are_reported_together() {
        let mut document = cluster();
        document["spec"]["nonMasqueradeCIDR"] = json!("100.64.0.0");
        document["spec"]["serviceClusterIPRange"] = json!(13);
        document["spec"]["kubeControllerManager"] = json!({});
        let errors = read(&document.to_string()).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        for (error, field) in errors.iter().zip([FROM, SERVICES, TO]) {
            assert!(error.starts_with(field), "{errors:?}");
        }
    }

    #[rstest]
    #[case::no_json("kind: Cluster", &["kops get cluster"])]
    #[case::two(&json!([cluster(), cluster()]).to_string(), &["2 clusters"])]
    #[case::not_full(&json!({ "spec": {} }).to_string(), &[FROM, TO, "--full"])]
    fn a_document_that_is_no_cluster_is_refused(#[case] text: &str, #[case] words: &[&str]) {
        let errors = read(text).unwrap_err().join("\n");
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
        let errors = read(&document.to_string()).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        for word in words {
            assert!(errors[0].contains(word), "{errors:?}");
        }
    }
}
