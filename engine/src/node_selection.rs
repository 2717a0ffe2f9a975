//! The Nodes that a pod template selects: by node selector and by required node affinity, as the scheduler reads them. Taints are no
//! part of it: they come and go, and pods that run before a taint may stay.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The only field of a Node that an affinity may name.
const NAME_FIELD: &str = "metadata.name";

/// `NodeSelection` is the selection of Nodes by a pod template. Both parts must select a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelection {
    /// `labels` are the labels that a Node must have (`nodeSelector`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `terms` is the list of terms of the required node affinity, one of which must select a Node. Unset if the template has no
    /// required node affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Vec<NodeTerm>>,
}

/// `NodeTerm` is a term of a node affinity. All requirements must be met; a term without any selects no Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTerm {
    /// `labels` is the list of requirements on labels (`matchExpressions`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<NodeRequirement>,
    /// `fields` is the list of requirements on fields (`matchFields`): `metadata.name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<NodeRequirement>,
}

/// `NodeRequirement` is a requirement on a value of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRequirement {
    /// `key` is the key of the label, or the name of the field.
    pub key: String,
    /// `operator` is the comparison.
    pub operator: NodeOperator,
    /// `values` is the list of values for the comparison.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// `NodeOperator` is a comparison of a value of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::EnumString)]
pub enum NodeOperator {
    /// The value is one of those listed.
    In,
    /// The value is missing, or none of those listed.
    NotIn,
    /// The value exists.
    Exists,
    /// The value does not exist.
    DoesNotExist,
    /// The value is an integer greater than the one listed.
    Gt,
    /// The value is an integer less than the one listed.
    Lt,
}

impl NodeSelection {
    /// Whether it selects the Node with this name and these labels.
    pub fn selects(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let by_labels = self
            .labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        let by_terms = self
            .terms
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|term| term.selects(name, labels)));
        by_labels && by_terms
    }

    /// The selection without this label.
    #[must_use]
    pub fn without_label(mut self, key: &str) -> Self {
        self.labels.remove(key);
        self
    }
}

impl NodeTerm {
    fn selects(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let field = |key: &str| (key == NAME_FIELD).then_some(name);
        let label = |key: &str| labels.get(key).map(String::as_str);
        (!self.labels.is_empty() || !self.fields.is_empty())
            && self
                .labels
                .iter()
                .all(|required| required.is_met(label(&required.key)))
            && self
                .fields
                .iter()
                .all(|required| required.is_met(field(&required.key)))
    }
}

impl NodeRequirement {
    fn is_met(&self, found: Option<&str>) -> bool {
        let is_listed = found.is_some_and(|found| self.values.iter().any(|value| value == found));
        let numbers = || {
            let [listed] = self.values.as_slice() else {
                return None;
            };
            Some((found?.parse::<i64>().ok()?, listed.parse::<i64>().ok()?))
        };
        match self.operator {
            NodeOperator::In => is_listed,
            NodeOperator::NotIn => !is_listed,
            NodeOperator::Exists => found.is_some(),
            NodeOperator::DoesNotExist => found.is_none(),
            NodeOperator::Gt => numbers().is_some_and(|(found, listed)| found > listed),
            NodeOperator::Lt => numbers().is_some_and(|(found, listed)| found < listed),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn requirement(key: &str, operator: NodeOperator, values: &[&str]) -> NodeRequirement {
        NodeRequirement {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }
    }

    fn term(labels: Vec<NodeRequirement>) -> NodeTerm {
        NodeTerm {
            labels,
            fields: Vec::new(),
        }
    }

    #[test]
    fn a_template_without_selector_and_affinity_selects_every_node() {
        assert!(NodeSelection::default().selects("a", &labels(&[])));
    }

    #[test]
    fn every_label_of_the_selector_is_needed() {
        let selection = NodeSelection {
            labels: labels(&[("os", "linux"), ("zone", "a")]),
            terms: None,
        };
        assert!(selection.selects("a", &labels(&[("os", "linux"), ("zone", "a"), ("x", "")])));
        assert!(!selection.selects("a", &labels(&[("os", "linux"), ("zone", "b")])));
        assert!(!selection.selects("a", &labels(&[("os", "linux")])));
        let without = selection.without_label("zone");
        assert!(without.selects("a", &labels(&[("os", "linux")])));
    }

    #[rstest]
    #[case::listed(NodeOperator::In, &["edge", "far"], [false, true, false])]
    #[case::not_listed(NodeOperator::NotIn, &["edge"], [true, false, true])]
    #[case::exists(NodeOperator::Exists, &[], [false, true, true])]
    #[case::missing(NodeOperator::DoesNotExist, &[], [true, false, false])]
    #[case::greater(NodeOperator::Gt, &["5"], [false, false, true])]
    #[case::less(NodeOperator::Lt, &["10"], [false, false, true])]
    fn operators(#[case] operator: NodeOperator, #[case] values: &[&str], #[case] expected: [bool; 3]) {
        let selection = NodeSelection {
            labels: BTreeMap::new(),
            terms: Some(vec![term(vec![requirement("role", operator, values)])]),
        };
        let nodes = [labels(&[]), labels(&[("role", "edge")]), labels(&[("role", "7")])];
        assert_eq!(nodes.map(|node| selection.selects("a", &node)), expected);
    }

    #[test]
    fn one_term_is_enough_and_a_term_needs_all_its_requirements() {
        let both = term(vec![
            requirement("a", NodeOperator::Exists, &[]),
            requirement("b", NodeOperator::Exists, &[]),
        ]);
        let other = term(vec![requirement("c", NodeOperator::Exists, &[])]);
        let selection = NodeSelection {
            labels: BTreeMap::new(),
            terms: Some(vec![both, other]),
        };
        assert!(!selection.selects("n", &labels(&[("a", "")])));
        assert!(selection.selects("n", &labels(&[("a", ""), ("b", "")])));
        assert!(selection.selects("n", &labels(&[("c", "")])));
    }

    #[test]
    fn an_empty_term_selects_no_node() {
        for terms in [Vec::new(), vec![NodeTerm::default()]] {
            let selection = NodeSelection {
                labels: BTreeMap::new(),
                terms: Some(terms),
            };
            assert!(!selection.selects("a", &labels(&[("a", "")])));
        }
    }

    #[test]
    fn the_name_of_a_node_is_a_field() {
        let selection = NodeSelection {
            labels: BTreeMap::new(),
            terms: Some(vec![NodeTerm {
                labels: Vec::new(),
                fields: vec![requirement("metadata.name", NodeOperator::NotIn, &["edge-1"])],
            }]),
        };
        assert!(selection.selects("worker-1", &labels(&[])));
        assert!(!selection.selects("edge-1", &labels(&[])));
    }
}
