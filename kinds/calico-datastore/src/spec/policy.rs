//! The spec of a policy.

use serde::{Serialize, Serializer};

use crate::rule::Rule;

/// A policy in v3.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<Rule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<Rule>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    pub types: Vec<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub do_not_track: bool,
    #[serde(rename = "preDNAT", skip_serializing_if = "std::ops::Not::not")]
    pub pre_dnat: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub apply_on_forward: bool,
}

/// Order of a policy among all, the smallest first.
#[derive(Debug)]
pub struct Order(pub f64);

/// Writes the shortest digits with the same value, as Go does; a whole number has no fraction.
impl Serialize for Order {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits = self.0.to_string();
        match (digits.parse(), digits.parse()) {
            (Ok(whole), _) => serializer.serialize_i64(whole),
            (_, Ok(whole)) => serializer.serialize_u64(whole),
            _ => serializer.serialize_f64(self.0),
        }
    }
}
