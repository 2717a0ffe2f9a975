//! What `kops get cluster NAME -o json --full` says of a cluster's ranges: the script of kops 1.7 took the old pool from one field
//! and the new one from another, and so does this.

use ipnet::IpNet;
use serde_json::Value;

use engine::ranges::{self, Relation};

/// The field with the range of the old pool.
pub const FROM: &str = "spec.nonMasqueradeCIDR";
/// The field with the range of the new one.
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
    /// The range of the new one.
    pub to: IpNet,
    /// Ranges that are others': of Services, of the nodes' network; each with the name of its field. A range that pods are in for
    /// a time has to be apart from them, too.
    pub others: Vec<(&'static str, IpNet)>,
}

/// Reads the document. An error is every field that is wrong, each with what was found and what is needed.
pub fn read(text: &str) -> Result<Cluster, Vec<String>> {
    let document: Value = serde_json::from_str(text).map_err(|error| {
        vec![format!(
            "this is no JSON ({error}); make it with `kops get cluster NAME -o json --full`"
        )]
    })?;
    // Some versions answer with a list of one.
    let document = match &document {
        Value::Array(clusters) => match clusters.as_slice() {
            [cluster] => cluster,
            others => {
                return Err(vec![format!(
                    "there are {} clusters in it, needed one: name it, as in `kops get cluster NAME -o json --full`",
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
                "{field}: it is missing; needed a range. Was the document made with --full?"
            ));
        }
    }
    let (Some(from), Some(to)) = (from, to) else {
        return Err(errors);
    };
    match ranges::relation(&from, &to) {
        Relation::Apart | Relation::NewWithinOld => {}
        Relation::Same => errors.push(format!(
            "{TO}: found {to}, the same as {FROM}: the pool has this range already, or kops does not know the new one yet"
        )),
        Relation::OldWithinNew => errors.push(format!(
            "{TO}: found {to}, which holds {FROM} ({from}): every pod is in it already; needed a range within it or apart from it"
        )),
        Relation::OtherFamily => errors.push(format!(
            "{TO}: found {to}, of another family than {FROM} ({from}); needed one of the same"
        )),
    }
    let in_the_way = services.filter(|services| errors.is_empty() && ranges::overlap(services, &to));
    if let Some(services) = in_the_way {
        errors.push(format!(
            "{TO}: found {to}, which shares addresses with {SERVICES} ({services}): a pod would get a Service's; needed a range apart \
             from it"
        ));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    // kops itself has judged it, and without a cloud it says nothing.
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

/// The range in this field; `None` when there is none.
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
    fn a_cluster_of_kops_before_1_7_alone_or_in_a_list() {
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
    fn a_cluster_without_a_cloud_says_nothing_of_its_nodes() {
        let mut document = cluster();
        document["spec"]["networkCIDR"] = json!("");
        assert_eq!(
            read(&document.to_string()).unwrap().others,
            [(SERVICES, "100.64.0.0/13".parse().unwrap())]
        );
    }

    #[test]
    fn every_wrong_field_is_named_in_one_go() {
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
    fn what_is_no_cluster_is_refused(#[case] text: &str, #[case] words: &[&str]) {
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
    #[case::around("/spec/kubeControllerManager/clusterCIDR", json!("100.0.0.0/8"), &[TO, "holds"])]
    #[case::family("/spec/kubeControllerManager/clusterCIDR", json!("fd00::/64"), &[TO, "another family"])]
    #[case::services("/spec/kubeControllerManager/clusterCIDR", json!("100.64.0.0/12"), &[TO, SERVICES])]
    fn what_is_wrong_is_named_with_its_field(
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
